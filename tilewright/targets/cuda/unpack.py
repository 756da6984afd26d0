"""`T.unpack` in registers: a lane loads the words of its rows, masks and shifts make them operands of matrix
instructions.

Left as they come (`Unpack.offset` None), codes cost an and each, and a shift for every other pair of registers: what a
mask leaves in the low bits of a half is a subnormal number, which the tensor cores take exactly; a bfloat16 needs the
bits of 128 beside it. Codes with an offset cost one more operation on two of them, scaled ones another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.control import perform
from tilewright.ir.dtypes import ALL, FLOAT32, UINT32
from tilewright.layout.layout import Layout
from tilewright.machine.fragment_records import LANES, TILE
from tilewright.ops.unpack import LINES, Unpack, word_field
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.targets.cuda.unpack_bytes import AND_OR, AND_XOR, Affine, affine, byte_register, shifted

_HALF = ALL["float16"]


def lower_unpack(unpack: Unpack, context: Context) -> ir.Statement | None:
    """The thread code of an operator whose tiles lie in registers as matrix instructions want them."""
    return _Unpack(unpack, context.facts[BLOCK]).statements()


@dataclass(slots=True)
class _Unpack:
    unpack: Unpack
    block: BlockView

    def statements(self) -> ir.Seq:
        made: list[ir.Statement] = []
        if self.unpack.codes is not None:
            tile = self.unpack.codes.buffer
            made += self._bytes_of(tile) if self.unpack.as_bytes else self._codes(tile)
        for name, field in LINES.items():
            operand: ir.Region | None = getattr(self.unpack, name)
            if operand is not None:
                made += self._line(operand.buffer, field)
        return ir.seq(made)

    # Codes ---------------------------------------------------------------------------------------

    def _codes(self, tile: ir.Buffer) -> list[ir.Statement]:
        layout, registers = self.block.layout(tile), self.block.registers(tile)
        step = 8 * self.unpack.form.packed
        per_tile = self.unpack.columns // step * 4
        made: list[ir.Statement] = []
        for number in range(registers.size // (per_tile * self.unpack.form.packed)):
            row = self._row(layout, number * per_tile * self.unpack.form.packed)
            words, first = self._load(row, made)
            scales = self._scales(row, made)
            tables = self._tables(words, made)
            integers = self._integers(row, made)
            for q in range(per_tile // 2):
                column = self.unpack.first + q * (step // 2)
                group = column // self.unpack.form.group - self.unpack.first // self.unpack.form.group
                for h in (0, 1):
                    word, field = self.unpack.form.place(h, column // (step // 2))
                    if tables:
                        code = tables[word - first][field]
                    elif self.unpack.form.operand.bits == 8:
                        own = integers[group][h] if integers else None
                        code = byte_register(
                            self.unpack.form, ir.Load(UINT32, words, (ir.const(word - first),)), field, own
                        )
                    else:
                        code = self._decoded(ir.Load(UINT32, words, (ir.const(word - first),)), h, field)
                    value = self._scaled(code, scales[group][h]) if scales else code
                    place = number * per_tile + q // 2 * 4 + h + 2 * (q % 2)
                    made.append(perform("set_word", ir.whole(registers), ir.const(place), value, span=self.unpack.span))
        return made

    def _bytes_of(self, tile: ir.Buffer) -> list[ir.Statement]:
        """Codes as bytes: those of rows g + 8 are shifted to where those of rows g are, and masks part them."""
        unpack, form = self.unpack, self.unpack.form
        layout, registers = self.block.layout(tile), self.block.registers(tile)
        apart, per_tile = form.fields // 4, unpack.columns // 8
        made: list[ir.Statement] = []
        for number in range(registers.size // (4 * per_tile)):
            row = self._row(layout, 4 * number * per_tile)
            first = unpack.first // 16 // apart
            words = self._words(row, first, ((unpack.first + unpack.columns) // 16 - 1) // apart, made)
            for h in (0, 1):
                for place in range(per_tile // 2):
                    k = unpack.first + 16 * place
                    word: ir.Expr = ir.Load(UINT32, words, (ir.const(k // 16 // apart - first),))
                    mask = ((1 << form.bits) - 1) * 0x01010101 << form.byte_unit(k)
                    value = ir.binary("and", shifted(word, -h * form.bits), ir.const(mask, UINT32))
                    at = number * per_tile + place // 2 * 4 + h + 2 * (place % 2)
                    made.append(perform("set_word", ir.whole(registers), ir.const(at), value, span=unpack.span))
        return made

    def _row(self, layout: Layout, register: int) -> ir.Expr:
        """The first row of the 16 whose codes begin at a register."""
        row, _ = layout.held_at(self.block.thread, register)
        tile = row // TILE * TILE
        return self.block.simplify(tile)

    @property
    def _lane(self) -> ir.Expr:
        return self.block.thread % LANES

    def _load(self, row: ir.Expr, made: list[ir.Statement]) -> tuple[ir.Buffer, int]:
        """The words of this lane that hold the wanted columns of 16 rows, and the number of the first."""
        form = self.unpack.form
        pair = 4 * form.packed
        first, _ = form.place(0, self.unpack.first // pair)
        last, _ = form.place(1, (self.unpack.first + self.unpack.columns) // pair - 1)
        return self._words(row, first, last, made), first

    def _words(self, row: ir.Expr, first: int, last: int, made: list[ir.Statement]) -> ir.Buffer:
        """Words `first` to `last` of those of this lane."""
        form = self.unpack.form
        words = ir.Buffer("words", (last + 1 - first,), UINT32, "register")
        made.append(ir.Allocate(words, span=self.unpack.span))
        tile = row // TILE % form.tiles
        at = first
        while at <= last:
            load, within = divmod(at, form.vector)
            count = min(form.vector - within, last + 1 - at)
            count = next(n for n in (4, 2, 1) if n <= count and within % n == 0)
            place = tile * form.tile_words + self._lane * form.vector  # fmt: skip
            place = place + (load * LANES * form.vector + within)
            value = self._word(row, place, count)
            made.append(ir.Store(words, (ir.const(at - first),), value, span=self.unpack.span))
            at += count
        return words

    def _word(self, row: ir.Expr, word: ir.Expr, count: int = 1) -> ir.Expr:
        """Words of the record that holds a row."""
        source = self.unpack.source
        offsets: list[ir.Expr] = [ir.const(0)] * len(source.extents)
        offsets[-1] = word
        if len(source.tile_shape) == 2:
            axis = next(axis for axis, extent in enumerate(source.extents) if extent != 1)
            offsets[axis] = row // self.unpack.form.rows
        starts = self.block.visited(source.starts)
        place = self.block.shared(ir.Region(source.buffer, tuple(starts), source.extents), offsets)
        return ir.Load(UINT32.with_lanes(count) if count > 1 else UINT32, place.buffer, place.starts)

    def _row_word(self, row: ir.Expr, word: ir.Expr) -> ir.Expr:
        return self._word(row, self.block.simplify(word))

    # One register --------------------------------------------------------------------------------

    def _scaled(self, code: ir.Expr, factors: tuple[ir.Expr, ir.Expr | None]) -> ir.Expr:
        """Two codes times their row's scale, and less its zero where there is one."""
        kind = "f16x2" if self.unpack.form.operand == _HALF else "bf16x2"
        scale, less = factors
        if less is None:
            return ir.Call(UINT32, f"mul_{kind}", (code, scale))
        return ir.Call(UINT32, f"fma_{kind}", (code, scale, less))

    def _decoded(self, word: ir.Expr, h: int, field: int) -> ir.Expr:
        """Two codes of a word, one for each half of a register."""
        form, offset = self.unpack.form, self.unpack.offset
        half = form.operand == _HALF
        if self.unpack.lifted:
            return self._masked(word, field, form.lifted_place(h))
        if form.small_float is not None:
            return self._small_float(word, field, form.small_float[0])
        if form.is_signs and offset is not None:
            return self._sign(word, field)
        if form.bits == 8 and not half:
            return self._wide_bytes(word, field)
        kept = h * form.bits if not form.is_shifted(h) else 0
        if offset is None and half:
            return self._masked(word, field, kept)
        shift = field * form.bits - kept
        mask = ((1 << form.bits) - 1) * 0x00010001 << kept
        value = word if shift == 0 else ir.binary("shr", word, ir.const(shift, UINT32))
        bias = ir.const(0x64006400 if half else 0x43004300, UINT32)
        value = ir.Call(UINT32, "lop3", (ir.const(AND_OR), value, ir.const(mask, UINT32), bias))
        return value if offset is None else self._less(value, offset, kept, "f16x2" if half else "bf16x2")

    def _masked(self, word: ir.Expr, field: int, kept: int) -> ir.Expr:
        """Two codes alone, from bit `kept` of each half of a register on."""
        form = self.unpack.form
        mask = ((1 << form.bits) - 1) * 0x00010001 << kept
        return ir.binary("and", shifted(word, kept - field * form.bits), ir.const(mask, UINT32))

    def _small_float(self, word: ir.Expr, field: int, mantissa: int) -> ir.Expr:
        """Two codes that are floats: sign, exponent and mantissa in their places are the value over `float_unit`."""
        form = self.unpack.form
        half, top = form.operand == _HALF, form.bits - 1
        of_sign, place = 15 - field * form.bits - top, (10 if half else 7) - mantissa
        of_rest = place - field * form.bits
        rest = ((1 << top) - 1 << place) * 0x00010001
        others = shifted(word, of_rest)
        if of_sign == of_rest:
            value: ir.Expr = ir.binary("and", others, ir.const(rest | 0x80008000, UINT32))
        else:
            magnitude, signs = ir.binary("and", others, ir.const(rest, UINT32)), shifted(word, of_sign)
            value = ir.Call(UINT32, "lop3", (ir.const(AND_OR), signs, ir.const(0x80008000, UINT32), magnitude))
        if form.float_unit == 1.0 or (half and self.unpack.offset is None):
            return value
        return ir.Call(
            UINT32, "mul_f16x2" if half else "mul_bf16x2", (value, _pair(form.float_unit, str(form.operand)))
        )

    def _sign(self, word: ir.Expr, field: int) -> ir.Expr:
        """Two codes of one bit: -1 for 0, 1 for 1."""
        ones = _pair(-1.0, str(self.unpack.form.operand))
        return ir.Call(
            UINT32, "lop3", (ir.const(AND_XOR), shifted(word, 15 - field), ir.const(0x80008000, UINT32), ones)
        )

    def _tables(self, words: ir.Buffer, made: list[ir.Statement]) -> list[list[ir.Expr]]:
        """For each word the registers of its four fields, looked up byte by byte; none where codes are decoded
        otherwise."""
        form = self.unpack.form
        if not form.is_looked_up:
            return []
        if self.unpack.table is not None:
            return [self._from_table(self.unpack.table, words, number, made) for number in range(words.size)]
        assert form.numbers is not None
        bits = form.numbers.astype(form.operand.numpy).view(np.uint16)
        planes = [(bits >> shift & 0xFF).astype(np.uint8).view(np.uint32) for shift in (0, 8)]
        found: list[list[ir.Expr]] = []
        for number in range(words.size):
            registers: list[ir.Expr] = []
            for half in (0, 16):  # two registers
                word = ir.Load(UINT32, words, (ir.const(number),))
                place = self._named("place", ir.binary("and", shifted(word, -half), ir.const(0x7777, UINT32)), made)
                upper = shifted(word, -half - 1)  # the highest bit of a code chooses a half of the table
                chosen = ir.Call(
                    UINT32, "lop3", (ir.const(AND_OR), upper, ir.const(0x4444, UINT32), ir.const(0x3210, UINT32))
                )  # fmt: skip
                chooser = self._named("chooser", chosen, made)
                low, high = (self._looked_up(place, chooser, plane, made) for plane in planes)
                registers += [ir.Call(UINT32, "prmt", (low, high, ir.const(s, UINT32))) for s in (0x5140, 0x7362)]
            found.append(registers)
        return found

    def _from_table(self, table: ir.Region, words: ir.Buffer, number: int, made: list[ir.Statement]) -> list[ir.Expr]:
        """The registers of a word's bytes, each out of this lane's column of a table of pairs."""
        registers: list[ir.Expr] = []
        for byte in range(4):
            word = ir.Load(UINT32, words, (ir.const(number),))
            here = ir.Region(table.buffer, tuple(self.block.visited(table.starts)), table.extents)
            column = self.block.shared(here, [ir.const(0), self._lane])
            registers.append(self._named("pair", ir.Call(UINT32, "table_word", (column, word, ir.const(byte))), made))
        return registers

    def _looked_up(self, place: ir.Expr, chooser: ir.Expr, plane: np.ndarray, made: list[ir.Statement]) -> ir.Expr:
        """For four codes bytes of a table of 16, each out of one of its halves."""
        if not plane.any():
            return ir.const(0, UINT32)
        halves = [
            ir.Call(UINT32, "prmt", (ir.const(int(plane[i]), UINT32), ir.const(int(plane[i + 1]), UINT32), place))
            for i in (0, 2)
        ]
        return self._named("looked_up", ir.Call(UINT32, "prmt", (*halves, chooser)), made)

    def _named(self, name: str, value: ir.Expr, made: list[ir.Statement]) -> ir.Var:
        var = ir.Var(UINT32, name)
        made.append(ir.Let(var, value, span=self.unpack.span))
        return var

    @staticmethod
    def _less(value: ir.Expr, offset: int, kept: int, kind: str) -> ir.Expr:
        """Pairs of ``1024 + (code << kept)``, or of 128 + code in bfloat16, without their bias and an offset."""
        bias, dtype = (1024, ALL["float16"]) if kind == "f16x2" else (128, ALL["bfloat16"])
        if kept == 0 and kind == "f16x2":
            return ir.Call(UINT32, "sub_f16x2", (value, _pair(bias + offset, dtype.name)))
        constants = (_pair(2.0**-kept, dtype.name), _pair(-(bias / 2**kept) - offset, dtype.name))
        return ir.Call(UINT32, f"fma_{kind}", (value, *constants))

    def _wide_bytes(self, word: ir.Expr, field: int) -> ir.Expr:
        """Bytes as bfloat16, which has too few bits for the trick: by way of floats, of which 2^23 has units."""
        less = float(
            (1 << 23) + (self.unpack.offset or 0) - (self.unpack.form.raw_bias if self.unpack.offset is None else 0)
        )
        ends = []
        for e in (0, 1):
            bits = ir.Call(
                UINT32, "prmt", (word, ir.const(0x4B000000, UINT32), ir.const(0x7650 + 2 * e + field, UINT32))
            )
            ends.append(ir.binary("sub", ir.Call(FLOAT32, "bits_float", (bits,)), ir.const(less, FLOAT32)))
        return ir.Call(UINT32, "pack_bf16x2", tuple(ends))

    # Scales --------------------------------------------------------------------------------------

    @property
    def _groups(self) -> range:
        """Groups of columns that the operator's columns belong to."""
        first, group = self.unpack.first, self.unpack.form.group
        return range(first // group, (first + self.unpack.columns - 1) // group + 1)

    def _scales(self, row: ir.Expr, made: list[ir.Statement]) -> list[list[tuple[ir.Expr, ir.Expr | None]]]:
        """For each group of columns, of rows g and g + 8: the scale twice in a word, and what the zero takes away."""
        form = self.unpack.form
        if not self.unpack.scaled or form.operand.is_integer:
            return []
        kind = "f16x2" if form.operand == _HALF else "bf16x2"
        found = []
        for group in self._groups:
            if self.unpack.lifted:
                found.append(self._lifted(row, kind, group, made))
                continue
            scales = self._pairs(row, "scales", group, made)
            less: list[ir.Expr | None] = [None, None]
            if self.unpack.zeros_mode is not None:
                zeros = [ir.Call(UINT32, f"neg_{kind}", (zero,)) for zero in self._pairs(row, "zeros", group, made)]
                original = self.unpack.zeros_mode == "original"
                values = [
                    ir.Call(UINT32, f"mul_{kind}", (zero, scale)) if original else zero
                    for zero, scale in zip(zeros, scales, strict=True)
                ]
                less = [self._named("less", value, made) for value in values]
            found.append(list(zip(scales, less, strict=True)))
        return found

    def _lifted(
        self, row: ir.Expr, kind: str, group: int, made: list[ir.Statement]
    ) -> list[tuple[ir.Expr, ir.Expr | None]]:
        """Of rows g and g + 8, each twice in a word: what masked codes are multiplied by, and what the offset takes
        away."""
        form, offset = self.unpack.form, self.unpack.offset
        assert offset is not None
        both = self._both(row, "scales", group, made)
        low, high = (2.0 ** (form.lift - form.lifted_place(h)) for h in (0, 1))
        factor = self._named(
            "lifted", ir.Call(UINT32, f"mul_{kind}", (both, _pair_of(low, high, form.operand.name))), made
        )
        less: list[ir.Expr] = [ir.const(0, UINT32)] * 2
        if offset:
            by_offset = ir.Call(UINT32, f"mul_{kind}", (both, _pair(-offset * form.lifted_unit, form.operand.name)))
            less = self._halves(self._named("less", by_offset, made), "less", made)
        return list(zip(self._halves(factor, "lifted", made), less, strict=True))

    def _integers(self, row: ir.Expr, made: list[ir.Statement]) -> list[list[Affine]]:
        """For each group of columns, of rows g and g + 8: what makes codes int8; none where they come as they are."""
        unpack, form = self.unpack, self.unpack.form
        if unpack.offset is None or not form.operand.is_integer:
            return []
        found = []
        for group in self._groups:
            zeros = self._bytes(row, "zeros", group, made) if unpack.zeros_mode else [None, None]
            scales = self._bytes(row, "scales", group, made) if unpack.scaled else [None, None]
            pairs = zip(zeros, scales, strict=True)
            found.append([affine(form, unpack.offset, zero, scale, self._naming(made)) for zero, scale in pairs])
        return found

    def _bytes(self, row: ir.Expr, field: str, group: int, made: list[ir.Statement]) -> list[ir.Expr | None]:
        """Integers of 8 bits of rows g and g + 8 of a tile, each as a word."""
        number = self._line_number(row + self._lane // 4, group)
        word = number // 4 + self.unpack.form.offset(field) // 4
        both = self._named(field, self._from_byte(self._word(row, self.block.simplify(word)), number), made)
        return [
            ir.Call(UINT32, "prmt", (both, ir.const(0, UINT32), ir.const(signed, UINT32)))
            for signed in (0x8880, 0x9991)
        ]

    def _naming(self, made: list[ir.Statement]) -> Callable[[str, ir.Expr], ir.Expr]:
        return lambda name, value: self._named(name, value, made)

    def _pairs(self, row: ir.Expr, field: str, group: int, made: list[ir.Statement]) -> list[ir.Expr]:
        """Numbers of rows g and g + 8 of a tile, each twice in a word."""
        both = self._both(row, field, group, made)
        if self._are_bytes(field):  # an exponent alone is a bfloat16 (2^-127 counts as zero)
            spread = [
                ir.Call(UINT32, "prmt", (both, ir.const(0, UINT32), ir.const(s, UINT32))) for s in (0x4040, 0x4141)
            ]
            return [self._named("scale", ir.binary("shl", pair, ir.const(7, UINT32)), made) for pair in spread]
        return self._halves(both, field.removesuffix("s"), made)

    def _halves(self, both: ir.Var, name: str, made: list[ir.Statement]) -> list[ir.Expr]:
        """Each half of a word twice in a word, named: said at every code, they are a third of what a compiler reads."""
        return [
            self._named(f"{name}_{half}", ir.Call(UINT32, f"{half}_twice", (both,)), made) for half in ("low", "high")
        ]

    def _both(self, row: ir.Expr, field: str, group: int, made: list[ir.Statement]) -> ir.Var:
        """The word whose lower end holds the numbers of rows g and g + 8 of a tile, side by side."""
        own = row + self._lane // 4
        number = self._line_number(own, group)
        share = 4 if self._are_bytes(field) else 2
        word = number // share + self.unpack.form.offset(field) // 4
        value = self._word(row, self.block.simplify(word))
        if share == 4:
            value = self._from_byte(value, number)
        return self._named(field, value, made)

    def _from_byte(self, word: ir.Expr, number: ir.Expr) -> ir.Expr:
        """A word whose lowest byte is that one of its four that has a number."""
        return ir.binary("shr", word, ir.cast(self.block.simplify(number % 4 * 8), UINT32))

    def _are_bytes(self, field: str) -> bool:
        """Whether numbers of a field are powers of two in bytes."""
        return field == "scales" and self.unpack.form.scale == ALL["float8_e8m0fnu"]

    def _line_number(self, row: ir.Expr, group: int | None = None) -> ir.Expr:
        """Which of a record's scales is a row's."""
        form = self.unpack.form
        group = self.unpack.first // form.group if group is None else group
        return form.lines().expression("memory", (row % form.rows, ir.const(group)))

    def _line(self, tile: ir.Buffer, field: str) -> Iterator[ir.Statement]:
        """A number for each row that this thread holds."""
        layout, registers = self.block.layout(tile), self.block.registers(tile)
        form = self.unpack.form
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
            yield ir.Store(registers, (ir.const(register),), value, span=self.unpack.span)

    def _power(self, load: Callable[[ir.Expr], ir.Expr], number: ir.Expr, offset: int) -> ir.Expr:
        """A power of two as float32, whose exponent it is (2^-127 counts as zero)."""
        word = load(number // 4 + offset // 4)
        raised = ir.binary("shl", self._from_byte(word, number), ir.const(23, UINT32))
        return ir.Call(FLOAT32, "bits_float", (ir.binary("and", raised, ir.const(0x7F800000, UINT32)),))


def _pair(value: float, dtype: str) -> ir.Expr:
    """A number twice in a word."""
    return _pair_of(value, value, dtype)


def _pair_of(low: float, high: float, dtype: str) -> ir.Expr:
    """Two numbers in a word."""
    ends = np.array([low, high], np.float64).astype(ALL[dtype].numpy).view(np.uint16)
    return ir.const(int(ends[0]) | int(ends[1]) << 16, UINT32)
