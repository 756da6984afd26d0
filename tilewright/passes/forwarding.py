"""What a tile holds that a loop has filled, for passes that read its elements from where they came from.

`forward_locals` asks for arrays of threads, `forward_tiles` for tiles of a machine whose blocks are one thread; what
operators fill (`forward_operands`), and what single stores leave (`forward_stores`), is asked where it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilewright.ir import has_effect, of_views, root, same, substitute, touched
from tilewright.ir import nodes as ir
from tilewright.ir.visitor import Rewriter, Rewritten, changed, put, with_statements, without_tiles
from tilewright.ir.walking import find

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filled:
    """How an array is filled: by one loop over all of it.

    Attributes
    ----------
    loop : the statement that does it, to go with the array.
    indices : the variables that stand for an element's place; where there is but one, that place may be written there.
    value : of that element.
    """

    loop: ir.Statement
    indices: tuple[ir.Expr, ...]
    value: ir.Expr

    def at(self, place: tuple[ir.Expr, ...]) -> ir.Expr:
        """The value of the element at a place."""
        places = zip(self.indices, place, strict=True)
        return substitute(self.value, {index: here for index, here in places if isinstance(index, ir.Var)})


def stored_by(statement: ir.Statement) -> tuple[dict[ir.Var, ir.Extent], ir.Store] | None:
    """The one store of a loop, or of loops in loops that count from zero, by their variables, of which the extents are
    given; None where the loop does more."""
    extents: dict[ir.Var, ir.Extent] = {}
    names: dict[ir.Var, ir.Expr] = {}
    inner: object = statement
    while isinstance(inner, (ir.For, ir.Parallel)):
        if isinstance(inner, ir.Parallel):
            extents.update(zip(inner.vars, inner.extents, strict=True))
        elif inner.numbers is None or (inner.numbers.start, inner.numbers.step) != (0, 1):
            return None
        else:
            extents[inner.var] = inner.numbers.stop
        *named, inner = inner.body.statements or (None,)
        for one in named:
            if not isinstance(one, ir.Let):
                return None
            names[one.var] = substitute(one.value, names)
    return (extents, substitute(inner, names)) if isinstance(inner, ir.Store) else None


def filling(statement: ir.Statement, tile: ir.Buffer) -> Filled | None:
    """The value of each element where `statement` does nothing but fill all of a tile."""
    found = stored_by(statement)
    if found is None or found[1].buffer is not tile:
        return None
    extents, store = found
    moving = [index for index in store.indices if isinstance(index, ir.Var)]
    if len(moving) != len(extents) or set(moving) != set(extents):
        return None
    sizes = [extents[index] if isinstance(index, ir.Var) else 1 for index in store.indices]
    whole = all(size == extent for size, extent in zip(sizes, tile.shape, strict=True))
    return Filled(statement, store.indices, store.value) if whole else None


def is_lasting(value: ir.Expr, written: Collection[ir.Buffer]) -> bool:
    """Whether a value is that of tensors which the kernel does not write, so that it is the same wherever it is asked
    for."""
    loads = [node.buffer for node in find(value, ir.Load)]
    lasting = all(buffer.scope == "global" and root(buffer) not in written for buffer in loads)
    return bool(loads) and lasting and not has_effect(value)


def again(found: Mapping[ir.Buffer, Filled], node: T) -> T:
    """`node` without some arrays and the loops that fill them: elements are read from where they came from."""

    def read(load: ir.Load) -> ir.Expr:
        filled = found.get(load.buffer)
        return load if filled is None else filled.at(tuple(changed(index, ir.Load, by=read) for index in load.indices))

    node = put(without_tiles(node, found), {filled.loop: None for filled in found.values()})
    return changed(node, ir.Load, by=read)


class Forwarding(Rewriter):
    """Sequences without the loops that fill a tile with elements of tensors that the kernel does not write.

    Subclasses say which tiles those are, and what may read their elements from elsewhere.
    """

    def __init__(self, kernel: ir.Kernel) -> None:
        self.given = {root(region.buffer) for region in find(kernel.body, ir.Region)} | of_views(kernel.body)
        """Tiles that more than loads and stores touch."""
        self.written = touched(kernel.body).writes

    def wants(self, tile: ir.Buffer) -> bool:
        raise NotImplementedError

    def repeats(self, filled: Filled) -> bool:
        """Whether what a tile is filled with is at hand wherever it is asked for."""
        return is_lasting(filled.value, self.written)

    def may_ask(self, statement: ir.Statement, tile: ir.Buffer) -> bool:
        """Whether a statement may read a tile's elements from where they came from."""
        return True

    def visit_Seq(self, sequence: ir.Seq) -> Rewritten:
        statements = list(sequence.statements)
        for tile in [one.buffer for one in statements if isinstance(one, ir.Allocate)]:
            if tile not in self.given and self.wants(tile):
                self.forward(tile, statements)
        return self.generic(with_statements(sequence, statements))

    def forward(self, tile: ir.Buffer, statements: list[ir.Statement]) -> None:
        """Take the first loop that fills `tile` out of `statements`; where a later one fills all of it anew, elements
        are read from the tile behind that."""
        using = [at for at, statement in enumerate(statements) if _mentions(statement, tile)]
        filled = filling(statements[using[0]], tile) if len(using) > 1 else None
        if filled is None or not self.repeats(filled):
            return
        made = list(statements)
        for at in using[1:]:
            statement = statements[at]
            overwrites = any(store.buffer is tile for store in find(statement, ir.Store))
            if not self.may_ask(statement, tile) or (overwrites and not _replaces(statement, tile)):
                return
            made[at] = again({tile: filled}, statement)
            if overwrites:
                break
        del made[using[0]]
        statements[:] = made


def _mentions(statement: ir.Statement, tile: ir.Buffer) -> bool:
    own = isinstance(statement, ir.Allocate) and statement.buffer is tile
    return not own and any(node is tile for node in find(statement, ir.Buffer))


def _replaces(statement: ir.Statement, tile: ir.Buffer) -> bool:
    """Whether a loop writes over every element of `tile`, having read that element alone."""
    anew = filling(statement, tile)
    if anew is None:
        return False
    loads = [load for load in find(statement, ir.Load) if load.buffer is tile]
    return all(same(index, own) for load in loads for index, own in zip(load.indices, anew.indices, strict=True))
