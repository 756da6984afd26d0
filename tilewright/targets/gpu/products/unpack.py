"""`T.unpack` in registers: a lane loads the words of its rows, masks and shifts make them operands of matrix
instructions.

Left as they come (`Unpack.offset` None), codes cost an and each, and a shift for every other pair of registers: what a
mask leaves in the low bits of a half is a subnormal number, which the tensor cores take exactly; a bfloat16 needs the
bits of 128 beside it. Codes with an offset cost one more operation on two of them, scaled ones another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tilewright.ir import ALL, FLOAT32, UINT32, perform
from tilewright.ir import nodes as ir
from tilewright.layout.layout import Layout
from tilewright.machine.fragment_records import LANES, TILE
from tilewright.ops.unpack import LINES, Unpack, word_field
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.targets.gpu.products.unpack_bytes import (
    AND_OR,
    AND_XOR,
    Affine,
    affine,
    byte_register,
    call,
    combined,
    lop3,
    masked,
    prmt,
    shifted,
)


def lower_unpack(unpack: Unpack, context: Context) -> ir.Statement | None:
    """The thread code of an operator whose tiles lie in registers as matrix instructions want them."""
    return _Unpack(unpack, context.facts[BLOCK]).statements()


class _Unpack:
    """An operator on its way to statements, which collect in `made`."""

    def __init__(self, unpack: Unpack, block: BlockView) -> None:
        self.unpack, self.form, self.block = unpack, unpack.form, block
        self.made: list[ir.Statement] = []
        self.is_half = self.form.operand == ALL["float16"]
        self.kind = "f16x2" if self.is_half else "bf16x2"
        """How operations on two numbers in a word are called."""

    def statements(self) -> ir.Seq:
        if self.unpack.codes is not None:
            make = self._bytes_of if self.unpack.as_bytes else self._codes
            make(self.unpack.codes.buffer)
        for name, field in LINES.items():
            operand: ir.Region | None = getattr(self.unpack, name)
            if operand is not None:
                self._line(operand.buffer, field)
        return ir.seq(self.made)

    # Codes ---------------------------------------------------------------------------------------

    def _codes(self, tile: ir.Buffer) -> None:
        layout, registers, form = self.block.layouts[tile], self.block.registers(tile), self.form
        step = 8 * form.packed
        per_tile = self.unpack.columns // step * 4
        for number in range(registers.size // (per_tile * form.packed)):
            row = self._row(layout, number * per_tile * form.packed)
            words, first = self._load(row)
            scales = self._scales(row)
            tables = self._tables(words)
            integers = self._integers(row)
            for q in range(per_tile // 2):
                column = self.unpack.first + q * (step // 2)
                group = column // form.group - self.unpack.first // form.group
                for h in (0, 1):
                    word, field = form.place(h, column // (step // 2))
                    if tables:
                        code = tables[word - first][field]
                    elif form.operand.bits == 8:
                        own = integers[group][h] if integers else None
                        code = byte_register(form, _loaded(words, word - first), field, own)
                    else:
                        code = self._decoded(_loaded(words, word - first), h, field)
                    value = self._scaled(code, scales[group][h]) if scales else code
                    self._set(registers, number * per_tile + q // 2 * 4 + h + 2 * (q % 2), value)

    def _bytes_of(self, tile: ir.Buffer) -> None:
        """Codes as bytes: those of rows g + 8 are shifted to where those of rows g are, and masks part them."""
        unpack, form = self.unpack, self.form
        layout, registers = self.block.layouts[tile], self.block.registers(tile)
        apart, per_tile = form.fields // 4, unpack.columns // 8
        for number in range(registers.size // (4 * per_tile)):
            row = self._row(layout, 4 * number * per_tile)
            first = unpack.first // 16 // apart
            words = self._words(row, first, ((unpack.first + unpack.columns) // 16 - 1) // apart)
            for h in (0, 1):
                for place in range(per_tile // 2):
                    k = unpack.first + 16 * place
                    mask = ((1 << form.bits) - 1) * 0x01010101 << form.byte_unit(k)
                    value = masked(shifted(_loaded(words, k // 16 // apart - first), -h * form.bits), mask)
                    self._set(registers, number * per_tile + place // 2 * 4 + h + 2 * (place % 2), value)

    def _set(self, registers: ir.Buffer, at: int, value: ir.Expr) -> None:
        self.made.append(perform("set_word", ir.whole(registers), ir.const(at), value, span=self.unpack.span))

    def _row(self, layout: Layout, register: int) -> ir.Expr:
        """The first row of the 16 whose codes begin at a register."""
        row, _ = layout.held_at(self.block.thread, register)
        tile = row // TILE * TILE
        return self.block.simplify(tile)

    @property
    def _lane(self) -> ir.Expr:
        return self.block.thread % LANES

    def _load(self, row: ir.Expr) -> tuple[ir.Buffer, int]:
        """The words of this lane that hold the wanted columns of 16 rows, and the number of the first."""
        pair = 4 * self.form.packed
        first, _ = self.form.place(0, self.unpack.first // pair)
        last, _ = self.form.place(1, (self.unpack.first + self.unpack.columns) // pair - 1)
        return self._words(row, first, last), first

    def _words(self, row: ir.Expr, first: int, last: int) -> ir.Buffer:
        """Words `first` to `last` of those of this lane."""
        form = self.form
        words = ir.Buffer("words", (last + 1 - first,), UINT32, "register")
        self.made.append(ir.Allocate(words, span=self.unpack.span))
        tile = row // TILE % form.tiles
        at = first
        while at <= last:
            load, within = divmod(at, form.vector)
            count = min(form.vector - within, last + 1 - at)
            count = next(n for n in (4, 2, 1) if n <= count and within % n == 0)
            place = tile * form.tile_words + self._lane * form.vector
            place = place + (load * LANES * form.vector + within)
            value = self._word(row, place, count)
            self.made.append(ir.Store(words, (ir.const(at - first),), value, span=self.unpack.span))
            at += count
        return words

    def _word(self, row: ir.Expr, word: ir.Expr, count: int = 1) -> ir.Expr:
        """Words of the record that holds a row."""
        source = self.unpack.source
        offsets: list[ir.Expr] = [ir.const(0)] * len(source.extents)
        offsets[-1] = word
        if len(source.tile_shape) == 2:
            axis = next(axis for axis, extent in enumerate(source.extents) if extent != 1)
            offsets[axis] = row // self.form.rows
        starts = self.block.visited(source.starts)
        place = self.block.shared(ir.Region(source.buffer, tuple(starts), source.extents), offsets)
        return ir.Load(UINT32.with_lanes(count) if count > 1 else UINT32, place.buffer, place.starts)

    def _row_word(self, row: ir.Expr, word: ir.Expr) -> ir.Expr:
        return self._word(row, self.block.simplify(word))

    # One register --------------------------------------------------------------------------------

    def _scaled(self, code: ir.Expr, factors: tuple[ir.Expr, ir.Expr | None]) -> ir.Expr:
        """Two codes times their row's scale, and less its zero where there is one."""
        scale, less = factors
        return call(f"mul_{self.kind}", code, scale) if less is None else call(f"fma_{self.kind}", code, scale, less)

    def _decoded(self, word: ir.Expr, h: int, field: int) -> ir.Expr:
        """Two codes of a word, one for each half of a register."""
        form, offset = self.form, self.unpack.offset
        if self.unpack.lifted:
            return self._masked(word, field, form.lifted_place(h))
        if form.small_float is not None:
            return self._small_float(word, field, form.small_float[0])
        if form.is_signs and offset is not None:  # -1 for 0, 1 for 1
            return lop3(AND_XOR, shifted(word, 15 - field), 0x80008000, self._pair(-1.0))
        if form.bits == 8 and not self.is_half:
            return self._wide_bytes(word, field)
        kept = h * form.bits if not form.is_shifted(h) else 0
        if offset is None and self.is_half:
            return self._masked(word, field, kept)
        mask = ((1 << form.bits) - 1) * 0x00010001 << kept
        bias = 0x64006400 if self.is_half else 0x43004300
        value = lop3(AND_OR, shifted(word, kept - field * form.bits), mask, bias)
        return value if offset is None else self._less(value, offset, kept)

    def _masked(self, word: ir.Expr, field: int, kept: int) -> ir.Expr:
        """Two codes alone, from bit `kept` of each half of a register on."""
        mask = ((1 << self.form.bits) - 1) * 0x00010001 << kept
        return masked(shifted(word, kept - field * self.form.bits), mask)

    def _small_float(self, word: ir.Expr, field: int, mantissa: int) -> ir.Expr:
        """Two codes that are floats: sign, exponent and mantissa in their places are the value over `float_unit`."""
        form, top = self.form, self.form.bits - 1
        of_sign, place = 15 - field * form.bits - top, (10 if self.is_half else 7) - mantissa
        of_rest = place - field * form.bits
        rest = ((1 << top) - 1 << place) * 0x00010001
        others = shifted(word, of_rest)
        if of_sign == of_rest:
            value = masked(others, rest | 0x80008000)
        else:
            value = lop3(AND_OR, shifted(word, of_sign), 0x80008000, masked(others, rest))
        if form.float_unit == 1.0 or (self.is_half and self.unpack.offset is None):
            return value
        return call(f"mul_{self.kind}", value, self._pair(form.float_unit))

    def _tables(self, words: ir.Buffer) -> list[list[ir.Expr]]:
        """For each word the registers of its four fields, looked up byte by byte; none where codes are decoded
        otherwise."""
        form = self.form
        if not form.is_looked_up:
            return []
        if self.unpack.table is not None:
            return [self._from_table(self.unpack.table, words, number) for number in range(words.size)]
        assert form.numbers is not None
        bits = form.numbers.astype(form.operand.numpy).view(np.uint16)
        planes = [(bits >> shift & 0xFF).astype(np.uint8).view(np.uint32) for shift in (0, 8)]
        found: list[list[ir.Expr]] = []
        for number in range(words.size):
            registers: list[ir.Expr] = []
            for half in (0, 16):  # two registers
                word = _loaded(words, number)
                place = self._named("place", masked(shifted(word, -half), 0x7777))
                upper = shifted(word, -half - 1)  # the highest bit of a code chooses a half of the table
                chooser = self._named("chooser", lop3(AND_OR, upper, 0x4444, 0x3210))
                low, high = (self._looked_up(place, chooser, plane) for plane in planes)
                registers += [prmt(low, high, selector) for selector in (0x5140, 0x7362)]
            found.append(registers)
        return found

    def _from_table(self, table: ir.Region, words: ir.Buffer, number: int) -> list[ir.Expr]:
        """The registers of a word's bytes, each out of this lane's column of a table of pairs."""
        registers: list[ir.Expr] = []
        for byte in range(4):
            here = ir.Region(table.buffer, tuple(self.block.visited(table.starts)), table.extents)
            column = self.block.shared(here, [ir.const(0), self._lane])
            pair = ir.Call(UINT32, "table_word", (column, _loaded(words, number), ir.const(byte)))
            registers.append(self._named("pair", pair))
        return registers

    def _looked_up(self, place: ir.Expr, chooser: ir.Expr, plane: np.ndarray) -> ir.Expr:
        """For four codes bytes of a table of 16, each out of one of its halves."""
        if not plane.any():
            return ir.const(0, UINT32)
        low, high = (prmt(int(plane[i]), int(plane[i + 1]), place) for i in (0, 2))
        return self._named("looked_up", prmt(low, high, chooser))

    def _named(self, name: str, value: ir.Expr) -> ir.Var:
        var = ir.Var(UINT32, name)
        self.made.append(ir.Let(var, value, span=self.unpack.span))
        return var

    def _less(self, value: ir.Expr, offset: int, kept: int) -> ir.Expr:
        """Pairs of ``1024 + (code << kept)``, or of 128 + code in bfloat16, without their bias and an offset."""
        bias = 1024 if self.is_half else 128
        if kept == 0 and self.is_half:
            return call("sub_f16x2", value, self._pair(bias + offset))
        return call(f"fma_{self.kind}", value, self._pair(2.0**-kept), self._pair(-(bias / 2**kept) - offset))

    def _wide_bytes(self, word: ir.Expr, field: int) -> ir.Expr:
        """Bytes as bfloat16, which has too few bits for the trick: by way of floats, of which 2^23 has units."""
        offset = -self.form.raw_bias if self.unpack.offset is None else self.unpack.offset
        less = ir.const(float((1 << 23) + offset), FLOAT32)
        bits = (prmt(word, 0x4B000000, 0x7650 + 2 * end + field) for end in (0, 1))
        return call("pack_bf16x2", *(ir.binary("sub", ir.Call(FLOAT32, "bits_float", (one,)), less) for one in bits))

    def _pair(self, low: float, high: float | None = None) -> int:
        """Two numbers in a word, or one twice."""
        ends = np.array([low, low if high is None else high], np.float64)
        ends = ends.astype(self.form.operand.numpy).view(np.uint16)
        return int(ends[0]) | int(ends[1]) << 16

    # Scales --------------------------------------------------------------------------------------

    @property
    def _groups(self) -> range:
        """Groups of columns that the operator's columns belong to."""
        first, group = self.unpack.first, self.form.group
        return range(first // group, (first + self.unpack.columns - 1) // group + 1)

    def _scales(self, row: ir.Expr) -> list[list[tuple[ir.Expr, ir.Expr | None]]]:
        """For each group of columns, of rows g and g + 8: the scale twice in a word, and what the zero takes away."""
        if not self.unpack.scaled or self.form.operand.is_integer:
            return []
        found = []
        for group in self._groups:
            if self.unpack.lifted:
                found.append(self._lifted(row, group))
                continue
            scales = self._pairs(row, "scales", group)
            less: list[ir.Expr | None] = [None, None]
            if self.unpack.zeros_mode is not None:
                values: list[ir.Expr] = [call(f"neg_{self.kind}", zero) for zero in self._pairs(row, "zeros", group)]
                if self.unpack.zeros_mode == "original":
                    both = zip(values, scales, strict=True)
                    values = [call(f"mul_{self.kind}", zero, scale) for zero, scale in both]
                less = [self._named("less", value) for value in values]
            found.append(list(zip(scales, less, strict=True)))
        return found

    def _lifted(self, row: ir.Expr, group: int) -> list[tuple[ir.Expr, ir.Expr | None]]:
        """Of rows g and g + 8, each twice in a word: what masked codes are multiplied by, and what the offset takes
        away."""
        form, offset = self.form, self.unpack.offset
        assert offset is not None
        both = self._both(row, "scales", group)
        factors = self._pair(*(2.0 ** (form.lift - form.lifted_place(h)) for h in (0, 1)))
        factor = self._named("lifted", call(f"mul_{self.kind}", both, factors))
        less: list[ir.Expr] = [ir.const(0, UINT32)] * 2
        if offset:
            by_offset = call(f"mul_{self.kind}", both, self._pair(-offset * form.lifted_unit))
            less = self._halves(self._named("less", by_offset), "less")
        return list(zip(self._halves(factor, "lifted"), less, strict=True))

    def _integers(self, row: ir.Expr) -> list[list[Affine]]:
        """For each group of columns, of rows g and g + 8: what makes codes int8; none where they come as they are."""
        unpack, form = self.unpack, self.form
        if unpack.offset is None or not form.operand.is_integer:
            return []
        found = []
        for group in self._groups:
            zeros = self._bytes(row, "zeros", group) if unpack.zeros_mode else [None, None]
            scales = self._bytes(row, "scales", group) if unpack.scaled else [None, None]
            pairs = zip(zeros, scales, strict=True)
            found.append([affine(form, unpack.offset, zero, scale, self._named) for zero, scale in pairs])
        return found

    def _bytes(self, row: ir.Expr, field: str, group: int) -> list[ir.Expr | None]:
        """Integers of 8 bits of rows g and g + 8 of a tile, each as a word."""
        number = self._line_number(row + self._lane // 4, group)
        word = number // 4 + self.form.offset(field) // 4
        both = self._named(field, self._from_byte(self._word(row, self.block.simplify(word)), number))
        return [prmt(both, 0, signed) for signed in (0x8880, 0x9991)]

    def _pairs(self, row: ir.Expr, field: str, group: int) -> list[ir.Expr]:
        """Numbers of rows g and g + 8 of a tile, each twice in a word."""
        both = self._both(row, field, group)
        if self._are_bytes(field):  # an exponent alone is a bfloat16 (2^-127 counts as zero)
            spread = [prmt(both, 0, selector) for selector in (0x4040, 0x4141)]
            return [self._named("scale", shifted(pair, 7)) for pair in spread]
        return self._halves(both, field.removesuffix("s"))

    def _halves(self, both: ir.Var, name: str) -> list[ir.Expr]:
        """Each half of a word twice in a word, named: said at every code, they are a third of what a compiler reads."""
        return [self._named(f"{name}_{half}", call(f"{half}_twice", both)) for half in ("low", "high")]

    def _both(self, row: ir.Expr, field: str, group: int) -> ir.Var:
        """The word whose lower end holds the numbers of rows g and g + 8 of a tile, side by side."""
        number = self._line_number(row + self._lane // 4, group)
        share = 4 if self._are_bytes(field) else 2
        word = number // share + self.form.offset(field) // 4
        value = self._word(row, self.block.simplify(word))
        if share == 4:
            value = self._from_byte(value, number)
        return self._named(field, value)

    def _from_byte(self, word: ir.Expr, number: ir.Expr) -> ir.Expr:
        """A word whose lowest byte is that one of its four that has a number."""
        return combined("shr", word, ir.cast(self.block.simplify(number % 4 * 8), UINT32))

    def _are_bytes(self, field: str) -> bool:
        """Whether numbers of a field are powers of two in bytes."""
        return field == "scales" and self.form.scale == ALL["float8_e8m0fnu"]

    def _line_number(self, row: ir.Expr, group: int | None = None) -> ir.Expr:
        """Which of a record's scales is a row's."""
        group = self.unpack.first // self.form.group if group is None else group
        return self.form.lines().expression("memory", (row % self.form.rows, ir.const(group)))

    def _line(self, tile: ir.Buffer, field: str) -> None:
        """A number for each row that this thread holds."""
        layout, registers, form = self.block.layouts[tile], self.block.registers(tile), self.form
        dtype = form.scale if field == "scales" else form.zero
        assert dtype is not None
        for register in range(registers.size):
            (row,) = layout.held_at(self.block.thread, register)
            number = self.block.simplify(self._line_number(row))
            load = functools.partial(self._row_word, row)
            if dtype == ALL["float8_e8m0fnu"]:
                value: ir.Expr = self._power(load, number, form.offset(field))
            else:
                value = ir.cast(word_field(load, number, form.offset(field), dtype), FLOAT32)
            self.made.append(ir.Store(registers, (ir.const(register),), value, span=self.unpack.span))

    def _power(self, load: Callable[[ir.Expr], ir.Expr], number: ir.Expr, offset: int) -> ir.Expr:
        """A power of two as float32, whose exponent it is (2^-127 counts as zero)."""
        word = load(number // 4 + offset // 4)
        return ir.Call(FLOAT32, "bits_float", (masked(shifted(self._from_byte(word, number), 23), 0x7F800000),))


def _loaded(words: ir.Buffer, number: int) -> ir.Expr:
    return ir.Load(UINT32, words, (ir.const(number),))
