"""`T.annotate_restrict_buffers`: a call that passes one tensor for two."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import OverlappingArguments, TilewrightError

TARGETS = ["cpu", "cuda -arch=sm_90a"]


def shifted(may_share):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32"), C: T.Tensor((n,), "int32")):
        if may_share:
            T.annotate_restrict_buffers(A, B)
        with T.Kernel(1, threads=1):
            for i in T.serial(n - 1):
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
    for arguments in ((whole, memory[1:], c), (whole, c, whole)):
        with pytest.raises(OverlappingArguments):
            kernel(*arguments)
    with pytest.raises(OverlappingArguments, match="shares memory with 'A'"):
        tilewright.compile(shifted(False), target="cpu")(whole, whole, c)


def test_only_parameters_are_named():
    with pytest.raises(TilewrightError, match=r"an argument of T\.annotate_restrict_buffers is"):

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_shared((8,), "float32")
                T.annotate_restrict_buffers(A, tile)
