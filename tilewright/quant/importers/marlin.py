"""Weights in the order of the Marlin kernel, as AWQ's ``marlin`` form and GPTQ checkpoints saved for it have them."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import assemble, fields, group_size
from tilewright.quant.importers.awq import ORDER
from tilewright.quant.weight import QuantizedWeight

ROWS, COLUMNS = 16, 64
"""Elements of K and N in a tile: what 128 words of a row of ``qweight`` hold."""


def from_marlin(qweight: object, scales: object, *, bits: int = 4, name: str = "weight") -> QuantizedWeight:
    """A symmetric 4-bit weight in Marlin's order: ``w[n, k] = (code[n, k] - 8) * scale[n, k // group]``.

    A row of words holds 16 elements of K, tile by tile of 64 columns n. Word ``4 * t + j`` of a tile belongs to thread
    t of a warp and the 16 columns from ``16 * j`` on; its nibble s (the lowest first) is, with ``e = ORDER[s]``, the
    element at::

        k = 2 * (t % 4) + e % 2 + 8 * (e // 2 % 2)         n = 16 * j + t // 4 + 8 * (e // 4)

    Rows of scales are cut into 64 (one group: 32), in which place ``8 * i + j`` is column ``i + 8 * j`` (one group:
    place ``8 * i + j`` is column ``2 * i + j % 2 + 8 * (j // 2)``).

    Parameters
    ----------
    qweight : int32 ``[K / 16, 2 * N]``.
    scales : floats ``[K / group, N]``.
    bits : 4, the only size of the form.
    name : what messages call the weight.

    Raises
    ------
    InvalidTensor : a tensor of another shape or element type, another number of bits.

    Source: Frantar et al., "MARLIN", PPoPP 2025; the checkpoint forms of AutoAWQ and AutoGPTQ.
    """
    if bits != 4:
        raise InvalidTensor(f"{name}: weights in Marlin's order have 4 bits, not {bits}")
    words = expect(f"{name}.qweight", qweight, ["int32"], [None, None], "[K / 16, 2 * N]")
    K, N = words.shape[0] * ROWS, words.shape[1] // 2
    if N % COLUMNS or not N:
        raise InvalidTensor(
            f"{name}.qweight has {words.shape[1]} words a row, which tiles of {2 * COLUMNS} do not make"
        )
    factors = expect(f"{name}.scales", scales, FLOATS, [None, N], "[K / group, N]")
    group = group_size(f"{name}.scales", K, factors.shape[0])
    tiles = fields(words, 4, 2 * N * 8).reshape(K // ROWS, N // COLUMNS, ROWS * COLUMNS)[:, :, _places()]
    codes = tiles.reshape(K // ROWS, N // COLUMNS, COLUMNS, ROWS).transpose(1, 2, 0, 3).reshape(N, K)
    codes, factors, zeros = np.ascontiguousarray(codes), _in_order(factors), np.full((1, 1), 8, np.uint8)
    return assemble(codes, "uint4", scales=factors, zeros=zeros, zeros_mode="quantized", block=(1, group), name=name)


def _places() -> np.ndarray:
    """Which nibble of a tile holds each element, ``[64 * 16]``, a column's 16 elements of K side by side."""
    nibble = np.arange(ROWS * COLUMNS)
    word, e = nibble // 8, np.array(ORDER)[nibble % 8]
    t, j = word // 4, word % 4
    k = 2 * (t % 4) + e % 2 + 8 * (e // 2 % 2)
    n = 16 * j + t // 4 + 8 * (e // 4)
    return np.argsort(n * ROWS + k)


def _in_order(scales: np.ndarray) -> np.ndarray:
    """Scales ``[N, K / group]``."""
    groups, N = scales.shape
    i, j = np.divmod(np.arange(32 if groups == 1 else 64), 8)
    column = 2 * i + j % 2 + 8 * (j // 2) if groups == 1 else i + 8 * j
    found = scales.reshape(groups, -1, column.size)[:, :, np.argsort(column)]
    return np.ascontiguousarray(found.reshape(groups, N).T)
