"""A call that passes one tensor for two: in place where nobody meets another's elements, else as
`T.annotate_restrict_buffers` says."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import OverlappingArguments, TilewrightError

TARGETS = ["cpu", "cuda -arch=sm_90a"]


def shifted(may_share, order=T.serial):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32"), C: T.Tensor((n,), "int32")):
        if may_share:
            T.annotate_restrict_buffers(A, B)
        with T.Kernel(1, threads=1):
            for i in order(n - 1):
                B[i + 1] = A[i] + C[i]
                C[i] = A[i + 1]

    return main


def ways(kernel, target):
    """A call as it is made, and what stands for it: emulator and interpreter."""
    return [kernel if target == "cpu" else kernel.emulate, kernel.interpret]


@pytest.mark.parametrize("target", TARGETS)
def test_one_tensor_for_two(target):
    """Passes keep what they have read of A, though B has it now: such calls were refused, and had to be."""
    kernel = tilewright.compile(shifted(True), target=target)
    for run in ways(kernel, target):
        for _ in range(2):
            a, c = np.arange(1, 9, dtype=np.int32), np.arange(8, dtype=np.int32)
            run(a, a, c)
            wanted, seen = list(range(1, 9)), list(range(8))
            for i in range(7):
                wanted[i + 1] = wanted[i] + seen[i]
                seen[i] = wanted[i + 1]
            assert a.tolist() == wanted and c.tolist() == seen
        a, b, c = (np.arange(8, dtype=np.int32) for _ in range(3))
        run(a, b, c)
        assert b.tolist() == [0, *(2 * i for i in range(7))] and c.tolist() == [1, 2, 3, 4, 5, 6, 7, 7]


def test_what_else_overlaps_is_refused():
    memory = np.arange(9, dtype=np.int32)
    whole, c = memory[:8], np.zeros(8, np.int32)
    kernel = tilewright.compile(shifted(True), target="cpu")
    with pytest.raises(OverlappingArguments):
        kernel(whole, memory[1:], c)
    with pytest.raises(OverlappingArguments, match="shares memory with 'A'"):
        tilewright.compile(shifted(False, T.Parallel), target="cpu")(whole, whole, c)


def elements(rows, columns, read):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(columns, 16), T.ceildiv(rows, 4), threads=64) as (bx, by):
            for i, j in T.Parallel(4, 16):
                B[by * 4 + i, bx * 16 + j] = A[read(by * 4 + i, bx * 16 + j)] + 1

    return main


def tiles(rows, columns, moved):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(columns, 16), T.ceildiv(rows, 8), threads=64) as (bx, by):
            tile = T.alloc_shared((8, 16), "float32")
            T.copy(A[by * 8, bx * 16 + moved], tile)
            for i, j in T.Parallel(8, 16):
                tile[i, j] += 1
            T.copy(tile, B[by * 8, bx * 16])

    return main


def by_threads(rows, columns, other):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads=32) as row:
            thread = T.get_thread_binding()
            for k in T.serial(columns // 32):
                B[row, k * 32 + thread] = A[row, k * 32 + (thread ^ other)] + 1

    return main


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "program",
    [elements(11, 40, lambda i, j: (i, j)), tiles(11, 40, 0), by_threads(3, 64, 0)],
    ids=["elements", "tiles", "threads"],
)
def test_in_place_where_none_meets_another(program, target):
    kernel = tilewright.compile(program, target=target)
    for run in ways(kernel, target):
        a = np.arange(np.prod(program.params[0].shape), dtype=np.float32).reshape(program.params[0].shape)
        wanted = a + 1
        run(a, a)
        assert np.array_equal(a, wanted)


@pytest.mark.parametrize(
    "program",
    [
        elements(8, 32, lambda i, j: (7 - i, j)),
        elements(8, 32, lambda i, j: (i, j ^ 1)),
        elements(8, 32, lambda i, j: (i, (j + 16) % 32)),
        tiles(16, 32, 8),
        by_threads(3, 64, 1),
    ],
    ids=["rows of others", "neighbours in a loop", "columns of others", "tiles that meet", "threads that meet"],
)
def test_what_another_writes_is_not_read_in_place(program):
    kernel = tilewright.compile(program, target="cuda -arch=sm_90a")
    a = np.zeros(program.params[0].shape, np.float32)
    with pytest.raises(OverlappingArguments, match=r"T\.annotate_restrict_buffers"):
        kernel.emulate(a, a)


def test_only_parameters_are_named():
    with pytest.raises(TilewrightError, match=r"an argument of T\.annotate_restrict_buffers is"):

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((8,), "float32")
                T.annotate_restrict_buffers(A, tile)
