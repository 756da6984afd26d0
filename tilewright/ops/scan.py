"""`T.cumsum` and `T.cummax`: running sums and maxima along one dimension of a tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir.dtypes import DType
from tilewright.ir.nodes import Effects, Expr, Region, Statement, TileOperator, Var, binary, cast, const, tile_operator
from tilewright.ops.base import (
    accumulator,
    begin,
    check_known,
    compute_dtype,
    element,
    get,
    parallel,
    put,
    same_shape,
    serial,
    shape_text,
    static_extents,
    store_element,
)
from tilewright.ops.rounding import cast_array, round_float, wrap

KINDS = {"sum": "add", "max": "max"}


@tile_operator("scan")
class Scan(TileOperator):
    """``destination[..., j, ...] = fold(source[..., :j + 1, ...])``.

    Fields
    ------
    source, destination : tiles of one shape; they may be the same tile.
    kind : ``"sum"`` or ``"max"``.
    dim : the dimension to run along; negative ones count from the end.
    reverse : run from the end.

    Each element is rounded once from float64 (integers modulo 2**bits of the destination).
    """

    source: Region
    destination: Region
    kind: str = "sum"
    dim: int = 0
    reverse: bool = False

    @property
    def axis(self) -> int:
        """`dim` counted from the front."""
        return self.dim % len(self.source.extents)

    def check(self) -> Iterator[str]:
        rank = len(self.source.extents)
        source, destination = self.source.dtype, self.destination.dtype
        yield from check_known(source=self.source)
        if self.kind not in KINDS:
            yield f"the kind is {self.kind!r}, but should be one of {', '.join(KINDS)}"
        if not -rank <= self.dim < rank:
            yield f"dim is {self.dim}, but the source has {rank} dimensions"
        if not same_shape(self.source.extents, self.destination.extents):
            yield f"shapes differ: source {shape_text(self.source)}, destination {shape_text(self.destination)}"
        if destination.kind == "bool" or (source.is_float and not destination.is_float):
            yield f"a running {self.kind} of {source} does not fit a destination of {destination}"

    def effects(self) -> Effects:
        return Effects(reads=(self.source,), writes=(self.destination,))

    def reference(self, source: np.ndarray) -> tuple[np.ndarray]:
        values = np.flip(source, self.axis) if self.reverse else source
        result = self._scan(values)
        return (np.flip(result, self.axis) if self.reverse else result,)

    def _scan(self, values: np.ndarray) -> np.ndarray:
        destination = self.destination.dtype
        if self.kind == "max":
            return cast_array(np.fmax.accumulate(values, axis=self.axis), self.source.dtype, destination)
        if destination.is_integer:
            return wrap(np.add.accumulate(values.astype(np.int64), axis=self.axis), destination)
        with np.errstate(invalid="ignore", over="ignore"):
            return round_float(np.add.accumulate(values.astype(np.float64), axis=self.axis), destination)

    def lower(self) -> Statement:
        extents = static_extents(self.source)
        assert extents is not None
        kept = [axis for axis in range(len(extents)) if axis != self.axis]
        shape = [extents[axis] for axis in kept]
        return parallel(shape or [1], lambda *index: self._lower_line(dict(zip(kept, index))), span=self.span)

    def _lower_line(self, index: dict[int, Var]) -> list[Statement]:
        """One line along the dimension: a scalar accumulator, stored after every element."""
        length = int(self.source.extents[self.axis])  # type: ignore[arg-type]
        wide = self._wide()
        total = accumulator("total", wide)

        def at(k: Expr) -> list[Expr]:
            place = binary("sub", const(length - 1), k) if self.reverse else k
            return [index.get(axis, place) for axis in range(len(self.source.extents))]

        def step(k: Var) -> list[Statement]:
            value = cast(element(self.source, at(k)), wide)
            return [
                put(total, binary(KINDS[self.kind], get(total), value)),
                store_element(self.destination, at(k), get(total)),
            ]

        first = at(const(0))
        return [
            begin(total, element(self.source, first)),
            store_element(self.destination, first, get(total)),
            serial("k", 1, length, step),
        ]

    def _wide(self) -> DType:
        """The dtype in which elements are combined."""
        if self.kind == "max":
            return self.source.dtype
        destination = self.destination.dtype
        return destination if destination.is_integer else compute_dtype(self.source.dtype, destination)
