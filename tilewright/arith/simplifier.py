"""The traversal: expressions to their canonical values, bottom-up, each node once a scope.

The value of an index expression (int32 or int64) is a `Linear`, that of any other a unique expression.  Index
arithmetic is taken not to overflow its type, which the choice of index width guarantees; everything else obeys
the wrapping arithmetic of its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tilewright.arith import intervals, linear
from tilewright.arith.comparison import compare, extremum
from tilewright.arith.division import floordiv, floormod, recombine
from tilewright.arith.folding import fold_binary, fold_cast, fold_unary, holds_exactly
from tilewright.arith.learning import learn
from tilewright.arith.linear import Linear
from tilewright.arith.matching import rewrite
from tilewright.arith.ranges import interval_of, interval_of_form, residue_of_form
from tilewright.arith.rebuild import commutative, operation, rebuild
from tilewright.arith.state import State, is_index, wrapped
from tilewright.ir import INTRINSICS, DType, fields_of
from tilewright.ir import nodes as ir

Value: TypeAlias = "Linear | ir.Expr"

_LARGEST_PRODUCT = 24
"""Terms beyond which a product of sums is left a product."""


def value_of(state: State, expr: ir.Expr) -> Value:
    """The canonical value of an expression under the facts of the scope."""
    found: Value | None = state.facts.conclusions.values.get(expr)
    if found is None:
        found = _VALUES.get(type(expr), _rebuilt)(state, expr)
        state.facts.conclusions.values[expr] = found
    return found


def simplified(state: State, expr: ir.Expr) -> ir.Expr:
    """The unique expression of an expression's canonical value."""
    value = value_of(state, expr)
    if not isinstance(value, Linear):
        return value
    result = rebuild(state, value, expr.dtype)
    state.facts.conclusions.values.setdefault(result, value)
    return result


def form_of(state: State, expr: ir.Expr) -> Linear:
    """The linear form of an index expression."""
    value = value_of(state, expr)
    assert isinstance(value, Linear), expr.dtype
    return value


def _as_value(state: State, expr: ir.Expr) -> Value:
    """A unique expression whose operands are simplified, as a value."""
    return state.form(expr) if is_index(expr.dtype) else _known(state, expr)


def _known(state: State, expr: ir.Expr) -> ir.Expr:
    """The truth of a condition that is a fact."""
    if expr.dtype.kind == "bool" and state.facts.conditions:
        truth = state.facts.conditions.get(expr)
        if truth is not None:
            return state.interner.literal(expr.dtype, truth)
    return expr


def _by_rules(state: State, expr: ir.Expr) -> Value:
    """What the table of rules makes of a unique expression whose operands are simplified."""
    result = rewrite(state, expr)
    return _as_value(state, expr) if result is None else value_of(state, result)


# Leaves and nodes without laws of their own ------------------------------------------------------


def _const(state: State, expr: ir.Const) -> Value:
    if is_index(expr.dtype):
        return linear.constant(int(expr.value))
    return state.interner.literal(expr.dtype, expr.value)


def _var(state: State, expr: ir.Var) -> Value:
    state.facts.conclusions.met.add(expr)
    if not is_index(expr.dtype):
        return _known(state, expr)
    low, high = state.facts.intervals.get(expr, intervals.UNKNOWN)
    if low is not None and low == high:
        return linear.constant(low)
    return state.facts.equal.get(expr) or linear.of_atom(expr)


def _call(state: State, expr: ir.Call) -> Value:
    record = INTRINSICS.get(expr.function)
    if record is not None and not record.pure:
        # two calls are two events: never made one, their arguments simplified all the same
        return _as_value(state, ir.Call(expr.dtype, expr.function, _simplified_field(state, expr.arguments)))
    return _rebuilt(state, expr)


def _rebuilt(state: State, expr: ir.Expr) -> Value:
    """The node with its children simplified."""
    fields = [_simplified_field(state, getattr(expr, name)) for name in fields_of(type(expr))]
    return _by_rules(state, state.interner.node(type(expr), expr.dtype, *fields))


def _simplified_field(state: State, value: object) -> Any:
    if isinstance(value, ir.Expr):
        return simplified(state, value)
    if isinstance(value, ir.Region):
        return ir.Region(value.buffer, _simplified_field(state, value.starts), _simplified_field(state, value.extents))
    if isinstance(value, tuple):
        return tuple(_simplified_field(state, item) for item in value)
    return value


# Binary operators -------------------------------------------------------------------------------


