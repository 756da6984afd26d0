"""mxfp4 and mxfp6 checkpoints: small floats in blocks of 32 along K, each with a power of two."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import expect
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

BLOCK = 32
_POWERS = ["uint8", "float8_e8m0fnu"]


def powers_of_two(name: str, scales: np.ndarray) -> np.ndarray:
    """Scales of bytes as e8m0.

    Raises
    ------
    InvalidTensor : one is 255, NaN.
    """
    powers = np.ascontiguousarray(scales).view(np.uint8)
    if (powers == 255).any():
        raise InvalidTensor(f"{name} is NaN (255) at {[int(i) for i in np.argwhere(powers == 255)[0]]}")
    return powers.view(ml_dtypes.float8_e8m0fnu)


def from_mxfp4(blocks: object, scales: object, *, name: str = "weight") -> QuantizedWeight:
    """A weight of an mxfp4 checkpoint (the form of gpt-oss, and the flat one of other tools).

    ::

        code[n, k] = blocks[n, k // 32, k % 32 // 2] >> 4 * (k % 2) & 15
        w[n, k]    = e2m1[code[n, k]] * 2 ** (scales[n, k // 32] - 127)

    Parameters
    ----------
    blocks : uint8 ``[N, K / 32, 16]``, or the same bytes as ``[N, K / 2]``.
    scales : uint8 (or float8_e8m0fnu) ``[N, K / 32]``.
    name : what messages call the weight.

    Raises
    ------
    InvalidTensor : another shape or element type, a scale of 255 (NaN).

    Source: OCP Microscaling Formats specification 1.0.
    """
    packed = as_numpy(blocks)
    if packed.ndim == 2 and packed.shape[1] % 16 == 0:
        packed = packed.reshape(packed.shape[0], -1, 16)
    packed = expect(f"{name}_blocks", packed, ["uint8"], [None, None, 16], "[N, K / 32, 16]")
    N, groups, _ = packed.shape
    powers = expect(f"{name}_scales", scales, _POWERS, [N, groups], "[N, K / 32]")
    codes, factors = fields(packed.reshape(N, -1), 4, groups * BLOCK), powers_of_two(f"{name}_scales", powers)
    return assemble(codes, "e2m1", scales=factors, block=(1, BLOCK), name=name)


def from_mxfp6(weight_packed: object, scales: object, *, to: str, name: str = "weight") -> QuantizedWeight:
    """A weight of 6-bit floats: four codes in three bytes, low bits first, ``w = value(code) * 2 ** (scale - 127)``.

    Parameters
    ----------
    weight_packed : uint8 ``[N, 3 * K / 4]``.
    scales : uint8 (or float8_e8m0fnu) ``[N, K / 32]``.
    to : ``"e2m3"`` or ``"e3m2"``.
    name : what messages call the weight.

    Raises
    ------
    InvalidTensor : another shape or element type, a scale of 255 (NaN).
    """
    packed = expect(f"{name}.weight_packed", weight_packed, ["uint8"], [None, None], "[N, 3 * K / 4]")
    N, K = packed.shape[0], packed.shape[1] * 4 // 3
    if packed.shape[1] * 4 % (3 * BLOCK):
        raise InvalidTensor(
            f"{name}.weight_packed has rows of {packed.shape[1]} bytes, where blocks of {BLOCK} have 24"
        )
    powers = expect(f"{name}.weight_scale", scales, _POWERS, [N, K // BLOCK], "[N, K / 32]")
    return assemble(
        fields(packed, 6, K), to, scales=powers_of_two(f"{name}.weight_scale", powers), block=(1, BLOCK), name=name
    )
