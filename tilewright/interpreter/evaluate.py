"""Values of expressions, for all active lanes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.errors import DivergentThreads, InternalError
from tilewright.interpreter import arithmetic
from tilewright.interpreter.arithmetic import Numbers
from tilewright.interpreter.memory import Cell
from tilewright.interpreter.state import Mask, State, any_active, both, without
from tilewright.ir import INTRINSICS, Call, Expr, Region, nodes
from tilewright.ops.rounding import round_float


class Evaluator(State):
    """A state that can evaluate expressions."""

    def value(self, expr: Expr) -> Numbers:
        """The value of an expression (see `arithmetic` for how values look)."""
        return _EVALUATE[type(expr)](self, expr)

    def extent(self, extent: Any) -> int:  # an `Extent`
        """A size as an int."""
        return extent if isinstance(extent, int) else self.uniform(extent)

    def uniform(self, expr: Expr) -> int:
        """An integer on which all active lanes agree."""
        value = self.value(expr)
        if not isinstance(value, np.ndarray):
            return int(value)
        mask = np.True_ if self.mask is None else self.mask
        values, active = np.broadcast_arrays(value, mask)
        chosen = values[active]
        if not chosen.size or (chosen != chosen[0]).any():
            raise DivergentThreads(
                "an extent, or the place of a tile, differs between threads",
                hint="tile operators and loops of the whole block need values on which all threads agree",
            )
        return int(chosen[0])

    @contextmanager
    def masked(self, mask: Mask) -> Iterator[None]:
        """Only the lanes of `mask` are active inside."""
        outer, self.mask = self.mask, mask
        try:
            yield
        finally:
            self.mask = outer

    def truth(self, condition: Expr) -> Numbers:
        """A condition as a Python bool, or as an array of lanes."""
        value = self.value(condition)
        return value if isinstance(value, np.ndarray) else bool(value)

    # One method an expression class -------------------------------------------------------------

    def _const(self, node: nodes.Const) -> Numbers:
        if node.dtype.is_float:
            if node not in self.constants:
                self.constants[node] = arithmetic.settle(round_float(np.float64(node.value), node.dtype), node.dtype)
            return self.constants[node]
        return bool(node.value) if node.dtype.kind == "bool" else node.value

    def _var(self, node: nodes.Var) -> Numbers:
        try:
            return self.values[node]
        except KeyError:
            raise InternalError(f"variable {node.name} is used but not bound", span=self.span) from None

    def _binary(self, node: nodes.Binary) -> Numbers:
        left = self.value(node.left)
        if node.op in nodes.LOGICAL:
            return self._logical(node, left)
        return arithmetic.binary(node.op, left, self.value(node.right), node.left.dtype)

    def _logical(self, node: nodes.Binary, left: Numbers) -> Numbers:
        """``all`` and ``any`` evaluate their right side only in lanes where the left has not decided."""
        needed = left if node.op == "all" else np.logical_not(left)
        if not isinstance(left, np.ndarray):
            return self.value(node.right) if needed else bool(left)
        if node.dtype.lanes > 1:
            outer, self.vector_mask = self.vector_mask, both(self.vector_mask, needed)
            right = self.value(node.right)
            self.vector_mask = outer
            return arithmetic.binary(node.op, left, right, node.dtype)
        open_lanes = both(self.mask, needed)
        if not any_active(open_lanes):
            return left
        with self.masked(open_lanes):
            right = self.value(node.right)
        return (np.logical_and if node.op == "all" else np.logical_or)(left, right)

    def _unary(self, node: nodes.Unary) -> Numbers:
        return arithmetic.UNARY[node.op](self.value(node.value), node.dtype)

    def _cast(self, node: nodes.Cast) -> Numbers:
        return arithmetic.convert(self.value(node.value), node.value.dtype, node.dtype)

    def _reinterpret(self, node: nodes.Reinterpret) -> Numbers:
        return arithmetic.reinterpret(self.value(node.value), node.value.dtype, node.dtype)

    def _select(self, node: nodes.Select) -> Numbers:
        condition = self.truth(node.condition)
        if not isinstance(condition, np.ndarray):
            return self.value(node.then if condition else node.otherwise)
        if node.condition.dtype.lanes > 1:
            return self._select_elements(node, condition)
        chosen, rest = both(self.mask, condition), without(self.mask, condition)
        if not any_active(rest):
            return self.value(node.then)
        if not any_active(chosen):
            return self.value(node.otherwise)
        with self.masked(chosen):
            then = self.value(node.then)
        with self.masked(rest):
            otherwise = self.value(node.otherwise)
        if node.dtype.lanes > 1:
            condition = condition[..., None]
        return arithmetic.choose(condition, then, otherwise, node.dtype)

    def _select_elements(self, node: nodes.Select, condition: np.ndarray) -> Numbers:
        """A choice for each element of a vector: what is not chosen is not loaded."""
        outer = self.vector_mask
        self.vector_mask = both(outer, condition)
        then = self.value(node.then)
        self.vector_mask = without(outer, condition)
        otherwise = self.value(node.otherwise)
        self.vector_mask = outer
        return arithmetic.choose(condition, then, otherwise, node.dtype)

    def _load(self, node: nodes.Load) -> Numbers:
        place = self.place(node.buffer)
        width = node.dtype.lanes
        if isinstance(place, Cell):
            return place.load(self.mask)
        indices = [self.value(index) for index in node.indices]
        if self.iterations is not None and node.buffer in self.iterations.watched:
            self.iterations.read(node.buffer, place, indices, self.mask)
        return place.load(indices, width, self.element_mask(width))

    def element_mask(self, width: int) -> Mask:
        """The mask of lanes, for elements of vectors of `width` where that is more than 1."""
        if width == 1:
            return self.mask
        return both(None if self.mask is None else np.asarray(self.mask)[..., None], self.vector_mask)

    def _broadcast(self, node: nodes.Broadcast) -> Numbers:
        value = np.asarray(arithmetic.carried(self.value(node.value), node.value.dtype))
        return np.repeat(value[..., None], node.dtype.lanes, axis=-1)

    def _call(self, node: Call) -> Numbers:
        special = SPECIAL_CALLS.get(node.function)
        if special is not None:
            return special(self, node)
        intrinsic = INTRINSICS.get(node.function)
        if intrinsic is None or intrinsic.reference is None:
            raise InternalError(f"{node.function} has no meaning in NumPy", span=self.span)
        arguments = node.operands
        if len(arguments) != len(node.arguments):
            # A function of places, such as a prefetch, that changes nothing; others are in SPECIAL_CALLS.
            return intrinsic.reference(*node.arguments)
        values = [self.value(argument) for argument in arguments]
        return arithmetic.call(intrinsic.reference, values, [a.dtype for a in arguments], node.dtype)

    # Regions ------------------------------------------------------------------------------------

    def bounds(self, region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A region's starts and extents as ints."""
        return tuple(map(self.uniform, region.starts)), tuple(map(self.extent, region.extents))


SPECIAL_CALLS: dict[str, Callable[[Any, Call], Numbers]] = {}
"""Functions that touch memory or threads, as ``function(state, call)``; `calls` and the targets fill it in."""

_EVALUATE: Mapping[type[Expr], Callable[[Evaluator, Any], Numbers]] = {
    nodes.Const: Evaluator._const, nodes.Var: Evaluator._var, nodes.Binary: Evaluator._binary,
    nodes.Unary: Evaluator._unary, nodes.Cast: Evaluator._cast, nodes.Reinterpret: Evaluator._reinterpret,
    nodes.Select: Evaluator._select, nodes.Call: Evaluator._call, nodes.Load: Evaluator._load,
    nodes.Broadcast: Evaluator._broadcast,
}  # fmt: skip
