"""Parallel loops whose iterations change one element, or what others of them read: nobody could say what is left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.interpreter.iterations import sums_in, told_apart
from tilewright.interpreter.over_threads import may_hold, over_threads
from tilewright.ir import Call, Evaluate, Parallel, Unary, key
from tilewright.ir.dtypes import BOOL
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import Allocate, Buffer, Expr, Extent, If, Let, Load, Seq, Statement, Store, Var
from tilewright.ir.walking import children, find, walk
from tilewright.language.mistakes_of_scopes import IterationsCollide, IterationsDepend, ThreadsMeetInParallel
from tilewright.language.reaches import certain_accesses, linear

OF_THE_BLOCK = ("global", "shared", "fragment")
"""Scopes of what all iterations share."""

MOST_ITERATIONS = 1 << 16
"""How many iterations are looked at: those of an ordinary loop, in a few milliseconds."""


def check_collisions(variables: Sequence[Var], extents: Sequence[Extent], body: Seq) -> None:
    """Refuse stores to places that a loop's variable does not move, of values that it changes or that were there
    before.

    A store under a condition that asks for the variable may be that of one iteration alone, and passes; so does what
    goes through scalars.

    Raises
    ------
    IterationsCollide
    """
    moving = [var for var, extent in zip(variables, extents, strict=True) if extent != 1]
    own = {node.buffer for node in find(body, Allocate)}
    changing = own | {node.buffer for node in find(body, Store)}
    _Search(moving, own, changing).visit(body, frozenset())


def check_together(body: Seq) -> None:
    """Refuse what threads do together: iterations are those of elements.

    Raises
    ------
    ThreadsMeetInParallel
    """
    for statement in find(body, Let, Store, Evaluate):
        if any(INTRINSICS[call.function].collective for call in find(statement.value, Call)):
            raise ThreadsMeetInParallel(span=statement.span)


def check_order(variables: Sequence[Var], extents: Sequence[Extent], body: Seq) -> None:
    """Refuse elements that one iteration stores to and another one reads, where no condition keeps them apart.

    Sums in fragments are left until it is known which thread does an iteration (`sums_of_several`).

    Raises
    ------
    IterationsDepend
    """
    statements = body.statements if 0 not in extents else ()
    accesses = [access for statement in statements for access in certain_accesses(statement)]
    loads = [access for access in accesses if isinstance(access, Load)]
    iterations: dict[Var, np.ndarray] = {}
    for store in accesses:
        if isinstance(store, Store) and store.buffer.scope in OF_THE_BLOCK:
            grown = {id(load) for load in find(store.value, Load)}
            for load in loads:
                if load.buffer is not store.buffer:
                    continue
                same = key(load.indices) == key(store.indices)
                if same and (id(load) not in grown or told_apart(store.indices, variables)):
                    continue  # it may read what it has stored itself, or has places of its own
                if same and store.buffer.scope == "fragment":
                    continue  # a thread changes the elements that it holds in order
                iterations = iterations or iterations_of(variables, extents, body)
                number = np.arange(next(iter(iterations.values())).size)
                if is_of_another(load, store, iterations, number):
                    raise IterationsDepend(store.buffer.name, span=store.span)


def sums_of_several(loop: Parallel, threads: np.ndarray | None) -> Iterator[Store]:
    """Sums in shared tiles to which several threads add, unless conditions that the iteration decides leave them to
    one: a thread does all of its iterations in order.

    Parameters
    ----------
    threads : the thread of each iteration, an axis for each variable; None where each is taken for one of its own.
    """
    iterations = iterations_of(loop.vars, loop.extents, loop.body)
    number = np.arange(next(iter(iterations.values())).size)
    doing = number if threads is None else threads[tuple(iterations[var] for var in loop.vars)]
    for store, conditions in conditional(loop.body, ()):
        if any(store is one for one in sums_in(loop, "shared")):
            held = [np.broadcast_to(may_hold(one, iterations), number.shape) for one in conditions]
            at = np.flatnonzero(np.all(held, axis=0)) if held else number
            some = {var: line[at] for var, line in iterations.items()}
            if len(set(doing[at].tolist())) > 1 and is_of_another(store, store, some, doing[at], unknown=True):
                yield store


def conditional(node: object, conditions: tuple[Expr, ...]) -> Iterator[tuple[Store, tuple[Expr, ...]]]:
    """Stores at or below a node, with the conditions around them."""
    if isinstance(node, Store):
        yield node, conditions
    elif isinstance(node, If):
        yield from conditional(node.then, (*conditions, node.condition))
        yield from conditional(node.otherwise, (*conditions, Unary(BOOL, "not", node.condition)))
    elif isinstance(node, Statement):
        for child in children(node):
            yield from conditional(child, conditions)


def iterations_of(variables: Sequence[Var], extents: Sequence[Extent], body: Seq) -> dict[Var, np.ndarray]:
    """The loop's variables, and names of what they decide, in each iteration, or a long loop's first and last ones."""
    ends = [extent if isinstance(extent, int) else 1 for extent in extents]
    sizes = list(ends)
    while math.prod(sizes) > MOST_ITERATIONS:
        sizes[sizes.index(max(sizes))] //= 2
    lines = [np.r_[0 : size - size // 2, end - size // 2 : end] for size, end in zip(sizes, ends, strict=True)]
    found = {var: line.ravel() for var, line in zip(variables, np.meshgrid(*lines, indexing="ij"), strict=True)}
    for node in find(body, Let):
        value = over_threads(node.value, found)
        if value is not None:
            found[node.var] = np.broadcast_to(value, math.prod(sizes))
    return found


def is_of_another(
    load: Load | Store, store: Store, iterations: Mapping[Var, np.ndarray], number: np.ndarray, unknown: bool = False
) -> bool:
    """Whether what some iteration reads is certainly what another one, of another number, stores to; `unknown` where
    only the program's numbers tell."""
    places = np.zeros(2 * number.size, np.int64)
    for pair in zip(store.indices, load.indices, strict=True):
        values = [over_threads(index, iterations) for index in pair]
        if any(value is None for value in values):  # what comes from outside is no matter where it is the same in both
            sums = [linear(index) or ({}, index) for index in pair]
            inner = [[(by, iterations[var]) for var, by in terms.items() if var in iterations] for terms, _ in sums]
            outer = [{var: by for var, by in terms.items() if var not in iterations} for terms, _ in sums]
            if outer[0] != outer[1] or any(isinstance(constant, Expr) for _, constant in sums):
                return unknown
            values = [sum((by * one for by, one in of), sums[at][1]) for at, of in enumerate(inner)]
        both = np.concatenate([np.broadcast_to(value, number.size).astype(np.int64) for value in values])
        places = np.unique(places * (np.ptp(both) + 1) + both - both.min(), return_inverse=True)[1]
    written, read = np.split(places, 2)
    writer = np.full(places.max() + 1, -1)
    writer[written] = number
    return bool(((writer[read] >= 0) & (writer[read] != number)).any())


