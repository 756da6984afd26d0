"""mxfp4 checkpoints: e2m1 codes in blocks of 32 along K, each with a power of two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import as_array, expect
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight

BLOCK = 32


def from_mxfp4(blocks: Any, scales: Any, *, name: str = "") -> QuantizedWeight:
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
    packed = as_array(blocks)
    if packed.ndim == 2 and packed.shape[1] % 16 == 0:
        packed = packed.reshape(packed.shape[0], -1, 16)
    packed = expect(f"{name}_blocks", packed, ["uint8"], [None, None, 16], "[N, K / 32, 16]")
    N, groups, _ = packed.shape
    powers = expect(f"{name}_scales", scales, ["uint8", "float8_e8m0fnu"], [N, groups], "[N, K / 32]").view(np.uint8)
    if (powers == 255).any():
        n, g = np.argwhere(powers == 255)[0]
        raise InvalidTensor(f"{name}_scales is NaN (255) at [{n}, {g}]")
    codes = np.empty((N, groups, 16, 2), np.uint8)
    codes[..., 0], codes[..., 1] = packed & 15, packed >> 4
    return assemble(
        codes.reshape(N, groups * BLOCK),
        "e2m1",
        scales=powers.view(ml_dtypes.float8_e8m0fnu),
        block=(1, BLOCK),
        name=name,
    )
