"""NumPy arrays to the GPU and back through torch, types included that NumPy has only by `ml_dtypes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.ir.arguments import numpy_dtype

BITS = {1: np.uint8, 2: np.int16}
"""The types in which those that NumPy has only by `ml_dtypes` travel, by their bytes."""


def to_device(value: Any) -> Any:
    """An array as a tensor on the GPU, with the strides that it has; anything else as it is.  What torch has no type for is bytes there."""
    import torch

    if isinstance(value, list):  # what a table of pointers stands for
        return [to_device(one) for one in value]
    if not isinstance(value, np.ndarray):
        return value
    foreign = value.dtype.isbuiltin != 1
    bits = np.ascontiguousarray(value)
    bits = bits.view(BITS[value.itemsize]) if foreign else bits
    there = torch.from_numpy(bits).cuda()
    strides = tuple(stride // value.itemsize for stride in value.strides)
    if not value.flags.c_contiguous and value.size and min(strides) > 0:
        there = torch.empty_strided(value.shape, strides, dtype=there.dtype, device="cuda").copy_(there)
    name = numpy_dtype(value.dtype).name
    return there.view(getattr(torch, name)) if foreign and hasattr(torch, name) else there


def to_host(value: Any, dtype: np.dtype | None = None) -> Any:
    """A tensor as an array, of the type that its bytes stand for."""
    import torch

    name = str(value.dtype).removeprefix("torch.")
    if not hasattr(np, name):
        dtype, value = (
            dtype or np.dtype(getattr(ml_dtypes, name)),
            value.view(getattr(torch, np.dtype(BITS[value.itemsize]).name)),
        )
    found = value.cpu().numpy()
    return found if dtype is None or dtype == found.dtype else found.view(dtype)


def run_on_device(kernel: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    """What a kernel returns, and leaves in the arrays given, with arrays taken to the GPU and back."""
    import torch

    given = [to_device(argument) for argument in arguments]
    torch.cuda.synchronize()  # kernels may read weights before copies ahead of them in the stream have ended (T.pdl_sync)
    result = kernel(*given)
    results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    kinds = [*(None for _ in results), *(getattr(argument, "dtype", None) for argument in arguments)]
    return [to_host(one, kind) for one, kind in zip((*results, *given), kinds) if hasattr(one, "cpu")]
