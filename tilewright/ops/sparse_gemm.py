"""`T.gemm_sp`: multiply a 2:4 sparse tile, held as what was kept and where it stood, by a dense one into an accumulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.formats.sparse import expand, group_of
from tilewright.ir.dtypes import INT32, UINT8, DType
from tilewright.ir.nodes import (
    Effects,
    Expr,
    Region,
    Statement,
    TileOperator,
    Var,
    binary,
    cast,
    const,
    index_binary,
    tile_operator,
)
from tilewright.ops.base import (
    accumulator,
    as_shape,
    begin,
    check_known,
    compute_dtype,
    element,
    get,
    parallel,
    put,
    serial,
    shape_of_rank,
    shape_text,
    store_element,
)
from tilewright.ops.gemm import POLICIES, Gemm, accumulated, first_value


@tile_operator("sparse_gemm")
class SparseGemm(TileOperator):
    """``c += expand(a, metadata) @ b``, or ``c = ...`` where `clear` holds.

    Fields
    ------
    a : (m, k / 2), two of every four elements along k (of tfloat32 one of every two).
    metadata : uint8 (m, k / 8), as `formats.sparse.compress` gives it; (m, k / 4) for tfloat32.
    b, c, transpose_b, clear, policy : as those of `Gemm`.

    The sum of one operator is rounded once to c's dtype; integers wrap.
    """

    conditions: ClassVar[tuple[str, ...]] = ("clear",)

    a: Region
    metadata: Region
    b: Region
    c: Region
    transpose_b: bool = False
    clear: bool | Expr = False
    policy: str = "square"

    @property
    def transpose_a(self) -> bool:
        """Never: metadata goes with rows."""
        return False

    @property
    def operands(self) -> tuple[Region, ...]:
        """What a matrix instruction reads of shared tiles, itself or through registers."""
        return (self.a, self.metadata, self.b)

    @property
    def group(self) -> int:
        """Neighbours along k of which half is kept."""
        return group_of(self.a.dtype)

    @property
    def m(self) -> int:
        return _two(self.a)[0]

    @property
    def n(self) -> int:
        return _two(self.b)[0 if self.transpose_b else 1]

    @property
    def k(self) -> int:
        return _two(self.b)[1 if self.transpose_b else 0]

    def check(self) -> Iterator[str]:
        unknown = list(check_known(a=self.a, metadata=self.metadata, b=self.b, c=self.c))
        yield from unknown
        names = ("a", "metadata", "b", "c")
        flat = [name for name in names if shape_of_rank(getattr(self, name), 2) is None]
        yield from (
            f"{name} has shape {shape_text(getattr(self, name))}, but two dimensions are needed" for name in flat
        )
        if not unknown and not flat:
            yield from self._check_shapes()
        if self.metadata.dtype != UINT8:
            yield f"the metadata is {self.metadata.dtype}, but should be uint8"
        if self.c.dtype.is_integer and not (self.a.dtype.is_integer and self.b.dtype.is_integer):
            yield f"c is {self.c.dtype}, but the product of {self.a.dtype} and {self.b.dtype} needs a float accumulator"
        if self.policy not in POLICIES:
            yield f"the policy is {self.policy!r}, but should be one of {', '.join(POLICIES)}"

    def _check_shapes(self) -> Iterator[str]:
        step = 2 * self.group
        if self.k % step:
            yield f"k is {self.k}, but should be a multiple of {step}"
        elif _two(self.a) != (self.m, self.k // 2):
            yield f"b has k = {self.k}, so a should have {self.k // 2} columns, but it has shape {shape_text(self.a)}"
        elif _two(self.metadata) != (self.m, self.k // step):
            yield f"the metadata should have shape ({self.m}, {self.k // step}), but has {shape_text(self.metadata)}"
        if _two(self.c) != (self.m, self.n):
            yield f"the product has shape ({self.m}, {self.n}), but c has shape {shape_text(self.c)}"

    def effects(self) -> Effects:
        reads = [self.a, self.metadata, self.b]
        return Effects(reads=tuple(reads if self.clear is True else [*reads, self.c]), writes=(self.c,))

    def reference(self, *reads: np.ndarray) -> tuple[np.ndarray]:
        kept, metadata, b = (
            as_shape(one, shape_of_rank(region, 2)) for one, region in zip(reads, (self.a, self.metadata, self.b))
        )
        old = None if self.clear is True else as_shape(reads[3], (self.m, self.n))
        return (accumulated(expand(kept, metadata, self.group), b.T if self.transpose_b else b, old, self.c.dtype),)

    def lower(self) -> Statement:
        return parallel((self.m, self.n), self._lower_element, span=self.span)

    def _lower_element(self, i: Var, j: Var) -> list[Statement]:
        """One element of c: a scalar accumulator over what was kept."""
        integers = self.c.dtype.is_integer
        wide: DType = self.c.dtype if integers else compute_dtype(self.a.dtype, self.b.dtype, self.c.dtype)
        first = first_value(self.c, (i, j), self.clear, wide)
        total = accumulator("total", wide)

        def step(kept: Var) -> list[Statement]:
            # Kept elements of a group have two bits each; the one of a pair is named by the last of its four.
            half = self.group // 2
            byte = cast(element(self.metadata, (i, index_binary("floordiv", kept, self.group))), INT32)
            shift = index_binary("mul", index_binary("floormod", kept, self.group), 4 // half)
            if half == 1:
                shift = index_binary("add", shift, 3)
            place = binary("and", binary("shr", byte, shift), const(self.group - 1))
            first = index_binary("mul", index_binary("floordiv", kept, half), self.group)
            k = index_binary("add", first, place)
            a = cast(element(self.a, (i, kept)), wide)
            b = cast(element(self.b, (j, k) if self.transpose_b else (k, j)), wide)
            return [put(total, binary("add", get(total), binary("mul", a, b)))]

        return [begin(total, first), serial("kept", 0, self.k // 2, step), store_element(self.c, (i, j), get(total))]


Product = Gemm | SparseGemm
"""What matrix instructions execute: ``c += a @ b``."""


def _two(region: Region) -> tuple[int, int]:
    shape = shape_of_rank(region, 2)
    assert shape is not None and all(isinstance(extent, int) for extent in shape)
    return shape  # type: ignore[return-value]
