"""Words by which the kernels of a stream, and the warpgroups of a role, wait for one another."""

from __future__ import annotations

from tilewright.ir import nodes as ir
from tilewright.language.builder import in_kernel
from tilewright.language.interface import word
from tilewright.language.proxies import as_expr
from tilewright.language.source import statement_here


def _meeting(function: str) -> None:
    in_kernel(f"T.{function}").append(ir.Evaluate(ir.Call(ir.dtypes.BOOL, function, ()), span=statement_here()))


@word
def pdl_sync() -> None:
    """Wait until the kernels before this one in the stream are done, and what they wrote is seen.

    A kernel that says so may begin before they are: until here it reads only what they do not write.

    Examples
    --------
    >>> T.pdl_sync()
    >>> T.copy(A, tile)
    """
    _meeting("griddepcontrol_wait")


@word
def pdl_trigger() -> None:
    """Let the kernel behind this one begin, as far as its own `pdl_sync`.

    Examples
    --------
    >>> T.pdl_trigger()
    """
    _meeting("griddepcontrol_launch_dependents")


@word
def take_turn(first: object = False) -> None:
    """Wait until the warpgroup before this one in its role has passed its turn (`pass_turn`); the first one waits for
    the last.

    Warpgroups that start their products one after the other work on them at different times, so that the matrix unit
    always has somebody's.

    Parameters
    ----------
    first : a condition: nobody has had a turn yet, and the role's first warpgroup waits for none.
    """
    condition = as_expr(first, ir.dtypes.BOOL, "the condition of T.take_turn")
    call = ir.Call(ir.dtypes.BOOL, "take_turn", (condition,))
    in_kernel("T.take_turn").append(ir.Evaluate(call, span=statement_here()))


@word
def pass_turn() -> None:
    """Let the next warpgroup of the role take its turn."""
    _meeting("pass_turn")


@word
def end_turns() -> None:
    """Behind the last turns: the role's first warpgroup takes what the last one has passed, so that none is left
    over."""
    _meeting("end_turns")