class _Search:
    def __init__(self, moving: Sequence[Var], own: set[Buffer], changing: set[Buffer]) -> None:
        self.moving, self.own, self.changing = moving, own, changing
        self.named: dict[Var, frozenset[Var]] = {}
        self.begun: set[Buffer] = set()
        """What iterations store to before they read it: scalars and arrays of threads serve each of them."""

    def visit(self, statement: Statement, asked: frozenset[Var]) -> None:
        """Look through a statement that runs under conditions on the variables `asked`."""
        if isinstance(statement, Let):
            self.named[statement.var] = self._on(statement.value)
        elif isinstance(statement, If):
            asked |= self._on(statement.condition)
        elif isinstance(statement, Store) and statement.buffer not in self.own:
            self._check(statement, asked)
        for child in children(statement):
            if isinstance(child, Statement):
                self.visit(child, asked)

    def _check(self, store: Store, asked: frozenset[Var]) -> None:
        place = frozenset[Var]().union(*map(self._on, store.indices))
        value = self._on(store.value)
        reads = any(node.buffer is store.buffer for node in find(store.value, Load))
        grows, differs = reads and store.buffer not in self.begun, store.buffer.scope in OF_THE_BLOCK
        self.begun.add(store.buffer)
        for var in self.moving:
            if var not in place and var not in asked and (grows or (differs and var in value)):
                raise IterationsCollide(var.name, store.buffer.name, span=store.span)

    def _on(self, value: Expr) -> frozenset[Var]:
        """The loop's variables that may decide a value; all of them where it is a scalar's that the loop changes."""
        found: set[Var] = set()
        for node in walk(value):
            if isinstance(node, Var):
                found |= self.named.get(node, frozenset((node,)))
            elif isinstance(node, Load) and node.buffer.scope not in OF_THE_BLOCK and node.buffer in self.changing:
                found.update(self.moving)
        return frozenset(found)
