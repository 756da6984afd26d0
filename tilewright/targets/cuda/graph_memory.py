"""Memory that belongs to CUDA graphs: it lives as long as a graph whose capture asked for it, and serves others after
that.

What is captured runs whenever the graph is replayed, in any stream, so a capture has pieces of its own, and each of its
branches too: they run at once. The driver says when the last graph that was made of a capture is gone and its last
replay has ended, by a *user object* that the graph holds. Its destructor runs on a thread of the driver's, which may
not call CUDA, at a time when Python may be gone; so it is ``sem_post`` of the C library on a semaphore that is looked
at when memory is next wanted.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from tilewright.targets.cuda.driver import Driver, require_driver

LEAST_BYTES = 512
"""Of a piece: what the driver rounds an allocation up to."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Device memory: `size` bytes at `address` of a device."""

    device: int
    size: int
    address: int


class Semaphore:
    """A semaphore of the C library: any thread may post it at any time, and it can be seen that one did.

    Its memory is never freed: a graph may outlive Python.

    Attributes
    ----------
    address : what ``sem_post`` takes.
    """

    SIZE = 64
    """Bytes, at least those of a ``sem_t`` on every system that has CUDA."""

    def __init__(self) -> None:
        calloc = c_library().calloc
        calloc.restype = ctypes.c_void_p
        self.address: int = calloc(ctypes.c_size_t(1), ctypes.c_size_t(self.SIZE))
        c_library().sem_init(ctypes.c_void_p(self.address), 0, 0)

    @staticmethod
    def post() -> int:
        """The address of ``sem_post``."""
        return ctypes.cast(c_library().sem_post, ctypes.c_void_p).value or 0


@functools.cache
def c_library() -> ctypes.CDLL:
    """The C library, looked up when the first graph is captured."""
    return ctypes.CDLL(None)


@dataclass(slots=True)
class _Graph:
    """What the launches of one capture use: `ended` is signalled when no graph of it is left."""

    ended: Semaphore
    pieces: dict[Hashable, Piece] = field(default_factory=dict)
    outgrown: list[Piece] = field(default_factory=list)


class GraphMemory:
    """The memory of all graphs of the process.

    Attributes
    ----------
    held : bytes taken from the driver, those of graphs that are gone among them.
    """

    def __init__(self) -> None:
        self.held = 0
        self._lock = threading.Lock()
        self._graphs: dict[int, _Graph] = {}
        self._free: dict[tuple[int, int], list[Piece]] = {}
        self._signals: list[Semaphore] = []

    def address(self, name: Hashable, size: int, device: int, stream: int, zeros: bool = False) -> int:
        """Where the capture that a stream takes part in has a piece of at least so many bytes.

        Parameters
        ----------
        name : two calls with one name, of one thread for one stream, get the same piece.
        zeros : whether a new piece is filled with zeros, now and not by the graph.
        """
        driver = require_driver("capturing a launch")
        capture, graph = driver.capture(stream)
        key = (threading.get_ident(), device, stream, name)
        with self._lock:
            if capture not in self._graphs:
                self._graphs[capture] = self._owned(driver, graph)
            owner = self._graphs[capture]
            piece = owner.pieces.get(key)
            if piece is None or piece.size < size:
                if piece is not None:
                    owner.outgrown.append(piece)  # launches that were captured before use it
                piece = owner.pieces[key] = self._take(driver, size, device, zeros)
            return piece.address

    def idle(self) -> int:
        """Bytes whose graphs are gone, which the next capture may have."""
        with self._lock:
            self._collect()
            return sum(piece.size for pieces in self._free.values() for piece in pieces)

    def _owned(self, driver: Driver, graph: int) -> _Graph:
        """A record of a graph that is being captured, which is told when it is gone."""
        self._collect()
        ended = self._signals.pop() if self._signals else Semaphore()
        driver.when_gone(graph, Semaphore.post(), ended.address)
        return _Graph(ended)

    def _take(self, driver: Driver, size: int, device: int, zeros: bool) -> Piece:
        """A piece of a graph that is gone, or a new one; sizes are powers of two, so that one serves many."""
        rounded = max(1 << max(size - 1, 0).bit_length(), LEAST_BYTES)
        free = self._free.get((device, rounded))
        self.held += 0 if free else rounded
        with driver.on(device), driver.relaxed_capture():
            piece = free.pop() if free else Piece(device, rounded, driver.allocate(rounded))
            if zeros:
                driver.clear_now(piece.address, rounded)
            return piece

    def _collect(self) -> None:
        """Take back what belonged to graphs that are gone."""
        for capture, owner in list(self._graphs.items()):
            if not c_library().sem_trywait(ctypes.c_void_p(owner.ended.address)):
                del self._graphs[capture]
                self._signals.append(owner.ended)
                for piece in (*owner.pieces.values(), *owner.outgrown):
                    self._free.setdefault((piece.device, piece.size), []).append(piece)


GRAPHS = GraphMemory()
