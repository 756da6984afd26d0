"""Refuses words of the language that the machine cannot execute, before anything is built on them.

The machine is asked for what a word needs, by capability; what is merely slow on it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, methodcaller

from tilewright.errors import MissingCapability
from tilewright.ir import WARP, Call, Channel, Function, Kernel, Region, Roles, Statement, TileOperator, dtypes
from tilewright.ir.walking import children, kernels
from tilewright.machine import REGISTERS, SHARED, Arch, MatrixInstruction
from tilewright.ops import Atomic, Copy
from tilewright.passes.context import Context
from tilewright.passes.tile.words.lane_words import OF_WARPS, SIMDGROUP

_NEEDS: dict[str, tuple[Callable[[Arch], object], str, str]] = {
    "begin_barriers signal_expect_tx signal_arrive_expect_tx": (
        attrgetter("copies_signal"), "barriers that copies signal (T.alloc_barrier)", "T.Pipelined, or T.sync_threads"),
    "cluster_sync cluster_arrive cluster_arrive_relaxed cluster_wait signal_arrive_cluster": (
        attrgetter("clusters"), "clusters of blocks", "one block for each tile"),
    "named_barrier_sync named_barrier_arrive": (attrgetter("named_barriers"), "named barriers", "T.sync_threads()"),
    "set_registers": (
        attrgetter("role_registers"), "registers given from warps to others (T.set_max_nreg)", "no T.set_max_nreg"),
    "async_copy_signal_arrive_noinc": (
        attrgetter("copies_arrive"), "arrivals that follow a thread's copies (T.cp_async_barrier_noinc)",
        "T.ptx_wait_group and T.mbarrier_arrive"),
    "call_extern": (
        attrgetter("has_threads"), "functions of a GPU's own language (T.call_extern)", "a helper with @T.macro"),
    "load_matrix load_matrix_trans": (
        methodcaller("moves_matrices", SHARED, REGISTERS), "loads of matrices (T.ptx_ldmatrix)",
        "T.gemm, or plain loads"),
    "grid_sync": (
        methodcaller("has", "cooperative_launch"), "barriers of a whole grid (T.sync_grid)", "two T.Kernel"),
}  # fmt: skip
NEEDS = {word: need for words, need in _NEEDS.items() for word in words.split()}
"""For each function the capability it needs, what that is called, and what to write instead."""


_WORDS = ("int32", "uint32", "int64", "uint64")
ATOMIC_TYPES: dict[str, tuple[str, ...]] = {
    "atomic_add": (*_WORDS, "float16", "bfloat16", "float32", "float64"),
    **dict.fromkeys(("atomic_max", "atomic_min"), (*_WORDS, "float32")),
    **dict.fromkeys(("atomic_and", "atomic_or", "atomic_xor", "atomic_exchange"), _WORDS),
}
"""What memory that threads share combines."""


def check_words(function: Function, context: Context) -> Function:
    """Check every call of a kernel.

    Raises
    ------
    MissingCapability : the machine cannot execute one.
    """
    for kernel in kernels(function):
        if context.arch.has("threads") and kernel.num_threads > context.arch.max_threads:
            raise MissingCapability(
                f"a block of {context.arch.name} has at most {context.arch.max_threads} threads, not "
                f"{kernel.num_threads}",
                span=kernel.span,
                hint="a thread may have many elements: make threads= of T.Kernel smaller",
            )
        _check(kernel, kernel, context)
    return function


def _word(operator: TileOperator) -> str:
    """The author's word for an operator that only begins where it stands."""
    if isinstance(operator, Copy) and operator.schedule.by_engine:
        loaded = "tma_copy" if operator.rank is None else "copy_cluster"
        return "atomic_add(use_tma=True)" if operator.adds else loaded
    return {"copy": "async_copy", "gemm": "wgmma_gemm"}.get(operator.name, operator.name)


