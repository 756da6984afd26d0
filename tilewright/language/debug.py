"""Looking into a running kernel: prints, breakpoints, assertions."""

from __future__ import annotations

import builtins
from typing import Any

from tilewright.ir.nodes import WARP, WARPGROUP, Assert, Expr, Print, Region
from tilewright.language.branches import is_symbolic, stand_in
from tilewright.language.buffers import region_of
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, as_expr
from tilewright.language.proxies import condition as truth
from tilewright.language.recording import active, current, statement_here, word
from tilewright.language.tensor_proxies import TensorProxy


def _printable(value: object) -> Expr | Region | str:
    if isinstance(value, TensorProxy):
        return region_of(value, "what print() shows")
    return as_expr(value) if isinstance(value, Scalar) else str(value)


@stand_in("print")
def print_in_kernel(*values: object, **keywords: Any) -> None:
    """``print(...)``: the program's where a value is symbolic or a tile, else Python's, while tracing."""
    if not any(isinstance(value, (Scalar, TensorProxy)) for value in values):
        builtins.print(*values, **keywords)
        return
    current("print()").append(Print(tuple(map(_printable, values)), span=statement_here()))


@word
def print_(obj: object = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """Show a scalar or a tile where the program runs: interpreted, emulated, on a CPU or a GPU
    (docs/manual_control.md).

    Parameters
    ----------
    obj : a scalar or a tile; of None the message alone.
    msg : a text before it.
    warp_group_id, warp_id : whose first thread shows what the whole block has.

    Examples
    --------
    >>> T.print(n, "n:")
    """
    shown = [*([msg] if msg else []), *([] if obj is None else [_printable(obj)])]
    thread = WARPGROUP * warp_group_id + WARP * warp_id
    current("T.print").append(Print(tuple(shown), thread=thread, span=statement_here()))


@stand_in("breakpoint")
def breakpoint_in_kernel(*values: object) -> None:
    """``breakpoint(A_shared, x)``: the interpreter stops here with these values; Python's where none is symbolic."""
    builder = active()
    if builder is None or builder.kernel is None:
        builtins.breakpoint()
        return
    builder.append(Print(tuple(map(_printable, values)), stop=True, span=statement_here()))


@word
def device_assert(condition: object, msg: str = "", no_stack_info: bool = False) -> None:
    """Check a condition where the program runs; where it does not hold, the program ends with the message and this
    line.

    Parameters
    ----------
    condition : what must hold.
    no_stack_info : accepted for TileLang's sake.
    msg : a text.

    Examples
    --------
    >>> T.device_assert(n >= 0, "n is negative")
    """
    if is_symbolic(condition):
        current("T.device_assert").append(Assert(truth(condition), str(msg), span=statement_here()))
    elif not condition:
        raise NumberExpected("T.device_assert", "a condition that can hold", repr(condition))
