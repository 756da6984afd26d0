"""The function being recorded: a stack of open statement lists, one builder for each thread that traces."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from tilewright.errors import Span
from tilewright.ir import changed, root, touched
from tilewright.ir.nodes import Allocate, Buffer, Expr, Extent, Let, Load, Seq, Statement, TileOperator, Var, is_empty
from tilewright.language.mistakes import OperatorMismatch
from tilewright.language.mistakes_of_scopes import OutsideFunction, OutsideKernel, TileOperatorInParallel
from tilewright.language.source import statement_here

_Operator = TypeVar("_Operator", bound=TileOperator)


class Frame:
    """An open statement list.

    Attributes
    ----------
    kind : ``function``, ``kernel``, ``for``, ``while``, ``if``, ``parallel``, ``pipelined``, ...: the author's word.
    control : the innermost frame whose statements may run any number of times: a loop's or a branch's; of the
        function's own and the kernel's frame, that around them.
    indices : of a loop, what its variables are in its body.
    span : where the frame was opened.
    """

    __slots__ = ("control", "depth", "indices", "is_open", "kind", "parent", "span", "statements")

    def __init__(self, kind: str, parent: Frame | None, span: Span | None) -> None:
        self.kind, self.parent, self.span = kind, parent, span
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.statements: list[Statement] = []
        self.is_open = True
        self.indices: tuple[Any, ...] = ()
        straight = kind in ("function", "T.Kernel")
        self.control: Frame | None = (parent.control if parent else None) if straight else self

    def describe(self) -> str:
        """The frame as an error message names it."""
        place = f" of line {self.span.line}" if self.span else ""
        return f"the `{self.kind}`{place}"


SOURCES: ContextVar[tuple[str, ...]] = ContextVar("sources", default=())
"""Texts of the device's own language that come before the kernels of whatever is traced."""


class Builder:
    """What a trace collects.

    Attributes
    ----------
    style : ``prim_func`` or ``direct``.
    frame : the innermost open statement list.
    kernel : the open `T.Kernel`, None on the host.
    pending_names : what the author is about to call the value being made.
    result_name : what the caller of a macro is about to call its result.
    ranges : least and greatest value of loops' and threads' variables, and of blocks' the least; None where unknown.
    sizes : values of `T.const` symbols, None while the declarations of a direct function are read.
    """

    def __init__(self, name: str, style: str, span: Span | None) -> None:
        self.name, self.style, self.span = name, style, span
        self.root = Frame("function", None, span)
        self.frame = self.root
        self.kernel: Any = None
        self.kernels = 0
        self.params: dict[str, Buffer | Var | None] = {}
        self.outputs: dict[Buffer, Span | None] = {}
        self.ranges: dict[Var, tuple[int | None, int | None]] = {}
        self.sizes: dict[str, int] | None = None
        self.declaration: Any = None
        self.attributes: dict[str, Any] = {"sources": SOURCES.get()} if SOURCES.get() else {}
        self.pending_names: tuple[str, ...] = ()
        self.result_name = "result"

    # Statements ---------------------------------------------------------------------------------

    def append(self, statement: Statement) -> None:
        """Put a statement at the end of the open frame; loops and branches around nothing are none."""
        if not is_empty(statement):
            self.frame.statements.append(statement)

    def push(self, kind: str, span: Span | None) -> Frame:
        self.frame = Frame(kind, self.frame, span)
        return self.frame

    def pop(self, frame: Frame) -> Seq:
        """Close `frame`, and what an exception or a `return` left open inside it."""
        while self.frame is not frame:
            self.frame.is_open = False
            assert self.frame.parent is not None
            self.frame = self.frame.parent
        frame.is_open = False
        assert frame.parent is not None
        self.frame = frame.parent
        return Seq(tuple(frame.statements), span=frame.span)

    def enclosing(self, *kinds: str) -> Frame | None:
        """The innermost open frame of one of these kinds."""
        frame: Frame | None = self.frame
        while frame is not None and frame.kind not in kinds:
            frame = frame.parent
        return frame

    def bound(self, variables: Sequence[Var], extents: Sequence[Extent], start: Extent = 0) -> None:
        """Note what values variables have: from `start` to below their extents, and nothing in loops that never run."""
        low = start if isinstance(start, int) else None
        for var, extent in zip(variables, extents, strict=False):
            last = extent - 1 if isinstance(extent, int) and (low is None or low < extent) else None
            self.ranges[var] = (low, last)

    # Names --------------------------------------------------------------------------------------

    def take_name(self, default: str) -> str:
        """The name that the author is about to give to what is being made."""
        return self.pending_names[0] if self.pending_names else default

    def allocate_on_host(self, buffer: Buffer) -> None:
        """Record a workspace before the kernel that asks for it."""
        self.root.statements.append(Allocate(buffer, span=statement_here()))


_tracing = threading.local()


def active() -> Builder | None:
    """The builder of the function being traced in this thread, if any."""
    return getattr(_tracing, "builder", None)


def current(what: str = "this") -> Builder:
    """The builder of the function being traced.

    Raises
    ------
    OutsideFunction : nothing is being traced.
    """
    builder = getattr(_tracing, "builder", None)
    if builder is None:
        raise OutsideFunction(what)
    return builder


def in_kernel(what: str) -> Builder:
    """The builder, where a `T.Kernel` is open.

    Raises
    ------
    OutsideKernel : no kernel is open.
    """
    builder = current(what)
    if builder.kernel is None:
        raise OutsideKernel(what)
    return builder


def named(value: Expr, name: str, what: str) -> Var:
    """A value under a name of its own: it is computed once, here.

    Parameters
    ----------
    what : is being recorded, for messages.
    """
    var = Var(value.dtype, name)
    in_kernel(what).append(Let(var, value, span=statement_here()))
    return var


class activate:
    """``with activate(builder)``: makes it the current one."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def __enter__(self) -> Builder:
        self.previous = active()
        _tracing.builder = self.builder
        return self.builder

    def __exit__(self, *_: object) -> None:
        _tracing.builder = self.previous


def record(statement: Statement, what: str = "this statement") -> None:
    """Add a statement to the innermost open list."""
    current(what).append(statement)


def record_operator(operator: TileOperator, what: str) -> None:
    """Add a tile operator, after its own check and that of its place."""
    from_here = in_kernel(what)
    check_tile_place(from_here, what)
    for problem in operator.check():
        raise OperatorMismatch(what, problem)
    from_here.append(settled(operator, what))


def settled(operator: _Operator, what: str) -> _Operator:
    """An operator whose places and numbers are what they were before it: those in memory that it writes have names."""
    written = touched(operator).writes

    def as_it_was(load: Load) -> Expr:
        return named(load, load.buffer.name, what) if root(load.buffer) in written else load

    return changed(operator, Load, by=as_it_was)


def check_tile_place(builder: Builder, what: str) -> None:
    """Refuse work of the whole block inside a loop over its elements."""
    loop = builder.enclosing("T.Parallel", "T.vectorized")
    if loop is not None:
        raise TileOperatorInParallel(what, loop.describe())
