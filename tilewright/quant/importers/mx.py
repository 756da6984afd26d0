"""mxfp4 and mxfp6 checkpoints: small floats in blocks of 32 along K, each with a power of two."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.formats import number_format
from tilewright.quant.importers.arrays import expect
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

BLOCK = 32
_POWERS = ["uint8", "float8_e8m0fnu"]


def powers_of_two(name: str, scales: np.ndarray) -> np.ndarray:
    """Scales of bytes as e8m0. Raises InvalidTensor where one is 255, NaN."""
    powers = np.ascontiguousarray(scales).view(np.uint8)
    if (powers == 255).any():
        raise InvalidTensor(f"{name} is NaN (255) at {[int(i) for i in np.argwhere(powers == 255)[0]]}")
    return powers.view(ml_dtypes.float8_e8m0fnu)


def from_mx(blocks: object, scales: object, *, to: str = "e2m1", name: str = "weight") -> QuantizedWeight:
    """A weight of an mxfp4 or mxfp6 checkpoint: the form of gpt-oss, and the flat one of other tools.

    With ``field(x, i)`` for the i-th number of the string of bits that bytes make, lowest bits first::

        w[n, k] = value(field(blocks[n, k // 32], k % 32)) * 2 ** (scales[n, k // 32] - 127)

    Parameters
    ----------
    blocks : uint8 ``[N, K / 32, 4 * bits]``, or the same bytes as ``[N, K * bits / 8]``.
    scales : uint8 (or float8_e8m0fnu) ``[N, K / 32]``, without 255 (NaN).
    to : ``"e2m1"``, ``"e2m3"`` or ``"e3m2"``.

    Source: OCP Microscaling Formats specification 1.0.
    """
    bits, packed = number_format(to).bits, as_numpy(blocks)
    block_bytes = BLOCK * bits // 8
    if packed.ndim == 2 and packed.shape[1] % block_bytes == 0:
        packed = packed.reshape(packed.shape[0], -1, block_bytes)
    form = f"[N, K / {BLOCK}, {block_bytes}]"
    packed = expect(f"{name}_blocks", packed, ["uint8"], [None, None, block_bytes], form)
    N, groups, _ = packed.shape
    powers = expect(f"{name}_scales", scales, _POWERS, [N, groups], f"[N, K / {BLOCK}]")
    codes, factors = fields(packed.reshape(N, -1), bits, groups * BLOCK), powers_of_two(f"{name}_scales", powers)
    return assemble(name, codes, to, factors, BLOCK)
