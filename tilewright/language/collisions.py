"""Parallel loops whose iterations change one element, or what others of them read: nobody could say what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.nodes import Allocate, Buffer, Expr, Extent, If, Let, Load, Seq, Statement, Store, Var
from tilewright.ir.walking import children, find, walk
from tilewright.language.mistakes_of_scopes import IterationsCollide, IterationsDepend
from tilewright.language.reaches import certain_accesses, linear

OF_THE_BLOCK = ("global", "shared", "fragment")
"""Scopes of what all iterations share."""


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


def check_order(variables: Sequence[Var], extents: Sequence[Extent], body: Seq) -> None:
    """Refuse elements that one iteration stores to and a neighbour of it reads, where no condition keeps them apart.

    Raises
    ------
    IterationsDepend
    """
    sizes = {var: extent for var, extent in zip(variables, extents, strict=True) if isinstance(extent, int)}
    accesses = [access for statement in body.statements for access in certain_accesses(statement)]
    for store in accesses:
        if isinstance(store, Store) and store.buffer.scope in OF_THE_BLOCK:
            for load in accesses:
                if isinstance(load, Load) and load.buffer is store.buffer and _is_of_neighbour(load, store, sizes):
                    raise IterationsDepend(store.buffer.name, span=store.span)


def _is_of_neighbour(load: Load, store: Store, sizes: Mapping[Var, int]) -> bool:
    """Whether what one iteration reads is certainly what another one stores to: the same sum of the loop's variables, a
    step apart along one of them."""
    pairs = [(linear(one), linear(other)) for one, other in zip(load.indices, store.indices, strict=True)]
    sums = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len(sums) < len(pairs) or any(one[0] != other[0] for one, other in sums):
        return False
    apart = [(terms, constant - other[1]) for (terms, constant), other in sums if constant != other[1]]
    if len(apart) != 1:
        return False
    terms, step = apart[0]
    alone = [var for var in terms if sum(var in others for (others, _), _ in sums) == 1]
    return any(step % terms[var] == 0 and abs(step // terms[var]) < sizes.get(var, 0) for var in alone)


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
        grows = any(node.buffer is store.buffer for node in find(store.value, Load))
        differs = store.buffer.scope in OF_THE_BLOCK
        grows = grows and store.buffer not in self.begun
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
