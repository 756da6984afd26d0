"""2:4 sparse matrices: two of every four neighbours kept, and two bits each that say where they stood.

The metadata of a row is one nibble for each group of four: the first kept place in its low two bits, the second in the high ones, in
ascending order; the nibbles of two groups share a byte, low first.  That is row-major and knows no machine; what a matrix
instruction wants in its lanes is `metadata_word`.

Source: `hardware.md`, section 8.
"""

from __future__ import annotations

import numpy as np

from tilewright.errors import TilewrightError

GROUP, KEPT = 4, 2
"""Of each `GROUP` neighbours along a row `KEPT` may differ from zero."""


class NotSparse(TilewrightError):
    """A matrix that is not 2:4 sparse where it has to be."""


def prune(matrix: np.ndarray) -> np.ndarray:
    """The matrix with all but the two largest of every four neighbours along its rows zero; the first wins a tie.

    Raises
    ------
    NotSparse : rows are not a multiple of four long.
    """
    groups = _groups(matrix)
    order = np.argsort(-np.abs(groups.astype(np.float64)), axis=-1, kind="stable")
    kept = np.zeros(groups.shape, bool)
    np.put_along_axis(kept, order[..., :KEPT], True, axis=-1)
    return np.where(kept, groups, np.zeros((), matrix.dtype)).reshape(matrix.shape)


def compress(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is kept of a 2:4 sparse matrix, and where it stood.

    Parameters
    ----------
    matrix : of two dimensions, rows a multiple of eight long, at most two of every four neighbours not zero.

    Returns
    -------
    kept : the matrix's type, half as many columns.
    metadata : uint8, an eighth as many columns.

    Raises
    ------
    NotSparse : more than two of four neighbours differ from zero, or rows are of another length.
    """
    if matrix.ndim != 2 or matrix.shape[1] % (2 * GROUP):
        raise NotSparse(
            f"a matrix of shape {matrix.shape} cannot be compressed: rows must be a multiple of {2 * GROUP} long",
            hint="pad the rows with zeros",
        )
    groups = _groups(matrix)
    used = groups.astype(np.float64) != 0
    crowded = np.argwhere(used.sum(-1) > KEPT)
    if len(crowded):
        row, group = crowded[0]
        raise NotSparse(
            f"more than two of the columns {GROUP * group} to {GROUP * group + 3} of row {row} differ from zero",
            hint="call tilewright.formats.sparse.prune first",
        )
    # Places that are used come first, in order; free ones fill up.
    order = np.sort(np.argsort(~used, axis=-1, kind="stable")[..., :KEPT], axis=-1)
    kept = np.take_along_axis(groups, order, axis=-1).reshape(matrix.shape[0], -1)
    nibbles = (order[..., 0] | order[..., 1] << 2).astype(np.uint8)
    return np.ascontiguousarray(kept), nibbles[:, ::2] | nibbles[:, 1::2] << 4


def expand(kept: np.ndarray, metadata: np.ndarray) -> np.ndarray:
    """Inverse of `compress`; `metadata` as it gives it."""
    places = places_of(metadata)
    groups = np.zeros((*places.shape[:-1], GROUP), kept.dtype)
    np.put_along_axis(groups, places, kept.reshape(places.shape), axis=-1)
    return groups.reshape(kept.shape[0], -1)


def places_of(metadata: np.ndarray) -> np.ndarray:
    """Where the two kept elements of each group stand: int64 of shape (rows, groups, 2)."""
    nibbles = np.stack([metadata & 15, metadata >> 4], axis=-1).reshape(metadata.shape[0], -1).astype(np.int64)
    return np.stack([nibbles & 3, nibbles >> 2], axis=-1)


def metadata_word(lane: int, bits: int, k: int, selector: int) -> list[tuple[int, int]] | None:
    """Row and group of each of the eight nibbles in a lane's word for a tile of 16 rows; None where its word does not count.

    Parameters
    ----------
    bits : of an element: 16 or 8.
    k : of the instruction, counted with what is not kept.
    selector : which lanes of a quad give their words.
    """
    g, q = lane // 4, lane % 4
    half = k == 256 // bits
    if bits == 8:
        if half and q // 2 != selector:
            return None
        return [(g + 8 * (q & 1), j if half else 8 * (q >> 1) + j) for j in range(8)]
    if (q if half else q // 2) != selector:
        return None
    return [(g + 8 * (j >> 2), (j & 3) if half else 4 * (q & 1) + (j & 3)) for j in range(8)]


def _groups(matrix: np.ndarray) -> np.ndarray:
    if matrix.shape[-1] % GROUP:
        raise NotSparse(
            f"rows of {matrix.shape[-1]} elements cannot be cut into groups of {GROUP}", hint="pad the rows with zeros"
        )
    return matrix.reshape(*matrix.shape[:-1], -1, GROUP)
