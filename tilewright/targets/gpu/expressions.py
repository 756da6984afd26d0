"""Expressions of final programs as C++ text for GPUs, in the device vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tilewright.errors import InternalError, Span
from tilewright.ir import INT32, UINT32, DType, in_full
from tilewright.ir import nodes as ir
from tilewright.ops.prints import c_format
from tilewright.targets.c_family import TERNARY, UNARY, CFamilyPrinter, Names, Spellings, Text
from tilewright.targets.gpu.spellings import SPELLINGS, spelled

_ATOMICS = frozenset(
    f"atomic_{kind}" for kind in ("add", "max", "min", "and", "or", "xor", "exchange", "load", "store")
)

_FLAGS = {("atomic_load", "acquire"): "load_acquire", ("atomic_store", "release"): "store_release"}
"""What a word that blocks tell one another by has functions of its own for."""


def in_bytes(buffer: ir.Buffer) -> bool:
    """Whether several elements share a byte: in memory; registers hold one each."""
    return buffer.dtype.is_packed and buffer.scope not in ("register", "scalar")


class GpuExpressions(CFamilyPrinter):
    """Prints the expressions of one kernel.

    Attributes
    ----------
    words : the family's for parts of the names of functions of the IR.
    calls : the methods that print functions which are more than a name and its arguments, by the family's names;
        families add their own.
    dialect : how the family spells types.
    """

    dialect: ClassVar[Spellings] = SPELLINGS
    words: ClassVar[Mapping[str, str]] = {}

    def __init__(self, names: Names) -> None:
        super().__init__(self.dialect, names)
        self.shared_offsets: dict[ir.Allocate, int] = {}
        self.constant: set[ir.Buffer] = set()
        """Parameters that the kernel does not write."""
        self.marks: list[tuple[int, Span]] = []
        """For each comment that names the author's line: its place among `lines`."""

    def literal(self, value: int | float | bool, dtype: DType) -> Text:
        if dtype.is_float and dtype.name not in ("float32", "float64"):
            number = self.literal(value, ir.dtypes.FLOAT32)
            return self.call(f"tw::convert<{self.spellings.types[dtype.name]}>", number)
        if dtype.is_float and not math.isfinite(value):
            bits = "0x7fc00000u" if math.isnan(value) else "0x7f800000u" if value > 0 else "0xff800000u"
            number = self.call("tw::bits_float", Text(bits))
            return number if dtype.bits == 32 else Text(f"(double){number}", UNARY)
        return super().literal(value, dtype)

    def expression_Binary(self, node: ir.Binary) -> Text:
        dtype = node.left.dtype
        left, right = self.expression(node.left), self.expression(node.right)
        # A literal of a narrow type is written as an int, one of a wide type is a long long, which int64_t need not be:
        # the type of the result decides.
        of_type = f"<{self.spellings.types[dtype.name]}>" if dtype.is_integer and dtype.bits != 32 else ""
        if node.op in ("min", "max"):
            return self.call(f"tw::{node.op}imum{of_type}", left, right)
        if node.op in ("floordiv", "floormod"):
            divisor = int(node.right.value) if isinstance(node.right, ir.Const) else 0
            if dtype.kind == "uint":  # by zero both are 0, which processors leave open
                plain = divisor != 0
            else:
                plain = self.is_nonnegative(node.left) and self.is_nonnegative(node.right)
            if not plain and divisor > 0 and divisor & (divisor - 1) == 0:  # bits, whatever the sign is
                amount, op = (divisor.bit_length() - 1, "shr") if node.op == "floordiv" else (divisor - 1, "and")
                return self.infix(op, left, self.literal(amount, dtype if dtype.bits > 32 else ir.dtypes.INT32))
            return self.infix(node.op, left, right) if plain else self.call(f"tw::{node.op}{of_type}", left, right)
        result = self.infix(node.op, left, right)
        return result if node.op in ir.COMPARISONS else self._in_range(result, dtype)

    def _in_range(self, text: Text, dtype: DType) -> Text:
        """The result of an operation: C++ works on int where a type is narrower, and what leaves the type's range must
        come back."""
        return self._wrapped(text, dtype) if dtype.is_integer and dtype.bits < 32 else text

    def _wrapped(self, text: Text, dtype: DType) -> Text:
        """An int back in its narrow type."""
        if dtype.bits >= 8:
            return Text(f"({self.spellings.types[dtype.name]})({text})", UNARY)
        shift = 32 - dtype.bits
        if dtype.kind == "int":
            return Text(f"(int8_t)((int32_t)((uint32_t)({text}) << {shift}) >> {shift})", UNARY)
        return Text(f"(uint8_t)(({text}) & {(1 << dtype.bits) - 1})", UNARY)

    def expression_Unary(self, node: ir.Unary) -> Text:
        value = self.operand(self.expression(node.value), UNARY)
        sign = {"neg": "-", "not": "!", "invert": "~"}[node.op]
        value = f"({value})" if sign == "-" and value.startswith("-") else value  # two signs in a row count down
        result = Text(sign + value, UNARY)
        return result if node.op == "not" else self._in_range(result, node.dtype)

    def expression_Select(self, select: ir.Select) -> Text:
        """A choice between values; where memory is read for one that is of a class, a choice between words.

        Of classes C++ chooses a place and copies from there. Behind a dozen of such choices in a row NVRTC 13 does not
        come to an end.
        """
        kind, branches = self.spellings.types[select.dtype.name], (select.then, select.otherwise)
        reads = any(isinstance(one, ir.Load) and one.buffer.scope in ("global", "shared") for one in branches)
        if not (reads and kind.startswith("tw::")):
            return super().expression_Select(select)
        word = f"tw::bit_cast<uint{max(select.dtype.stored_bits, 8)}_t>"
        then, otherwise = (self.call(word, self.expression(one)) for one in branches)
        condition = self.operand(self.expression(select.condition), TERNARY + 1, "?")
        return self.call(f"tw::bit_cast<{kind}>", Text(f"{condition} ? {then} : {otherwise}"))

    def expression_Cast(self, cast: ir.Cast) -> Text:
        value, source, target = self.expression(cast.value), cast.value.dtype, cast.dtype
        if target.is_packed and target.is_integer:
            return self._wrapped(self._convert("int32_t", value, source), target)
        return self._convert(self.spellings.types[target.name], value, source)

    def _convert(self, to: str, value: Text, source: DType) -> Text:
        plain = source.is_integer and to in ("int32_t", "int64_t", "uint32_t", "uint64_t")
        if plain:
            return Text(f"({to}){self.operand(value, UNARY)}", UNARY)
        return self.call(f"tw::convert<{to}>", value)

    def expression_Reinterpret(self, node: ir.Reinterpret) -> Text:
        value, source = self.expression(node.value), node.value.dtype
        if source.kind in ("int", "uint") and source.bits < 32 and not isinstance(node.value, ir.Load):
            # Literals are ints, and so is what C++ computes of narrow types: only memory has them as they are.
            value = Text(f"({self.spellings.types[source.name]}){self.operand(value, UNARY)}", UNARY)
        return self.call(f"tw::bit_cast<{self.spellings.types[node.dtype.name]}>", value)

    def expression_Load(self, load: ir.Load) -> Text:
        name = self.names.of(load.buffer)
        if load.buffer.scope == "scalar":
            return Text(name)
        if load.dtype.lanes > 1:
            raise InternalError(f"a vector of {load.buffer.name} is no operand on a GPU")
        index = self.expression(load.indices[0])
        if in_bytes(load.buffer):
            return self._unpacked(name, index, load.buffer.dtype)
        return Text(f"{name}[{index}]")

    def _unpacked(self, name: str, index: Text, dtype: DType) -> Text:
        """One element of bytes that hold several."""
        code = self.call(f"tw::get_packed<{dtype.bits}>", Text(name), index)
        if dtype.is_float:
            return self.number_of_code(self.spellings.types[dtype.name], code)
        return self._wrapped(code, dtype) if dtype.kind == "int" else Text(f"(uint8_t){code}", UNARY)

    def number_of_code(self, kind: str, code: Text) -> Text:
        """A number of a type that is its code in a byte."""
        return Text(f"{kind}{{(uint8_t){code}}}")

    def expression_Call(self, call: ir.Call) -> Text:
        made = in_full(call)
        call = replace(call, function=spelled(call.function, self.words))
        method = self.calls.get(call.function)
        if method is not None:
            printed: Text = getattr(self, method)(call)
            return printed
        if made is not None:
            return self.expression(made)
        arguments = [self._argument(part) for part in call.arguments]
        given = call.arguments[0].dtype if call.arguments and isinstance(call.arguments[0], ir.Expr) else call.dtype
        if call.function == "abs" and given.is_integer:
            if given.kind != "int":  # its own absolute value
                return arguments[0]
            # Where int64_t is a long, what is computed with a literal (a long long) is neither of the types of `abs`.
            number = Text(f"(int64_t)({arguments[0]})", UNARY) if given.bits == 64 else arguments[0]
            return self._in_range(self.call("tw::abs", number), call.dtype)
        if call.function == "popcount":
            # The sign of a narrow type is not one of its bits more than once.
            bits = self._convert(
                f"uint{max(given.bits, 32)}_t", Text(f"(uint{max(given.bits, 8)}_t)({arguments[0]})", UNARY), given
            )
            return self._convert(self.spellings.types[call.dtype.name], self.call("tw::popcount", bits), INT32)
        small = given.is_float and given.name not in ("float32", "float64")
        if small and call.function != "fma" and not call.function.startswith("shuffle"):
            result = self.call(f"tw::{call.function}", *(self.call("tw::to_float", text) for text in arguments))
            return (
                self.call(f"tw::convert<{self.spellings.types[call.dtype.name]}>", result)
                if call.dtype.is_float
                else result
            )
        return self.call(f"tw::{call.function}", *arguments)

    def _atomic(self, call: ir.Call) -> Text:
        """An update of one element; an order stronger than relaxed puts fences where it wants them."""
        (place,), values, order = call.regions, call.operands, call.arguments[-1]
        at = self.expression(place.starts[0]) if place.starts else Text("0")
        address = Text(f"&{self.names.of(place.buffer)}[{at}]")
        update = self.call(f"tw::{call.function}", address, *map(self.expression, values))
        if order == "relaxed":
            return update
        flag = _FLAGS.get((call.function, str(order)))
        if place.dtype == UINT32 and flag is not None:
            return self.call(f"tw::{flag}", address, *map(self.expression, values))
        fence = "tw::fence_device(); "
        before, after = fence if order != "acquire" else "", fence if order != "release" else ""
        return Text(f"[&] {{ {before}const auto old = {update}; {after}return old; }}()")

    def _vector_atomic(self, call: ir.Call) -> Text:
        """Several neighbours of a tensor get what as many registers hold."""
        place, part = call.regions
        arguments = (self._pointer(place), Text(self.names.of(part.buffer)), self.expression(part.starts[0]))
        return self.call(f"tw::atomic_add_fragment<{part.extents[0]}>", *arguments)

    def _dot(self, call: ir.Call) -> Text:
        """Bytes as words, wherever they lie."""
        left, right, total = call.regions
        if (left.dtype.kind, right.dtype.kind) == ("int", "uint"):
            left, right = right, left
        kinds = "".join(f"{part.dtype.kind[0]}8" for part in (left, right)).replace("i", "s")
        words = []
        for part in (left, right):
            name = Text(self.names.of(part.buffer))
            if part.buffer.scope == "register":
                words.append(self.call("tw::get_word", name, self.expression(part.starts[0] // 4)))
            else:
                words.append(self.call("tw::bit_cast<uint32_t>", self.call("tw::load<4>", self._pointer(part))))
        place = Text(
            f"{self.names.of(total.buffer)}"
            + ("" if total.buffer.scope == "scalar" else f"[{self.expression(total.starts[0])}]")
        )
        return Text(f"{place} = {self.call(f'tw::dp4a_{kinds}', *words, place)}")

    def _printed(self, call: ir.Call) -> Text:
        """A line of the program's; numbers go as C prints them."""
        text, *numbers = call.arguments
        dtypes = [number.dtype for number in numbers if isinstance(number, ir.Expr)]
        shown = [
            self._convert("float", self.expression(number), number.dtype)
            if number.dtype.is_float and number.dtype.bits < 32
            else self.expression(number)
            for number in numbers
            if isinstance(number, ir.Expr)
        ]
        return self.call("tw::print", Text(f'"{c_format(str(text), dtypes)}"'), *shown)

    def _foreign(self, call: ir.Call) -> Text:
        """A function of the author's own text, whose pointers are plain ones."""
        name, *arguments = call.arguments
        given = [self._pointer(part) if isinstance(part, ir.Region) else self._argument(part) for part in arguments]
        return self.call(str(name), *given)

    def _pointer(self, region: ir.Region) -> Text:
        buffer, start = region.buffer, region.starts[0] if region.starts else ir.const(0)
        if buffer.scope == "register":
            return self.call("tw::pointer", self.names.of(buffer), self.expression(start))
        return Text(f"&{self.names.of(buffer) if buffer.scope == 'scalar' else self._place(buffer, start)}")

    def _argument(self, part: ir.Expr | str | ir.Region) -> Text:
        if isinstance(part, str):
            return Text(part)
        if isinstance(part, ir.Expr):
            return self.expression(part)
        buffer = part.buffer
        if buffer.scope == "register":
            place = self.expression(part.starts[0] if part.starts else ir.const(0))
            return self.call(f"tw::slice<{part.extents[0]}>", self.names.of(buffer), place)
        if buffer.scope == "barrier":
            offset = part.starts[0] * ir.const(buffer.dtype.nbytes(1))
            return self.infix("add", Text(self.names.of(buffer)), self.expression(offset))
        if buffer.scope == "shared":
            return self.call("tw::shared_address", self._pointer(part))
        return self._pointer(part)

    def _place(self, buffer: ir.Buffer, index: ir.Expr) -> str:
        """An element in memory as it is named in C++, or the byte that begins with it."""
        at = self.expression(index)
        if in_bytes(buffer):
            at = self.infix("floordiv", at, Text(str(buffer.dtype.per_byte)))
        return f"{self.names.of(buffer)}[{at}]"

    def _template(self, call: ir.Call) -> Text:
        """A function whose first argument is its template's."""
        parameter, *rest = (self._argument(part) for part in call.arguments)
        return self.call(f"tw::{call.function}<{parameter}>", *rest)

    calls: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(_ATOMICS, "_atomic"), "lop3": "_template", "dp4a": "_dot", "call_extern": "_foreign",
        "print_line": "_printed", "atomic_add_fragment": "_vector_atomic",
    }  # fmt: skip
