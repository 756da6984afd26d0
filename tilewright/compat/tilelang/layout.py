"""``tilelang.layout``: index maps, and the swizzled one of shared tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.language import Fragment, Layout
from tilewright.language.buffers import BufferProxy
from tilewright.language.dtypes import NumberType
from tilewright.language.layouts import Advised
from tilewright.language.proxies import Value

__all__ = [
    "Fragment", "Layout", "get_swizzle_layout", "make_cutlass_metadata_layout", "make_full_bank_swizzled_layout",
    "make_fully_replicated_layout_fragment", "make_gemm_fragment_8x8", "make_gemm_fragment_8x8_transposed",
    "make_half_bank_swizzled_layout", "make_linear_layout", "make_mma_swizzle_layout",
    "make_quarter_bank_swizzled_layout", "make_swizzled_layout", "make_volta_swizzled_layout",
    "make_wgmma_swizzled_layout",
]  # fmt: skip

CHUNK_BITS, ROWS = 128, 8


def make_fully_replicated_layout_fragment(buffer: BufferProxy, threads: int) -> Layout:
    """The layout of a fragment that every thread holds whole."""
    shape = tuple(int(extent) for extent in buffer.shape)
    return Fragment(
        shape, forward_thread_fn=lambda *indices: indices[-1], forward_index_fn=_row_major(shape), replicate=threads
    )


def _row_major(shape: tuple[int, ...]) -> Callable[..., Value]:
    def place(*indices: Value) -> Value:
        offset: Value = 0
        for index, extent in zip(indices, shape, strict=True):
            offset = offset * extent + index
        return offset

    return place


def make_cutlass_metadata_layout(
    buffer: object, mma_dtype: object = "float16", arch: object = None, **options: object
) -> Layout:
    """The layout of the metadata of a sparse operand, which lie row by row as `tilelang.utils.sparse` makes them."""
    return make_linear_layout(buffer)


def make_gemm_fragment_8x8() -> Layout:
    """How the lanes of a warp hold 8 by 8 halves of a matrix instruction: two neighbours of a row each."""
    return Fragment((8, 8), forward_thread_fn=lambda i, j: i * 4 + j // 2, forward_index_fn=lambda i, j: j % 2)


def make_gemm_fragment_8x8_transposed() -> Layout:
    """The same of a tile whose dimensions are swapped."""
    return Fragment((8, 8), forward_thread_fn=lambda i, j: j * 4 + i // 2, forward_index_fn=lambda i, j: i % 2)


def make_linear_layout(*of: Any) -> Layout:
    """The row-major layout of a tile, or of a shape given as ints or as a tuple."""
    extents = of if isinstance(of[0], int) else of[0] if isinstance(of[0], (tuple, list)) else of[0].shape
    shape = tuple(int(extent) for extent in extents)
    return Layout(shape, _row_major(shape))


def get_swizzle_layout(row: Any, column: Any, row_size: int, dtype: object, swizzle_bytes: int | None = None) -> object:
    """Row and column at which an element of a swizzled tile with rows of so many elements lies; `swizzle_bytes` of a
    row take part: 128, 64 or 32, the most that divides it where None."""
    bits = NumberType(dtype).bits
    chunk = CHUNK_BITS // bits
    spans = [row_size * bits // 8] if swizzle_bytes is None else [swizzle_bytes]
    span = next((chunks for chunks in (8, 4, 2) if spans[0] % (16 * chunks) == 0), 1)
    return row, column ^ (row // (ROWS // span) % span * chunk)


def make_swizzled_layout(buffer: BufferProxy, *_: object, **options: object) -> Layout:
    """A layout of a shared tile in which 16-byte chunks of 8 neighbouring rows lie in different banks; for
    `T.annotate_layout` advice to swizzle. Options are accepted for TileLang's sake."""
    *outer, columns = (int(extent) for extent in buffer.shape)
    chunk = CHUNK_BITS // buffer.buffer.dtype.bits
    span = math.gcd(ROWS, columns // chunk) if columns % chunk == 0 else 1

    def place(*indices: object) -> Value:
        row: Any = 0
        for index, extent in zip(indices[:-1], outer, strict=True):
            row = row * extent + index
        return row * columns + (indices[-1] ^ (row // (ROWS // span) % span * chunk))

    return Advised((*outer, columns), place)


make_full_bank_swizzled_layout = make_half_bank_swizzled_layout = make_quarter_bank_swizzled_layout = (
    make_swizzled_layout
)
make_wgmma_swizzled_layout = make_volta_swizzled_layout = make_mma_swizzle_layout = make_swizzled_layout
