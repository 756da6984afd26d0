"""Hints and facts: layouts, rasterisation, safe values, assumptions; prints and assertions in a running kernel."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from tilewright.ir import MAY_SHARE, WARP, WARPGROUP, Assert, Assume, Buffer, Expr, Print, Region
from tilewright.language.branches import is_symbolic, stand_in
from tilewright.language.buffers import BufferProxy, region_of
from tilewright.language.layouts import Advised, PartialFragment, layout_of
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.proxies import Scalar, as_expr, condition, constant_within, describe, positive
from tilewright.language.proxies import condition as truth
from tilewright.language.recording import active, current, in_kernel, statement_here, word
from tilewright.language.tensor_proxies import TensorProxy

MOST_BLOCKS = 32
"""Blocks that a multiprocessor runs at once."""


def _pairs(mapping: object, what: str) -> list[tuple[Buffer, Any]]:
    if not isinstance(mapping, Mapping):
        raise NumberExpected(f"the argument of {what}", "a dictionary {buffer: ...}", describe(mapping))
    found = []
    for buffer, value in mapping.items():
        if not isinstance(buffer, BufferProxy):
            raise TileExpected(f"a key of {what}", describe(buffer))
        found.append((buffer.buffer, value))
    return found


@word
def annotate_layout(layout_map: object) -> None:
    """Fix the layouts of tiles: ``{tile: T.Layout(...) or T.Fragment(...)}``; the compiler keeps to them.

    Parameters
    ----------
    layout_map : one for each tile; a shared tile takes a `Layout`, a fragment a `Fragment`. Arrays of single threads
        have none, and the `PartialFragment` of a reducer is advice.

    Examples
    --------
    >>> T.annotate_layout({shared: T.Layout((64, 64), lambda i, j: i * 64 + j)})
    """
    context = in_kernel("T.annotate_layout").kernel
    for buffer, layout in _pairs(layout_map, "T.annotate_layout"):
        found = layout_of(layout, buffer)
        if not isinstance(layout, (Advised, PartialFragment)) and buffer.scope not in ("local", "scalar"):
            context.layouts.append((buffer, found))


@word
def annotate_safe_value(safe_value_map: object) -> None:
    """What reads of tensors out of bounds give, in place of 0: ``{tensor: value}``.

    Parameters
    ----------
    safe_value_map : numbers, by tensor.

    Examples
    --------
    >>> T.annotate_safe_value({A: -1.0})
    >>> T.copy(A[32, 0], tile)
    """
    context = in_kernel("T.annotate_safe_value").kernel
    for buffer, value in _pairs(safe_value_map, "T.annotate_safe_value"):
        context.safe_values.append((buffer, as_expr(value, buffer.dtype, "a safe value")))


@word
def use_swizzle(panel_size: object, order: str = "row", enable: bool = True) -> None:
    """Walk the grid in panels, so that blocks that run together share rows and columns in the L2 cache.

    Parameters
    ----------
    enable : whether to do so.
    panel_size : blocks along a panel's short side.
    order : ``"row"`` or ``"column"``, the direction of the panels, every second one of which is walked backwards;
        ``"mlx"``: panels of rows, all walked forwards, as MLX's products on Apple's GPUs walk theirs.

    Examples
    --------
    >>> T.use_swizzle(4)
    """
    context = in_kernel("T.use_swizzle").kernel
    size = positive(panel_size, "panel_size of T.use_swizzle")
    if order not in ("row", "column", "col", "mlx"):
        raise NumberExpected("the order of T.use_swizzle", "'row', 'column' or 'mlx'", repr(order))
    if enable:
        context.attributes["raster"] = ("column" if order == "col" else order, size)


@word
def annotate_l2_hit_ratio(l2_hit_ratio_map: object) -> None:
    """How much of a tensor's reads should stay in the L2 cache: ``{tensor: ratio}``; accepted, no part of the cache is
    set aside.

    Parameters
    ----------
    l2_hit_ratio_map : numbers from 0 to 1, by tensor.

    Examples
    --------
    >>> T.annotate_l2_hit_ratio({A: 0.5})
    """
    context = in_kernel("T.annotate_l2_hit_ratio").kernel
    pairs = tuple((buffer.name, float(ratio)) for buffer, ratio in _pairs(l2_hit_ratio_map, "T.annotate_l2_hit_ratio"))
    context.attributes["l2_hit_ratio"] = pairs


@word
def annotate_min_blocks_per_sm(n: object) -> None:
    """How many blocks should fit on one multiprocessor at least: a GPU's compiler gives each thread no more registers.

    Where the compiler divides such a kernel into roles, all keep the share of registers that they start with.

    Parameters
    ----------
    n : a Python int above 0.

    Examples
    --------
    >>> T.annotate_min_blocks_per_sm(2)
    """
    context = in_kernel("T.annotate_min_blocks_per_sm").kernel
    number = constant_within(n, "the count of T.annotate_min_blocks_per_sm", 1, MOST_BLOCKS)
    context.attributes["min_blocks_per_sm"] = number
    if number > 1:
        context.attributes.setdefault("registers", ())


@word
def annotate_restrict_buffers(*buffers: object) -> None:
    """Tensors that may be the same memory: a call may pass one for several of them, as a kernel does that works in
    place.

    Where it does, the kernel is compiled for one tensor in their place. That is so without this hint, too, where each
    block and each iteration provably has elements of its own; the hint says that it is meant where they have not.
    Tensors that overlap in another way are refused.

    Parameters
    ----------
    buffers : tensors among the parameters.

    Examples
    --------
    >>> T.annotate_restrict_buffers(A, C)
    """
    attributes = current("T.annotate_restrict_buffers").attributes
    names = list(attributes.get(MAY_SHARE, ()))
    for buffer in buffers:
        if not isinstance(buffer, BufferProxy) or buffer.buffer.scope != "global":
            raise TileExpected("an argument of T.annotate_restrict_buffers", describe(buffer), "a tensor parameter")
        names.append(buffer.name)
    attributes[MAY_SHARE] = tuple(dict.fromkeys(names))


@word
def func_attr(attributes: Mapping[str, object]) -> None:
    """Attributes of the function: ``{"name": constant}``.

    Parameters
    ----------
    attributes : constants by name.

    Examples
    --------
    >>> T.func_attr({"note": 1})
    """
    for name, value in attributes.items():
        current("T.func_attr").attributes[str(name)] = value


@word
def assume(cond: object) -> None:
    """A fact that the author vouches for, such as ``m % 8 == 0``; the interpreter checks it.

    Parameters
    ----------
    cond : a condition on symbolic sizes.

    Examples
    --------
    >>> T.assume(n >= 0)
    """
    if is_symbolic(cond):
        current("T.assume").append(Assume(condition(cond), span=statement_here()))
    elif not cond:
        raise NumberExpected("T.assume", "a fact that can hold", repr(cond))


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