def _binary(state: State, expr: ir.Binary) -> Value:
    operand = expr.left.dtype
    if operand.lanes != 1:
        return _rebuilt(state, expr)
    if expr.op in ("all", "any"):
        return _logical(state, expr)
    if is_index(operand):
        rule = _INDEX_OPERATIONS.get(expr.op)
        if rule is not None:
            form = rule(state, form_of(state, expr.left), form_of(state, expr.right), expr.dtype)
            return form if form.terms else linear.constant(wrapped(form.constant, expr.dtype))
        if expr.op in ir.COMPARISONS:
            return compare(state, expr.op, form_of(state, expr.left), form_of(state, expr.right), operand)
    left, right = simplified(state, expr.left), simplified(state, expr.right)
    if isinstance(left, ir.Const) and isinstance(right, ir.Const):
        folded = fold_binary(expr.op, left.value, right.value, operand)
        if folded is not None:
            return _const(state, ir.Const(expr.dtype, folded))
    node = state.interner.binary(expr.dtype, expr.op, left, right)
    if operand.is_integer:
        decided = _by_bounds(state, node)
        if decided is not None:
            return decided
    return _by_rules(state, node)


def _by_bounds(state: State, node: ir.Binary) -> Value | None:
    """A comparison, minimum or maximum of integers that their bounds decide."""
    if node.op not in ir.COMPARISONS and node.op not in ("min", "max"):
        return None
    a, b = interval_of(state, node.left), interval_of(state, node.right)
    below = a[1] is not None and b[0] is not None and a[1] <= b[0]
    above = a[0] is not None and b[1] is not None and a[0] >= b[1]
    if node.op in ("min", "max"):
        if below or above:
            return node.left if below == (node.op == "min") else node.right
        return None
    strictly_below = below and a[1] != b[0]
    strictly_above = above and a[0] != b[1]
    truths = {
        "lt": (strictly_below, above),
        "le": (below, strictly_above),
        "gt": (strictly_above, below),
        "ge": (above, strictly_below),
        "eq": (below and above, strictly_below or strictly_above),
        "ne": (strictly_below or strictly_above, below and above),
    }
    true, false = truths[node.op]
    return state.interner.literal(node.dtype, true) if true or false else None


def _logical(state: State, expr: ir.Binary) -> Value:
    """A lazy operator: its right side is evaluated only where the left side does not decide."""
    left = simplified(state, expr.left)
    if isinstance(left, ir.Const):
        return value_of(state, expr.right) if left.value == (expr.op == "all") else left
    right = simplified(state, expr.right)
    if _is_related(state, left, right):
        with state.scope():
            learn(state, left, expr.op == "all")
            right = simplified(state, right)
    return _by_rules(state, state.interner.binary(expr.dtype, expr.op, left, right))


def _is_related(state: State, condition: ir.Expr, expr: ir.Expr) -> bool:
    """Whether knowing `condition` may well simplify `expr`: what one mentions, the other does too."""
    a, b = state.interner.variables(condition), state.interner.variables(expr)
    return bool(a) and (a <= b or b <= a)


