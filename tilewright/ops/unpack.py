"""`T.unpack`: records of a packed weight become operands of matrix instructions, and scales beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import ALL, FLOAT32, INT8, INT32, UINT32, DType
from tilewright.layout.layout import Layout
from tilewright.machine import COLUMNS, FragmentRecords
from tilewright.ops.base import full_index, parallel, shape_of_rank, shape_text, static_shape_of_rank, store_element
from tilewright.ops.rounding import cast_array

TABLE = (256, ir.WARP)
"""Shape of a table of pairs of codes: a row for each byte, a column for each lane, so that no two meet in a bank."""

LINES = {"scale": "scales", "zero": "zeros"}
"""Fields of a record by the operand that takes a column of them."""


@ir.tile_operator("unpack")
class Unpack(ir.TileOperator):
    """What records hold, as numbers.

    Fields
    ------
    source : one record, or several one below the other: 32-bit words.
    form : their order.
    codes : tile of the form's operand type, with the rows of the records and some of their columns, or None. Of int8,
        for a form of 16 bits, it holds the codes as they are, columns in the order of `FragmentRecords.byte_column`,
        multiples of `byte_unit`.
    scale, zero : float32 tiles of one dimension, with one number for each row, of the group of column `first`.
    first : the first column of `codes` within the record.
    offset : what is subtracted from codes; None leaves them as they come fastest, as
        ``(code + form.raw_bias) * form.raw_unit(row // 8 % 2)``.
    scaled : codes are multiplied by the scale of their row and group, and rounded to the operand's type.
    lifted : scaled codes come as multiples of ``form.lifted_unit``, in one operation; what becomes too small for normal
        numbers of the operand's type loses bits.
    zeros_mode : what the records' zeros do to scaled codes, before that rounding: ``"original"`` takes ``zero * scale``
        from them, itself rounded, ``"rescale"`` takes ``zero``; None where records hold none. Operands of int8 have
        only ``"original"``, scaled or not, and what comes out must fit them.
    table : shared uint32 tile of shape `TABLE` that holds, in every column, the register that the two codes of a byte
        become, the first one in its low half; None where codes that stand for values are looked up otherwise.
    """

    source: ir.Region
    form: FragmentRecords
    codes: ir.Region | None = None
    scale: ir.Region | None = None
    zero: ir.Region | None = None
    first: int = 0
    offset: int | None = None
    scaled: bool = False
    zeros_mode: str | None = None
    table: ir.Region | None = None
    lifted: bool = False

    @property
    def rows(self) -> int:
        """Rows of all records together."""
        return self._records() * self.form.rows

    @property
    def columns(self) -> int:
        """Columns of codes that are unpacked."""
        shape = None if self.codes is None else static_shape_of_rank(self.codes, 2)
        return 0 if shape is None else shape[1]

    def _records(self) -> int:
        tile = self.source.static_tile_shape
        return tile[0] if len(tile) == 2 else 1

    @property
    def as_bytes(self) -> bool:
        """Whether codes that are ordered for 16 bits come as bytes."""
        return self.codes is not None and self.codes.dtype == INT8 and self.form.has_bytes

    def check(self) -> Iterator[str]:
        source = self.source.tile_shape
        if self.source.dtype != UINT32 or len(source) > 2 or source[-1] != self.form.words:
            yield (
                f"the source is {self.source.dtype} of shape {shape_text(self.source)}, but a record is "
                f"{self.form.words} words"
            )
            return
        if self.codes is not None:
            yield from self._check_codes(self.codes)
        for name, field in LINES.items():
            operand: ir.Region | None = getattr(self, name)
            if operand is None:
                continue
            if getattr(self.form, name) is None:
                yield f"{self.form} holds no {field}"
            if operand.dtype != FLOAT32 or operand.tile_shape != (self.rows,):
                yield f"the {name} is {operand.dtype} of shape {shape_text(operand)}, expected float32 of ({self.rows})"
        if self.scaled and (not self.form.scales_codes or self.offset is None):
            yield (
                f"codes of {self.form} cannot be scaled here: scales of type {self.form.operand} and an offset "
                "are needed"
            )
        if self.as_bytes and self.offset is not None:
            yield f"codes of {self.form} come as bytes only as they are, without an offset or scales"
        if self.lifted and (not self.form.is_liftable(self.offset or 0) or not self.scaled or self.zeros_mode):
            yield (
                f"codes of {self.form} cannot be lifted here: that is for scaled integers, without zeros, "
                "offset by a power of two"
            )
        integer = self.form.operand.is_integer
        if self.form.operand.bits == 8 and not integer and (self.offset is not None or self.scaled):
            yield f"codes of {self.form} come only as they are, without an offset or scales"
        if self.zeros_mode == "rescale" and integer:
            yield f"codes of {self.form} are whole numbers, from which no zeros of scaled weights are taken"
        applied = self.offset is not None if integer else self.scaled
        if self.zeros_mode is not None and (not applied or self.form.zero != self.form.operand):
            yield f"zeros of {self.form} cannot be applied here: they go with scaled codes, in type {self.form.operand}"
        if self.form.numbers is not None and self.offset not in (None, 0):
            yield f"codes of {self.form} stand for values, from which no offset is subtracted"
        if self.zeros_mode not in (None, "original", "rescale"):
            yield f"zeros_mode is {self.zeros_mode!r}, but should be one of original, rescale"

        if self.table is not None and not self.form.is_looked_up:
            yield f"codes of {self.form} are not looked up, so that there is no table of them"
        if self.table is not None and (self.table.dtype != UINT32 or self.table.tile_shape != TABLE):
            yield f"the table is {self.table.dtype} of shape {shape_text(self.table)}, expected uint32 of {TABLE}"

    def _check_codes(self, codes: ir.Region) -> Iterator[str]:
        shape, step = shape_of_rank(codes, 2), 32 if self.as_bytes else 8 * self.form.packed
        if shape is None or shape[0] != self.rows or not isinstance(shape[1], int):
            yield f"the codes have shape {shape_text(codes)}, but the records have {self.rows} rows"
        elif self.first % step or shape[1] % step or not 0 <= self.first <= COLUMNS - shape[1]:
            yield (
                f"columns {self.first} to {self.first + shape[1]} are no whole steps of {step} of a record's {COLUMNS}"
            )
        if codes.dtype != self.form.operand and not self.as_bytes:
            yield f"the codes are {codes.dtype}, but the records are ordered for {self.form.operand}"

    def effects(self) -> ir.Effects:
        return ir.Effects(
            reads=(self.source,) if self.table is None else (self.source, self.table),
            writes=tuple(w for w in (self.codes, self.scale, self.zero) if w is not None),
        )

    def reference(self, source: np.ndarray, table: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        records = np.ascontiguousarray(source, np.uint32).reshape(-1).view(np.uint8)
        found = []
        if self.codes is not None:
            found.append(self._values(records, table))
        found += [self._line(records, field) for name, field in LINES.items() if getattr(self, name) is not None]
        return tuple(found)

    def _values(self, records: np.ndarray, table: np.ndarray | None) -> np.ndarray:
        all_codes = self.form.record(self._records(), 1).unpack(records, "codes")
        shown = all_codes[:, self.first : self.first + self.columns]
        if self.as_bytes:
            k = np.arange(self.first, self.first + self.columns)
            return (all_codes[:, self.form.byte_column(k)].astype(np.int8) << self.form.byte_unit(k)).astype(np.int8)
        if table is None:
            codes = self.form.decode(shown)
        else:
            low = table[: 1 << self.form.bits, 0].astype(np.uint16).view(self.form.operand.numpy)
            codes = low.astype(np.float64)[shown.astype(int)]
        operand = self.form.operand
        if self.offset is not None and operand.is_integer:
            zeros = self._groups(records, "zeros") if self.zeros_mode else 0.0
            values = (codes - self.offset - zeros) * (self._groups(records, "scales") if self.scaled else 1.0)
        elif self.offset is not None:
            values = codes - self.offset
            if self.scaled:
                scales = self._groups(records, "scales")
                values = values * scales * (self.form.lifted_unit if self.lifted else 1.0)
                if self.zeros_mode is not None:
                    zeros = self._groups(records, "zeros")
                    less = zeros * scales if self.zeros_mode == "original" else zeros
                    values = values - cast_array(less, ALL["float64"], operand).astype(np.float64)
        else:
            units = np.array([self.form.raw_unit(h) for h in (0, 1)])[np.arange(self.rows) // 8 % 2]
            values = (codes + self.form.raw_bias) * units[:, None]
        return cast_array(values, ALL["float64"], operand)

    def _groups(self, records: np.ndarray, field: str) -> np.ndarray:
        """Scales or zeros, one for each code at hand."""
        groups = self.form.record(self._records(), 1).unpack(records, field).astype(np.float64)
        return np.repeat(groups, self.form.group, axis=1)[:, self.first : self.first + self.columns]

    def _line(self, records: np.ndarray, field: str) -> np.ndarray:
        """Scales or zeros of the group at hand."""
        line = self.form.record(self._records(), 1).unpack(records, field)[:, self.first // self.form.group]
        dtype = self.form.scale if field == "scales" else self.form.zero
        assert dtype is not None
        return cast_array(line, dtype, FLOAT32)

    # Generic lowering ---------------------------------------------------------------------------

    def lower(self) -> ir.Statement:
        made: list[ir.Statement] = []
        if self.codes is not None:
            made.append(parallel((self.rows, self.columns), self._lower_code, span=self.span))
        for name, field in LINES.items():
            operand: ir.Region | None = getattr(self, name)
            if operand is not None:
                made.append(parallel((self.rows,), self._lower_line(operand, field), span=self.span))
        return made[0] if len(made) == 1 else ir.seq(*made)

    def _lower_code(self, i: ir.Var, j: ir.Var) -> ir.Statement:
        assert self.codes is not None
        form = self.form
        column: ir.Expr = ir.index_binary("add", j, self.first)
        if self.as_bytes:
            return self._lower_byte(i, column, j)
        unsigned = self._code(i, column)
        value = self._number(unsigned)
        if self.offset is not None and form.operand.is_integer:
            group = ir.index_binary("floordiv", column, form.group)
            value = ir.binary("sub", value, ir.const(float(self.offset), FLOAT32))
            if self.zeros_mode is not None:
                value = ir.binary("sub", value, self._line_value("zeros", i, group))
            if self.scaled:
                value = ir.binary("mul", value, self._line_value("scales", i, group))
        elif self.offset is not None:
            value = ir.binary("sub", value, ir.const(float(self.offset), FLOAT32))
            if self.scaled:
                group = ir.index_binary("floordiv", column, form.group)
                scale = self._line_value("scales", i, group)
                value = ir.binary("mul", value, scale)
                if self.lifted:
                    value = ir.binary("mul", value, ir.const(self.form.lifted_unit, FLOAT32))
                if self.zeros_mode is not None:
                    zero = self._line_value("zeros", i, group)
                    less = ir.binary("mul", zero, scale) if self.zeros_mode == "original" else zero
                    value = ir.binary("sub", value, ir.cast(ir.cast(less, form.operand), FLOAT32))
        else:
            upper = ir.binary("lt", ir.index_binary("floormod", i, 16), ir.const(8))
            unit = ir.Select(FLOAT32, upper, *(ir.const(form.raw_unit(h), FLOAT32) for h in (0, 1)))
            value = ir.binary("mul", ir.binary("add", value, ir.const(float(form.raw_bias), FLOAT32)), unit)
        return store_element(self.codes, (i, j), value)

    def _code(self, i: ir.Expr, column: ir.Expr) -> ir.Expr:
        """The code of a row and a column, unsigned."""
        form = self.form
        place = (ir.index_binary("floormod", i, form.rows), column)
        return self._field("codes", form.codes(), ALL[f"uint{form.bits}"], place, i)

    def _lower_byte(self, i: ir.Var, k: ir.Expr, j: ir.Var) -> ir.Statement:
        """A code as a byte, a multiple of its place's unit."""
        assert self.codes is not None
        column, unit = self.form.byte_column(IndexExpr(k)).expr, self.form.byte_unit(IndexExpr(k)).expr
        value = ir.binary("shl", ir.cast(self._code(i, column), INT32), ir.cast(unit, INT32))
        return store_element(self.codes, (i, j), value)

    def _number(self, unsigned: ir.Expr) -> ir.Expr:
        """What a code stands for, float32."""
        form, code = self.form, ir.cast(unsigned, INT32)
        if form.small_float is not None:
            return self._small_float(ir.cast(unsigned, UINT32), form.small_float)
        if form.values is not None:
            return self._look_up(code, form.values)
        if form.operand.bits == 16:
            return ir.cast(code, FLOAT32)
        if form.bits == 8:
            return ir.cast(ir.Reinterpret(form.operand, unsigned), FLOAT32)
        if form.has_low_signs:
            sign = ir.binary("sub", ir.const(0), ir.binary("and", code, ir.const(1)))
            return ir.cast(ir.binary("xor", ir.binary("shr", code, ir.const(1)), sign), FLOAT32)
        half = 1 << form.bits - 1
        return ir.cast(ir.binary("sub", ir.binary("xor", code, ir.const(half)), ir.const(half)), FLOAT32)

    def _small_float(self, code: ir.Expr, parts: tuple[int, int]) -> ir.Expr:
        """The value of a code that is a float: its bits in a wider one's places, times the difference of their
        biases."""
        mantissa, bias = parts
        top = self.form.bits - 1
        sign = ir.binary("shl", ir.binary("and", code, ir.const(1 << top, UINT32)), ir.const(31 - top, UINT32))
        rest = ir.binary(
            "shl", ir.binary("and", code, ir.const((1 << top) - 1, UINT32)), ir.const(23 - mantissa, UINT32)
        )
        return ir.binary(
            "mul", ir.Reinterpret(FLOAT32, ir.binary("or", sign, rest)), ir.const(2.0 ** (127 - bias), FLOAT32)
        )

    def _look_up(self, code: ir.Expr, values: Sequence[float]) -> ir.Expr:
        """The value of a code: a choice for each bit, the highest first."""
        if len(values) == 1:
            return ir.const(float(values[0]), FLOAT32)
        half = len(values) // 2
        upper = ir.binary("ne", ir.binary("and", code, ir.const(half)), ir.const(0))
        return ir.Select(FLOAT32, upper, self._look_up(code, values[half:]), self._look_up(code, values[:half]))

    def _lower_line(self, operand: ir.Region, field: str) -> Callable[[ir.Var], ir.Statement]:
        return lambda i: store_element(operand, (i,), self._line_value(field, i))

    def _line_value(self, field: str, i: ir.Expr, group: ir.Expr | None = None) -> ir.Expr:
        dtype = self.form.scale if field == "scales" else self.form.zero
        assert dtype is not None
        group = ir.const(self.first // self.form.group) if group is None else group
        place = (ir.index_binary("floormod", i, self.form.rows), group)
        return ir.cast(self._field(field, self.form.lines(), dtype, place, i), FLOAT32)

    def _field(self, field: str, layout: Layout, dtype: DType, place: Sequence[ir.Expr], row: ir.Expr) -> ir.Expr:
        """An element of a field of the record that holds a row."""
        return word_field(
            lambda word: self._word(row, word), layout.expression("memory", place), self.form.offset(field), dtype
        )

    def _word(self, row: ir.Expr, word: ir.Expr) -> ir.Expr:
        record = ir.index_binary("floordiv", row, self.form.rows)
        index = (record, word) if len(self.source.tile_shape) == 2 else (word,)
        return ir.Load(UINT32, self.source.buffer, full_index(self.source, index))


@dataclass(frozen=True, slots=True)
class IndexExpr:
    """An index that is reckoned with by operators."""

    expr: ir.Expr

    def _with(self, op: str, other: IndexExpr | int) -> IndexExpr:
        return IndexExpr(ir.index_binary(op, self.expr, other.expr if isinstance(other, IndexExpr) else other))

    def __add__(self, other: IndexExpr | int) -> IndexExpr:
        return self._with("add", other)

    def __mul__(self, other: IndexExpr | int) -> IndexExpr:
        return self._with("mul", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> IndexExpr:
        return self._with("floordiv", other)

    def __mod__(self, other: int) -> IndexExpr:
        return self._with("floormod", other)


def word_field(load: Callable[[ir.Expr], ir.Expr], number: ir.Expr, offset: int, dtype: DType) -> ir.Expr:
    """Element `number` of a field that starts at byte `offset`, out of the 32-bit word that ``load(word)`` gives."""
    per_word = 32 // dtype.bits
    word = load(ir.index_binary("add", ir.index_binary("floordiv", number, per_word), offset // 4))
    if per_word == 1:
        return ir.Reinterpret(dtype, word)
    shift = ir.index_binary("mul", ir.index_binary("floormod", number, per_word), dtype.bits)
    raw = ir.binary("and", ir.binary("shr", word, ir.cast(shift, UINT32)), ir.const((1 << dtype.bits) - 1, UINT32))
    unsigned = ALL[f"uint{dtype.bits}"]
    narrow = ir.cast(raw, unsigned)
    return narrow if dtype == unsigned else ir.Reinterpret(dtype, narrow)
