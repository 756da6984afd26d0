"""Words by which the kernels of a stream, and the warpgroups of a role, wait for one another."""

from __future__ import annotations

from tilewright.ir import nodes as ir
from tilewright.language.proxies import as_expr
from tilewright.language.recording import in_kernel, statement_here, word


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
    _call("griddepcontrol_wait")


@word
def pdl_trigger() -> None:
    """Programmatic dependent launch: let the next kernel start, up to its own `pdl_sync`
    (`griddepcontrol.launch_dependents`).

    Examples
    --------
    >>> T.pdl_trigger()
    """
    _call("griddepcontrol_launch_dependents")


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
