"""Work of programs counted against formulas, and what data sheets say of machines against the records that rates are made of."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import ALL, FLOAT16
from tilewright.machine.amd import ARCHITECTURES
from tilewright.machine.apple import CHIPS, of_chip
from tilewright.targets.gpu.work import allowed, count, tensor_bytes, unknown

SHEETS = {
    "gfx90a": {"float16": 191.5, "int8": 191.5}, "gfx942": {"float16": 1307, "float8_e4m3fnuz": 2615, "int8": 2615},
    "gfx950": {"float16": 2517, "int8": 5033}, "gfx1100": {"float16": 123, "int8": 123},
    "gfx1201": {"float16": 195, "float8_e4m3fn": 389, "int8": 389},
}  # fmt: skip
"""Tera-operations a second of AMD's data sheets; 8-bit floats have theirs on gfx950 by scaled products alone, which we have no record of."""


@pytest.mark.parametrize("name", SHEETS)
def test_records_of_instructions_say_what_data_sheets_say(name: str) -> None:
    arch = ARCHITECTURES[name]
    assert arch.rates is not None
    for kind, sheet in SHEETS[name].items():
        found = arch.product_rate(ALL[kind], ALL[kind]) * arch.cores * arch.rates.cycles / 1e12
        assert found == pytest.approx(sheet, rel=0.01), kind


def test_lanes_of_apples_chips_do_what_data_sheets_say() -> None:
    for name, teraflops in {
        "m1": 2.6,
        "m1-max": 10.6,
        "m2": 3.6,
        "m2-max": 13.6,
        "m3": 4.1,
        "m4": 4.3,
        "m4-max": 18.4,
    }.items():
        chip = of_chip(name)
        assert chip.rates is not None
        assert 2 * chip.rates.lanes * chip.cores * chip.rates.cycles / 1e12 == pytest.approx(teraflops, rel=0.13)
        assert chip.product_rate(FLOAT16, FLOAT16) < 2 * chip.rates.lanes
    assert all(of_chip(name).rates is not None for name in CHIPS)


def product(causal: bool = False) -> Any:
    M, N, K = T.dynamic("M"), 256, 512

    @T.prim_func
    def program(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
        unused: T.Tensor((9,), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bn, bm):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            steps = bm + 1 if causal else K // 32
            for k in T.Pipelined(steps, num_stages=2):
                T.copy(A[bm * 64, k * 32], a)
                T.copy(B[bn * 64, k * 32], b)
                T.gemm(a, b, total, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                C[bm * 64 + i, bn * 64 + j] = total[i, j] * 2.0 + 1.0

    return program


def test_a_product_is_counted() -> None:
    function = product().function
    (M,) = unknown(function)
    for rows in (1, 64, 1000):
        work, tall = count(function, {M: rows}), -(-rows // 64) * 64
        assert dict(work.products) == {(FLOAT16, FLOAT16): tall * 256 * 512}
        assert work.operations == 2 * tall * 256
        assert tensor_bytes(function, {M: rows}) == 2 * rows * 512 + 2 * 256 * 512 + 4 * rows * 256


def test_loops_that_depend_on_blocks_are_gone_through() -> None:
    function = product(causal=True).function
    (M,) = unknown(function)
    for blocks in (5, 64, 300):  # beyond 64 turns some stand for all
        work = count(function, {M: blocks * 64})
        exact = blocks * (blocks + 1) // 2 * 4 * 64 * 64 * 32
        assert work.products[FLOAT16, FLOAT16] == pytest.approx(exact, rel=0.0 if blocks <= 64 else 0.02)


@pytest.mark.parametrize("target", ["metal -arch=m1-max", "hip -arch=gfx942", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_explain_gives_the_time_that_the_roofline_allows(target: str) -> None:
    kernel = tilewright.compile(product(), target=target)
    assert "explain(M=...)" in kernel.explain()
    found = kernel.explain(M=8192).split("\n")
    arch, rows = kernel.arch, 8192
    assert arch.rates is not None
    work = count(kernel.function, {unknown(kernel.function)[0]: rows})
    memory = tensor_bytes(kernel.function, {unknown(kernel.function)[0]: rows}) / arch.rates.bytes
    least, by = allowed(arch, memory * arch.rates.bytes, work)
    if arch.target == "metal":
        assert least == pytest.approx(2 * rows * 256 * 512 / (204 * 32 * 1.3e9) + 2 * rows * 256 / (128 * 32 * 1.3e9))
        assert by == "lanes, which multiply matrices too"
    else:
        assert (least, by) == (memory, "memory")
    assert any(f"{least * 1e3:.3g} ms for them at least, by its {by}" in line for line in found)
    assert any("2.15 G operations of float16 by float16" in line and "17 MB" in line for line in found), found


def test_processors_say_nothing_of_it() -> None:
    assert "at least" not in tilewright.compile(product(), target="cpu").explain(M=1)
