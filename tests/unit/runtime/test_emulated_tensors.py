"""Tensors of torch in the interpreter and the emulator: they are read and written where they lie, in whatever strides they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T

torch = pytest.importorskip("torch")


def by_columns(dtype: str) -> Any:
    """A kernel that adds columns of X to those of Y, both column-major."""

    @tilewright.jit(target="cuda -arch=sm_90a")
    def add(X: Any, Y: Any) -> None:
        M, N, kind = T.const("M"), T.const("N"), dtype
        a, b = T.dynamic("a, b")
        X: T.StridedTensor((M, N), (1, a), kind)
        Y: T.StridedTensor((M, N), (1, b), kind)
        with T.Kernel(N, threads=64) as block:
            for i in T.Parallel(M):
                Y[i, block] = T.cast(T.cast(Y[i, block], "float32") + T.cast(X[i, block], "float32"), kind)

    return add


@pytest.mark.parametrize("dtype", ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"))
def test_column_major_tensors_are_read_and_written_in_place(dtype: str) -> None:
    numbers = np.random.default_rng(0).integers(-3, 4, (2, 5, 37))
    for way in ("interpret", "emulate"):
        X, room = (
            torch.tensor(part, dtype=torch.float32).to(getattr(torch, dtype)) for part in (numbers[0], np.ones((5, 40)))
        )
        Y = room[:, :37]  # rows of a larger tensor, and what lies between them stays
        kernel = by_columns(dtype).compile(X.t(), Y.t())
        getattr(kernel, way)(X.t(), Y.t())
        assert (Y.float().numpy() == numbers[0] + 1).all(), way
        assert (room[:, 37:].float() == 1).all(), way


def test_a_column_major_tensor_is_none_in_rows() -> None:
    @tilewright.jit(target="cuda -arch=sm_90a")
    def copied(X: Any) -> Any:
        X: T.Tensor((5, 5), "bfloat16")
        Y = T.empty((5, 5), "bfloat16")
        with T.Kernel(1, threads=32):
            T.copy(X, Y)
        return Y

    X = torch.arange(25, dtype=torch.bfloat16).reshape(5, 5)
    kernel = copied.compile(X)
    for way in (kernel.interpret, kernel.emulate):
        with pytest.raises(tilewright.errors.WrongArgumentStrides):
            way(X.t())
