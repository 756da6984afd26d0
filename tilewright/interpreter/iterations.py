"""Which iteration of a parallel loop reads, and which changes, each element: none may read what another one changes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import DependentIterations
from tilewright.interpreter.arithmetic import Numbers, carried
from tilewright.interpreter.memory import View, as_bits
from tilewright.ir import Allocate, Binary, Buffer, Const, Expr, For, Let, Load, Parallel, Seq, Store, Var, find, key

NOBODY, SEVERAL = -1, -2
SUMS = ("add", "sub", "mul")


@functools.lru_cache(maxsize=256)
def read_and_stored(loop: Parallel | For) -> frozenset[Buffer]:
    """What a loop of iterations at once both reads and stores to, but where each of them has elements of its own: one
    place, in which every variable of the loop moves an index by itself."""
    variables = loop.vars if isinstance(loop, Parallel) else (loop.var,)
    own = {node.buffer for node in find(loop.body, Allocate)}
    places: dict[Buffer, dict[object, bool]] = {}
    for node in find(loop.body, Load, Store):
        if node.buffer.scope != "scalar":
            places.setdefault(node.buffer, {})[key(node.indices)] = told_apart(node.indices, variables, loop.body)
    shared = {node.buffer for node in find(loop.body, Store)} & {node.buffer for node in find(loop.body, Load)} - own
    return frozenset(one for one in shared & places.keys() if len(places[one]) > 1 or not all(places[one].values()))


@functools.lru_cache(maxsize=256)
def sums_in(loop: Parallel | For, scope: str = "fragment") -> tuple[Store, ...]:
    """Stores by which several iterations change one element by what it was: of a fragment the thread that holds it does
    all of them, one after the other."""
    variables = loop.vars if isinstance(loop, Parallel) else (loop.var,)
    stores = [one for one in find(loop.body, Store) if one.buffer.scope == scope]
    return tuple(one for one in stores if _grows(one) and not told_apart(one.indices, variables, loop.body))


def _grows(store: Store) -> bool:
    """Whether what is stored is made of the element itself."""
    return any(one.buffer is store.buffer and key(one.indices) == key(store.indices) for one in find(store.value, Load))


def told_apart(indices: Sequence[Expr], variables: Sequence[Var], body: Seq) -> bool:
    """Whether each of a loop's variables moves an index by itself, so that no two iterations have one place."""
    changing = {*variables, *(node.var for node in find(body, For, Let))}
    return all(any(_moves(index, var, changing) for index in indices) for var in variables)


def _moves(index: Expr, var: Var, changing: set[Var]) -> bool:
    """Whether an index is a sum in which a loop's variable is the only thing that changes there."""
    nodes = find(index, Expr)
    plain = all(isinstance(node, (Var, Const)) or (isinstance(node, Binary) and node.op in SUMS) for node in nodes)
    return plain and {*find(index, Var)} & changing == {var}


class IterationConflicts:
    """The iterations of a parallel loop that read and store each element, by number: finds those that conflict.

    Parameters
    ----------
    extents : of the loop.
    behind : how many axes of lanes follow those of the loop.
    watched : the buffers whose elements are looked at.
    """

    def __init__(self, extents: Sequence[int], behind: int, watched: frozenset[Buffer]) -> None:
        self.watched = watched
        self.number = np.arange(math.prod(extents)).reshape(*extents, *(1,) * behind)
        self.readers: dict[Buffer, np.ndarray] = {}
        self.writers: dict[Buffer, np.ndarray] = {}

    def read(self, buffer: Buffer, view: View, indices: Sequence[Numbers], mask: Numbers) -> None:
        """Note a load, before it is done."""
        offset, number, _ = self._elements(view, indices, mask, 0)
        readers, writers = self._notes(buffer, view)
        self._check(view, offset, (writers[offset] != NOBODY) & (writers[offset] != number))
        known = readers[offset]
        readers[offset] = noted = np.where((known == NOBODY) | (known == number), number, SEVERAL)
        readers[offset[readers[offset] != noted]] = SEVERAL

    def store(self, buffer: Buffer, view: View, indices: Sequence[Numbers], values: Numbers, mask: Numbers) -> None:
        """Note a store, before it is done: what leaves an element as it is changes nothing for anybody."""
        offset, number, values = self._elements(view, indices, mask, carried(values, view.dtype))
        readers, writers = self._notes(buffer, view)
        differs = as_bits(view.gather(offset)) != as_bits(values)
        offset, number = offset[differs], number[differs]
        self._check(view, offset, (readers[offset] != NOBODY) & (readers[offset] != number))
        writers[offset] = number

    def _elements(
        self, view: View, indices: Sequence[Numbers], mask: Numbers, values: Numbers
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where active lanes access elements that exist, by which iteration, with which values."""
        offset, inside = view.locate(indices)
        active = np.True_ if inside is None else inside
        active = active if mask is None else np.logical_and(active, mask)
        offset, number, values, active = np.broadcast_arrays(offset, self.number, values, active)
        return offset[active], number[active], values[active]

    def _notes(self, buffer: Buffer, view: View) -> tuple[np.ndarray, np.ndarray]:
        length = view.data.size * view.dtype.per_byte
        if buffer not in self.readers:
            self.readers[buffer], self.writers[buffer] = np.full((2, length), NOBODY)
        return self.readers[buffer], self.writers[buffer]

    def _check(self, view: View, offset: np.ndarray, wrong: np.ndarray) -> None:
        if wrong.any():
            raise DependentIterations(view.name, view.first_text(offset, wrong))
