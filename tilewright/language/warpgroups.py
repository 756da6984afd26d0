"""``with T.ws(0):`` and its kin: what some warpgroups of a block do, how many registers their threads keep, and how
these, and kernels of a stream, wait for one another."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.ir import nodes as ir
from tilewright.ir.nodes import REGISTER_COUNTS, REGISTER_COUNTS_SAID, WARPGROUP, If, binary, const
from tilewright.language.barriers import call
from tilewright.language.branches import BlockContext
from tilewright.language.mistakes import MisplacedRole, NumberExpected
from tilewright.language.proxies import as_expr, constant, constant_that
from tilewright.language.recording import called, current, in_kernel, made_word, statement_here, word


class WarpGroups(BlockContext):
    """The ``with`` frame of what some warpgroups do."""

    def __init__(self, groups: tuple[int, ...]) -> None:
        self.groups, self.span = groups, statement_here()

    def __enter__(self) -> None:
        builder = in_kernel("T.ws")
        if builder.enclosing("T.role") is not None:
            raise MisplacedRole("`T.ws` stands in a role", "a role's warps cannot be divided once more")
        self.frame = builder.push("T.ws", self.span)

    def __exit__(self, *exception: object) -> None:
        body = current("T.ws").pop(self.frame)
        if exception[0] is not None:
            return
        context = current("T.ws").kernel
        context.divided = True
        thread = context.thread_vars[0]
        first, last = min(self.groups) * WARPGROUP, (max(self.groups) + 1) * WARPGROUP
        inside = binary("lt", thread, const(last))
        condition = binary("all", binary("ge", thread, const(first)), inside) if first else inside
        current("T.ws").append(If(condition, body, span=self.span))


@called("WarpSpecialize")
@word
def ws(*warp_group_ids: object) -> WarpGroups:
    """``with T.ws(0):`` holds what only these warpgroups (of 128 threads, from 0) do.

    Neighbouring ``with T.ws`` run at once, but where one changes shared tiles that the next uses and neither speaks of
    barriers: these run one after the other. In one the block's threads are those of its warpgroups: tile operators act
    on them alone; fragments that it alone uses are its own, wherever they are allocated.

    Parameters
    ----------
    warp_group_ids : ints from 0, below a fourth of the block's warps; -1 for all of them.

    Examples
    --------
    >>> with T.ws(0):
    ...     T.copy(A, shared)
    """
    threads = in_kernel("T.ws").kernel.threads
    if threads[1:] != (1, 1):
        raise NumberExpected(
            "threads= of a kernel with T.ws", f"one dimension, threads={math.prod(threads)}", str(threads)
        )
    count = threads[0] // WARPGROUP
    groups = sorted(constant(group, "a warpgroup of T.ws") for group in warp_group_ids)
    groups = list(range(count)) if groups == [-1] else groups
    there = f"neighbouring warpgroups of the block's {count}"
    if not groups or groups[0] < 0 or groups[-1] >= count or groups != list(range(groups[0], groups[-1] + 1)):
        raise NumberExpected("T.ws", there, str(tuple(groups)))
    return WarpGroups(tuple(groups))


def register_count(value: object, what: str, expected: str = REGISTER_COUNTS_SAID) -> int:
    """Registers that a thread may keep."""
    return constant_that(REGISTER_COUNTS.__contains__, value, what, expected)


@word
def set_max_nreg(reg_count: object, is_inc: object = 1) -> None:
    """How many registers each thread of these warpgroups keeps; the first statement of what they do.  It says nothing
    to a machine whose warps keep those that they start with.

    Parameters
    ----------
    reg_count : a multiple of 8 from 24 to 256.
    is_inc : accepted for TileLang's sake: the compiler knows how many they had.
    """
    count = register_count(reg_count, "the argument of T.set_max_nreg")
    in_kernel("T.set_max_nreg").kernel.divided = True
    call("set_registers", const(count))


def _kept(role: str, name: str, doing: str, default: int) -> Callable[..., None]:
    def call(reg_count: object = default) -> None:
        what = f"T.{name}"
        count = register_count(reg_count, f"the argument of {what}")
        attributes = in_kernel(what).kernel.attributes
        attributes["registers"] = tuple(sorted({**dict(attributes.get("registers", ())), role: count}.items()))

    meaning = f"Registers of the threads that {doing}, where the compiler divides the kernel into roles."
    return made_word(call, name, meaning, {"reg_count": "a multiple of 8 from 24 to 240."}, f"T.{name}({default})")


annotate_producer_reg_dealloc = _kept("producer", "annotate_producer_reg_dealloc", "load", 24)
annotate_consumer_reg_alloc = _kept("consumer", "annotate_consumer_reg_alloc", "compute", 240)


@called("disable_warp_group_reg_alloc")
@word
def no_set_max_nreg() -> None:
    """No `setmaxnreg`: all warpgroups keep the same number of registers if the compiler specialises the kernel.

    Examples
    --------
    >>> T.disable_warp_group_reg_alloc()
    """
    in_kernel("T.no_set_max_nreg").kernel.attributes["registers"] = ()


def _call(function: str) -> None:
    in_kernel(f"T.{function}").append(ir.Evaluate(ir.Call(ir.dtypes.BOOL, function, ()), span=statement_here()))


@word
def pdl_sync() -> None:
    """Wait until the kernels before this one in the stream are done, and what they wrote is seen.

    A kernel with this call may start before they have completed: before the call it must not read what they write.

    Examples
    --------
    >>> T.pdl_sync()
    >>> T.copy(A, tile)
    """
    _call("grid_wait")


@word
def pdl_trigger() -> None:
    """Programmatic dependent launch: let the next kernel start, up to its own `pdl_sync`
    (`griddepcontrol.launch_dependents`).

    Examples
    --------
    >>> T.pdl_trigger()
    """
    _call("grid_launch")


@word
def take_turn(first: object = False) -> None:
    """Ordered barrier: wait until the previous warpgroup of the role has executed `pass_turn`; the first one waits for
    the last.

    Warpgroups that issue their products one after the other keep the matrix unit busy during each other's epilogues
    (CUTLASS's ordered sequence barrier).

    Parameters
    ----------
    first : a condition: this is the first use of the barrier, and the role's first warpgroup does not wait.
    """
    condition = as_expr(first, ir.dtypes.BOOL, "the condition of T.take_turn")
    call = ir.Call(ir.dtypes.BOOL, "take_turn", (condition,))
    in_kernel("T.take_turn").append(ir.Evaluate(call, span=statement_here()))


@word
def pass_turn() -> None:
    """Ordered barrier: let the next warpgroup of the role pass its `take_turn`."""
    _call("pass_turn")


@word
def end_turns() -> None:
    """After the last `pass_turn`: the role's first warpgroup consumes the remaining arrival, so that the barrier ends
    balanced."""
    _call("end_turns")
