"""`Decode`: low-bit weights become operands, with their scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir import DType, dtypes
from tilewright.ir import nodes as ir
from tilewright.ops import base
from tilewright.ops.rounding import cast_array, round_float

ZEROS_MODES = ("original", "rescale", "quantized")


@ir.tile_operator("decode")
class Decode(ir.TileOperator):
    """``destination = (source - zero) * scale``, or ``source * scale - zero``.

    Fields
    ------
    destination : a tile of floats or integers.
    source : codes, of the destination's shape: any number type of 8 bits or fewer.
    scale, zero : a region, a scalar for all elements, or None.  A region has the source's dimensions, each
        with the source's extent or 1, but along `axis` one element a group; a region of one dimension fewer
        has no group dimension: one element for all groups.
    zeros_mode : ``"original"``: ``(w - z) * s``; ``"rescale"``: ``w * s - z``; ``"quantized"``:
        ``(w - z) * s`` with zeros that are themselves low-bit integers.
    group_size : elements along `axis` that share a scale and a zero; None: as the extents of the regions say.
    axis : the dimension of the source that groups run along; negative ones count from the end.
    codebook : values of the codes (nf4 and its kin), 2**bits of them, or None where a code is its own number.

    Every step is rounded to float32 (float64 where the destination is), and the result to the destination's
    dtype.  Without scale and zero, a code is converted straight to the destination's dtype.
    """

    destination: ir.Region
    source: ir.Region
    scale: ir.Region | ir.Expr | None = None
    zero: ir.Region | ir.Expr | None = None
    zeros_mode: str = "original"
    group_size: int | None = None
    axis: int = -1
    codebook: tuple[float, ...] | None = None

    @property
    def rank(self) -> int:
        """Dimensions of the source, those of extent 1 apart."""
        return len(self.source.tile_shape)

    @property
    def compute_dtype(self) -> DType:
        """The dtype of the steps."""
        return dtypes.FLOAT64 if self.destination.dtype.bits == 64 else dtypes.FLOAT32

    def check(self) -> Iterator[str]:
        if not base.same_shape(self.source.tile_shape, self.destination.tile_shape):
            shapes = f"source {base.shape_text(self.source)}, destination {base.shape_text(self.destination)}"
            yield f"shapes differ: {shapes}"
        if not -self.rank <= self.axis < self.rank:
            yield f"axis is {self.axis}, but the source has {self.rank} dimensions"
            return
        for name, operand in (("scale", self.scale), ("zero", self.zero)):
            if isinstance(operand, ir.Region):
                yield from self._check_groups(name, operand)
        if self.zeros_mode not in ZEROS_MODES:
            yield f"zeros_mode is {self.zeros_mode!r}, but should be one of {', '.join(ZEROS_MODES)}"
        if self.group_size is not None and self.group_size <= 0:
            yield f"the group size is {self.group_size}, but should be positive"
        yield from self._check_dtypes()

    def _check_groups(self, name: str, operand: ir.Region) -> Iterator[str]:
        shape = self._group_shape(operand)
        if shape is None or self._divisors(shape) is None:
            yield (
                f"the {name} has shape {base.shape_text(operand)}, which does not fit groups of a source of "
                f"{base.shape_text(self.source)}"
            )

    def _check_dtypes(self) -> Iterator[str]:
        source, destination = self.source.dtype, self.destination.dtype
        if source.bits > 8 or source.kind == "bool":
            yield f"the source is {source}, but codes have 8 bits or fewer"
        if destination.kind == "bool":
            yield "the destination is bool, but a float or an integer was expected"
        if destination.is_integer and self.scale is not None:
            yield f"the destination is {destination}, but scaled values need a float"
        if destination.is_integer and self.codebook is not None and not self._holds_codebook:
            yield f"the destination is {destination}, which does not hold all values of the codebook"
        if self.zeros_mode == "quantized" and self.zero is not None and not self.zero.dtype.is_integer:
            yield f"zeros_mode is 'quantized', but the zeros are {self.zero.dtype}, not integers"
        if self.codebook is not None and (source.is_float or len(self.codebook) != 1 << source.bits):
            yield f"the codebook has {len(self.codebook)} values, but {source} has {1 << source.bits} codes"

    @property
    def _holds_codebook(self) -> bool:
        """Whether the values are whole numbers of the destination's type, none of them changed by a zero."""
        target, values = self.destination.dtype, self.codebook or ()
        whole = all(value == int(value) and target.minimum <= value <= target.maximum for value in values)
        return whole and self.zero is None

    def _group_shape(self, operand: ir.Region) -> tuple[ir.Extent, ...] | None:
        """The shape of a scale or zero with the source's rank, or None where it has another."""
        lacks_groups = len(operand.extents) == self.rank - 1
        shape = base.shape_of_rank(operand, self.rank - 1 if lacks_groups else self.rank)
        if shape is None or not lacks_groups:
            return shape
        axis = self.axis % self.rank
        return (*shape[:axis], 1, *shape[axis:])

    def _divisors(self, shape: tuple[ir.Extent, ...]) -> tuple[int | None, ...] | None:
        """For each dimension, what an index is divided by (None: it does not matter), or None where one does not
        fit."""
        divisors: list[int | None] = []
        for axis, (extent, groups) in enumerate(zip(self.source.tile_shape, shape, strict=True)):
            if ir.is_literal(groups, 1):
                fits = axis != self.axis % self.rank or self.group_size is None or _at_most(extent, self.group_size)
                divisors.append(None)
            elif axis != self.axis % self.rank:
                fits = base.same_extent(extent, groups)
                divisors.append(1)
            elif not isinstance(extent, int) or not isinstance(groups, int):
                return None
            else:
                size = self.group_size or max(1, extent // groups)
                fits = -(-extent // size) == groups and (self.group_size is not None or extent % groups == 0)
                divisors.append(size)
            if not fits:
                return None
        return tuple(divisors)

    def effects(self) -> ir.Effects:
        extra = tuple(operand for operand in (self.scale, self.zero) if isinstance(operand, ir.Region))
        return ir.Effects(reads=(self.source, *extra), writes=(self.destination,))

    def reference(self, source: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray]:
        operands = [operand for operand in (self.scale, self.zero) if operand is not None]
        operands.sort(key=lambda operand: isinstance(operand, ir.Expr))  # values of regions arrive first
        given = dict(zip(map(id, operands), rest, strict=True))
        source = np.reshape(source, [int(e) for e in np.shape(source) if e != 1] or [1])
        if self.codebook is None and self.scale is None and self.zero is None:
            return (cast_array(source, self.source.dtype, self.destination.dtype),)
        values = self._codes(source)
        scale = self._expanded(self.scale, given.get(id(self.scale)), source.shape)
        zeros = self._expanded(self.zero, given.get(id(self.zero)), source.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            for name, operand in (("mul", scale), ("sub", zeros))[:: 1 if self.zeros_mode == "rescale" else -1]:
                if operand is not None:
                    exact = values.astype(np.float64)
                    wide = exact * operand if name == "mul" else exact - operand
                    values = round_float(wide, self.compute_dtype)
        return (cast_array(values, self.compute_dtype, self.destination.dtype),)

    def _codes(self, source: np.ndarray) -> np.ndarray:
        """Values of the codes in the computing dtype."""
        if self.codebook is None:
            return cast_array(source, self.source.dtype, self.compute_dtype)
        table = np.array(self.codebook, np.float64).astype(self.compute_dtype.numpy)
        return table[source.view(np.uint8) & np.uint8((1 << self.source.dtype.bits) - 1)]

    def _expanded(
        self, operand: ir.Region | ir.Expr | None, values: object, shape: tuple[int, ...]
    ) -> np.ndarray | None:
        """A scale or zero as float64 with one element for each of the source's (or one for all)."""
        if operand is None:
            return None
        wide = cast_array(np.asarray(values), operand.dtype, self.compute_dtype).astype(np.float64)
        if not isinstance(operand, ir.Region):
            return wide
        grouped = self._group_shape(operand)
        assert grouped is not None
        divisors = self._divisors(grouped)
        assert divisors is not None
        wide = base.as_shape(wide, grouped)
        for axis, divisor in enumerate(divisors):
            if divisor not in (None, 1):
                wide = np.take(wide, np.arange(shape[axis]) // divisor, axis=axis)
        return wide

    def lower(self) -> ir.Statement:
        return base.elementwise(self.destination, self._lower_element, span=self.span)

    def _lower_element(self, *index: ir.Expr) -> ir.Statement:
        value = base.element(self.source, index)
        if self.codebook is None and self.scale is None and self.zero is None:
            return base.store_element(self.destination, index, value)
        dtype = self.compute_dtype
        value = ir.cast(value, dtype) if self.codebook is None else self._look_up(value, self.codebook)
        for name, operand in (("mul", self.scale), ("sub", self.zero))[:: 1 if self.zeros_mode == "rescale" else -1]:
            if operand is not None:
                value = ir.binary(name, value, ir.cast(self._grouped(operand, index), dtype))
        return base.store_element(self.destination, index, value)

    def _grouped(self, operand: ir.Region | ir.Expr, index: tuple[ir.Expr, ...]) -> ir.Expr:
        """The scale or zero of the element at `index`."""
        if isinstance(operand, ir.Expr):
            return operand
        shape = self._group_shape(operand)
        assert shape is not None
        divisors = self._divisors(shape)
        assert divisors is not None
        where = [
            ir.const(0) if divisor is None else at if divisor == 1 else at // divisor
            for at, divisor in zip(index, divisors, strict=True)
        ]
        if len(operand.extents) == self.rank - 1:
            del where[self.axis % self.rank]
        return base.element(operand, where)

    def _look_up(self, code: ir.Expr, values: tuple[float, ...]) -> ir.Expr:
        """The codebook's value of a code: a choice for each bit, the highest first."""
        unsigned = dtypes.ALL[f"uint{code.dtype.bits}"]
        bits = ir.cast(code if code.dtype == unsigned else ir.Reinterpret(unsigned, code), dtypes.UINT8)
        return self._choose(bits, values)

    def _choose(self, code: ir.Expr, values: tuple[float, ...]) -> ir.Expr:
        if len(values) == 1:
            return ir.const(float(values[0]), self.compute_dtype)
        half = len(values) // 2
        chosen = ir.binary("ne", ir.binary("and", code, ir.const(half, dtypes.UINT8)), base.zero(dtypes.UINT8))
        return ir.Select(
            self.compute_dtype, chosen, self._choose(code, values[half:]), self._choose(code, values[:half])
        )


def _at_most(extent: ir.Extent, size: int) -> bool:
    return isinstance(extent, int) and extent <= size
