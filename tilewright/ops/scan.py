"""`T.cumsum` and `T.cummax`: running sums and maxima along one dimension of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from tilewright.ir import GREATEST, DType
from tilewright.ir import nodes as ir
from tilewright.ops import base
from tilewright.ops.rounding import cast_array, round_float, wrap

KINDS = {"sum": "add", "max": "max"}

FEWEST_PARTS, MOST_PARTS = 4, 256
"""Parts of a line that threads share: with fewer, putting them together takes longer than it saves; with more, the
barriers of the block do. Long parts are worse than many: threads that are as far apart as a part is long read the same
bank."""


@ir.tile_operator("scan")
class Scan(ir.TileOperator):
    """``destination[..., j, ...] = fold(source[..., :j + 1, ...])``.

    Fields
    ------
    source, destination : tiles of one shape; they may be the same tile.
    kind : ``"sum"`` or ``"max"``.
    dim : the dimension to run along, kept counted from the end.
    reverse : run from the end.

    Each element is rounded once from float64 (integers modulo 2**bits of the destination).
    """

    source: ir.Region
    destination: ir.Region
    kind: str = "sum"
    dim: int = 0
    reverse: bool = False

    dimensions: ClassVar[Mapping[str, str]] = {"dim": "source"}

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tile that both regions are: one of them may have dimensions of extent 1 in front."""
        rank = min(len(self.source.extents), len(self.destination.extents))
        shape = base.static_shape_of_rank(self.source, rank)
        assert shape is not None
        return shape

    @property
    def axis(self) -> int:
        """`dim` counted from the front of `shape`."""
        return self.dim % len(self.shape)

    def check(self) -> Iterator[str]:
        rank = min(len(self.source.extents), len(self.destination.extents))
        source, destination = self.source.dtype, self.destination.dtype
        of_source, of_destination = base.shape_of_rank(self.source, rank), base.shape_of_rank(self.destination, rank)
        yield from base.check_known(source=self.source)
        yield from base.check_apart(self.source, self.destination)
        if self.kind not in KINDS:
            yield f"the kind is {self.kind!r}, but should be one of {', '.join(KINDS)}"
        if not -rank <= self.dim < rank:
            yield f"dim is {self.dim}, but the source has {rank} dimensions"
        if of_source is None or of_destination is None or not base.same_shape(of_source, of_destination):
            shapes = f"source {base.shape_text(self.source)}, destination {base.shape_text(self.destination)}"
            yield f"shapes differ: {shapes}"
        if destination.kind == "bool" or (source.is_float and not destination.is_float):
            yield f"a running {self.kind} of {source} does not fit a destination of {destination}"

    def effects(self) -> ir.Effects:
        return ir.Effects(reads=(self.source,), writes=(self.destination,))

    def reference(self, source: np.ndarray) -> tuple[np.ndarray]:
        source = base.as_shape(source, self.shape)
        values = np.flip(source, self.axis) if self.reverse else source
        result = self._scan(values)
        return (np.flip(result, self.axis) if self.reverse else result,)

    def _scan(self, values: np.ndarray) -> np.ndarray:
        destination = self.destination.dtype
        if self.kind == "max":
            return cast_array(GREATEST.accumulate(values, axis=self.axis), self.source.dtype, destination)
        if destination.is_integer:
            return wrap(np.add.accumulate(values.astype(np.int64), axis=self.axis), destination)
        with np.errstate(invalid="ignore", over="ignore"):
            return round_float(np.add.accumulate(values.astype(np.float64), axis=self.axis), destination)

    def lower(self) -> ir.Statement:
        return base.along_lines(self.shape, self.axis, self._lower_line, self.span)

    def lower_divided(self, threads: int) -> ir.Statement | None:
        """The same where a block's threads share memory and lines are few: each line in parts, and a scan of what they
        add up to.

        None where every thread has a line of its own, or a line has no equal parts.
        """
        extents = self.shape
        kept = [axis for axis in range(len(extents)) if axis != self.axis]
        shape = [extents[axis] for axis in kept]
        length = extents[self.axis]
        most = min(MOST_PARTS, threads // math.prod(shape))
        parts = max((count for count in range(1, most + 1) if length % count == 0), default=1)
        if parts < FEWEST_PARTS:
            return None
        sums = ir.Buffer("sums", (*shape, parts), self._wide(), "shared")

        def summed(*index: ir.Var) -> list[ir.Statement]:
            total, part = base.accumulator("total", sums.dtype), index[-1]
            at = partial(self._of_part, dict(zip(kept, index)), part, length // parts)
            return [
                base.begin(total, base.element(self.source, at(ir.const(0)))),
                base.serial("k", 1, length // parts, lambda k: [base.put(total, self._folded(base.get(total), at(k)))]),
                ir.Store(sums, index, base.get(total)),
            ]

        def finished(*index: ir.Var) -> list[ir.Statement]:
            total, part = base.accumulator("total", sums.dtype), index[-1]
            at = partial(self._of_part, dict(zip(kept, index)), part, length // parts)
            before = ir.Load(
                sums.dtype, offsets, (*index[:-1], ir.binary("max", ir.binary("sub", part, ir.const(1)), ir.const(0)))
            )
            first = at(ir.const(0))
            begun = ir.Select(
                sums.dtype, ir.binary("gt", part, ir.const(0)), self._folded(before, first), self._element(first)
            )
            return [
                base.begin(total, begun),
                base.store_element(self.destination, first, base.get(total)),
                base.serial("k", 1, length // parts, lambda k: self._next(total, at(k))),
            ]

        offsets, scanned = self._scan_of_parts(sums)
        begun = base.parallel(sums.static_shape, summed, span=self.span)
        return ir.seq(ir.Allocate(sums), begun, *scanned, base.parallel(sums.static_shape, finished, span=self.span))

    def _scan_of_parts(self, sums: ir.Buffer) -> tuple[ir.Buffer, list[ir.Statement]]:
        """The running results along the last dimension of a shared tile, those at twice the distance in each step."""
        made: list[ir.Statement] = []
        distance = 1
        while distance < sums.static_shape[-1]:
            after = replace(sums, name="offsets")

            def step(
                *index: ir.Var, before: ir.Buffer = sums, after: ir.Buffer = after, by: int = distance
            ) -> ir.Statement:
                *line, part = index
                own = ir.Load(before.dtype, before, index)
                other = ir.Load(
                    before.dtype, before, (*line, ir.binary("max", ir.binary("sub", part, ir.const(by)), ir.const(0)))
                )
                reached = ir.binary("ge", part, ir.const(by))
                return ir.Store(
                    after, index, ir.Select(own.dtype, reached, ir.binary(KINDS[self.kind], other, own), own)
                )

            made += [ir.Allocate(after), base.parallel(sums.static_shape, step, span=self.span)]
            sums, distance = after, distance * 2
        return sums, made

    def _of_part(self, line: dict[int, ir.Var], part: ir.Expr, length: int, k: ir.Expr) -> list[ir.Expr]:
        """The place of element `k` of a part of a line, in the order of the scan."""
        place = ir.binary("add", ir.binary("mul", part, ir.const(length)), k)
        if self.reverse:
            place = ir.binary("sub", ir.const(self.shape[self.axis] - 1), place)
        return [line.get(axis, place) for axis in range(len(self.shape))]

    def _element(self, place: list[ir.Expr]) -> ir.Expr:
        return ir.cast(base.element(self.source, place), self._wide())

    def _folded(self, total: ir.Expr, place: list[ir.Expr]) -> ir.Expr:
        return ir.binary(KINDS[self.kind], total, self._element(place))

    def _next(self, total: ir.Buffer, place: list[ir.Expr]) -> list[ir.Statement]:
        """An element, folded into what runs along a line and stored."""
        folded = base.put(total, self._folded(base.get(total), place))
        return [folded, base.store_element(self.destination, place, base.get(total))]

    def _lower_line(self, index: dict[int, ir.Var]) -> list[ir.Statement]:
        """One line along the dimension: a scalar accumulator, stored after every element."""
        total = base.accumulator("total", self._wide())
        at = partial(self._of_part, index, ir.const(0), 0)
        first = at(ir.const(0))
        return [
            base.begin(total, base.element(self.source, first)),
            base.store_element(self.destination, first, base.get(total)),
            base.serial("k", 1, self.shape[self.axis], lambda k: self._next(total, at(k))),
        ]

    def _wide(self) -> DType:
        """The dtype in which elements are combined."""
        if self.kind == "max":
            return self.source.dtype
        destination = self.destination.dtype
        return destination if destination.is_integer else base.compute_dtype(self.source.dtype, destination)