def _check(node: object, statement: Statement | Kernel, context: Context) -> None:
    if isinstance(node, TileOperator) and node.token is not None and not context.arch.has("threads"):
        raise MissingCapability(
            f"{context.arch.name} has no work that goes on while a block does other things (T.{_word(node)})",
            span=node.span,
            hint=f"write T.{'atomic_add without use_tma' if isinstance(node, Copy) and node.adds else node.name}",
        )
    if isinstance(node, Call) and node.function in NEEDS:
        able, what, instead = NEEDS[node.function]
        if not able(context.arch):
            first = context.arch.first_with(able)
            above = f"compile for {first} or above, or " if first else ""
            raise MissingCapability(
                f"{context.arch.name} has no {what}", span=statement.span, hint=f"{above}write {instead}"
            )
    if context.arch.has_threads and not context.arch.runs_warps:
        _check_warps(node, statement, context)
    if isinstance(node, Roles) and not context.arch.has("threads"):
        raise MissingCapability(
            f"{context.arch.name} has no warps that do different things at once (T.roles)",
            span=node.span,
            hint="write what the roles do one behind the other",
        )
    if isinstance(node, Channel) and context.arch.has("threads") and context.arch.signals is None:
        raise MissingCapability(
            f"{context.arch.name} has no ring buffers between warps (T.channel)",
            span=node.span,
            hint="load and multiply in one T.Pipelined loop",
        )
    if isinstance(node, Call) and node.function.startswith("mma_"):
        _check_product(node, statement, context)
    if isinstance(node, Atomic):
        _check_atomic(f"atomic_{node.kind}", node.destination, node, context)
    if isinstance(node, Call) and node.function in ATOMIC_TYPES and isinstance(node.arguments[0], Region):
        _check_atomic(node.function, node.arguments[0], statement, context)
    for child in children(node):
        _check(child, child if isinstance(child, Statement) else statement, context)


def _check_warps(node: object, statement: Statement | Kernel, context: Context) -> None:
    """Whether threads of warps do something together that the machine's do not, and could not be made to do."""
    arch = context.arch
    words = OF_WARPS | SIMDGROUP if arch.exchanging_lanes == 1 else OF_WARPS
    exchanges = isinstance(node, Call) and node.function in words
    if not exchanges and not isinstance(node, Roles):
        return
    lanes = f"runs {arch.warp_size} threads together" if arch.warp_size < WARP else "has no shuffles"
    raise MissingCapability(
        f"{arch.name} {lanes}, and warps of {WARP} "
        + ("exchange values here" if exchanges else "do different things here (T.roles)"),
        span=statement.span,
        hint=f"let all threads of the block come here, whole warps of {WARP}"
        if exchanges
        else "write what the roles do one behind the other",
    )


def _check_product(node: Call, statement: Statement | Kernel, context: Context) -> None:
    """Whether the machine has an instruction that multiplies such tiles (`T.ptx_mma`)."""
    d, a, b = (part.dtype.name.replace("tfloat32", "float32") for part in node.regions)
    known = [one for one in context.arch.products(MatrixInstruction) if one.function == node.function]
    for one in known:
        if [part.name.replace("tfloat32", "float32") for part in one.types] == [a, b, d]:
            return
    raise MissingCapability(
        f"{context.arch.name} has no instruction {node.function[4:]} of {a} and {b} with sums in {d} (T.ptx_mma)",
        span=statement.span,
        hint="write T.gemm: the compiler chooses the instruction",
    )


def _check_atomic(word: str, place: Region, statement: Statement | Kernel, context: Context) -> None:
    """Whether the machine combines elements of this type where many threads do at once."""
    known = ATOMIC_TYPES[word]
    if context.arch.has("atomic_extremes") and word in ("atomic_max", "atomic_min"):
        known = ATOMIC_TYPES["atomic_add"]
    if not context.arch.has("atomics_64"):
        known = tuple(name for name in known if dtypes.ALL[name].bits < 64)
    if context.arch.has("threads") and place.dtype.name not in known:
        wide = place.dtype.bits == 64
        raise MissingCapability(
            f"{context.arch.name} has no T.{word} of {place.dtype}, only of {', '.join(known)}",
            span=statement.span,
            hint="write each block's result and combine them in a second T.Kernel"
            if wide
            else "combine into a tensor of a wider type, and convert behind it",
        )
