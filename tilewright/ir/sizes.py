"""Sizes known only at the call: binding them from shapes, evaluating expressions over them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tilewright.ir.nodes import Binary, Buffer, Cast, Const, Expr, Extent, Function, Select, Unary, Var
from tilewright.ir.walking import find, variables

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "min": min, "max": max,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "all": lambda a, b: a and b, "any": lambda a, b: a or b,
}  # fmt: skip


def evaluate(extent: Extent, values: Mapping[Var, int]) -> int:
    """The value of an integer expression over bound variables.

    Raises
    ------
    KeyError : a variable that is not bound.
    """
    if isinstance(extent, int):
        return extent
    if isinstance(extent, Const):
        return int(extent.value)
    if isinstance(extent, Var):
        return values[extent]
    if isinstance(extent, Cast):
        return evaluate(extent.value, values)
    if isinstance(extent, Select):
        return evaluate(extent.then if evaluate(extent.condition, values) else extent.otherwise, values)
    if isinstance(extent, Binary):
        return int(_OPERATIONS[extent.op](evaluate(extent.left, values), evaluate(extent.right, values)))
    if isinstance(extent, Unary):
        value = int(evaluate(extent.value, values))
        return {"neg": -value, "invert": ~value, "not": int(not value)}[extent.op]
    raise KeyError(f"{type(extent).__name__} is no size")


def arithmetic(function: Function, sizes: Collection[Var]) -> tuple[Binary, ...]:
    """All sums and products of sizes in a program: in shapes, grids, loops and conditions."""
    tensors = dict.fromkeys(find(function, Buffer)) if sizes else ()
    extents = (extent for one in tensors for extent in (*one.shape, *(one.strides or ())) if isinstance(extent, Expr))
    said = dict.fromkeys(one for place in (function, *extents) if sizes for one in find(place, Binary))
    return tuple(one for one in said if one.op in ("add", "sub", "mul") and _is_of(one, sizes) and variables(one))


def _is_of(extent: Expr, sizes: Collection[Var]) -> bool:
    """Whether `evaluate` computes an expression exactly if its type does not overflow, without division by a size; no
    for narrow or unsigned types, whose wrapping may be meant."""
    if extent.dtype.kind != "int" or extent.dtype.bits < 32 or not isinstance(extent, (Const, Var, Cast, Binary)):
        return False
    if isinstance(extent, Binary):
        divides = extent.op in ("floordiv", "floormod")
        known = extent.op in _OPERATIONS and not (divides and not isinstance(extent.right, Const))
        return known and _is_of(extent.left, sizes) and _is_of(extent.right, sizes)
    if isinstance(extent, Cast):
        return extent.dtype.bits >= extent.value.dtype.bits and _is_of(extent.value, sizes)
    return isinstance(extent, Const) or extent in sizes


def size_in(extent: Extent) -> Var | None:
    """The size that can be computed from an extent: the extent itself, or ``a * size + b`` with constants."""
    if isinstance(extent, Var):
        return extent
    if isinstance(extent, Cast):
        return size_in(extent.value)
    if isinstance(extent, Binary) and extent.op in ("add", "sub", "mul"):
        constants = [isinstance(side, Const) for side in (extent.left, extent.right)]
        if constants.count(True) == 1:
            scale = extent.left if constants[0] else extent.right
            if extent.op != "mul" or scale.value:  # type: ignore[attr-defined]
                return size_in(extent.right if constants[0] else extent.left)
    return None


def solve(extent: Extent, value: int) -> int | None:
    """The size (`size_in`) for which an extent has a value; None where it is no whole number."""
    if isinstance(extent, Cast):
        return solve(extent.value, value)
    if not isinstance(extent, Binary):
        return value
    first = isinstance(extent.left, Const)
    by = int((extent.left if first else extent.right).value)  # type: ignore[attr-defined]
    inner = extent.right if first else extent.left
    if extent.op == "add":
        return solve(inner, value - by)
    if extent.op == "sub":
        return solve(inner, by - value if first else value + by)
    return None if value % by else solve(inner, value // by)


def size_text(extent: Extent) -> str:
    """A size as the author wrote it, for messages."""
    if isinstance(extent, int):
        return str(extent)
    if isinstance(extent, Const):
        return str(extent.value)
    if isinstance(extent, Var):
        return extent.name
    if isinstance(extent, Cast):
        return size_text(extent.value)
    if isinstance(extent, Binary):
        from_op = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "floormod": "%"}
        left, right = size_text(extent.left), size_text(extent.right)
        if extent.op in from_op:
            return f"({left} {from_op[extent.op]} {right})"
        return f"{extent.op}({left}, {right})"
    return type(extent).__name__ if isinstance(extent, Expr) else "?"
