"""`Arch`: the facts about one machine that a pass may ask; targets fill them in.

A pass asks for a capability (`arch.has("vnni")`, `arch.shared_bytes`), never for a target by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tilewright.ir.dtypes import DType
from tilewright.ir.nodes import WARP
from tilewright.layout import PATTERN_ROWS
from tilewright.machine.instructions import (
    AsyncCopy,
    CopyEngine,
    CopyInstruction,
    MatrixInstruction,
    MatrixProduct,
    RoleRegisters,
    Signals,
)
from tilewright.machine.rates import Rates

P = TypeVar("P", bound=MatrixProduct)


@dataclass(frozen=True, slots=True)
class Arch:
    """One machine.

    Attributes
    ----------
    target : name of the target that makes code for it (``"cpu"``, ``"cuda"``).
    name : the machine's own name (``"sm_90a"``, ``"x86_64-avx512-vnni-bf16"``); part of cache keys.
    features : named capabilities (``"avx512f"``, ``"vnni"``, ``"shuffle"``, ...).
    warp_size : threads that run in step; 1 where a block is one OS thread.
    vector_bytes : widest access of one thread.
    shared_bytes : memory that a block can share; 0 on a machine without such a memory.
    spans : bytes in which rows of tiles there are swizzled, widest first: as the copy engine writes them, or so that
        rows of a matrix lie in different banks.
    max_threads : threads a block can have.
    registers : 32-bit registers (or vector registers on a CPU) of one thread.
    cores : multiprocessors or processor cores.
    l1_bytes, l2_bytes, l3_bytes : cache sizes, of one core (l3 shared).
    line_bytes : of a processor's caches: what one request fetches, and what is written at once.
    matrix_instructions, sparse_instructions, copy_instructions : tables of the target's ``instructions.py``, best
        first.
    untried_instructions : what the machine multiplies with, too, but no kernel does: nobody has run them yet.
    async_copy : what threads start and wait for later; None where they wait for what they load.
    copy_engine : what moves boxes of tensors by itself; None where threads move everything.
    signals : barriers in shared memory; None where threads meet all together only.
    named_barriers : whether some of a block's warps can meet.
    clusters : whether blocks can be neighbours that reach one another's shared memory.
    dependent_launch : whether a kernel may begin before the one before it has ended.
    role_registers : what threads of roles keep; None where all keep those that they start with.
    rates : what a core does in a cycle and memory in a second; None where nobody has said.
    """

    target: str
    name: str
    features: frozenset[str] = frozenset()
    warp_size: int = 1
    vector_bytes: int = 16
    shared_bytes: int = 0
    spans: tuple[int, ...] = ()
    max_threads: int = 1024
    registers: int = 32
    cores: int = 1
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 0
    line_bytes: int = 64
    matrix_instructions: tuple[MatrixProduct, ...] = ()
    sparse_instructions: tuple[MatrixInstruction, ...] = ()
    copy_instructions: tuple[CopyInstruction, ...] = ()
    untried_instructions: tuple[MatrixInstruction, ...] = ()
    async_copy: AsyncCopy | None = None
    copy_engine: CopyEngine | None = None
    signals: Signals | None = None
    named_barriers: bool = False
    clusters: bool = False
    dependent_launch: bool = False
    role_registers: RoleRegisters | None = None
    rates: Rates | None = None

    def __hash__(self) -> int:
        """Of what tells machines apart mostly: a table of instructions takes as long to hash as a launch takes."""
        return hash((self.target, self.name, self.cores, self.l2_bytes))

    def __post_init__(self) -> None:
        if self.warp_size < 1 or self.vector_bytes < 4 or self.vector_bytes & (self.vector_bytes - 1):
            raise ValueError(f"impossible machine: {self}")

    def resident_blocks(self, threads: int) -> int | None:
        """The most blocks of so many threads that the machine runs at once, whatever else they need; None where nobody
        knows its cores."""
        return self.cores * self.occupancy(threads, 1, 0) if self.cores else None

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks of a kernel that one core holds at once; 0 where not even one fits.

        Parameters
        ----------
        registers : of a thread.
        shared_bytes : of a block.
        """
        fits = threads <= self.max_threads and shared_bytes <= self.shared_bytes and registers <= self.registers
        return int(fits)

    @property
    def tile_alignment(self) -> int:
        """Bytes at a multiple of which a tile begins that matrix instructions read: whole patterns of its swizzle, and
        where boxes of the copy engine may."""
        place = 0 if self.copy_engine is None else self.copy_engine.place
        return max(PATTERN_ROWS * max(self.spans, default=2), place)

    @property
    def told_apart(self) -> int:
        """Bytes modulo which addresses and rows of tensors decide how they are moved: by the widest accesses, or by the
        copy engine."""
        return max(self.vector_bytes, 0 if self.copy_engine is None else self.copy_engine.unit)

    @property
    def fragment_registers(self) -> int:
        """Registers of a thread that fragments may take; the others hold addresses, indices, operands on their way."""
        return max(self.registers - 40, self.registers // 2)

    def has(self, feature: str) -> bool:
        return feature in self.features

    def first_with(self, able: Callable[[Arch], object]) -> str | None:
        """The first machine of the same maker of which something is so; None where it is of none."""
        return None

    def launch_registers(self, threads: int, min_blocks: int = 1) -> int:
        """Registers that a thread has when its block of so many starts, where `min_blocks` of them run on one core."""
        return self.registers

    def block_registers(self, threads: int, min_blocks: int = 1) -> int:
        """Registers of all threads of such a block when it starts; each gets them by eights."""
        return -(-self.launch_registers(threads, min_blocks) // 8) * 8 * threads

    def block_shared_bytes(self, min_blocks: int = 1) -> int:
        """Shared memory that a block may have so that `min_blocks` of them run on one core."""
        return self.shared_bytes // min_blocks

    def products(self, kind: type[P]) -> tuple[P, ...]:
        """The machine's dense products by instructions of one kind, best first."""
        return tuple(one for one in self.matrix_instructions if isinstance(one, kind))

    def product_rate(self, a: DType, b: DType) -> int:
        """Products and sums of matrices of these types that a core does in a cycle; 0 where no instruction takes
        them."""
        said = dict(self.rates.products) if self.rates is not None and a == b else {}
        rates = (one.rate for one in self.matrix_instructions if one.types[:2] == (a, b))
        return int(max((said.get(a.name, rate) for rate in rates), default=0))

    def multiplies(self, wide: DType, narrow: DType) -> bool:
        """Whether products of a type take every number of a narrower one as it is; some machines' take subnormal
        operands of 16 bits for zeros."""
        flushed = self.has("normal_operands") and wide.bits == 16 and narrow.is_float and narrow != wide
        return wide.contains(narrow) and not (flushed and narrow.least < 2.0 ** (1 - wide.bias))

    @property
    def starts_products(self) -> bool:
        """Whether an instruction multiplies while the threads that started it do something else."""
        return any(one.asynchronous for one in self.products(MatrixInstruction))

    def moves_matrices(self, source: str, destination: str) -> bool:
        """Whether lanes move matrices together of which each names a row."""
        ways = ((one.source, one.destination) for one in self.copy_instructions if one.matrix and not one.strided)
        return (source, destination) in ways

    @property
    def copies_signal(self) -> bool:
        """Whether barriers in shared memory count the bytes of copies that land."""
        return self.signals is not None and self.signals.counts_bytes

    @property
    def copies_arrive(self) -> bool:
        """Whether arrivals at barriers in shared memory follow the copies that threads start."""
        return self.signals is not None and self.signals.follows_copies

    @property
    def starts_own_copies(self) -> bool:
        """Whether each thread starts copies by itself."""
        return self.async_copy is not None and self.async_copy.threads == 1

    @property
    def reads_past_threads(self) -> bool:
        """Whether something other than threads reads shared memory, and sees what they wrote behind a fence alone."""
        return self.copy_engine is not None or self.starts_products

    @property
    def starts_wide_copies(self) -> bool:
        """Whether what is on its way to shared memory needs no registers, in pieces as wide as loads are."""
        return self.async_copy is not None and self.async_copy.bytes[0] >= self.vector_bytes

    @property
    def has_threads(self) -> bool:
        """Whether a block is many hardware threads (a GPU) rather than one."""
        return self.warp_size > 1

    @property
    def runs_warps(self) -> bool:
        """Whether the threads of a warp of the language run together, and can tell one another values."""
        return self.warp_size >= WARP and self.has("shuffle")

    @property
    def exchanging_lanes(self) -> int:
        """How many threads that run together tell one another values without shared memory; 1 where none do."""
        return self.warp_size if self.has("shuffle") else 1
