"""What to tell the author of a product that threads multiply element by element, at a hundredth of the matrix unit's
speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.ir.nodes import WARP, Buffer, Region, const
from tilewright.machine import Arch, MatrixInstruction
from tilewright.ops.gemm import Gemm
from tilewright.ops.product import Product
from tilewright.passes.tile.gemms.gemm_candidates import candidates_of

STEP = 16
"""Rows and columns by which tiles of advice differ."""

MOST_TILES = 400
"""Other tiles that are looked at, nearest first."""


def reason(gemm: Product, refused: str, arch: Arch) -> str | None:
    """Why a product that matrix instructions could execute, were it written otherwise, is left to threads; None where
    they could not.

    Parameters
    ----------
    refused : why each instruction for its types does not fit, as `candidates_of` says it.
    """
    if not arch.matrix_instructions:
        return None
    if gemm.a.dtype != gemm.b.dtype:
        return f"no instruction multiplies {gemm.a.dtype} by {gemm.b.dtype}; give both operands one type"
    far = [region.buffer.name for region in (gemm.a, gemm.b, gemm.c) if region.buffer.scope == "global"]
    if far:
        return (
            f"{' and '.join(far)} of this product {'lies' if len(far) == 1 else 'lie'} in global memory; copy "
            f"tiles of {'it' if len(far) == 1 else 'them'} into shared ones first"
        )
    for_types = _for_operands(gemm, arch)
    if not for_types:
        return None
    sums = dict.fromkeys(one.accumulator.name for one in for_types)
    if gemm.c.dtype.name not in sums:
        return (
            f"no instruction adds products of {gemm.a.dtype} up in {gemm.c.dtype}; add them up in {' or '.join(sums)}"
        )
    return refused.strip().removeprefix("(not ").removesuffix(")")


def advice(gemm: Product, threads: int, arch: Arch, by_rows: bool, tiles: Mapping[Buffer, int]) -> str | None:
    """The nearest numbers of threads and the nearest tile with which the matrix unit would execute a product.

    Parameters
    ----------
    threads : that execute it.
    by_rows, tiles : as for `candidates_of`.
    """
    if not _for_operands(gemm, arch) or any(one.buffer.scope == "global" for one in (gemm.a, gemm.b, gemm.c)):
        return None

    def fits(one: Product, count: int, spans: Mapping[Buffer, int]) -> bool:
        return candidates_of(one, count, arch, by_rows, spans)[0][0] is not None

    counts = [count for count in range(WARP, arch.max_threads + 1, WARP) if fits(gemm, count, tiles)]
    below, above = [c for c in counts if c < threads][-1:], [c for c in counts if c > threads][:1]
    nearest = " or ".join(str(count) for count in (*below, *above))
    found = [f"{nearest} threads"] if nearest else []
    if isinstance(gemm, Gemm):
        spans = dict(tiles)
        for m, n, k in _tiles(gemm, arch):
            if fits(_resized(gemm, m, n, k, spans), threads, spans):
                found.append(f"a tile of {m} x {n}" + (f" in steps of {k} along k" if k != gemm.k else ""))
                break
    return f"the matrix unit takes it with {', or '.join(found)}" if found else None


def _for_operands(gemm: Product, arch: Arch) -> list[MatrixInstruction]:
    instructions = arch.matrix_instructions if isinstance(gemm, Gemm) else arch.sparse_instructions
    return [one for one in instructions if (one.a, one.b) == (gemm.a.dtype, gemm.b.dtype)]


def _tiles(gemm: Gemm, arch: Arch) -> list[tuple[int, int, int]]:
    """Tiles of about a product's size that an instruction's steps along k divide, the nearest first."""
    step = min(one.k for one in _for_operands(gemm, arch))
    lower, k = gemm.k // step * step, -(-gemm.k // step) * step
    k = lower if lower and gemm.k - lower < k - gemm.k else k
    sizes = [(m, n, k) for m in _near(gemm.m) for n in _near(gemm.n)]

    def distance(size: tuple[int, int, int]) -> float:
        return abs(math.log(size[0] / gemm.m)) + abs(math.log(size[1] / gemm.n))

    return sorted(sizes, key=distance)[:MOST_TILES]


def _near(size: int) -> Iterator[int]:
    """`size` and the multiples of `STEP` between half of it and twice of it."""
    yield size
    yield from (near for near in range(STEP, 2 * size + STEP, STEP) if near != size and 2 * near >= size)


def _resized(gemm: Gemm, m: int, n: int, k: int, spans: dict[Buffer, int]) -> Gemm:
    """The same product on another tile; what descriptors may read stays so."""

    def region(of: Region, rows: int, columns: int) -> Region:
        if of.static_extents[-2:] == (rows, columns):
            return of
        buffer = replace(of.buffer, shape=(*of.buffer.shape[:-2], rows, columns))
        if of.buffer in spans:
            spans[buffer] = spans[of.buffer]
        extents = (*of.extents[:-2], rows, columns)
        return Region(buffer, (*of.starts[:-2], const(0), const(0)), extents)

    a = region(gemm.a, *((k, m) if gemm.transpose_a else (m, k)))
    b = region(gemm.b, *((n, k) if gemm.transpose_b else (k, n)))
    return replace(gemm, a=a, b=b, c=region(gemm.c, m, n))
