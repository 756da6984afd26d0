"""The name of a tensor or tile given to a number in a branch."""

from __future__ import annotations

import pytest

import tilewright.language as T
from tilewright.language.mistakes_of_scopes import ImmutableName


def test_a_tensors_name_in_a_branch() -> None:
    with pytest.raises(ImmutableName, match="'scale' is immutable and cannot be assigned again") as caught:

        @T.prim_func
        def program(scale: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(8):
                    if i < 4:
                        scale, inverse = B[i], 1 / B[i]
                        B[i] = scale * inverse

    assert "scale, inverse = B[i]" in str(caught.value)
    assert str(caught.value).endswith("help: scale is the tensor 'scale': take another name")
