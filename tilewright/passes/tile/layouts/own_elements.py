"""Whether threads touch elements of their own alone, so that none waits for another.

An index is what threads and iterations that are counted out decide, multiples of what other loops count, and what is
the same for all: ``tx + 128 * k + n``.  Threads are apart where no multiple leads from one's index to another's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arith import Analyzer
from tilewright.interpreter.over_threads import over_threads
from tilewright.ir import bound_variables, find, has_effect, key, root, substitute, touched
from tilewright.ir import nodes as ir
from tilewright.passes.scoped import reads_nothing
from tilewright.passes.tile.layouts.shared_places import Access

_COUNTED = 256
"""Iterations that are counted out: of loops in one another their product."""


@dataclass(frozen=True, slots=True)
class _Index:
    """What an index is: `own` by thread and iteration, multiples of `step`, and how often it has what is `alike`."""

    own: np.ndarray
    step: int
    alike: Mapping[object, int]

    def plus(self, other: _Index, sign: int) -> _Index:
        """The sum or difference of two."""
        names = self.alike.keys() | other.alike.keys()
        alike = {name: self.alike.get(name, 0) + sign * other.alike.get(name, 0) for name in names}
        step = math.gcd(self.step, other.step)
        return _Index(self.own + sign * other.own, step, {name: often for name, often in alike.items() if often})

    def times(self, factor: int) -> _Index:
        """A multiple."""
        alike = {name: often * factor for name, often in self.alike.items() if factor}
        return _Index(self.own * factor, abs(self.step * factor), alike)


class OwnElements:
    """Whose elements are touched in a statement of single threads.

    Parameters
    ----------
    threads : the indices of all that come.
    varying : names of what differs from thread to thread.
    """

    def __init__(
        self,
        kernel: ir.Kernel,
        statement: ir.Statement,
        threads: Mapping[ir.Var, np.ndarray],
        varying: set[ir.Var | ir.Buffer],
    ) -> None:
        self.varying = varying
        self.counters: dict[ir.Buffer, _Index] = {}
        self.stored = touched(statement).writes
        self.changing = bound_variables(statement)
        self.names: dict[ir.Var, ir.Expr] = {}
        loops: list[tuple[ir.Var, int]] = []
        for node in find(kernel.body, ir.Let, ir.For):
            if isinstance(node, ir.Let):
                if reads_nothing(node.value):
                    self.names[node.var] = substitute(node.value, self.names)
            elif node.var in self.changing or node.var in varying:
                iteration = ir.Var(node.var.dtype, "turn")
                start, step = substitute(node.start, self.names), substitute(node.step, self.names)
                self.names[node.var] = start + iteration * step
                times = Analyzer().simplify((substitute(node.stop, self.names) - start + (step - 1)) // step)
                loops.append((iteration, int(times.value) if isinstance(times, ir.Const) else 0))
        counted: dict[ir.Var, int] = {}
        for iteration, often in reversed(loops):
            if 0 < often * math.prod(counted.values()) <= _COUNTED:
                counted[iteration] = often
        self.loops = {iteration for iteration, _ in loops} - counted.keys()
        places = np.unravel_index(np.arange(math.prod(counted.values())), tuple(counted.values()) or (1,))
        self.values = {var: index[:, None] for var, index in threads.items()}
        self.values |= {iteration: index[None, :] for iteration, index in zip(counted, places, strict=False)}
        self.count = len(next(iter(threads.values())))
        self.counters |= self._counters(kernel.body)

    def _counters(self, body: ir.Seq) -> dict[ir.Buffer, _Index]:
        """Scalars that are set to one thing and only counted on from there, by whatever a thread has counted."""
        given: dict[ir.Buffer, list[ir.Expr]] = {}
        for node in find(body, ir.Allocate, ir.Store):
            counter, value = node.buffer, node.initial if isinstance(node, ir.Allocate) else node.value
            counts = counter.scope == "scalar" and counter.dtype.is_integer and counter.dtype.bits >= 32
            if counts and value is not None:
                given.setdefault(counter, []).append(substitute(value, self.names))
        for region in find(body, ir.Region):
            given.pop(region.buffer, None)
        indices = {counter: self._counted(counter, values, bound_variables(body)) for counter, values in given.items()}
        return {counter: index for counter, index in indices.items() if index is not None}

    def _counted(self, counter: ir.Buffer, values: Sequence[ir.Expr], bound: set[ir.Var]) -> _Index | None:
        """What a scalar is that gets these values, which `bound` names do not change."""
        first, step = None, 0
        for value in values:
            match value:
                case ir.Binary(op="add" | "sub", left=ir.Load(buffer=same), right=more) if same is counter:
                    if (index := self._index(more)) is None:
                        return None
                    step = math.gcd(step, index.step, int(np.gcd.reduce(index.own, axis=None)), *index.alike.values())
                    continue
            index = self._index(value) if reads_nothing(value) else None
            if index is None or not (bound | self.loops).isdisjoint(find(value, ir.Var)):
                return None
            if first is not None and (index.alike != first.alike or not np.array_equal(index.own, first.own)):
                return None
            first = index
        return first and first.plus(_Index(np.zeros((1, 1), np.int64), step, {}), 1)

    def apart(self, accesses: Iterable[Access], buffer: ir.Buffer) -> bool:
        """Whether no two threads touch one element of a buffer, or all write the same there."""
        nodes = [one for one in accesses if any(root(used) is buffer for used in _places(one))]
        stores = [one.value for one in nodes if isinstance(one, ir.Store)]
        alike = len(set(map(key, stores))) == 1 and isinstance(stores[0], ir.Const)
        if alike and len(stores) == len(nodes):
            return True
        found = [(used, place) for one in nodes for used, place in _places(one).items() if root(used) is buffer]
        if len({used for used, _ in found}) > 1 or any(place is None for _, place in found):
            return False
        indices = [[self._index(substitute(one, self.names)) for one in place or ()] for _, place in found]
        return self._differ(list(zip(*indices, strict=True)))

    def _differ(self, dimensions: Sequence[Sequence[_Index | None]]) -> bool:
        """Whether the indices of accesses differ from thread to thread in any of their dimensions."""
        number: np.ndarray | None = None
        for found in dimensions:
            known = [one for one in found if one is not None]
            if len(known) < len(found) or any(one.alike != known[0].alike for one in known):
                continue
            step = math.gcd(*(one.step for one in known))
            shape = (self.count, max(np.shape(array)[-1] for array in self.values.values()))
            own = np.stack([np.broadcast_to(one.own, shape) for one in known], axis=1)
            own = own % step if step else own - own.min()
            number = own if number is None else number * (int(own.max()) + 1) + own
        if number is None:
            return self.count <= 1
        threads = np.broadcast_to(np.arange(self.count)[:, None, None], number.shape)
        both = number * self.count + threads
        return len(np.unique(number)) == len(np.unique(both))

    def _index(self, expr: ir.Expr) -> _Index | None:
        """What an index is made of; None where nobody knows."""
        known = over_threads(expr, self.values)
        if known is not None:
            return _Index(np.asarray(known, np.int64), 0, {})
        if expr in self.loops:
            return _Index(np.zeros((1, 1), np.int64), 1, {})
        if isinstance(expr, ir.Cast) and expr.value.dtype.is_integer and expr.dtype.bits >= 32:
            return self._index(expr.value)
        if isinstance(expr, ir.Binary) and expr.op in ("add", "sub"):
            left, right = self._index(expr.left), self._index(expr.right)
            if left is not None and right is not None:
                return left.plus(right, 1 if expr.op == "add" else -1)
        if isinstance(expr, ir.Binary) and expr.op in ("mul", "floormod") and isinstance(expr.right, ir.Const):
            left, number = self._index(expr.left), int(expr.right.value)
            if left is not None:
                less = _Index(left.own, math.gcd(left.step, number), left.alike)
                return left.times(number) if expr.op == "mul" else less
        if isinstance(expr, ir.Load) and expr.buffer in self.counters:
            return self.counters[expr.buffer]
        return self._uniform(expr)

    def _uniform(self, expr: ir.Expr) -> _Index | None:
        """What is the same for all threads, as long as the statement runs."""
        names = {*find(expr, ir.Var), *map(root, find(expr, ir.Buffer))}
        if has_effect(expr) or names & (self.varying | self.stored | self.changing | self.loops | self.values.keys()):
            return None
        return _Index(np.zeros((1, 1), np.int64), 0, {key(expr): 1})


def _places(access: Access) -> dict[ir.Buffer, tuple[ir.Expr, ...] | None]:
    """The elements that an access touches; None for more than one."""
    if not isinstance(access, ir.Call):
        return {access.buffer: access.indices}
    regions = access.regions
    return {one.buffer: one.starts if all(extent == 1 for extent in one.extents) else None for one in regions}
