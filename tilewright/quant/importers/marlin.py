"""Weights in the order of the Marlin kernels, as AWQ's ``marlin`` form and GPTQ checkpoints saved for them have them;
of compressed-tensors the sparse ones; those of QQQ."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.formats.sparse import expand
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import assemble, fields, group_size
from tilewright.quant.importers.awq import ORDER
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

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
    return assemble(name, _of_tiles(words, 4, N), "uint4", _in_order(factors), group, 8)


def from_qqq(B: object, s_channel: object, s_group: object, *, name: str = "weight") -> QuantizedWeight:
    """A weight of QQQ, whose 4 bits are made 8 before they meet activations of 8 bits.

    Words hold tiles as `from_marlin` says, but ``k = 4 * (t % 4) + e % 4``; nibbles without groups are in two's
    complement, with ``e = (4, 0, 5, 1, 6, 2, 7, 3)[s]``::

        w[n, k] = nibble[n, k] * 16 * s_channel[n]                                                 int4
        w[n, k] = round((nibble[n, k] - 8) * s_group[k // group, n]) * s_channel[n]                int8, with groups

    What is rounded, to even and to -128 to 127, is the number that QQQ multiplies by.  Scales are in the orders of
    `from_marlin`.

    Parameters
    ----------
    B : int32 ``[K / 16, 2 * N]``.
    s_channel : float32 ``[1, N]``.
    s_group : float16 ``[K / group, N]``, empty without groups.

    Source: Zhang et al. 2024; the checkpoints of QQQ and GPTQModel.
    """
    words = expect(f"{name}.B", B, ["int32"], [None, None], "[K / 16, 2 * N]")
    K, N = words.shape[0] * ROWS, words.shape[1] // 2
    if N % COLUMNS or not N or words.shape[1] % 2:
        raise InvalidTensor(f"{name}.B has {words.shape[1]} words a row, which tiles of {2 * COLUMNS} do not make")
    channel = _in_order(expect(f"{name}.s_channel", s_channel, ["float32"], [1, N], "[1, N]"))
    if not as_numpy(s_group).size:
        codes = _of_tiles(words, 4, N, np.array((4, 0, 5, 1, 6, 2, 7, 3)), run=4)
        return assemble(name, codes, "int4", channel * np.float64(16), K)
    factors = expect(f"{name}.s_group", s_group, ["float16"], [None, N], "[K / group, N]")
    group = group_size(f"{name}.s_group", K, len(factors))
    if len(factors) == 1:
        raise InvalidTensor(f"{name}.s_group has one group, which is due in s_channel")
    if not np.isfinite(factors).all():
        raise InvalidTensor(f"{name}.s_group holds numbers that are not finite")
    wide = (_of_tiles(words, 4, N, run=4).astype(np.float64) - 8) * np.repeat(_in_order(factors), group, 1)[:, :K]
    codes = np.clip(np.rint(wide), -128, 127).astype(np.int8).view(np.uint8)
    return assemble(name, codes, "int8", channel, K)


def _of_tiles(
    words: np.ndarray, bits: int, N: int, order: np.ndarray | None = None, *, run: int = 2, sparse: bool = False
) -> np.ndarray:
    """Codes ``[N, elements of K]``: which field of a tile holds each of them `from_marlin` and its kin say.

    Parameters
    ----------
    order : e of each of eight fields; by default Marlin's.
    run : elements of K one after another that a thread holds.
    """
    p = np.arange(ROWS * COLUMNS)
    usual = np.array(ORDER if bits == 4 else (0, 2, 1, 3, 4, 6, 5, 7))
    e, t, j = (usual if order is None else order)[p % 8], p // 32, p // 8 % 4
    k = run * (t % 4) + e % run + 8 * (e % 4 // run)
    n = 8 * (t // 4) + 4 * (e // 4) + j if sparse else 16 * j + t // 4 + 8 * (e // 4)
    tiles = fields(words, bits, N * ROWS).reshape(-1, N // COLUMNS, p.size)[:, :, np.argsort(n * ROWS + k)]
    codes = tiles.reshape(-1, N // COLUMNS, COLUMNS, ROWS).transpose(1, 2, 0, 3)
    return np.ascontiguousarray(codes).reshape(N, -1)


def _in_order(scales: np.ndarray) -> np.ndarray:
    """Scales ``[N, K / group]``."""
    groups, N = scales.shape
    i, j = np.divmod(np.arange(32 if groups == 1 else 64), 8)
    column = 2 * i + j % 2 + 8 * (j // 2) if groups == 1 else i + 8 * j
    found = scales.reshape(groups, -1, column.size)[:, :, np.argsort(column)]
    return np.ascontiguousarray(found.reshape(groups, N).T)


def from_marlin_24(
    weight_packed: object, scale_packed: object, meta: object, *, bits: int = 4, name: str = "weight"
) -> QuantizedWeight:
    """A 2:4 sparse symmetric weight: ``w[n, k] = (code[n, k] - half) * scale[n, k // group]``.

    Of every four columns k two are kept, those of column 4 * q + i as ``kept[n, 2 * q]`` and ``kept[n, 2 * q + 1]``;
    nibble q of row n of `meta` has both places i, the first in its low bits; all other codes are
    ``half = 2**(bits - 1)``.

    Field p of a run of 1,024 of `weight_packed`, the lowest bits first, belongs to thread t = p // 32 of a warp, and is
    with j = p // 8 % 4 and, of 4 bits, ``e = ORDER[p % 8]``, of 8 ``e = 4 * (p // 4 % 2) + (0, 2, 1, 3)[p % 4]``, the
    element of `kept` at::

        k = 2 * (t % 4) + e % 2 + 8 * (e // 2 % 2)         n = 8 * (t // 4) + 4 * (e // 4) + j

    of a tile of 16 columns of `kept` and 64 rows n. Place ``8 * i + j`` of a row of scales is row
    ``8 * i + 4 * (j % 2) + j // 2`` (one group: itself). The 16 bits for row r and 16 columns c lie, where
    ``s = r // 64 * 64 + r % 2 * 2 + r % 8 // 4 + r % 4 // 2 * 32 + r % 64 // 8 * 4`` and the last bits of s and c are
    both turned where they differ, at ``c // 2 * 2 * N + 2 * s + c % 2``.

    Parameters
    ----------
    weight_packed : int32 ``[K / 32, N * bits / 2]``.
    scale_packed : floats ``[K / group, N]``.
    meta : int16 ``[K / 32, 2 * N]``.
    bits : 4 or 8.

    Source: ``marlin-24`` of compressed-tensors 0.12, ``marlin_24`` of GPTQ checkpoints; the kernel is that of vLLM.
    """
    if bits not in (4, 8):
        raise InvalidTensor(f"{name}: sparse weights in Marlin's order have 4 or 8 bits, not {bits}")
    words = expect(f"{name}.weight_packed", weight_packed, ["int32"], [None, None], "[K / 32, N * bits / 2]")
    K, N = words.shape[0] * 2 * ROWS, words.shape[1] * 2 // bits
    if N % COLUMNS or not N:
        raise InvalidTensor(f"{name}.weight_packed has rows of {words.shape[1]} words, which tiles do not make")
    factors = expect(f"{name}.scale_packed", scale_packed, FLOATS, [None, N], "[K / group, N]")
    if len(factors) == 2:
        raise InvalidTensor(f"{name}.scale_packed has two groups, whose order is one thing to the writer, one to vLLM")
    group = group_size(f"{name}.scale_packed", K, len(factors))
    where = expect(f"{name}.meta", meta, ["int16"], [K // 32, 2 * N], "[K / 32, 2 * N]").reshape(-1)[_meta(N, K)]
    kept = _of_tiles(words, bits, N, sparse=True)
    half, nibbles = np.uint8(1 << (bits - 1)), np.ascontiguousarray(where).view(np.uint8)
    if (((nibbles & 3) == (nibbles >> 2 & 3)) | ((nibbles >> 4 & 3) == nibbles >> 6)).any():
        raise InvalidTensor(f"{name}.meta puts two numbers in one place")
    codes = expand(kept - half, nibbles) + half
    if len(factors) > 1:
        i, place = np.arange(N), np.arange(8)
        factors = factors[:, i // 8 * 8 + np.argsort(4 * (place % 2) + place // 2)[i % 8]]
    return assemble(name, codes, f"uint{bits}", np.ascontiguousarray(factors.T), group, int(half))


def _meta(N: int, K: int) -> np.ndarray:
    """Where the 16 bits of each row and 16 columns lie, ``[N, K / 16]``."""
    r, c = np.arange(N)[:, None], np.arange(K // 16)
    s = r // 64 * 64 + r % 2 * 2 + r % 8 // 4 + r % 4 // 2 * 32 + r % 64 // 8 * 4
    turned = (s + c) % 2
    return (c ^ turned) // 2 * 2 * N + 2 * (s ^ turned) + (c ^ turned) % 2
