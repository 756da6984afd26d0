"""Expressions of final programs as C for the cpu target: scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.errors import InternalError
from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, DType
from tilewright.ir.nodes import COMPARISONS, Buffer, Expr
from tilewright.targets.c_family import PRIMARY, UNARY, CFamilyPrinter, Names, Text
from tilewright.targets.cpu.spellings import (
    DEVICE_FUNCTIONS,
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
_LOGICAL = {"all": "and", "any": "or"}


class CpuExpressions(CFamilyPrinter):
    """Prints expressions; notes which numbers of lanes and which headers they need.

    A vector of bools is a mask: a signed integer vector, 0 or -1 a lane, as wide as what was compared
    (`mask_bits`); it is converted where two widths meet.
    """

    def __init__(self, names: Names, nonnegative: frozenset[nodes.Var] = frozenset()) -> None:
        super().__init__(SPELLINGS, names)
        self.lanes_used: set[int] = set()
        self.headers: set[str] = set()
        self.promoted: dict[Buffer, int] = {}
        """Register buffers that are C variables, one for each vector; the lanes of each."""
        self.nonnegative = set(nonnegative)

    # Types and literals -------------------------------------------------------------------------

    def type_name(self, dtype: DType) -> str:
        if dtype.lanes == 1:
            return self.spellings.types[dtype.name]
        self.lanes_used.add(dtype.lanes)
        return f"i32x{dtype.lanes}" if dtype.kind == "bool" else f"{carrier(dtype)}x{dtype.lanes}"

    def helper(self, name: str, dtype: DType) -> str:
        if dtype.lanes > 1:
            self.lanes_used.add(dtype.lanes)
        return helper(name, dtype)

    def expression_Const(self, const: nodes.Const) -> Text:
        if const.dtype.lanes > 1:
            return self._splat(self.literal(const.value, const.dtype.scalar), const.dtype)
        return self.literal(const.value, const.dtype)

    def literal(self, value: int | float | bool, dtype: DType) -> Text:
        if computes_in_float(dtype) and dtype.name != "tfloat32":
            return Text(f"0x{bits_of(float(value), dtype):0{max(dtype.bits, 8) // 4}x}")
        if dtype.name == "int64" and -(1 << 31) < value < 1 << 31:
            return super().literal(value, nodes.dtypes.INT32)  # C widens it to whatever it meets
        return super().literal(value, dtype)

    def expression_Broadcast(self, broadcast: nodes.Broadcast) -> Text:
        return self._splat(self.expression(broadcast.value), broadcast.dtype)

    def _splat(self, scalar: Text, dtype: DType) -> Text:
        self.lanes_used.add(dtype.lanes)
        if dtype.kind == "bool":
            return self.call(f"tw_splat_i32x{dtype.lanes}", Text(f"-({scalar})"))
        return self.call(f"tw_splat_{carrier(dtype)}x{dtype.lanes}", scalar)

    # Masks --------------------------------------------------------------------------------------

    def mask_bits(self, expr: Expr) -> int:
        """Lane width of the mask that a vector of bools prints as."""
        if isinstance(expr, nodes.Binary):
            if expr.op in COMPARISONS and expr.left.dtype.kind != "bool":
                return compute_bits(expr.left.dtype)
            return max(self.mask_bits(expr.left), self.mask_bits(expr.right))
        if isinstance(expr, nodes.Unary):
            return self.mask_bits(expr.value)
        if isinstance(expr, nodes.Cast):
            return compute_bits(expr.value.dtype)
        if isinstance(expr, nodes.Load):
            return 32 if expr.buffer in self.promoted else 8
        if isinstance(expr, nodes.Call) and expr.arguments and isinstance(expr.arguments[0], Expr):
            return compute_bits(expr.arguments[0].dtype)
        return 32

    def mask(self, expr: Expr, bits: int) -> Text:
        """A vector of bools as a mask of lanes of `bits`."""
        text = self.expression(expr)
        if self.mask_bits(expr) == bits:
            return text
        return self.call("__builtin_convertvector", text, f"i{bits}x{expr.dtype.lanes}")

    # Operators ----------------------------------------------------------------------------------

    def expression_Binary(self, node: nodes.Binary) -> Text:
        dtype = node.left.dtype
        if dtype.kind == "bool":
            return self._boolean(node)
        left, right = self._operands(node)
        if node.op in ("min", "max"):
            return self._rounded(self._extreme(node, left, right), dtype)
        if node.op in ("floordiv", "floormod"):
            return self._division(node, left, right)
        if node.op in COMPARISONS:
            return self.infix(node.op, left, right)
        return self._rounded(self.infix(node.op, left, right), dtype)

    def _operands(self, node: nodes.Binary) -> tuple[Text, Text]:
        """Both operands; an int32 that meets an int64 is widened by C itself."""
        left, right = self._operand(node.left), self._operand(node.right)
        if node.left.dtype.name == "int64" and node.left.dtype.lanes == 1 and node.op not in ("shl", "shr"):
            if _is_widening(node.right) and not isinstance(node.left, nodes.Const):
                return left, self.expression(node.right.value)  # type: ignore[attr-defined]
            if isinstance(node.left, nodes.Const) and isinstance(node.right, nodes.Const):
                return Text(f"{left}ll", left.precedence), right
        if node.op == "shl" and isinstance(node.left, nodes.Const) and node.left.dtype.bits == 64:
            return Text(f"{left}ll", left.precedence), right
        return left, right

    def _extreme(self, node: nodes.Binary, left: Text, right: Text) -> Text:
        """The lesser or the greater of two; where one is known to be no NaN, machines' own instructions give it for the other."""
        dtype, op = self._compute(node.left.dtype), node.op
        if dtype.lanes > 1 and dtype.is_float and (_is_number(node.right) or _is_number(node.left)):
            op = {"min": "lesser", "max": "greater"}[op]
            left, right = (left, right) if _is_number(node.right) else (right, left)
        return self.call(self.helper(op, dtype), left, right)

    def _boolean(self, node: nodes.Binary) -> Text:
        if node.dtype.lanes == 1:
            return self.infix(node.op, self.expression(node.left), self.expression(node.right))
        bits = max(self.mask_bits(node.left), self.mask_bits(node.right))
        op = {"eq": "xor", "ne": "xor", **_LOGICAL}.get(node.op, node.op)
        result = self.infix(op, self.mask(node.left, bits), self.mask(node.right, bits))
        return Text(f"~({result})", UNARY) if node.op == "eq" else result

    def _operand(self, expr: Expr) -> Text:
        """`expr` in the type that operators work in; a broadcast operand stays a scalar, which C widens."""
        dtype = expr.dtype
        if (
            isinstance(expr, nodes.Broadcast)
            and not computes_in_float(dtype)
            and carrier(dtype) in ("f32", "f64", "i32")
        ):
            return self._in_splat(expr)
        return self._widened(self.expression(expr), dtype)

    def _in_splat(self, expr: nodes.Broadcast) -> Text:
        return self._splat(self.expression(expr.value), expr.dtype)

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
        from_table = nodes.dtypes.FLOAT32 if computes_in_float(dtype) else dtype
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

    def _division(self, node: nodes.Binary, left: Text, right: Text) -> Text:
        """Division that rounds towards minus infinity, as cheaply as the operands allow."""
        dtype, divisor = node.left.dtype, _constant(node.right)
        unsigned = dtype.kind == "uint" or (divisor is not None and divisor > 0 and self.is_nonnegative(node.left))
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0 and not (unsigned and dtype.lanes == 1):
            shift = divisor.bit_length() - 1
            amount, op = (shift, "shr") if node.op == "floordiv" else (divisor - 1, "and")
            return self._rounded(self.infix(op, left, self.literal(amount, nodes.dtypes.INT32)), dtype)
        if unsigned or (self.is_nonnegative(node.left) and self.is_nonnegative(node.right)):
            return self._rounded(self.infix(node.op, left, right), dtype)
        if dtype.lanes > 1:
            raise InternalError(f"a vector of {dtype} cannot be divided by {right} in C")
        return self.call(f"tw_{node.op}_{carrier(dtype)}", left, right)

    def is_nonnegative(self, expr: Expr) -> bool:
        """Whether an index expression cannot be negative, by its structure alone."""
        if isinstance(expr, nodes.Const):
            return expr.value >= 0
        if isinstance(expr, nodes.Var):
            return expr in self.nonnegative or expr.dtype.kind == "uint"
        if isinstance(expr, nodes.Binary):
            both = self.is_nonnegative(expr.left), self.is_nonnegative(expr.right)
            if expr.op in ("add", "mul", "floordiv", "shr", "and", "or", "min"):
                return all(both)
            return any(both) if expr.op == "max" else expr.op == "floormod" and both[1]
        if isinstance(expr, (nodes.Cast, nodes.Broadcast)):
            return expr.dtype.is_integer and expr.value.dtype.is_integer and self.is_nonnegative(expr.value)
        return expr.dtype.kind == "uint"

    def expression_Unary(self, node: nodes.Unary) -> Text:
        dtype = node.dtype
        if node.op == "not":
            inner = self.expression(node.value)
            return Text(("!" if dtype.lanes == 1 else "~") + self.operand(inner, UNARY), UNARY)
        inner = self._widened(self.expression(node.value), dtype)
        operator = {"neg": "-", "invert": "~"}[node.op]
        body = f"({inner})" if inner.precedence <= UNARY else inner.text
        return self._rounded(Text(operator + body, UNARY), dtype)

    def expression_Select(self, node: nodes.Select) -> Text:
        dtype = node.dtype
        if node.condition.dtype.lanes == 1:
            return super().expression_Select(node)
        if dtype.kind == "bool":
            bits = max(map(self.mask_bits, (node.condition, node.then, node.otherwise)))
            parts = [self.mask(part, bits) for part in (node.condition, node.then, node.otherwise)]
            self.lanes_used.add(dtype.lanes)
            return self.call(f"tw_select_i{bits}x{dtype.lanes}", *parts)
        width = {"f32": 32, "f64": 64}.get(carrier(dtype)) or int(carrier(dtype)[1:])
        condition = self.mask(node.condition, width)
        return self.call(
            self.helper("select", dtype), condition, self.expression(node.then), self.expression(node.otherwise)
        )

    # Conversions --------------------------------------------------------------------------------

    def expression_Cast(self, node: nodes.Cast) -> Text:
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
                return self.call(self.helper("i8_rounded", source), self.expression(node.value.arguments[0]))  # type: ignore[attr-defined]
            wide = self._widened(text, source)
            kind = "f64" if source.name == "float64" else "f32"
            return self.call(f"tw_{code(target)}_from_{kind}{self._suffix(target)}", wide)
        if target.is_float:
            return self._integer_to_float(text, source, target)
        return self._integer_to_integer(text, source, target)

    def _from_bool(self, node: nodes.Cast, text: Text) -> Text:
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
            wide = self._converted(text, carrier(source), nodes.dtypes.FLOAT64.with_lanes(target.lanes))
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

    def expression_Reinterpret(self, node: nodes.Reinterpret) -> Text:
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

    # Memory -------------------------------------------------------------------------------------

    def expression_Load(self, node: nodes.Load) -> Text:
        name = self.names.of(node.buffer)
        if node.buffer.scope == "scalar":
            return Text(name)
        if node.buffer in self.promoted:
            return Text(self.register_name(node.buffer, node.indices[0]))
        if node.buffer.dtype.is_packed:
            suffix = self._suffix(node.dtype)
            return self.call(f"tw_load_{code(node.dtype)}{suffix}", name, self.expression(node.indices[0]))
        if node.dtype.lanes == 1:
            return Text(f"{name}[{self.value(node.indices[0])}]")
        loaded = self.call(self.helper("load", node.dtype), self.address(node.buffer, node.indices[0]))
        if node.dtype.kind == "bool":
            return Text(f"({loaded} != 0)")
        return loaded

    def register_name(self, buffer: Buffer, index: Expr) -> str:
        """The C variable that holds the vector at a constant index of a promoted buffer."""
        lanes, at = self.promoted[buffer], _constant(index)
        if at is None or at % lanes:
            raise InternalError(f"{buffer.name} was promoted to variables but is indexed by {index}")
        return f"{self.names.of(buffer)}_{at // lanes}" if buffer.size > lanes else self.names.of(buffer)

    def address(self, buffer: Buffer, index: Expr) -> str:
        """Pointer to an element of a flat buffer."""
        name = self.names.of(buffer)
        if buffer.dtype.is_packed:
            at = nodes.binary("floordiv", index, nodes.const(buffer.dtype.per_byte, index.dtype))
            return f"{name} + {self.operand(self.expression(at), 12, 'add', right=True)}"
        if _constant(index) == 0:
            return name
        return f"{name} + {self.operand(self.expression(index), 12, 'add')}"

    # Calls --------------------------------------------------------------------------------------

    def expression_Call(self, node: nodes.Call) -> Text:
        if node.function in DEVICE_FUNCTIONS:
            record = DEVICE_FUNCTIONS[node.function]
            if record.header is not None:
                self.headers.add(record.header)
            for dtype in (node.dtype, *(a.dtype for a in node.arguments if isinstance(a, Expr))):
                self._suffix(dtype)
            return record.spell(self, node, [self._argument(a) for a in node.arguments])
        if node.function in _SPECIAL:
            return _SPECIAL[node.function](self, node)
        return self._elementwise(node)

    def _argument(self, value: Expr | str | nodes.Region) -> Text:
        if isinstance(value, str):
            return Text(value)
        if isinstance(value, nodes.Region):
            return Text(self.address(value.buffer, value.starts[0] if value.starts else nodes.const(0)))
        return self.expression(value)

    def _elementwise(self, node: nodes.Call) -> Text:
        """A math function: in float for narrow types, rounded once."""
        values = [a for a in node.arguments if isinstance(a, Expr)]
        arguments = [self._widened(self.expression(v), v.dtype) for v in values]
        result = self.call(self.helper(node.function, self._compute(node.dtype)), *arguments)
        return self._rounded(result, node.dtype)

    def _abs(self, node: nodes.Call) -> Text:
        if node.dtype.is_float:
            return self._elementwise(node)
        (value,) = (a for a in node.arguments if isinstance(a, Expr))
        if node.dtype.kind == "uint":
            return self.expression(value)
        zero = nodes.const(0, node.dtype.scalar)
        zero = nodes.Broadcast(node.dtype, zero) if node.dtype.lanes > 1 else zero  # type: ignore[assignment]
        condition = nodes.Binary(BOOL.with_lanes(node.dtype.lanes), "lt", value, zero)
        return self.expression(nodes.Select(node.dtype, condition, nodes.Unary(node.dtype, "neg", value), value))

    def _classify(self, node: nodes.Call) -> Text:
        """``isnan`` and its kin, by comparisons that vectors have too."""
        (value,) = (a for a in node.arguments if isinstance(a, Expr))
        text = self._widened(self.expression(value), value.dtype)
        x = text.text if text.precedence == PRIMARY else f"({text})"
        test = {"isnan": f"{x} != {x}", "isfinite": f"{x} - {x} == {x} - {x}"}.get(node.function)
        if test is None:
            absolute = self.call(self.helper("abs", self._compute(value.dtype)), text)
            test = f"{absolute} == INFINITY"
        return Text(f"({test})")

    def _popcount(self, node: nodes.Call) -> Text:
        (value,) = (a for a in node.arguments if isinstance(a, Expr))
        unsigned = f"uint{max(value.dtype.bits, 8)}_t"
        mask = f" & {(1 << value.dtype.bits) - 1}" if value.dtype.bits < 8 else ""
        inner = f"({unsigned}){self.operand(self.expression(value), UNARY)}{mask}"
        return self._plain_cast(self.call("__builtin_popcountll", inner), node.dtype)

    def _lane_index(self, node: nodes.Call) -> Text:
        self.lanes_used.add(node.dtype.lanes)
        return self.call(f"tw_lane_index_{carrier(node.dtype)}x{node.dtype.lanes}")

    def _lanes_reduce(self, node: nodes.Call) -> Text:
        (value,) = (a for a in node.arguments if isinstance(a, Expr))
        if node.dtype.kind == "bool":
            lanes, bits = value.dtype.lanes, self.mask_bits(value)
            self.lanes_used.add(lanes)
            op = {"lanes_all": "and", "lanes_any": "or"}[node.function]
            return Text(f"{self.call(f'tw_lanes_{op}_i{bits}x{lanes}', self.expression(value))} != 0", 9, "ne")
        text = self._widened(self.expression(value), value.dtype)
        return self._rounded(self.call(self.helper(node.function, self._compute(value.dtype)), text), node.dtype)

    def _atomic(self, node: nodes.Call) -> Text:
        region, *rest = node.arguments
        assert isinstance(region, nodes.Region)
        self.headers.add("tilewright_atomic.h")
        kind = node.function.removeprefix("atomic_")
        values = [self.expression(a) for a in rest if isinstance(a, Expr)]
        pointer = self.address(region.buffer, region.starts[0])
        return self.call(f"tw_atomic_{kind}_{code(region.dtype)}", pointer, *values)

    def _vote(self, node: nodes.Call) -> Text:
        """Whether any, or every, element of a tile differs from zero."""
        (region,) = node.arguments
        assert isinstance(region, nodes.Region)
        name, at = self.names.fresh("found"), nodes.Var(nodes.dtypes.INT64, "at")
        index = nodes.index_binary("add", at, region.starts[0])
        element = nodes.Load(region.dtype, region.buffer, (index,))
        test = self.value(element if region.dtype.kind == "bool" else nodes.Cast(BOOL, element))
        wanted, goes_on = ("false", f"!{name}") if node.function == "any_of" else ("true", name)
        count, place = self.value(nodes.expr(region.extents[0])), self.names.of(at)
        loop = f"for (int64_t {place} = 0; {place} < {count} && {goes_on}; {place}++) {name} = {test};"
        return Text(f"({{ bool {name} = {wanted}; {loop} {name}; }})")

    def _call_extern(self, node: nodes.Call) -> Text:
        name, *rest = node.arguments
        return self.call(str(name), *(self._argument(a) for a in rest))