def _add(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    return recombine(state, linear.add(a, b), dtype)


def _sub(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    return recombine(state, linear.add(a, b, -1), dtype)


def _mul(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    if len(a.terms) * len(b.terms) > _LARGEST_PRODUCT:
        return linear.of_atom(operation(state, "mul", a, b, dtype))
    return recombine(state, state.product(a, b), dtype)


def _shl(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    """A multiplication where no bit can be shifted out; else the bits are what is meant."""
    if not b.terms and 0 <= b.constant < dtype.bits:
        product = linear.scale(a, 1 << b.constant)
        if intervals.within(interval_of_form(state, product), dtype):
            return product
    return _bits(state, "shl", a, b, dtype)


def _shr(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    """Arithmetic shifts round down, as floor division does."""
    if not b.terms and 0 <= b.constant < dtype.bits:
        return floordiv(state, a, linear.constant(1 << b.constant), dtype)
    return _bits(state, "shr", a, b, dtype)


def _and(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    if not a.terms and b.terms:
        a, b = b, a
    if not b.terms:
        mask = b.constant
        if mask >= 0 and mask & (mask + 1) == 0:  # the low bits: the remainder of a power of two
            return floormod(state, a, linear.constant(mask + 1), dtype)
        if mask < 0 and -mask & (-mask - 1) == 0:  # all but the low bits
            return linear.add(a, floormod(state, a, linear.constant(-mask), dtype), -1)
    return _bits(state, "and", a, b, dtype)


def _or(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    return linear.add(a, b) if _disjoint(state, a, b) else _bits(state, "or", a, b, dtype)


def _xor(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
    return linear.add(a, b) if _disjoint(state, a, b) else _bits(state, "xor", a, b, dtype)


def _disjoint(state: State, a: Linear, b: Linear) -> bool:
    """Whether one is a multiple of a power of two that the other, not negative, stays below."""
    for high, low in ((a, b), (b, a)):
        modulus, remainder = residue_of_form(state, high)
        bounds = interval_of_form(state, low)
        if remainder == 0 and bounds[0] is not None and bounds[0] >= 0 and bounds[1] is not None:
            unit = modulus & -modulus
            if bounds[1] < unit or modulus == 0:
                return True
    return False


def _bits(state: State, op: str, a: Linear, b: Linear, dtype: DType) -> Linear:
    """A bitwise operation that stays one: literals folded, laws applied, operands in order."""
    if not a.terms and not b.terms:
        folded = fold_binary(op, a.constant, b.constant, dtype)
        if folded is not None:
            return linear.constant(int(folded))
    node = (operation if op in ("shl", "shr") else commutative)(state, op, a, b, dtype)
    result = rewrite(state, node)
    return linear.of_atom(node) if result is None else form_of(state, result)


def _extremum(op: str) -> Callable[[State, Linear, Linear, DType], Linear]:
    def of(state: State, a: Linear, b: Linear, dtype: DType) -> Linear:
        form = extremum(state, op, a, b, dtype)
        single = form.single_atom()
        if single is None or single[1] != 1 or form.constant or not isinstance(single[0], ir.Binary):
            return form
        result = rewrite(state, single[0]) if single[0].op == op else None
        return form if result is None else form_of(state, result)

    return of


_INDEX_OPERATIONS: dict[str, Callable[[State, Linear, Linear, DType], Linear]] = {
    "add": _add, "sub": _sub, "mul": _mul, "floordiv": floordiv, "floormod": floormod,
    "shl": _shl, "shr": _shr, "and": _and, "or": _or, "xor": _xor,
    "min": _extremum("min"), "max": _extremum("max"),
}  # fmt: skip


# Unary operators, conversions, choices ----------------------------------------------------------


def _unary(state: State, expr: ir.Unary) -> Value:
    if is_index(expr.dtype) and expr.op in ("neg", "invert"):
        form = linear.scale(form_of(state, expr.value), -1)
        form = linear.shift(form, -1) if expr.op == "invert" else form  # ~x == -x - 1
        return form if form.terms else linear.constant(wrapped(form.constant, expr.dtype))
    value = simplified(state, expr.value)
    if isinstance(value, ir.Const):
        folded = fold_unary(expr.op, value.value, expr.dtype)
        if folded is not None:
            return _const(state, ir.Const(expr.dtype, folded))
    if expr.op == "not" and isinstance(value, ir.Binary) and is_index(value.left.dtype) and value.op in ir.COMPARISONS:
        return compare(state, ir.OPPOSITE[value.op], state.form(value.left), state.form(value.right), value.left.dtype)
    return _by_rules(state, state.interner.node(ir.Unary, expr.dtype, expr.op, value))


def _cast(state: State, expr: ir.Cast) -> Value:
    source, target = expr.value.dtype, expr.dtype
    if source.lanes != 1:
        return _rebuilt(state, expr)
    if is_index(source) and is_index(target):
        form = form_of(state, expr.value)
        if not form.terms:
            return linear.constant(wrapped(form.constant, target))
        fits = intervals.within(interval_of_form(state, form), target)
        if target.bits >= source.bits or fits:
            return form
        return linear.of_atom(state.interner.node(ir.Cast, target, rebuild(state, form, source)))
    value = simplified(state, expr.value)
    if isinstance(value, ir.Const):
        folded = fold_cast(value.value, source, target)
        if folded is not None:
            return _const(state, ir.Const(target, folded))
    if isinstance(value, ir.Cast) and _may_skip(state, value, target):
        return (
            value_of(state, ir.Cast(target, value.value)) if value.value.dtype != target else _again(state, value.value)
        )
    if value.dtype == target:
        return _again(state, value)
    return _as_value(state, state.interner.node(ir.Cast, target, value))


def _again(state: State, expr: ir.Expr) -> Value:
    """The value of a unique, simplified expression."""
    return state.form(expr) if is_index(expr.dtype) else expr


def _may_skip(state: State, inner: ir.Cast, target: DType) -> bool:
    """Whether a conversion of a conversion is one from the first type, since the middle one loses nothing."""
    first, middle = inner.value.dtype, inner.dtype
    if first.lanes != 1 or not holds_exactly(middle, first):
        return bool(
            first.is_integer
            and middle.is_integer
            and target.is_integer
            and intervals.within(interval_of(state, inner.value), middle)
        )
    return first == target or (first.is_integer and middle.is_integer) or (first.kind == "bool" and target.is_integer)


def _select(state: State, expr: ir.Select) -> Value:
    condition = simplified(state, expr.condition)
    if isinstance(condition, ir.Const):
        return value_of(state, expr.then if condition.value else expr.otherwise)
    then = _under(state, condition, True, expr.then)
    otherwise = _under(state, condition, False, expr.otherwise)
    if then is otherwise:
        return _again(state, then)
    return _by_rules(state, state.interner.node(ir.Select, expr.dtype, condition, then, otherwise))


def _under(state: State, condition: ir.Expr, truth: bool, expr: ir.Expr) -> ir.Expr:
    """`expr` simplified where a condition is known."""
    result = simplified(state, expr)
    if isinstance(result, (ir.Const, ir.Var)) or not _is_related(state, condition, result):
        return result
    with state.scope():
        learn(state, condition, truth)
        return simplified(state, result)


_VALUES: dict[type, Callable[[State, Any], Value]] = {
    ir.Const: _const, ir.Var: _var, ir.Binary: _binary, ir.Unary: _unary, ir.Cast: _cast,
    ir.Select: _select, ir.Call: _call,
}  # fmt: skip
