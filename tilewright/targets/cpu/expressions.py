"""Expressions of final programs as C for the cpu target: scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard

from tilewright.errors import InternalError
from tilewright.ir import BOOL, in_full
from tilewright.ir import nodes as ir
from tilewright.targets.c_family import PRIMARY, UNARY, Text
from tilewright.targets.cpu.conversions import CpuConversions
from tilewright.targets.cpu.spellings import DEVICE_FUNCTIONS, carrier, code, computes_in_float

_LOGICAL = {"all": "and", "any": "or"}


class CpuExpressions(CpuConversions):
    """Prints expressions of all kinds."""

    # Operators ----------------------------------------------------------------------------------

    def expression_Binary(self, node: ir.Binary) -> Text:
        dtype = node.left.dtype
        if dtype.kind == "bool":
            return self._boolean(node)
        left, right = self._operands(node)
        if node.op in ("min", "max"):
            return self._rounded(self._extreme(node, left, right), dtype)
        if node.op in ("floordiv", "floormod"):
            return self._division(node, left, right)
        if node.op in ir.COMPARISONS:
            return self.infix(node.op, left, right)
        return self._rounded(self.infix(node.op, left, right), dtype)

    def _operands(self, node: ir.Binary) -> tuple[Text, Text]:
        """Both operands; an int32 that meets an int64 is widened by C itself."""
        left, right = self._operand(node.left), self._operand(node.right)
        if node.left.dtype.name == "int64" and node.left.dtype.lanes == 1 and node.op not in ("shl", "shr"):
            if _is_widening(node.right) and not isinstance(node.left, ir.Const):
                return left, self.expression(node.right.value)
            if isinstance(node.left, ir.Const) and isinstance(node.right, ir.Const):
                return self._long(node.left), right
        if node.op == "shl" and isinstance(node.left, ir.Const) and node.left.dtype.name == "int64":
            return self._long(node.left), right
        return left, right

    def _long(self, const: ir.Const) -> Text:
        """A literal of int64 as C's long long: `literal` leaves short ones an int, which C widens beside a long one."""
        text = self.literal(const.value, const.dtype)
        return text if "ll" in text.text else Text(f"{text}ll", text.precedence)

    def _extreme(self, node: ir.Binary, left: Text, right: Text) -> Text:
        """The lesser or the greater of two; where one is known to be no NaN, machines' own instructions give it for the
        other."""
        dtype, op = self._compute(node.left.dtype), node.op
        if dtype.lanes > 1 and dtype.is_float and (_is_number(node.right) or _is_number(node.left)):
            op = {"min": "lesser", "max": "greater"}[op]
            left, right = (left, right) if _is_number(node.right) else (right, left)
        return self.call(self.helper(op, dtype), left, right)

    def _boolean(self, node: ir.Binary) -> Text:
        if node.dtype.lanes == 1:
            return self.infix(node.op, self.expression(node.left), self.expression(node.right))
        bits = max(self.mask_bits(node.left), self.mask_bits(node.right))
        op = {"eq": "xor", "ne": "xor", **_LOGICAL}.get(node.op, node.op)
        result = self.infix(op, self.mask(node.left, bits), self.mask(node.right, bits))
        return Text(f"~({result})", UNARY) if node.op == "eq" else result

    def _operand(self, expr: ir.Expr) -> Text:
        """`expr` in the type that operators work in; a broadcast operand stays a scalar, which C widens."""
        dtype = expr.dtype
        if isinstance(expr, ir.Broadcast) and not computes_in_float(dtype) and carrier(dtype) in ("f32", "f64", "i32"):
            return self._splat(self.expression(expr.value), expr.dtype)
        return self._widened(self.expression(expr), dtype)

    def _division(self, node: ir.Binary, left: Text, right: Text) -> Text:
        """Division that rounds towards minus infinity, as cheaply as the operands allow."""
        dtype, divisor = node.left.dtype, _constant(node.right)
        unsigned = dtype.kind == "uint" or (divisor is not None and divisor > 0 and self.is_nonnegative(node.left))
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0 and not (unsigned and dtype.lanes == 1):
            shift = divisor.bit_length() - 1
            amount, op = (shift, "shr") if node.op == "floordiv" else (divisor - 1, "and")
            return self._rounded(self.infix(op, left, self.literal(amount, ir.dtypes.INT32)), dtype)
        plain = divisor not in (None, 0) if dtype.kind == "uint" and dtype.lanes == 1 else unsigned
        if plain or (self.is_nonnegative(node.left) and self.is_nonnegative(node.right) and dtype.kind != "uint"):
            return self._rounded(self.infix(node.op, left, right), dtype)
        if dtype.lanes > 1:
            raise InternalError(f"a vector of {dtype} cannot be divided by {right} in C")
        return self.call(f"tw_{node.op}_{carrier(dtype)}", left, right)

    def expression_Unary(self, node: ir.Unary) -> Text:
        dtype = node.dtype
        if node.op == "not":
            inner = self.expression(node.value)
            return Text(("!" if dtype.lanes == 1 else "~") + self.operand(inner, UNARY), UNARY)
        inner = self._widened(self.expression(node.value), dtype)
        operator = {"neg": "-", "invert": "~"}[node.op]
        body = f"({inner})" if inner.precedence <= UNARY else inner.text
        return self._rounded(Text(operator + body, UNARY), dtype)

    def expression_Select(self, node: ir.Select) -> Text:
        dtype = node.dtype
        if dtype.kind == "bool" and dtype.lanes > 1:
            bits = self.mask_bits(node)
            if node.condition.dtype.lanes == 1:
                then, otherwise = (f"({self.mask(part, bits)})" for part in (node.then, node.otherwise))
                return Text(f"({self.expression(node.condition)} ? {then} : {otherwise})")
            parts = [self.mask(part, bits) for part in (node.condition, node.then, node.otherwise)]
            self.lanes_used.add(dtype.lanes)
            return self.call(f"tw_select_i{bits}x{dtype.lanes}", *parts)
        if node.condition.dtype.lanes == 1:
            return super().expression_Select(node)
        width = {"f32": 32, "f64": 64}.get(carrier(dtype)) or int(carrier(dtype)[1:])
        condition = self.mask(node.condition, width)
        return self.call(
            self.helper("select", dtype), condition, self.expression(node.then), self.expression(node.otherwise)
        )

    # Memory -------------------------------------------------------------------------------------

    def expression_Load(self, node: ir.Load) -> Text:
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

    def register_name(self, buffer: ir.Buffer, index: ir.Expr) -> str:
        """The C variable that holds the vector at a constant index of a promoted buffer."""
        lanes, at = self.promoted[buffer], _constant(index)
        if at is None or at % lanes:
            raise InternalError(f"{buffer.name} was promoted to variables but is indexed by {index}")
        return f"{self.names.of(buffer)}_{at // lanes}" if buffer.size > lanes else self.names.of(buffer)

    def address(self, buffer: ir.Buffer, index: ir.Expr) -> str:
        """Pointer to an element of a flat buffer."""
        name = self.names.of(buffer)
        if buffer.dtype.is_packed:
            at = ir.binary("floordiv", index, ir.const(buffer.dtype.per_byte, index.dtype))
            return f"{name} + {self.operand(self.expression(at), 12, 'add', right=True)}"
        if _constant(index) == 0:
            return name
        return f"{name} + {self.operand(self.expression(index), 12, 'add')}"

    # Calls --------------------------------------------------------------------------------------

    def expression_Call(self, node: ir.Call) -> Text:
        if node.function in DEVICE_FUNCTIONS:
            record = DEVICE_FUNCTIONS[node.function]
            if record.header is not None:
                self.headers.add(record.header)
            for dtype in (node.dtype, *(a.dtype for a in node.operands)):
                self._suffix(dtype)
            return record.spell(self, node, [self._argument(a) for a in node.arguments])
        if node.function in _SPECIAL:
            return _SPECIAL[node.function](self, node)
        if (made := in_full(node)) is not None:
            return self.expression(made)
        return self._elementwise(node)

    def _argument(self, value: ir.Expr | str | ir.Region) -> Text:
        if isinstance(value, str):
            return Text(value)
        if isinstance(value, ir.Region):
            return Text(self.address(value.buffer, value.starts[0] if value.starts else ir.const(0)))
        return self.expression(value)

    def _elementwise(self, node: ir.Call) -> Text:
        """A math function: in float for narrow types, rounded once."""
        values = node.operands
        arguments = [self._widened(self.expression(v), v.dtype) for v in values]
        name = "fma_odd" if node.function == "fma" and computes_in_float(node.dtype) else node.function
        result = self.call(self.helper(name, self._compute(node.dtype)), *arguments)
        return self._rounded(result, node.dtype)

    def _abs(self, node: ir.Call) -> Text:
        if node.dtype.is_float:
            return self._elementwise(node)
        (value,) = node.operands
        if node.dtype.kind == "uint":
            return self.expression(value)
        zero: ir.Expr = ir.const(0, node.dtype.scalar)
        zero = ir.Broadcast(node.dtype, zero) if node.dtype.lanes > 1 else zero
        condition = ir.Binary(BOOL.with_lanes(node.dtype.lanes), "lt", value, zero)
        return self.expression(ir.Select(node.dtype, condition, ir.Unary(node.dtype, "neg", value), value))

    def _classify(self, node: ir.Call) -> Text:
        """``isnan`` and its kin, by comparisons that vectors have too."""
        (value,) = node.operands
        text = self._widened(self.expression(value), value.dtype)
        x = text.text if text.precedence == PRIMARY else f"({text})"
        test = {"isnan": f"{x} != {x}", "isfinite": f"{x} - {x} == {x} - {x}"}.get(node.function)
        if test is None:
            absolute = self.call(self.helper("abs", self._compute(value.dtype)), text)
            test = f"{absolute} == INFINITY"
        return Text(f"({test})")

    def _popcount(self, node: ir.Call) -> Text:
        (value,) = node.operands
        unsigned = f"uint{max(value.dtype.bits, 8)}_t"
        mask = f" & {(1 << value.dtype.bits) - 1}" if value.dtype.bits < 8 else ""
        inner = f"({unsigned}){self.operand(self.expression(value), UNARY)}{mask}"
        return self._plain_cast(self.call("__builtin_popcountll", inner), node.dtype)

    def _lane_index(self, node: ir.Call) -> Text:
        self.lanes_used.add(node.dtype.lanes)
        return self.call(f"tw_lane_index_{carrier(node.dtype)}x{node.dtype.lanes}")

    def _lanes_reduce(self, node: ir.Call) -> Text:
        (value,) = node.operands
        if node.dtype.kind == "bool":
            lanes, bits = value.dtype.lanes, self.mask_bits(value)
            self.lanes_used.add(lanes)
            op = {"lanes_all": "and", "lanes_any": "or"}[node.function]
            return Text(f"{self.call(f'tw_lanes_{op}_i{bits}x{lanes}', self.expression(value))} != 0", 9, "ne")
        text = self._widened(self.expression(value), value.dtype)
        return self._rounded(self.call(self.helper(node.function, self._compute(value.dtype)), text), node.dtype)

    def _atomic(self, node: ir.Call) -> Text:
        (region,) = node.regions
        self.headers.add("tilewright_atomic.h")
        kind = node.function.removeprefix("atomic_")
        values = [self.expression(one) for one in node.operands]
        pointer = self.address(region.buffer, region.starts[0])
        shared = region.buffer.scope == "global" or kind in ("load", "store")
        return self.call(f"tw_{'atomic' if shared else 'own'}_{kind}_{code(region.dtype)}", pointer, *values)

    def _vote(self, node: ir.Call) -> Text:
        """Whether any, or every, element of a tile differs from zero."""
        (region,) = node.regions
        name, at = self.names.fresh("found"), ir.Var(ir.dtypes.INT64, "at")
        index = at + region.starts[0]
        element = ir.Load(region.dtype, region.buffer, (index,))
        test = self.value(element if region.dtype.kind == "bool" else ir.Cast(BOOL, element))
        wanted, goes_on = ("false", f"!{name}") if node.function == "any_of" else ("true", name)
        count, place = self.value(ir.expr(region.extents[0])), self.names.of(at)
        loop = f"for (int64_t {place} = 0; {place} < {count} && {goes_on}; {place}++) {name} = {test};"
        return Text(f"({{ bool {name} = {wanted}; {loop} {name}; }})")

    def _call_extern(self, node: ir.Call) -> Text:
        name, *rest = node.arguments
        return self.call(str(name), *(self._argument(a) for a in rest))


_SPECIAL: Mapping[str, Callable[[CpuExpressions, ir.Call], Text]] = {
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


def _constant(expr: ir.Expr) -> int | None:
    if isinstance(expr, ir.Broadcast):
        expr = expr.value
    return int(expr.value) if isinstance(expr, ir.Const) and expr.dtype.is_integer else None


def _is_number(expr: ir.Expr) -> bool:
    """Whether a float is certainly no NaN, by its structure alone."""
    if isinstance(expr, ir.Broadcast):
        return _is_number(expr.value)
    if isinstance(expr, ir.Const):
        return expr.value == expr.value
    if isinstance(expr, ir.Binary):
        return expr.op in ("min", "max") and (_is_number(expr.left) or _is_number(expr.right))
    if isinstance(expr, ir.Call) and expr.function == "abs":
        return _is_number(expr.operands[0])
    if isinstance(expr, ir.Unary):
        return _is_number(expr.value)
    return isinstance(expr, ir.Cast) and (expr.value.dtype.is_integer or _is_number(expr.value))


def _is_widening(expr: ir.Expr) -> TypeGuard[ir.Cast]:
    return isinstance(expr, ir.Cast) and expr.dtype.name == "int64" and expr.value.dtype.name == "int32"
