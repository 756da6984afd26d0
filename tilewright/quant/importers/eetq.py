"""Weights of EETQ: int8 with a scale a row, in the order of a kernel of FasterTransformer."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight

_ROWS = 64
"""Elements of K that lie together, those of an even n before those of the next."""


def from_eetq(weight: object, weight_scales: object, *, name: str = "weight") -> QuantizedWeight:
    """A weight of EETQ as GPUs from Turing on have it: ``w[n, k] = code[n, k] * weight_scales[n]``.

    The bytes lie in runs of 64, ``run = n // 2 * (K / 32) + k // 64 * 2 + n % 2``, and with ``i = k % 16``::

        code[n, k] = int8(byte[64 * run + k % 64 // 16 * 16 + 4 * (i % 8 // 2) + 2 * (i % 2) + i // 8] ^ 128)

    No file says of which GPU its order is. EETQ's scale of a row is its largest magnitude over 128, so that each row of
    the right order has a code at the end of the range; rows of another order do not.

    Parameters
    ----------
    weight : int8 ``[K, N]``.
    weight_scales : floats ``[N]``.

    Source: the preprocessing of weights in EETQ and FasterTransformer (``ColumnMajorTileInterleave``).
    """
    stored = expect(f"{name}.weight", weight, ["int8"], [None, None], "[K, N]")
    K, N = stored.shape
    if K % _ROWS or N % 2:
        raise InvalidTensor(
            f"{name}.weight is {[K, N]}, where EETQ's order has a multiple of {_ROWS} rows and of 2 columns"
        )
    scales = expect(f"{name}.weight_scales", weight_scales, FLOATS, [N], "[N]")
    bits = (np.ascontiguousarray(stored).view(np.uint8) ^ 128).reshape(N // 2, K // _ROWS, 2, 4, 4, 2, 2)
    codes = np.ascontiguousarray(bits.transpose(0, 2, 1, 3, 6, 4, 5)).reshape(N, K)
    numbers = codes.view(np.int8)
    short = np.flatnonzero((numbers.max(1) < 127) & (numbers.min(1) > -127) & (scales != 0)) if K else scales
    if short.size:
        raise InvalidTensor(
            f"{name}.weight is in no order that is known: row {int(short[0])} has no code of 127 or -128",
            hint="that of GPUs from Turing on can be read; or quantise the dense model: tilewright convert MODEL "
            "--scheme int8-channel",
        )
    return assemble(name, codes, "int8", scales.reshape(N, 1), K)
