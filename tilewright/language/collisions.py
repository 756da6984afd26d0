"""Parallel loops whose iterations change one element, or what others of them read: nobody could say what is left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np

from tilewright.interpreter.arithmetic import Numbers, binary
from tilewright.interpreter.iterations import SUMS, sums_in
from tilewright.interpreter.over_threads import may_hold, over_threads
from tilewright.ir import INT64, Binary, Call, Cast, Const, Evaluate, Parallel, Unary, conjuncts, key, root, substitute
from tilewright.ir.dtypes import BOOL
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import Allocate, Buffer, Expr, Extent, For, If, Let, Load, Seq, Statement, Store, Var
from tilewright.ir.substitution import Node
from tilewright.ir.walking import children, find
from tilewright.language.mistakes_of_scopes import IterationsCollide, IterationsDepend, ThreadsMeetInParallel
from tilewright.language.reaches import certain_accesses

OF_THE_BLOCK = ("global", "shared", "fragment")
"""Scopes of what all iterations share."""

MOST_ITERATIONS = 1 << 16
"""How many iterations are looked at: those of an ordinary loop, in a few milliseconds."""

Iterations = tuple[Mapping[Var, np.ndarray], np.ndarray]
"""What names are in each iteration, and its number."""

NUMBERS_DECIDE = (
    "add by T.atomic_add, or loop with T.serial; where no two iterations have one place, read the element by a "
    "statement before: `old = {}[...]`"
)


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
    begun = set[Buffer]()  # what iterations store to before they read it: scalars and arrays of threads serve each

    def deciding(*values: Expr) -> set[Var]:
        """The loop's variables that may decide values; all of them where it is a scalar's that the loop changes."""
        nodes = [node for value in values for node in find(spelled_out(value, body), Load, Var)]
        held = {node.buffer for node in nodes if isinstance(node, Load) and node.buffer.scope not in OF_THE_BLOCK}
        return {*moving} if held & changing else {node for node in nodes if isinstance(node, Var)}

    for store, conditions in conditional(body, ()):
        if store.buffer not in own:
            apart, value = deciding(*store.indices) | deciding(*conditions), deciding(store.value)
            reads = any(node.buffer is store.buffer for node in find(store.value, Load))
            grows, differs = reads and store.buffer not in begun, store.buffer.scope in OF_THE_BLOCK
            begun.add(store.buffer)
            for var in moving:
                if var not in apart and (grows or (differs and var in value)):
                    raise IterationsCollide(var.name, store.buffer.name, span=store.span)


def check_together(body: Seq) -> None:
    """Refuse what threads do together: iterations are those of elements.

    Raises
    ------
    ThreadsMeetInParallel
    """
    for statement in find(body, Let, Store, Evaluate):
        if any(INTRINSICS[call.function].collective for call in find(statement.value, Call)):
            raise ThreadsMeetInParallel(span=statement.span)


def check_order(variables: tuple[Var, ...], extents: tuple[Extent, ...], body: Seq) -> None:
    """Refuse elements that one iteration stores to and another one reads, where no condition keeps them apart.

    Of sums, whose places numbers of the program may keep apart, those are refused that may meet, but where a condition
    on such numbers may choose one iteration. Sums in fragments are left until it is known which thread does an
    iteration (`sums_of_several`).

    Raises
    ------
    IterationsDepend
    """
    statements = body.statements if 0 not in extents else ()
    accesses = [access for statement in statements for access in certain_accesses(statement)]
    loads = [access for access in accesses if isinstance(access, Load)]
    found: Iterations | None = None
    for store in accesses:
        if isinstance(store, Store) and store.buffer.scope in OF_THE_BLOCK:
            for load in loads:
                if load.buffer is store.buffer and key(load.indices) != key(store.indices):
                    found = found or iterations_of(variables, extents, body)
                    if is_of_another(load, store, found, body):
                        raise IterationsDepend(store.buffer.name, span=store.span)
    for store, conditions, come in _sums_coming(Parallel(variables, extents, body), "shared", "global"):
        chosen = any(_may_choose(one, come[0]) for condition in conditions for one in conjuncts(condition))
        certain, possible = (is_of_another(store, store, come, body, unknown) for unknown in (False, True))
        if possible and not (chosen and certain):
            raise IterationsDepend(store.buffer.name, span=store.span, hint=NUMBERS_DECIDE.format(store.buffer.name))


def _may_choose(condition: Expr, iterations: Mapping[Var, np.ndarray]) -> bool:
    """Whether a condition that numbers of the program decide may hold for one iteration alone: it asks what is equal.

    `X[i] > 0` holds for as many as the numbers say.
    """
    return isinstance(condition, Binary) and condition.op == "eq" and over_threads(condition, iterations) is None


def sums_of_several(loop: Parallel, threads: np.ndarray | None) -> Iterator[Store]:
    """Sums in shared tiles to which several threads add, unless conditions that the iteration decides leave them to
    one: a thread does all of its iterations in order.

    Parameters
    ----------
    threads : the thread of each iteration, an axis for each variable; None where each is taken for one of its own.
    """
    for store, _, (some, number) in _sums_coming(loop, "shared"):
        doing = number if threads is None else threads[tuple(some[var] for var in loop.vars)]
        if is_of_another(store, store, (some, doing), loop.body, unknown=True):
            yield store


def _sums_coming(loop: Parallel, *scopes: str) -> Iterator[tuple[Store, tuple[Expr, ...], Iterations]]:
    sums = [one for scope in scopes for one in sums_in(loop, scope)] if 0 not in loop.extents else []
    for store, conditions in conditional(loop.body, ()) if sums else ():
        if any(store is one for one in sums):
            yield store, conditions, coming(loop, conditions)


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


def iterations_of(variables: Sequence[Var], extents: Sequence[Extent], body: Seq, unknown: int = 1) -> Iterations:
    """The variables of the loop and of those in its body, and names of what they decide, in each iteration, or a long
    loop's first and last ones; a loop of `unknown` length has so many."""
    stops = (extent if isinstance(extent, int) else unknown for extent in extents)
    axes = {var: range(stop) for var, stop in zip(variables, stops, strict=True)}
    for loop in find(body, For):
        if isinstance(loop.start, Const) and isinstance(loop.step, Const):
            stop = int(loop.stop.value) if isinstance(loop.stop, Const) else unknown
            axes[loop.var] = range(int(loop.start.value), stop, int(loop.step.value))
    sizes = [len(axis) for axis in axes.values()]
    while math.prod(sizes) > MOST_ITERATIONS:
        sizes[sizes.index(max(sizes))] //= 2
    lines = [
        np.r_[0 : size - size // 2, len(axis) - size // 2 : len(axis)] * axis.step + axis.start
        for size, axis in zip(sizes, axes.values(), strict=True)
    ]
    found = {var: line.ravel() for var, line in zip(axes, np.meshgrid(*lines, indexing="ij"), strict=True)}
    for node in find(body, Let):
        value = over_threads(node.value, found)
        if value is not None:
            found[node.var] = np.broadcast_to(value, math.prod(sizes))
    return found, np.arange(math.prod(sizes[: len(extents)])).repeat(math.prod(sizes[len(extents) :]))


def coming(loop: Parallel, conditions: Sequence[Expr]) -> Iterations:
    """The iterations for which conditions may hold."""
    iterations, number = iterations_of(loop.vars, loop.extents, loop.body, MOST_ITERATIONS)
    at = np.full(number.shape, True)
    for one in conditions:
        at &= may_hold(one, iterations)
    return {var: line[at] for var, line in iterations.items()}, number[at]


def spelled_out(node: Node, body: Seq) -> Node:
    """A place or a value without names that a loop's body gives to values."""
    names = {one.var: one.value for one in find(body, Let)}
    while {*find(node, Var)} & names.keys():
        node = substitute(node, names)
    return node


def is_of_another(load: Load | Store, store: Store, come: Iterations, body: Seq, unknown: bool = False) -> bool:
    """Whether what some iteration reads is certainly what another one, of another number, stores to; `unknown` where
    only the program's numbers tell."""
    iterations, number = come
    if (number == number[:1]).all():
        return False
    places = np.zeros(2 * number.size, np.int64)
    changing: set[Var | Buffer] = {*iterations, *(one.var for one in find(body, For))}
    changing |= {root(one.buffer) for one in find(body, Allocate, Store)}
    outside = dict[object, Numbers]()
    for pair in zip(store.indices, load.indices, strict=True):
        values = [_along(spelled_out(index, body), iterations, changing, outside) for index in pair]
        if any(value is None for value in values):
            if not unknown:
                return False
            continue  # other indices may keep them apart
        both = np.concatenate([np.broadcast_to(np.asarray(value, np.int64), number.size) for value in values])
        places = places * both.size + np.unique(both, return_inverse=True)[1]
        places = np.unique(places, return_inverse=True)[1]
    written, read = np.split(places, 2)
    writer = np.full(places.max() + 1, -1)
    writer[written] = number
    return bool(((writer[read] >= 0) & (writer[read] != number)).any())


def _along(
    index: Expr, iterations: Mapping[Var, np.ndarray], changing: Set[Var | Buffer], outside: dict[object, Numbers]
) -> Numbers | None:
    """An index in each iteration; None where the program's numbers tell.

    What comes from outside of the loop is some large number: strides are taken for those of places that differ.
    """
    found = over_threads(index, iterations)
    if found is not None:
        return found
    if not changing & {*find(index, Var), *(root(one.buffer) for one in find(index, Load))}:
        return outside.setdefault(key(index), np.random.default_rng(len(outside)).integers(1 << 40))
    if isinstance(index, Cast) and index.dtype.kind == "int" and index.dtype.bits >= 32:
        return _along(index.value, iterations, changing, outside)
    if not isinstance(index, Binary) or index.op not in SUMS:
        return None
    parts = [_along(one, iterations, changing, outside) for one in (index.left, index.right)]
    left, right = (None if one is None else np.int64(one) for one in parts)
    return None if left is None or right is None else binary(index.op, left, right, INT64)
