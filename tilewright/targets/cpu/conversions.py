"""What C type holds a value of the cpu target, and how a value of one type becomes one of another."""

from __future__ import annotations

from typing import TypeGuard

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import DType
from tilewright.targets.c_family import UNARY, CFamilyPrinter, Names, Text
from tilewright.targets.cpu.spellings import (
    SPELLINGS,
    bits_of,
    carrier,
    code,
    compute_bits,
    computes_in_float,
    helper,
    lanes_suffix,
)

_NARROW = ("i8", "u8", "i16", "u16")


class CpuConversions(CFamilyPrinter):
    """Prints literals and conversions; notes which numbers of lanes and which headers they need.

    A vector of bools is a mask: a signed integer vector, 0 or -1 a lane, as wide as what was compared
    (`mask_bits`); it is converted where two widths meet.
    """

    def __init__(self, names: Names) -> None:
        super().__init__(SPELLINGS, names)
        self.lanes_used: set[int] = set()
        self.headers: set[str] = set()
        self.promoted: dict[ir.Buffer, int] = {}
        """Register buffers that are C variables, one for each vector; the lanes of each."""

    # Types and literals ---------------------------------------------------------------------------

    def type_name(self, dtype: DType) -> str:
        if dtype.lanes == 1:
            return self.spellings.types[dtype.name]
        self.lanes_used.add(dtype.lanes)
        return f"i32x{dtype.lanes}" if dtype.kind == "bool" else f"{carrier(dtype)}x{dtype.lanes}"

    def helper(self, name: str, dtype: DType) -> str:
        if dtype.lanes > 1:
            self.lanes_used.add(dtype.lanes)
        return helper(name, dtype)

    def expression_Const(self, const: ir.Const) -> Text:
        if const.dtype.lanes > 1:
            return self._splat(self.literal(const.value, const.dtype.scalar), const.dtype)
        return self.literal(const.value, const.dtype)

    def literal(self, value: int | float | bool, dtype: DType) -> Text:
        if computes_in_float(dtype) and dtype.name != "tfloat32":
            return Text(f"0x{bits_of(float(value), dtype):0{max(dtype.bits, 8) // 4}x}")
        if dtype.name == "int64" and -(1 << 31) < value < 1 << 31:
            return super().literal(value, ir.dtypes.INT32)  # C widens it to whatever it meets
        return super().literal(value, dtype)

    def expression_Broadcast(self, broadcast: ir.Broadcast) -> Text:
        return self._splat(self.expression(broadcast.value), broadcast.dtype)

    def _splat(self, scalar: Text, dtype: DType) -> Text:
        self.lanes_used.add(dtype.lanes)
        if dtype.kind == "bool":
            return self.call(f"tw_splat_i32x{dtype.lanes}", Text(f"-({scalar})"))
        return self.call(f"tw_splat_{carrier(dtype)}x{dtype.lanes}", scalar)

    # Masks ----------------------------------------------------------------------------------------

    def mask_bits(self, expr: ir.Expr) -> int:
        """Lane width of the mask that a vector of bools prints as."""
        if isinstance(expr, ir.Binary):
            if expr.op in ir.COMPARISONS and expr.left.dtype.kind != "bool":
                return compute_bits(expr.left.dtype)
            return max(self.mask_bits(expr.left), self.mask_bits(expr.right))
        if isinstance(expr, ir.Select):
            masks = [part for part in (expr.condition, expr.then, expr.otherwise) if part.dtype.lanes > 1]
            return max(map(self.mask_bits, masks))
        if isinstance(expr, ir.Unary):
            return self.mask_bits(expr.value)
        if isinstance(expr, ir.Cast):
            if expr.value.dtype.kind == "bool":
                return self.mask_bits(expr.value)
            return compute_bits(expr.value.dtype)
        if isinstance(expr, ir.Load):
            return 32 if expr.buffer in self.promoted else 8
        if isinstance(expr, ir.Call) and expr.arguments and isinstance(expr.arguments[0], ir.Expr):
            return compute_bits(expr.arguments[0].dtype)
        return 32

    def mask(self, expr: ir.Expr, bits: int) -> Text:
        """A vector of bools as a mask of lanes of `bits`."""
        text = self.expression(expr)
        if self.mask_bits(expr) == bits:
            return text
        return self.call("__builtin_convertvector", text, f"i{bits}x{expr.dtype.lanes}")

    # Narrow types ---------------------------------------------------------------------------------

    def _widened(self, text: Text, dtype: DType) -> Text:
        """A value of a narrow float type as float."""
        if not computes_in_float(dtype) or dtype.name == "tfloat32":
            return text
        return self.call(f"tw_f32_from_{code(dtype)}{self._suffix(dtype)}", text)

    def _suffix(self, dtype: DType) -> str:
        if dtype.lanes > 1:
            self.lanes_used.add(dtype.lanes)
        return lanes_suffix(dtype)

    @staticmethod
    def _compute(dtype: DType) -> DType:
        from_table = ir.dtypes.FLOAT32 if computes_in_float(dtype) else dtype
        return from_table.with_lanes(dtype.lanes)

    def _rounded(self, text: Text, dtype: DType) -> Text:
        """The result of an operator brought back to its type: rounded, or wrapped to its bits."""
        if computes_in_float(dtype):
            return self.call(f"tw_{code(dtype)}_from_f32{self._suffix(dtype)}", text)
        if dtype.is_integer and dtype.bits < 8:
            return self.call(f"tw_wrap_{code(dtype)}{self._suffix(dtype)}", text)
        if dtype.is_integer and dtype.bits < 32 and dtype.lanes == 1:
            return Text(f"({self.type_name(dtype)})({text})", UNARY)
        return text

    # Conversions ----------------------------------------------------------------------------------

    def expression_Cast(self, node: ir.Cast) -> Text:
        source, target = node.value.dtype, node.dtype
        text = self.expression(node.value)
        if source.kind == "bool":
            return self._from_bool(node, text)
        if target.kind == "bool":
            wide = self._widened(text, source)
            return self.infix("ne", wide, self.literal(0, source.scalar) if not source.is_float else Text("0.0f"))
        if source.is_float and target.is_float:
            return self._float_to_float(text, source, target)
        if source.is_float:
            if target.name == "int8" and _rounds(node.value):
                return self.call(self.helper("i8_rounded", source), self.expression(node.value.operands[0]))
            wide = self._widened(text, source)
            kind = "f64" if source.name == "float64" else "f32"
            return self.call(f"tw_{code(target)}_from_{kind}{self._suffix(target)}", wide)
        if target.is_float:
            return self._integer_to_float(text, source, target)
        return self._integer_to_integer(text, source, target)

    def _from_bool(self, node: ir.Cast, text: Text) -> Text:
        target = node.dtype
        if target.kind == "bool":
            return text
        if target.lanes > 1:
            ones = Text(f"-({text})", UNARY)
            integer = f"i{self.mask_bits(node.value)}"
            wide = self._convert(ones, integer, "f32" if computes_in_float(target) else carrier(target), target.lanes)
        else:
            wide = (
                Text(f"(float){self.operand(text, UNARY)}", UNARY)
                if computes_in_float(target)
                else self._plain_cast(text, target)
            )
        return self._rounded(wide, target) if computes_in_float(target) or target.bits < 8 else wide

    def _float_to_float(self, text: Text, source: DType, target: DType) -> Text:
        wide = self._widened(text, source)
        if source.name == "float64":
            if target.name == "float32":
                return self._converted(wide, "f64", target)
            wide = self.call(f"tw_f32_odd_from_f64{self._suffix(source)}", wide)
        elif target.name == "float64":
            return self._converted(wide, "f32", target)
        return self._rounded(wide, target) if computes_in_float(target) else wide

    def _integer_to_float(self, text: Text, source: DType, target: DType) -> Text:
        if not computes_in_float(target):
            return self._converted(text, carrier(source), target)
        if source.bits <= 16:
            return self._rounded(self._converted(text, carrier(source), self._compute(target)), target)
        if source.bits == 64:
            wide = self.call(f"tw_f64_odd_from_{carrier(source)}{self._suffix(source)}", text)
        else:
            wide = self._converted(text, carrier(source), ir.dtypes.FLOAT64.with_lanes(target.lanes))
        return self._rounded(self.call(f"tw_f32_odd_from_f64{self._suffix(target)}", wide), target)

    def _integer_to_integer(self, text: Text, source: DType, target: DType) -> Text:
        if carrier(source) != carrier(target):
            text = self._converted(text, carrier(source), target)
        widens = target.bits > source.bits and (target.kind == "int" or source.kind == "uint")
        return text if widens or target.bits >= 8 else self._rounded(text, target)

    def _converted(self, text: Text, source: str, target: DType) -> Text:
        """A number of the C type called `source` as the number that holds a `target`."""
        if target.lanes == 1:
            return self._plain_cast(text, target)
        return self._convert(text, source, carrier(target), target.lanes)

    def _plain_cast(self, text: Text, target: DType) -> Text:
        return Text(f"({self.type_name(target)}){self.operand(text, UNARY)}", UNARY)

    def _convert(self, text: Text, source: str, target: str, lanes: int) -> Text:
        self.lanes_used.add(lanes)
        if source == target:
            return text
        if source[0] in "iu" and target[0] in "iu" and source[1:] == target[1:]:
            return Text(f"({target}x{lanes}){self.operand(text, UNARY)}", UNARY)
        if source in _NARROW and target[1:] == "32":
            wide = f"{source[0]}32"
            text = self.call(f"tw_{wide}_of_{source}x{lanes}", text)
            return self._convert(text, wide, target, lanes)
        return self.call("__builtin_convertvector", text, f"{target}x{lanes}")

    def expression_Reinterpret(self, node: ir.Reinterpret) -> Text:
        source, target = node.value.dtype, node.dtype
        text = self.expression(node.value)
        if carrier(source) == carrier(target) and source.lanes == target.lanes:
            return self._rounded(text, target) if target.bits < 8 and target.is_integer else text
        if target.lanes > 1 or source.lanes > 1:
            return Text(f"({self.type_name(target)}){self.operand(text, UNARY)}", UNARY)
        if {carrier(source), carrier(target)} & {"f32", "f64"}:
            return self._reinterpreted_float(text, source, target)
        return (
            self._rounded(self._plain_cast(text, target), target) if target.bits < 8 else self._plain_cast(text, target)
        )

    def _reinterpreted_float(self, text: Text, source: DType, target: DType) -> Text:
        name = {"f32": "tw_bits_f32", "f64": "tw_bits_f64"}.get(carrier(source))
        bits = self.call(name, text) if name else text
        back = {"f32": "tw_float_u32", "f64": "tw_double_u64"}.get(carrier(target))
        return self.call(back, bits) if back else self._plain_cast(bits, target)


def _rounds(expr: ir.Expr) -> TypeGuard[ir.Call]:
    return isinstance(expr, ir.Call) and expr.function == "round" and expr.dtype.scalar.name == "float32"
