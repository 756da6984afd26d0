"""The plan that a processor's gemm carries is the best one for the operands that it has, whichever pass gave it them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from test_cpu_gemm import check, interpreted, kernel_for, product
from test_cpu_tiles import MACHINE, scaled

from tilewright.ir import Function, find
from tilewright.kernels.matmul import matmul
from tilewright.machine import TilePlan
from tilewright.ops import Gemm
from tilewright.passes.context import Context
from tilewright.passes.manager import run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.passes.tile.gemms.gemm_candidates import candidates_of
from tilewright.targets.cpu.arch import arch

TYPES = [("int8", "int8", "int32"), ("int8", "uint4", "int32"), ("bfloat16", "bfloat16", "float32"),
         ("float16", "int8", "float32")]  # fmt: skip
PROGRAMS: dict[str, Function] = {
    f"{a} by {b} in {rows} rows{', packed' * packed}": product.trace(
        100, 64, 256, a, b, c, transpose_B=True, packed=packed, block_M=rows, block_K=64
    ).function
    for a, b, c in TYPES
    for rows, packed in ((4, True), (16, True), (64, False))
}
PROGRAMS |= {
    f"{dtype} copied once for all blocks": matmul.trace(
        np.zeros((150, 256), np.float32), np.zeros((256, 512), np.float32), dtype=dtype, accumulate=c, out=c
    ).function
    for dtype, c in (("int8", "int32"), ("bfloat16", "float32"), ("float32", "float32"))
}
PROGRAMS["scaled and shifted"] = scaled.trace(70, 48, 256, 64, "rows").function


@pytest.mark.parametrize("machine", [MACHINE, "avx512-vnni", "neon-i8mm-bf16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_follow_operands(name: str, machine: str) -> None:
    """From the choice to the lowering."""
    context, names = Context(arch({"arch": machine})), [step.name for step in PIPELINE]
    _, traces = run_passes(PROGRAMS[name], PIPELINE[: names.index("lower_tiles")], context)
    for trace in traces[[one.name for one in traces].index("select_instructions") :]:
        gemms = list(find(trace.function.body, Gemm))
        assert gemms
        for gemm in gemms:
            assert gemm.plan == candidates_of(gemm, 1, context.arch, by_rows=False, tiles={})[0][0], trace.name


def test_few_rows_say_why_the_matrix_unit_does_not_take_them() -> None:
    few, many = (
        kernel_for(MACHINE, 37, 64, 256, "int8", "int8", "int32", True, block_M=m, block_K=64) for m in (4, 16)
    )
    assert "gemm: cpu.tile_ss on tiles of 64 along k" in many.explain() and "not cpu" not in many.explain()
    assert "on vectors of 16 columns, a shifted b (not cpu.tile_ss: vectors multiply 4 rows sooner)" in few.explain()


@pytest.mark.parametrize(("block_K", "reason"), [
    (16, "steps of 16 along k fill too few tiles"),
    (6, "totals of k = 6 are not scaled, promoted and shifted after runs of 4"),
])  # fmt: skip
def test_steps_along_k_say_why(block_K: int, reason: str) -> None:
    kernel = kernel_for(MACHINE, 16, 64, 96, "int8", "uint8", "int32", True, block_K=block_K)
    assert f"not cpu.tile_su: {reason}" in kernel.explain()


def test_element_by_element() -> None:
    kernel = kernel_for("avx2", 16, 32, 64, "uint64", "int64", "int64", True)
    assert "gemm: scalar products (no matrix instruction for these types)" in kernel.explain()


def test_candidates_are_best_first() -> None:
    """The matrix unit, then vectors; each says what is against those before it."""
    (gemm,) = find(PROGRAMS["int8 by int8 in 64 rows"].body, Gemm)
    found = candidates_of(gemm, 1, arch({"arch": MACHINE}), by_rows=False, tiles={})
    assert isinstance(found[0][0], TilePlan) and not any(isinstance(plan, TilePlan) for plan, _ in found[1:])
    assert len(found) > 1 and not found[0][1]


@pytest.mark.parametrize("block_K", [6, 64])
def test_integers_that_pairs_of_floats_multiply(block_K: int) -> None:
    """Steps of 6 are no runs of four bytes; the pairs of bfloat16 take them, and the bytes lie row by row for them."""
    sizes, dtypes = (70, 40, 150), ("uint8", "int8", "float32")
    kernel = kernel_for("avx512-vnni-bf16", *sizes, *dtypes, True, block_M=64, block_K=block_K)
    assert ("cpu.dot2_bf16 in float32" in kernel.explain()) == (block_K == 6)
    check(kernel, functools.partial(interpreted, kernel), sizes, dtypes, transpose_B=True)
