"""Products without a matrix instruction: threads take a few steps of k for all of their elements, and meet once."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir import Evaluate, For, Function, Load, Parallel, find
from tilewright.ir.parser import parse
from tilewright.ops.gemm import STEP
from tilewright.passes.context import Context, Schedule
from tilewright.passes.lower.expand_operators import expand_operators
from tilewright.passes.tile.layouts.plan_synchronization import plan_synchronization
from tilewright.targets.cuda.arch import arch

PROGRAM = """\
@stage("traced")
def product(A: {operand}[2, 8, {k}], B: {operand}[2, 8, {k}], S: {sum}[8], C: {sum}[8, 8]):
    with kernel(blocks={{by: 1}}, threads={{tx: 32, ty: 1, tz: 1}}):
        a = shared({operand}[8, {k}])
        b = shared({operand}[8, {k}])
        c = fragment({sum}[8, 8])
        for chunk in range(2):
            copy(source=A[chunk, :, :], destination=a)
            copy(source=B[chunk, :, :], destination=b)
            gemm(a=a, b=b, c=c, transpose_b=True, clear=chunk == 0, shift=S)
        copy(source=c, destination=C)
"""


def context() -> Context:
    return Context(arch({"arch": "sm_90a"}), Schedule())


def program(operand: str, wide: str, k: int) -> Function:
    return parse(PROGRAM.format(operand=operand, sum=wide, k=k))


@pytest.mark.parametrize(
    ("operand", "wide", "k"), [("float32", "float32", 24), ("float64", "float64", 6), ("int8", "int32", 7)]
)
def test_steps_give_the_sums_of_whole_lines(operand: str, wide: str, k: int) -> None:
    """The same sums: whole numbers, whose order of summation does not show."""
    traced = program(operand, wide, k)
    rng = np.random.default_rng(k)
    arrays = [rng.integers(-9, 9, (2, 8, k)).astype(operand) for _ in range(2)]
    arrays += [rng.integers(-9, 9, 8).astype(wide), np.zeros((8, 8), wide)]
    arrays_after = [array.copy() for array in arrays]
    interpret(traced, arrays)
    interpret(expand_operators(traced, context()), arrays_after)
    assert np.array_equal(arrays[3], arrays_after[3])
    expected = sum(a.astype(np.float64) @ b.T for a, b in zip(*arrays[:2])) + 2 * arrays[2][:, None]
    assert np.array_equal(arrays[3], expected)


def test_a_step_is_all_that_an_element_writes_out() -> None:
    """No loop over k inside that over a thread's elements, which is written out whole."""
    made = expand_operators(program("float32", "float32", 64), context())
    assert not any(holds_loop(loop) for loop in find(made.body, Parallel))
    (steps,) = (loop for loop in find(made.body, For) if loop.stop.value == 64 // STEP)  # type: ignore[attr-defined]
    (elements,) = find(steps.body, Parallel)
    assert sum(load.buffer.name == "a" for load in find(elements.body, Load)) == STEP


def holds_loop(loop: Parallel) -> bool:
    return any(True for _ in find(loop.body, For))


def test_sums_of_a_narrower_type_are_rounded_once() -> None:
    """A fragment of float16 cannot hold them between steps."""
    made = expand_operators(program("float16", "float16", 64), context())
    assert any(holds_loop(loop) for loop in find(made.body, Parallel))


def test_threads_meet_before_a_loop_that_only_reads() -> None:
    """Not in each of its iterations."""
    made = plan_synchronization(expand_operators(program("float32", "float32", 64), context()), context())
    (chunks,) = (loop for loop in find(made.body, For) if loop.var.name == "chunk")
    (steps,) = (loop for loop in find(chunks.body, For) if loop is not chunks)
    assert not list(find(steps.body, Evaluate))
    assert len(list(find(chunks.body, Evaluate))) == 2  # tiles are read, and may be overwritten


def test_conditions_in_a_loop_that_only_reads() -> None:
    """A branch is written anew whether or not threads meet in it; only a meeting moves in front of the loop."""

    @T.prim_func
    def main(A: T.Tensor((8, 32), "float32"), F: T.Tensor((8,), "int32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tile, total = T.alloc_shared((8, 32), "float32"), T.alloc_fragment((32,), "float32")
            T.clear(total)
            T.copy(A, tile)
            for k in T.serial(8):
                if F[k] > 0:
                    for i in T.Parallel(32):
                        total[i] += tile[k, 31 - i]
            T.copy(total, C)

    kernel = tilewright.compile(main, target="cuda -arch=sm_90a")
    assert kernel.get_kernel_source().count("sync_threads()") == 1
    rng = np.random.default_rng(0)
    a, flags, c = (
        rng.standard_normal((8, 32)).astype(np.float32),
        np.arange(8, dtype=np.int32) % 3,
        np.zeros(32, np.float32),
    )
    kernel.emulate(a, flags, c)
    np.testing.assert_allclose(c, a[flags > 0].sum(0)[::-1], rtol=1e-5)