_SPECIAL: Mapping[str, Callable[[CpuExpressions, nodes.Call], Text]] = {
    "abs": CpuExpressions._abs,
    "isnan": CpuExpressions._classify, "isinf": CpuExpressions._classify, "isfinite": CpuExpressions._classify,
    "popcount": CpuExpressions._popcount,
    "lane_index": CpuExpressions._lane_index,
    "call_extern": CpuExpressions._call_extern,
    "any_of": CpuExpressions._vote, "all_of": CpuExpressions._vote,
    **{f"lanes_{op}": CpuExpressions._lanes_reduce
       for op in ("add", "mul", "min", "max", "and", "or", "xor", "all", "any")},
    **{f"atomic_{kind}": CpuExpressions._atomic
       for kind in ("add", "max", "min", "and", "or", "xor", "exchange", "load", "store")},
}  # fmt: skip


def _constant(expr: Expr) -> int | None:
    if isinstance(expr, nodes.Broadcast):
        expr = expr.value
    return int(expr.value) if isinstance(expr, nodes.Const) and expr.dtype.is_integer else None


def _is_number(expr: Expr) -> bool:
    """Whether a float is certainly no NaN, by its structure alone."""
    if isinstance(expr, nodes.Broadcast):
        return _is_number(expr.value)
    if isinstance(expr, nodes.Const):
        return expr.value == expr.value
    if isinstance(expr, nodes.Binary):
        return expr.op in ("min", "max") and (_is_number(expr.left) or _is_number(expr.right))
    if isinstance(expr, nodes.Call) and expr.function == "abs":
        return _is_number(expr.arguments[0])  # type: ignore[arg-type]
    if isinstance(expr, nodes.Unary):
        return _is_number(expr.value)
    return isinstance(expr, nodes.Cast) and (expr.value.dtype.is_integer or _is_number(expr.value))


def _rounds(expr: Expr) -> bool:
    return isinstance(expr, nodes.Call) and expr.function == "round" and expr.dtype.scalar.name == "float32"


def _is_widening(expr: Expr) -> bool:
    return isinstance(expr, nodes.Cast) and expr.dtype.name == "int64" and expr.value.dtype.name == "int32"
