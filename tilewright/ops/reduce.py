"""`T.reduce_sum`, `T.reduce_max` and their kin: one dimension of a tile folded into one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np

from tilewright.ir import GREATEST, LEAST, DType
from tilewright.ir import nodes as ir
from tilewright.ops import base
from tilewright.ops.rounding import cast_array, round_float, wrap

COMBINE: Mapping[str, str] = {
    "sum": "add", "abssum": "add", "max": "max", "absmax": "max", "min": "min",
    "bitand": "and", "bitor": "or", "bitxor": "xor", "any": "any", "all": "all",
}  # fmt: skip
"""Kinds of reduction and the binary operator that combines two elements."""

_FOLDS: Mapping[str, Callable[..., np.ndarray]] = {
    "max": GREATEST.reduce, "absmax": GREATEST.reduce, "min": LEAST.reduce,
    "bitand": np.bitwise_and.reduce, "bitor": np.bitwise_or.reduce, "bitxor": np.bitwise_xor.reduce,
    "any": np.logical_or.reduce, "all": np.logical_and.reduce,
}  # fmt: skip


@ir.tile_operator("reduce")
class Reduce(ir.TileOperator):
    """``destination = fold(source, dim)``, combined with the old destination where `clear` is False.

    Fields
    ------
    source : a tile of known shape.
    destination : the source's shape without `dim`, or with 1 there.
    kind : a key of `COMBINE`.  ``absmax`` and ``abssum`` take absolute values first; ``any`` and ``all`` ask
        whether elements differ from zero.
    dim : the dimension of `source` to fold, kept counted from the end.
    clear : whether the old destination is dropped.

    Sums are taken in float64 (integers modulo 2**bits of the destination) and rounded once; the other kinds
    are exact in the source's dtype.
    """

    source: ir.Region
    destination: ir.Region
    kind: str
    dim: int = -1
    clear: bool = True

    dimensions: ClassVar[Mapping[str, str]] = {"dim": "source"}

    @property
    def axis(self) -> int:
        """`dim` counted from the front."""
        return self.dim % len(self.source.extents)

    @property
    def is_sum(self) -> bool:
        return self.kind in ("sum", "abssum")

    @property
    def value_dtype(self) -> DType:
        """The dtype in which elements are combined."""
        source, destination = self.source.dtype, self.destination.dtype
        if self.kind in ("any", "all"):
            return destination
        if not self.is_sum:
            return source
        return destination if destination.is_integer else base.compute_dtype(source, destination)

    def check(self) -> Iterator[str]:
        rank = len(self.source.extents)
        yield from base.check_known(source=self.source)
        if self.kind not in COMBINE:
            yield f"the kind is {self.kind!r}, but should be one of {', '.join(COMBINE)}"
        if not -rank <= self.dim < rank:
            yield f"dim is {self.dim}, but the source has {rank} dimensions"
            return
        kept = [extent for axis, extent in enumerate(self.source.extents) if axis != self.axis]
        squeezed = tuple(extent for extent in kept if not ir.is_literal(extent, 1)) or (1,)
        if not base.same_shape(squeezed, self.destination.tile_shape):
            expected = "(" + ", ".join(str(extent) for extent in kept or [1]) + ")"
            yield (
                f"folding dimension {self.axis} of {base.shape_text(self.source)} gives {expected}, "
                f"but the destination has shape {base.shape_text(self.destination)}"
            )
        yield from self._check_dtypes()

    def _check_dtypes(self) -> Iterator[str]:
        source, destination = self.source.dtype, self.destination.dtype
        if self.kind.startswith("bit") and not (source.kind != "float" and destination.kind != "float"):
            yield f"{self.kind} needs integers, but combines {source} into {destination}"
        elif self.kind not in ("any", "all") and destination.kind == "bool" and source.kind != "bool":
            yield f"{self.kind} of {source} does not fit a destination of bool"
        elif self.is_sum and source.is_float and not destination.is_float:
            yield f"a sum of {source} needs a float destination, not {destination}"
        elif self.is_sum and destination.kind == "bool":
            yield "a sum of bools needs an integer destination"

    def effects(self) -> ir.Effects:
        reads = (self.source,) if self.clear else (self.source, self.destination)
        return ir.Effects(reads=reads, writes=(self.destination,))

    def reference(self, source: np.ndarray, old: np.ndarray | None = None) -> tuple[np.ndarray]:
        if self.is_sum:
            return (self._sum(source, old),)
        if self.kind in ("any", "all"):
            folded = _FOLDS[self.kind](source.astype(np.float64) != 0, axis=self.axis)
            folded = folded if old is None else np.stack([folded, np.reshape(old, folded.shape) != 0])
            folded = folded if old is None else _FOLDS[self.kind](folded, axis=0)
            return (folded.astype(self.destination.dtype.numpy),)
        values = absolute(source, self.source.dtype) if self.kind == "absmax" else source
        result = cast_array(_FOLDS[self.kind](values, axis=self.axis), self.source.dtype, self.destination.dtype)
        if old is not None:
            result = _FOLDS[self.kind](np.stack([np.reshape(old, result.shape), result]), axis=0)
        return (result,)

    def _sum(self, source: np.ndarray, old: np.ndarray | None) -> np.ndarray:
        destination = self.destination.dtype
        values = absolute(source, self.source.dtype) if self.kind == "abssum" else source
        if destination.is_integer:
            total = np.add.reduce(values.astype(np.int64), axis=self.axis)
            return wrap(total if old is None else total + np.reshape(old, total.shape).astype(np.int64), destination)
        with np.errstate(invalid="ignore", over="ignore"):
            wide = np.add.reduce(values.astype(np.float64), axis=self.axis)
            wide = wide if old is None else wide + np.reshape(old, wide.shape).astype(np.float64)
        return round_float(wide, destination)

    def lower(self) -> ir.Statement:
        return base.along_lines(self.source.static_extents, self.axis, self._lower_element, self.span)

    def _lower_element(self, index: dict[int, ir.Var]) -> list[ir.Statement]:
        """One element of the destination: a scalar accumulator over the folded dimension."""
        combine = COMBINE[self.kind]
        length = self.source.static_extents[self.axis]
        total = base.accumulator("total", self.value_dtype)
        place: list[ir.Expr] = [var for axis, var in index.items() if not ir.is_literal(self.source.extents[axis], 1)]

        def value(at: ir.Expr) -> ir.Expr:
            return self._value(
                base.element(self.source, [index.get(axis, at) for axis in range(len(self.source.extents))])
            )

        def step(k: ir.Var) -> list[ir.Statement]:
            return [base.put(total, self._combined(combine, base.get(total), value(k)))]

        destination = base.full_index(self.destination, place or [ir.const(0)])
        result = ir.cast(base.get(total), self.destination.dtype)
        if not self.clear:
            old = ir.Region(self.destination.buffer, destination, (1,) * len(destination))
            result = self.with_old(base.element(old, [ir.const(0)]), base.get(total))
        return [
            base.begin(total, value(ir.const(0))),
            base.serial("k", 1, length, step),
            ir.Store(self.destination.buffer, destination, result),
        ]

    def _combined(self, combine: str, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        if combine not in ("any", "all"):
            return ir.binary(combine, left, right)
        either = ir.binary(combine, _truth(left), _truth(right))
        return ir.cast(either, self.value_dtype)

    def with_old(self, old: ir.Expr, total: ir.Expr) -> ir.Expr:
        """The old destination combined: a sum before it is rounded, all else in the destination's dtype."""
        combine = COMBINE[self.kind]
        if self.is_sum:
            return ir.cast(ir.binary(combine, ir.cast(old, self.value_dtype), total), self.destination.dtype)
        return self._combined(combine, old, ir.cast(total, self.destination.dtype))

    def _value(self, loaded: ir.Expr) -> ir.Expr:
        """What of an element is combined."""
        if self.kind in ("any", "all"):
            return ir.cast(_truth(loaded), self.value_dtype)
        if self.kind.startswith("abs") and loaded.dtype.is_signed:
            loaded = ir.Call(loaded.dtype, "abs", (loaded,))
        return ir.cast(loaded, self.value_dtype)


def _truth(value: ir.Expr) -> ir.Expr:
    return value if value.dtype.kind == "bool" else ir.binary("ne", value, base.zero(value.dtype))


def absolute(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Absolute values in the carrier; that of the smallest integer wraps to itself."""
    return values if not dtype.is_signed else wrap(np.abs(values), dtype) if dtype.is_integer else np.abs(values)
