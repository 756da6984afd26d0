"""NumPy arrays to the GPU and back through torch, types included that NumPy has only by `ml_dtypes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

CARRIED = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, "bfloat16"),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, "float8_e4m3fn"),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, "float8_e5m2"),
}
"""How torch's own types travel: the type of their bits, and torch's name."""


def to_device(value: Any) -> Any:
    """An array as a tensor on the GPU; anything else as it is."""
    import torch

    if isinstance(value, list):  # what a table of pointers stands for
        return [to_device(one) for one in value]
    if not isinstance(value, np.ndarray):
        return value
    bits, name = CARRIED.get(value.dtype, (None, ""))
    if bits is None:
        return torch.from_numpy(np.ascontiguousarray(value)).cuda()
    return torch.from_numpy(np.ascontiguousarray(value).view(bits)).cuda().view(getattr(torch, name))


def to_host(value: Any) -> Any:
    """A tensor as an array."""
    import torch

    for carrier, (bits, name) in CARRIED.items():
        if value.dtype is getattr(torch, name):
            return value.view(getattr(torch, np.dtype(bits).name)).cpu().numpy().view(carrier)
    return value.cpu().numpy()


def run_on_device(kernel: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    """What a kernel returns, and leaves in the arrays given, with arrays taken to the GPU and back."""
    import torch

    given = [to_device(argument) for argument in arguments]
    torch.cuda.synchronize()  # kernels may read weights before copies ahead of them in the stream have ended (T.pdl_sync)
    result = kernel(*given)
    results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    return [to_host(one) for one in (*results, *given) if hasattr(one, "cpu")]
