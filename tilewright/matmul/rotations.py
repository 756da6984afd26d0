"""Activations multiplied by matrices, some columns at a time, before they meet a weight whose codes stand for a rotated
one (FP-Quant, ParoQuant)."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import Unsupported
from tilewright.libraries import torch
from tilewright.matmul.arrays import as_torch, contiguous
from tilewright.runtime.tensors import Array, as_numpy, is_torch


def rotated(x: Array, rotation: Array, activations: str) -> Array:
    """``x[..., h * g : h * g + h] @ rotation[g]`` for every g, of x's type: a new row-major matrix.

    Sums are taken in float32, but where a GPU's own product of 16-bit floats has these inside.

    Parameters
    ----------
    x : floats ``[..., K]``.
    rotation : ``[1 or K / h, h, h]``, on the device of x.
    activations : the type of x, for the message.

    Raises
    ------
    Unsupported : activations that are no floats of at least 16 bits.
    """
    if activations not in ("float16", "bfloat16", "float32", "float64"):
        raise Unsupported(
            f"activations of {activations} beside a weight that rotates them", ("floats of 16 bits and more",)
        )
    rows, K, h = math.prod(map(int, x.shape[:-1])), x.shape[-1], rotation.shape[-1]
    blocks = rows, K // h, h
    if is_torch(x):
        of = x.dtype if x.is_cuda or x.dtype == torch.float64 else torch.float32
        parts = x.reshape(blocks).swapaxes(0, 1).to(of)
        products = torch.matmul(parts, as_torch(rotation, x.device).to(of))
        return contiguous(products.swapaxes(0, 1).reshape(rows, K).to(x.dtype))
    wide = np.float64 if activations == "float64" else np.float32
    products = x.reshape(blocks).swapaxes(0, 1).astype(wide) @ as_numpy(rotation).astype(wide)
    return contiguous(products.swapaxes(0, 1).reshape(rows, K).astype(x.dtype))
