"""A Mac for the tests marked `metal`: its torch with an MPS device, or, where TILEWRIGHT_METAL_STAND_IN is set, stand-ins of torch's and
MLX's interfaces that run texts in the emulator, so that these tests are tested where there is no Mac."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit" / room) for room in ("metal", "emulator", "matmul")]

STAND_IN = bool(os.environ.get("TILEWRIGHT_METAL_STAND_IN"))
BITS = {1: np.uint8, 2: np.int16}
"""The types in which those travel that NumPy has only by `ml_dtypes`, by their bytes."""


class Mac:
    """Torch's MPS device: tensors there and back, and texts compiled for it."""

    def __init__(self, torch: Any, place: Callable[[Any], Any], compile_shader: Callable[[str], Any]) -> None:
        self.torch, self.place, self.compile_shader = torch, place, compile_shader

    def tensor(self, value: Any) -> Any:
        """An array as a tensor on the GPU; anything else as it is."""
        if isinstance(value, list):
            return [self.tensor(one) for one in value]
        if not isinstance(value, np.ndarray):
            return value
        foreign = value.dtype.isbuiltin != 1
        bits = np.array(value, order="C")
        there = self.place(self.torch.from_numpy(bits.view(BITS[value.itemsize]) if foreign else bits))
        return there.view(getattr(self.torch, str(value.dtype))) if foreign else there

    def array(self, tensor: Any) -> np.ndarray:
        """A tensor as an array of the same numbers."""
        host = tensor.cpu() if not STAND_IN else tensor.as_subclass(self.torch.Tensor)
        name = str(tensor.dtype).removeprefix("torch.")
        if hasattr(np, name):
            return np.array(host.numpy())
        bits = host.view(getattr(self.torch, np.dtype(BITS[tensor.element_size()]).name))
        return np.array(bits.numpy()).view(getattr(ml_dtypes, name))

    def run(self, kernel: Any, arguments: Any) -> list[np.ndarray]:
        """What a kernel returns, and leaves in the arrays that it was given."""
        given = [self.tensor(one) for one in arguments]
        result = kernel(*given)
        results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
        return [self.array(one) for one in (*results, *given) if isinstance(one, self.torch.Tensor)]


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mac]:
    torch = pytest.importorskip("torch")
    if not STAND_IN:
        if not torch.backends.mps.is_available():
            pytest.skip("no Mac with an MPS device here")
        yield Mac(torch, lambda tensor: tensor.to("mps"), torch.mps.compile_shader)
        torch.mps.synchronize()
        return
    from stand_in_torch import Library, on_mps, torch_with_mps

    from tilewright.runtime import tensors
    from tilewright.targets.metal import runtime

    made = torch_with_mps()
    monkeypatch.setattr(runtime, "_torch_with_mps", lambda name: made)

    def allocator(device: Any) -> Any:
        return lambda shape, dtype: on_mps(torch.full(shape, 77, dtype=getattr(torch, dtype.carrier)))

    monkeypatch.setattr(tensors, "_torch_allocator", allocator)
    yield Mac(torch, on_mps, Library)


@pytest.fixture
def mlx(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLX: `array` of NumPy's and back."""
    if not STAND_IN:
        core = pytest.importorskip("mlx.core")
        return types.SimpleNamespace(array=core.array, numpy=lambda one: np.array(one))
    from stand_in_mlx import DTYPES, array, core

    package = type(sys)("mlx")
    package.__spec__ = ModuleSpec("mlx", None)
    monkeypatch.setitem(sys.modules, "mlx", package)
    monkeypatch.setitem(sys.modules, "mlx.core", core())
    return types.SimpleNamespace(
        array=lambda of: array(of, DTYPES[str(of.dtype)]), numpy=lambda one: one.flat.reshape(one.shape)
    )
