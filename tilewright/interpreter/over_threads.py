"""Index arithmetic and conditions for all threads of a block, or all iterations of a loop, at once, where nothing but
their indices decides them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.interpreter import arithmetic
from tilewright.interpreter.arithmetic import Numbers
from tilewright.ir.nodes import LOGICAL, Binary, Cast, Const, Expr, Unary, Var


def thread_indices(thread_vars: Sequence[Var], threads: Sequence[int]) -> dict[Var, np.ndarray]:
    """The indices of all threads of a block or role, in the order of their numbers."""
    indices = np.unravel_index(np.arange(math.prod(threads)), threads, order="F")
    return dict(zip(thread_vars, indices, strict=True))


def over_threads(expr: Expr, indices: Mapping[Var, np.ndarray]) -> Numbers:
    """The value of an expression for every thread or iteration: an array, or one number for all; None where other
    things decide it."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Var):
        known = indices.get(expr)
        return None if known is None else known.astype(expr.dtype.numpy)
    if isinstance(expr, Binary):
        parts = [over_threads(expr.left, indices), over_threads(expr.right, indices)]
        if any(part is None for part in parts):
            return None
        if expr.op in LOGICAL:
            return (np.logical_and if expr.op == "all" else np.logical_or)(*parts)
        return arithmetic.binary(expr.op, parts[0], parts[1], expr.left.dtype)
    if isinstance(expr, Cast):
        if not (expr.dtype.is_integer and expr.value.dtype.is_integer) or expr.dtype.bits < 8:
            return None
        value = over_threads(expr.value, indices)
        return None if value is None else np.asarray(value).astype(expr.dtype.numpy)
    if isinstance(expr, Unary) and expr.op == "not":
        value = over_threads(expr.value, indices)
        return None if value is None else np.logical_not(value)
    return None


def may_hold(condition: Expr, indices: Mapping[Var, np.ndarray]) -> np.ndarray | bool:
    """For which threads a condition may hold, whatever else it depends on: an array of truths, or True for all."""
    found = over_threads(condition, indices)
    if found is not None:
        return np.asarray(found, bool) if np.ndim(found) else True
    if isinstance(condition, Binary) and condition.op == "all":
        return np.logical_and(may_hold(condition.left, indices), may_hold(condition.right, indices))
    return True
