"""The name of a tensor or tile given to a number in a loop or branch."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.language.mistakes_of_scopes import EscapedName, ImmutableName


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
def test_a_tensors_name_is_a_numbers_in_a_branch(target: str) -> None:
    """As in TileLang, whose programs take names twice; it was refused."""

    @T.prim_func
    def program(scale: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                found = scale[i]
                if i < 4:
                    scale, inverse = found * 2, 1 / found
                    B[i] = scale + inverse

    kernel = tilewright.compile(program, target=target)
    scale, found = np.arange(1, 9, dtype=np.float32), np.zeros(8, np.float32)
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        found[:] = 0
        run(scale, found)
        assert np.array_equal(found[:4], scale[:4] * 2 + 1 / scale[:4]) and not found[4:].any()


def test_the_name_has_no_meaning_after_the_branch() -> None:
    with pytest.raises(EscapedName, match="'scale' was assigned in the `if` of line") as caught:

        @T.prim_func
        def program(scale: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(8):
                    if i < 4:
                        scale = B[i]
                    B[i] = scale[i]

    assert "B[i] = scale[i]" in str(caught.value)


def test_a_tiles_name_is_no_other_tiles() -> None:
    """The next iteration would mean the other tile, and is not traced."""
    with pytest.raises(ImmutableName, match="'here' is immutable and cannot be assigned again") as caught:

        @T.prim_func
        def program(A: T.Tensor((4, 8), "float32")):
            with T.Kernel(1, threads=32):
                here = T.alloc_shared((8,), "float32")
                there = T.alloc_shared((8,), "float32")
                for k in T.serial(4):
                    T.copy(A[k, 0], here)
                    here = there

    assert str(caught.value).endswith("help: here is the tile 'here': take another name")
