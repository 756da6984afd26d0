"""Random operands of a `MatmulConfig`, over the whole range of every type: what products are timed and tuned with."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.formats import pack_plain
from tilewright.ir.dtypes import DType, dtype
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.config import MatmulConfig


def random_operands(
    config: MatmulConfig, rows: int, device: str, seed: int = 0
) -> tuple[list[Any], dict[str, Any]]:  # of torch where a device is asked for, else of NumPy
    """Arguments of `Matmul.forward`, of so many rows: A, W, scale, zeros and bias, and the others by name; NumPy's on
    the device ``"cpu"``, else tensors on one of torch."""
    rng, facts, request = np.random.default_rng(seed), config.facts(), config.request()
    activations = dtype(request.activations)
    shape = (rows, -(-facts.K // activations.per_byte))
    of, packed_zeros = facts.format, facts.zeros == "packed"
    codes: Any = rng.integers(0, 256, (facts.N, -(-facts.K * of.bits // 8)), dtype=np.uint8).view(np.int8)
    used = [code for code, value in enumerate(of.values) if np.isfinite(value) and code not in of.unused]
    if not of.is_dense and len(used) < 1 << of.bits:
        codes = pack_plain(rng.choice(np.array(used, np.uint8), (facts.N, facts.K)), of.bits).view(np.int8)
    if of.is_dense:
        assert of.dtype is not None
        codes = _random(rng, of.dtype, (facts.N, facts.K))
    scale: Any = facts.scale and _random(
        rng, dtype(facts.scale.dtype), (facts.scale.rows, facts.scale.columns), positive=True
    )
    zeros: Any = None
    if facts.zero_point is not None:
        zeros = _random(rng, dtype(facts.zero_point.dtype), (facts.zero_point.rows, facts.zero_point.columns))
        if packed_zeros:
            zeros = rng.integers(0, 256, (facts.groups, -(-facts.N * of.bits // 8)), dtype=np.uint8).view(np.int8)
    bias = None if request.bias is None else _random(rng, dtype(request.bias), (facts.N,))
    tokens = {"tensor": (1, 1), "token": (rows, 1)}.get(request.activation_scales)
    if request.activation_scales == "group":
        tokens = (rows, -(-facts.K // request.activation_group))
    named = {
        "a_scale": None
        if tokens is None
        else _random(rng, dtype(request.activation_scale_dtype), tokens, positive=True),
        "residual": _random(rng, dtype(request.out), (rows, facts.N)) if request.residual else None,
    }
    A = _random(rng, activations, shape)
    A = np.ascontiguousarray(A.T) if config.layout[0] == "t" else A
    placed: list[Any] = [None if array is None else _placed(array, device) for array in (A, codes, scale, zeros, bias)]
    return placed, {name: None if array is None else _placed(array, device) for name, array in named.items()}


def _random(rng: np.random.Generator, of: DType, shape: tuple[int, ...], positive: bool = False) -> np.ndarray:
    if of.is_packed:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if of.is_integer:
        return rng.integers(int(of.minimum), int(of.maximum), shape, dtype=of.numpy, endpoint=True)
    return (rng.uniform(0.5, 2.0, shape) if positive else rng.standard_normal(shape)).astype(of.numpy)


def _placed(array: np.ndarray, device: str) -> object:
    return array if device == "cpu" else as_torch(array, device)
