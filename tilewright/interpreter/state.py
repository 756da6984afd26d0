"""What a running program knows: values of variables, memory of buffers, which lanes are active.

Lanes are what runs at once: the iterations of `Parallel` loops (leading axes) and the threads of a block (the
last axis).  Axes are added in front, so that values made with fewer lanes broadcast by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import InternalError, Span, WrongPointer
from tilewright.interpreter.iterations import IterationConflicts
from tilewright.interpreter.memory import Cell, Memory, View, allocate, flat_length, row_major
from tilewright.interpreter.varying import Varying
from tilewright.ir import WARP, Buffer, Const, Var, root

Mask = Any
"""Which lanes are active: None for all, else a boolean array that broadcasts to the lanes."""

NOBODY = np.False_


def any_active(mask: Mask) -> bool:
    return mask is None or bool(np.any(mask))


def both(a: Mask, b: Mask) -> Mask:
    """Lanes in both masks."""
    return b if a is None else a if b is None else np.logical_and(a, b)


def either(a: Mask, b: Mask) -> Mask:
    """Lanes in one of the masks."""
    return None if a is None or b is None else np.logical_or(a, b)


def without(a: Mask, b: Mask) -> Mask:
    """Lanes in `a` but not in `b`, where `b` is an array."""
    return np.logical_not(b) if a is None else np.logical_and(a, np.logical_not(b))


@dataclass(slots=True)
class State:
    """One line of execution; several share their `places`.

    Attributes
    ----------
    values : variables that are bound.
    places : memory of the buffers that are allocated.
    strict : every access must be in bounds (thread programs).
    flat : every access has one index, in elements from the first (final programs).
    report, debug : where `Print` goes, and what ``breakpoint()`` opens.
    lanes, mask : shape of the lanes, and which are active.
    apart : whether the last axis of the lanes is the block's threads.
    vector_mask : which elements of a vector are asked for, inside a `Select` with a vector condition.
    parallel : whether a `Parallel` loop encloses.
    iterations : of that loop, where one may read what another one changes.
    together : lanes that the machine runs together.
    threads : threads of the block; ``()`` outside kernels.
    returned : threads that are done, where not all agree.
    broken : lanes that left the innermost loop.
    span : place of the statement that runs.
    thread_vars, block_vars : the kernel's thread and block indices.
    role, channels : the name and instance of the role that runs, and the rings by name.
    woken : how many waits have ended: where none ends any more, all wait for ever.
    rank, cluster_arrivals, peers, peer_barriers : of a cluster whose blocks run at once: which of them this
        is, how often each line of execution came to its barrier, their places and their barriers.
    barriers : the author's barriers, by buffer or number.
    awaited : what this line of execution waits for.
    pointed : the arrays that tables of pointers point to.
    counted : workspaces that begin as zeros.
    tiles : registers of a processor's matrix unit by number, as the target's functions keep them.
    """

    report: Callable[[str], None] = print
    together: int = WARP
    debug: Callable[[dict[str, Any]], None] | None = None
    strict: bool = False
    flat: bool = False
    values: dict[Var, Any] = field(default_factory=dict)
    places: dict[Buffer, View | Cell] = field(default_factory=dict)
    memories: dict[Buffer, Any] = field(default_factory=dict)
    constants: dict[Const, Any] = field(default_factory=dict)
    lanes: tuple[int, ...] = ()
    mask: Mask = None
    apart: bool = False
    vector_mask: Any = None
    parallel: bool = False
    iterations: IterationConflicts | None = None
    varying: Varying = field(default_factory=Varying)
    threads: tuple[int, ...] = ()
    returned: Mask = NOBODY
    broken: Mask = NOBODY
    span: Span | None = None
    thread_vars: tuple[Var, ...] = ()
    block_vars: tuple[Var, ...] = ()
    role: tuple[str, int] = ("", 0)
    channels: dict[str, Any] = field(default_factory=dict)
    woken: int = 0
    rank: int = 0
    cluster_arrivals: dict[tuple[int, tuple[str, int]], int] = field(default_factory=dict)
    peers: list[dict[Buffer, View | Cell]] = field(default_factory=list)
    barriers: dict[Any, Any] = field(default_factory=dict)
    peer_barriers: list[dict[Any, Any]] = field(default_factory=list)
    awaited: str = ""
    pointed: list[np.ndarray] = field(default_factory=list)
    counted: frozenset[Buffer] = frozenset()
    tiles: dict[int, Any] = field(default_factory=dict)

    @property
    def active(self) -> np.ndarray:
        """Which of the lanes are active, one bool each."""
        return np.broadcast_to(np.True_ if self.mask is None else self.mask, self.lanes)

    def place(self, buffer: Buffer) -> View | Cell:
        """Where a buffer's elements are."""
        found = self.places.get(buffer)
        if found is None:
            if buffer.source is None:
                raise InternalError(f"buffer {buffer.name} is used but not allocated", span=self.span)
            found = self.places[buffer] = self._view(buffer)
        return found

    def view(self, buffer: Buffer) -> View:
        """A buffer's elements, where it is not a scalar."""
        found = self.place(buffer)
        if isinstance(found, Cell):
            raise InternalError(f"the scalar {buffer.name} is used as a tile", span=self.span)
        return found

    def allocate(self, buffer: Buffer, shape: tuple[int, ...]) -> None:
        """Give a buffer fresh memory, of which nothing is written."""
        private = root(buffer) in self.varying.names
        lanes = self.lanes if self.parallel else self.threads if private else ()
        for other in [other for other in self.places if root(other) is buffer]:
            del self.places[other]
        if buffer.scope == "scalar":
            self.places[buffer] = Cell(buffer.name, buffer.dtype, lanes)
            return
        # Threads with nothing to do may compute with what is in their registers: that shows as poison, if it matters.
        checked = not (buffer.scope == "register" and lanes)
        self.memories[buffer] = allocate(shape, buffer.dtype, lanes, checked, buffer in self.counted)
        self._add_view(buffer, shape, row_major(shape, buffer.dtype))

    def point(self, buffer: Buffer, address: int) -> None:
        """Give a placed buffer the memory of the array in which its address lies."""
        shape, strides = self._shape_and_strides(buffer)
        needed = buffer.dtype.nbytes(flat_length(shape, strides))
        for other in [other for other in self.places if root(other) is buffer]:
            del self.places[other]
        for array in self.pointed:
            first = address - array.ctypes.data
            if 0 <= first < max(array.nbytes, 1):
                if address % buffer.alignment or first + needed > array.nbytes:
                    break
                memory = Memory(array.reshape(-1).view(np.uint8)[first : first + needed])
                self.add_argument(buffer, memory, shape, strides)
                return
        else:
            raise WrongPointer(f"the address of {buffer.name} lies in none of the tensors given", span=self.span)
        if address % buffer.alignment:
            said = f"the address of {buffer.name} is no multiple of {buffer.alignment} bytes"
            raise WrongPointer(said, hint="say alignment= in T.make_tensor", span=self.span)
        said = f"{buffer.name} needs {needed} bytes, and the tensor pointed to has {array.nbytes - first} from there"
        raise WrongPointer(said, span=self.span)

    def add_argument(self, buffer: Buffer, memory: object, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Give a parameter the caller's memory."""
        self.memories[buffer] = memory
        self._add_view(buffer, shape, strides)

    def _add_view(self, buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        memory = self.memories[root(buffer)]
        # A view of a tensor in another scope promises that every access is in bounds.
        guarded = buffer.scope == "global" and not self.strict
        if memory.nbytes < buffer.dtype.nbytes(flat_length(shape, strides)):
            raise InternalError(f"the view {buffer.name} is larger than {root(buffer).name}", span=self.span)
        if self.flat:
            length = memory.nbytes * 8 // buffer.dtype.bits if buffer.packed else flat_length(shape, strides)
            shape, strides = (length,), (1,)
        view = View(buffer.name, buffer.dtype, shape, strides, memory, guarded)
        self.places[buffer] = view
        return view

    def _view(self, buffer: Buffer) -> View:
        shape, strides = self._shape_and_strides(buffer)
        if root(buffer) not in self.memories:
            raise InternalError(f"buffer {root(buffer).name} is used but not allocated", span=self.span)
        return self._add_view(buffer, shape, strides)

    def _shape_and_strides(self, buffer: Buffer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape = tuple(self.extent(extent) for extent in buffer.shape)
        if buffer.strides is None:
            return shape, row_major(shape, buffer.dtype)
        return shape, tuple(self.extent(stride) for stride in buffer.strides)

    def extent(self, extent: object) -> int:
        """A size as an int."""
        raise NotImplementedError
