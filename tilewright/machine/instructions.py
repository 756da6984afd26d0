"""`MatrixInstruction` and `CopyInstruction`: what a machine can do with tiles in one instruction, as data that checks
itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.ir.dtypes import DType
from tilewright.layout import REGISTER, THREAD, Layout

REGISTERS, SHARED, GLOBAL = "registers", "shared", "global"


class MatrixProduct(Protocol):
    """What every instruction says of itself that multiplies matrices: a warp's, a matrix unit's, a vector's."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of what one instruction multiplies."""

    @property
    def types(self) -> tuple[DType, DType, DType]:
        """Of the left and right operands' elements and of the sums."""

    @property
    def rate(self) -> float:
        """Products and sums that a core, or a multiprocessor, does in a cycle; 0 where nobody has said."""

    @property
    def place(self) -> str:
        """Where the sums lie."""

    @property
    def operands(self) -> tuple[str, str]:
        """Where the left and the right operand lie."""


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """``d[m, n] += a[m, k] * b[k, n]`` by a group of threads together.

    Attributes
    ----------
    function : name in the target's device vocabulary.
    threads : how many execute it together.
    m, n, k : its tile.
    a, b, accumulator : element types.
    a_memory, b_memory : where the operands lie, ``"registers"`` or ``"shared"``.
    a_fragment, b_fragment, d_fragment : layouts of what lies in registers, replicas where lanes hold copies of an
        operand; None for what does not.
    n_choices : every n it exists in; `sized` gives the others.
    majors : orders that operands in shared memory may have: ``"k"`` (k contiguous), ``"mn"``.
    asynchronous : its results are there only after a wait.
    rate : products and sums a cycle and multiprocessor, for choosing among instructions.
    transposes : a lies in shared memory along m, and lanes transpose it on its way into registers: neighbouring rows of
        the tile are eight apart in the instruction's, as the fragments say.
    sparse : a holds two of every four elements along k (of 32 bits one of every two), so that its tile is
        ``[m, k / 2]``; lanes give the places of what is kept as metadata.
    """

    function: str
    threads: int
    m: int
    n: int
    k: int
    a: DType
    b: DType
    accumulator: DType
    a_memory: str
    b_memory: str
    a_fragment: Layout | None
    b_fragment: Layout | None
    d_fragment: Layout
    n_choices: tuple[int, ...] = ()
    majors: tuple[str, ...] = ("k",)
    asynchronous: bool = False
    rate: int = 0
    sparse: bool = False
    transposes: bool = False

    def __post_init__(self) -> None:
        if not self.n_choices:
            object.__setattr__(self, "n_choices", (self.n,))
        operands = (
            ("a", self.a_memory, self.a_fragment, (self.m, self.kept)),
            ("b", self.b_memory, self.b_fragment, (self.k, self.n)),
            ("d", REGISTERS, self.d_fragment, (self.m, self.n)),
        )
        for name, memory, layout, shape in operands:
            if (memory == REGISTERS) != (layout is not None):
                raise ValueError(f"{self.function}: operand {name} in {memory} with fragment {layout}")
            if layout is not None:
                check_fragment(f"{self.function}: fragment of {name}", layout, shape, self.threads)
        if self.n not in self.n_choices:
            raise ValueError(f"{self.function}: n = {self.n} is not among {self.n_choices}")

    @classmethod
    def of_registers(
        cls,
        function: str,
        threads: int,
        shape: tuple[int, int, int],
        types: tuple[DType, DType, DType],
        fragments: tuple[Layout, Layout, Layout],
        rate: int = 0,
        sparse: bool = False,
    ) -> MatrixInstruction:
        """One whose operands and results all lie in registers."""
        return cls(function, threads, *shape, *types, REGISTERS, REGISTERS, *fragments, rate=rate, sparse=sparse)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of its tile."""
        return self.m, self.n, self.k

    @property
    def types(self) -> tuple[DType, DType, DType]:
        """Of a, b and the accumulator."""
        return self.a, self.b, self.accumulator

    @property
    def place(self) -> str:
        """Where the accumulator lies."""
        return REGISTERS

    @property
    def operands(self) -> tuple[str, str]:
        """Where a and b lie."""
        return self.a_memory, self.b_memory

    @property
    def kept(self) -> int:
        """Columns of a's tile: k, or what of it is kept."""
        return self.k // 2 if self.sparse else self.k

    @property
    def metadata_steps(self) -> int:
        """Steps along k whose metadata share a word of a lane: two for elements wider than bytes, of which half of the
        lanes give one each."""
        return 1 if self.a.bits == 8 else 2

    @property
    def work(self) -> int:
        """Products of one instruction."""
        return self.m * self.n * self.k

    @property
    def accumulator_registers(self) -> int:
        """32-bit registers of a thread that the accumulator takes."""
        return -(-self.d_fragment.extent(REGISTER) * self.accumulator.bits // 32)

    def transposing(self) -> MatrixInstruction:
        """The same instruction for a left operand that lanes transpose."""
        assert self.a_fragment is not None
        return replace(self, transposes=True, a_fragment=_paired(self.a_fragment), d_fragment=_paired(self.d_fragment))

    def sized(self, n: int) -> MatrixInstruction:
        """The same instruction for another n.  Raises ValueError where it has none."""
        if n not in self.n_choices:
            raise ValueError(f"{self.function} has no n = {n}; it has {self.n_choices}")
        if n == self.n:
            return self
        return replace(self, n=n, d_fragment=_widened(self.d_fragment, n))


def check_fragment(name: str, layout: Layout, shape: tuple[int, ...], threads: int) -> None:
    """Refuse a fragment that is none of this shape on so many threads, every register of which holds one element.

    Raises
    ------
    ValueError : what `name` has is no such fragment.
    """
    if layout.shape != shape or layout.extent(THREAD) != threads:
        raise ValueError(f"{name} is {layout.shape} on {layout.extent(THREAD)} threads")
    if not layout.is_bijective or layout.partials:
        raise ValueError(f"{name} leaves registers empty, or puts two elements in one: {layout}")


def _paired(layout: Layout) -> Layout:
    """A fragment whose registers along the rows hold neighbouring rows."""
    rows, *columns = layout.digits
    return replace(layout, digits=(tuple(sorted(rows, key=lambda one: one.place != REGISTER)), *columns))


def _widened(layout: Layout, n: int) -> Layout:
    """An accumulator of a different n: only the last digit along n, which counts registers, changes."""
    rows, columns = layout.digits
    across = [(one.extent, one.place, one.stride) for one in columns[:2]]
    fixed = across[0][0] * across[1][0]
    stride = layout.extent(REGISTER) * fixed // layout.shape[1]
    return Layout.of([(one.extent, one.place, one.stride) for one in rows], [*across, (n // fixed, REGISTER, stride)])


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """The engine that moves boxes of tensors between global and shared memory when one thread has issued a copy.

    Attributes
    ----------
    rank : dimensions that a tensor may have.
    box : elements of a box along each of them.
    unit : bytes that tensors' addresses and strides, and rows of boxes, are multiples of.
    place : bytes that boxes in shared memory begin at multiples of.
    multicast : whether a load may put its box into several blocks of a cluster.
    extent, stride : elements of a tensor along a dimension, at most; bytes below which strides are.
    step : takes every n-th element along a dimension, up to this.
    """

    rank: int
    box: int
    unit: int
    place: int
    multicast: bool = False
    extent: int = 1 << 32
    stride: int = 1 << 40
    step: int = 8


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """Pieces of tensors that threads start to move into shared memory, and wait for later.

    Attributes
    ----------
    bytes : sizes of a piece, widest first; addresses are multiples of them.
    threads : how many start pieces together, which then lie side by side from the address that the first one gives; 1
        where each thread starts its own, and closes groups of them.
    """

    bytes: tuple[int, ...]
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Signals:
    """Barriers in shared memory: threads arrive at them, and wait for the phase of a parity to end.

    Attributes
    ----------
    counts_bytes : a phase waits for announced bytes of the copy engine's, too.
    follows_copies : a thread's arrival may follow the copies that it has started, when these have landed.
    """

    counts_bytes: bool = False
    follows_copies: bool = False


@dataclass(frozen=True, slots=True)
class RoleRegisters:
    """Registers of a thread after warpgroups of a block have reallocated them.

    Attributes
    ----------
    step : counts are multiples of it.
    loads : of a producer that only starts copies, for one, two, ... warpgroups of consumers; the last count is for more
        of them too; None where registers are not reallocated.
    computes : of a producer that also computes.
    most : of a consumer.
    """

    step: int
    loads: tuple[int | None, ...]
    computes: int
    most: int


@dataclass(frozen=True, slots=True)
class CopyInstruction:
    """Elements moved between two memories, while who moves them waits.

    Attributes
    ----------
    function : name in the target's device vocabulary.
    source, destination : memories.
    bytes : sizes that one thread (or, for a box, the whole copy) may move at once, widest first; empty for any box.
    threads : how many execute it together; 1 for any one thread. Several lanes write side by side, from the address
        that the first one gives.
    matrix : layout of the 8x8 matrix that each register receives; None for plain copies.
    strided : moves a whole `matrix`, whose rows lie in memory as far apart as the instruction is told; `elements` are
        the types that it may have.
    """

    function: str
    source: str
    destination: str
    bytes: tuple[int, ...] = ()
    threads: int = 1
    matrix: Layout | None = None
    strided: bool = False
    elements: tuple[DType, ...] = ()

    def __post_init__(self) -> None:
        memories = (REGISTERS, SHARED, GLOBAL)
        if self.source not in memories or self.destination not in memories:
            raise ValueError(f"{self.function}: from {self.source} to {self.destination}")
        if list(self.bytes) != sorted(self.bytes, reverse=True):
            raise ValueError(f"{self.function}: sizes {self.bytes} are not widest first")
