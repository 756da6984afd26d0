"""2:4 sparse matrices: two of every four neighbours kept, and two bits each that say where they stood.

The metadata of a row is one nibble for each group of four: the first kept place in its low two bits, the second in the
high ones, in ascending order; the nibbles of two groups share a byte, low first. That is row-major and knows no
machine; what a matrix instruction wants in its lanes is `metadata_word`.

Of elements that a matrix unit takes as 32 bits (``tfloat32``) one of every *two* is kept, and the nibble of such a
group names the halves of what is kept: 4 the first element, 14 the second. `group_of` says which pattern goes with a
type.

Source: NVIDIA's manual of PTX, mma.sp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.ir.dtypes import DType

GROUP = 4
"""Of each so many neighbours along a row half may differ from zero; of 32-bit elements of matrix units `PAIR`."""

PAIR = 2


class NotSparse(TilewrightError):
    """A matrix that is not 2:4 sparse where it has to be."""


def group_of(dtype: DType) -> int:
    """How many neighbours make a group of which half is kept, for elements of a type."""
    return PAIR if dtype.name == "tfloat32" else GROUP


def prune(matrix: np.ndarray, group: int = GROUP) -> np.ndarray:
    """The matrix with all but the largest half of every `group` neighbours along its rows zero; the first wins a tie.
    Raises NotSparse for rows that are no multiple of the group long."""
    groups = _groups(matrix, group)
    order = np.argsort(-np.abs(groups.astype(np.float64)), axis=-1, kind="stable")
    kept = np.zeros(groups.shape, bool)
    np.put_along_axis(kept, order[..., : group // 2], True, axis=-1)
    return np.where(kept, groups, np.zeros((), matrix.dtype)).reshape(matrix.shape)


def compress(matrix: np.ndarray, group: int = GROUP) -> tuple[np.ndarray, np.ndarray]:
    """What is kept of a 2:4 sparse matrix (its type, half as many columns), and where it stood (metadata, uint8, a byte
    for every two groups). Rows are a multiple of two groups long, and at most half of every group is not zero; a
    `group` is `GROUP`, or `PAIR` for the operands of tfloat32 products. Raises NotSparse."""
    if matrix.ndim != 2 or matrix.shape[1] % (2 * group):
        raise NotSparse(
            f"a matrix of shape {matrix.shape} cannot be compressed: rows must be a multiple of {2 * group} long",
            hint="pad the rows with zeros",
        )
    groups = _groups(matrix, group)
    used = groups.astype(np.float64) != 0
    crowded = np.argwhere(used.sum(-1) > group // 2)
    if len(crowded):
        row, place = crowded[0]
        first, last = group * place, group * place + group - 1
        count = "two" if group == GROUP else "one"
        raise NotSparse(
            f"more than {count} of the columns {first} to {last} of row {row} differ from zero",
            hint="call tilewright.formats.sparse.prune first",
        )
    # Places that are used come first, in order; free ones fill up.
    order = np.sort(np.argsort(~used, axis=-1, kind="stable")[..., : group // 2], axis=-1)
    kept = np.take_along_axis(groups, order, axis=-1).reshape(matrix.shape[0], -1)
    nibbles = (order[..., 0] | order[..., 1] << 2 if group == GROUP else 4 + 10 * order[..., 0]).astype(np.uint8)
    return np.ascontiguousarray(kept), nibbles[:, ::2] | nibbles[:, 1::2] << 4


def expand(kept: np.ndarray, metadata: np.ndarray, group: int = GROUP) -> np.ndarray:
    """Inverse of `compress`; `metadata` as it gives it."""
    places = places_of(metadata, group)
    groups = np.zeros((*places.shape[:-1], group), kept.dtype)
    np.put_along_axis(groups, places, kept.reshape(places.shape), axis=-1)
    return groups.reshape(kept.shape[0], -1)


def places_of(metadata: np.ndarray, group: int = GROUP) -> np.ndarray:
    """Where the kept elements of each group stand: int64 of shape (rows, groups, group / 2)."""
    nibbles = np.stack([metadata & 15, metadata >> 4], axis=-1).reshape(metadata.shape[0], -1).astype(np.int64)
    return np.stack([nibbles & 3, nibbles >> 2], axis=-1) if group == GROUP else nibbles[..., None] >> 3


LANE_ROWS, LANE_BYTES = 16, 8
"""Rows, and bytes of each, whose metadata is one word for each lane of a warp."""


def in_lanes(metadata: Any, bits: int) -> Any:  # NumPy's or torch's
    """Metadata in the order of the lanes that give it to matrix instructions, so that a warp reads its words in one
    access.

    For 16 rows and 8 bytes of each (one step of products of bytes, two of wider elements) the words of the 32 lanes lie
    one after the other, and such pieces of 16 rows one behind the other along k; then come the next 16 rows.

    Parameters
    ----------
    metadata : ``[..., rows, bytes]`` as `compress` gives it, `LANE_ROWS` and `LANE_BYTES` times any number; a NumPy
        array or a tensor.
    bits : of an element.

    Returns
    -------
    The same bytes in another order, in the same shape.
    """
    *outer, rows, columns = metadata.shape
    pieces = (rows // LANE_ROWS, 2, 8, columns // LANE_BYTES)  # halves of 8 rows, their rows, pieces along k
    cut = metadata.reshape(*outer, *pieces, *((2, 4) if bits == 8 else (4, 2)))
    first = len(outer)
    order = [0, 3, 2, 4, 1, 5]  # a lane has one word of one row, or two halfwords of rows 8 apart
    axes = [*range(first), *(first + axis for axis in order)]
    transposed = cut.transpose(axes) if isinstance(cut, np.ndarray) else cut.permute(axes)
    return transposed.reshape(metadata.shape)


def in_rows(metadata: np.ndarray, bits: int) -> np.ndarray:
    """Inverse of `in_lanes`."""
    places = in_lanes(np.arange(metadata.size, dtype=np.int64).reshape(metadata.shape), bits)
    result = np.empty_like(metadata)
    result.reshape(-1)[places.reshape(-1)] = metadata.reshape(-1)
    return result


def _groups(matrix: np.ndarray, group: int) -> np.ndarray:
    if matrix.shape[-1] % group:
        raise NotSparse(
            f"rows of {matrix.shape[-1]} elements cannot be cut into groups of {group}", hint="pad the rows with zeros"
        )
    return matrix.reshape(*matrix.shape[:-1], -1, group)
