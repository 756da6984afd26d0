"""Loops of the program, and how Python's ``range`` becomes one of them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright.ir import nodes
from tilewright.ir.dtypes import INT32, INT64, DType
from tilewright.ir.nodes import Break, Const, Expr, Extent, For, If, Let, Return, Seq, Var
from tilewright.ir.nodes import Parallel as ParallelNode
from tilewright.ir.nodes import Pipelined as PipelinedNode
from tilewright.language.branches import LoopContext, check_exit, stand_in
from tilewright.language.builder import check_tile_place, current, in_kernel
from tilewright.language.collisions import check_collisions, check_order
from tilewright.language.interface import called, word
from tilewright.language.mistakes import NumberExpected, WrongUnpacking
from tilewright.language.proxies import Scalar, as_expr, constant, constant_that, extent, here, known_value
from tilewright.language.reaches import check_reaches
from tilewright.language.scope import settle
from tilewright.language.source import statement_here


def _fixed(*bounds: Extent) -> list[Extent]:
    """Bounds as they are before the loop: what the body may change is read once, here."""
    return [bound if isinstance(bound, int) else as_expr(settle(here(bound), "bound")) for bound in bounds]


def _index_dtype(*bounds: Extent) -> DType:
    """int32, or int64 where a bound needs it."""
    return INT64 if any(nodes.expr(bound).dtype.bits == 64 for bound in bounds) else INT32


class RangeLoop(LoopContext):
    """A loop over ``range(start, stop, step)``; `kind` as in `nodes.For`."""

    def __init__(self, word: str, kind: str, bounds: tuple[object, ...]) -> None:
        self.word, self.kind = word, kind
        self.start, self.stop, self.step = _range(bounds, word)

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        builder, span = current(self.word), statement_here()
        _one_name(self.word, names)
        first, stop, step = _fixed(self.start, self.stop, self.step)
        start = first
        down = isinstance(step, int) and step < 0
        if down:
            start, stop, step = 0, _steps_down(first, stop, step), 1
        dtype = _index_dtype(first, start, stop, step)
        var = Var(dtype, names[0] if names else "i")
        builder.bound([var], [stop], start)
        frame = builder.push("for" if self.kind == "serial" else self.word, span)
        yield Scalar(first + var * self.step if down else var, frame)
        low, high, by = (nodes.cast(nodes.expr(bound), dtype) for bound in (start, stop, step))
        builder.append(For(var, low, high, by, builder.pop(frame), self.kind, span=span))


def _range(bounds: tuple[object, ...], word: str) -> tuple[Extent, Extent, Extent]:
    """Start, stop and step, as `range` takes them."""
    given = [extent(bound, f"a bound of {word}") for bound in bounds if bound is not None]
    if not 1 <= len(given) <= 3:
        raise NumberExpected(
            f"the bounds of {word}", "stop, or start and stop, or start, stop and step", f"{len(given)} of them"
        )
    start, stop = (0, given[0]) if len(given) == 1 else given[:2]
    step = given[2] if len(given) == 3 else 1
    if step == 0:
        raise NumberExpected(f"the step of {word}", "a number other than zero", "0")
    return start, stop, step


def _steps_down(start: Extent, stop: Extent, step: Extent) -> Extent:
    """How many steps a loop with a negative step takes."""
    assert isinstance(step, int)
    count = (start - stop + (-step - 1)) // -step
    return int(count.value) if isinstance(count, Const) else count


def _one_name(word: str, names: tuple[str, ...]) -> None:
    if len(names) > 1:
        raise WrongUnpacking(word, 1, len(names))


def _variables(word: str, count: int, names: tuple[str, ...], extents: Sequence[Extent]) -> tuple[Var, ...]:
    """One variable an extent, under the author's names."""
    if len(names) > 1 and len(names) != count:
        raise WrongUnpacking(word, count, len(names))
    if len(names) != count:
        names = tuple("ijklmn"[d] if count <= 6 else f"i{d}" for d in range(count))
    return tuple(Var(_index_dtype(size), name) for name, size in zip(names, extents, strict=True))


def _yielded(variables: Sequence[Scalar]) -> object:
    return variables[0] if len(variables) == 1 else tuple(variables)


class ParallelLoop(LoopContext):
    """Element-wise work of the whole block."""

    word = "T.Parallel"

    def __init__(self, extents: tuple[Extent, ...], layout: object, coalesced_width: int | None) -> None:
        self.extents, self.layout, self.coalesced_width = extents, layout, coalesced_width

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        builder, span = in_kernel("T.Parallel"), statement_here()
        extents = tuple(_fixed(*self.extents))
        variables = _variables("T.Parallel", len(extents), names, extents)
        builder.bound(variables, extents)
        if builder.enclosing("T.Parallel") is not None:  # each element of the outer loop has all iterations of this one
            frame = builder.push("T.serial", span)
            yield _yielded([Scalar(var, frame) for var in variables])
            body = builder.pop(frame)
            for var, size in zip(reversed(variables), reversed(extents), strict=True):
                loop = For(var, nodes.const(0), nodes.expr(size), nodes.const(1), body, span=span)
                body = Seq((loop,), span=span)
            builder.append(body)
            return
        check_tile_place(builder, "T.Parallel")
        frame = builder.push("T.Parallel", span)
        yield _yielded([Scalar(var, frame) for var in variables])
        body = builder.pop(frame)
        check_collisions(variables, extents, body)
        check_reaches(variables, extents, body)
        check_order(variables, extents, body)
        builder.append(ParallelNode(variables, extents, body, self.layout, self.coalesced_width, span=span))


class PipelinedLoop(LoopContext):
    """A loop whose iterations may overlap."""

    word = "T.Pipelined"

    def __init__(self, start: Extent, stop: Extent, options: dict[str, Any]) -> None:
        self.start, self.stop, self.options = start, stop, options

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        builder, span = in_kernel("T.Pipelined"), statement_here()
        check_tile_place(builder, "T.Pipelined")
        _one_name("T.Pipelined", names)
        low, high = _fixed(self.start, self.stop)
        dtype = _index_dtype(low, high)
        var = Var(dtype, names[0] if names else "k")
        builder.bound([var], [high], low)
        frame = builder.push("T.Pipelined", span)
        yield Scalar(var, frame)
        body = builder.pop(frame)
        start, stop = (nodes.cast(nodes.expr(bound), dtype) for bound in (low, high))
        builder.append(PipelinedNode(var, start, stop, body, **self.options, span=span))


class GridLoop(LoopContext):
    """Nested serial loops."""

    word = "T.grid"

    def __init__(self, extents: tuple[Extent, ...]) -> None:
        self.extents = extents

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        builder, span = current("T.grid"), statement_here()
        extents = _fixed(*self.extents)
        variables = _variables("T.grid", len(extents), names, extents)
        builder.bound(variables, extents)
        frames = [builder.push("for", span) for _ in variables]
        yield _yielded([Scalar(var, frame) for var, frame in zip(variables, frames, strict=True)])
        for var, frame, size in reversed(list(zip(variables, frames, extents, strict=True))):
            zero, one = nodes.const(0, var.dtype), nodes.const(1, var.dtype)
            stop = nodes.cast(nodes.expr(size), var.dtype)
            builder.append(For(var, zero, stop, one, builder.pop(frame), span=span))


class PersistentLoop(LoopContext):
    """Tiles of a domain dealt out to `wave_size` blocks, wave after wave."""

    word = "T.Persistent"

    def __init__(self, domain: tuple[Extent, ...], wave_size: Extent, index: Expr, group_size: int) -> None:
        self.domain, self.wave_size, self.index, self.group_size = domain, wave_size, index, group_size

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        builder, span = in_kernel("T.Persistent"), statement_here()
        if len(names) > 1 and len(names) != len(self.domain):
            raise WrongUnpacking("T.Persistent", len(self.domain), len(names))
        total = functools.reduce(operator.mul, self.domain)
        waves = nodes.expr((total + (self.wave_size - 1)) // self.wave_size)
        wave, tile = Var(INT32, "wave"), Var(INT32, "tile")
        loop = builder.push("for", span)
        number = wave * self.wave_size + self.index
        builder.append(Let(tile, nodes.cast(number, INT32), span=span))
        inside = builder.push("if", span)
        yield _yielded([Scalar(index, inside) for index in self._position(tile)])
        builder.append(If(nodes.index_binary("lt", tile, total), builder.pop(inside), span=span))
        body = builder.pop(loop)
        builder.append(For(wave, nodes.const(0), nodes.cast(waves, INT32), nodes.const(1), body, span=span))

    def _position(self, tile: Expr) -> list[Expr]:
        """Where tile number `tile` lies: groups of rows of the first dimension, walked column by column.

        The last group may have fewer rows; every tile is visited exactly once.
        """
        if len(self.domain) == 1:
            return [tile]
        rows, columns = self.domain[0], functools.reduce(operator.mul, self.domain[1:])
        per_group = self.group_size * columns
        first = tile // per_group * self.group_size
        height = nodes.index_binary("min", rows - first, self.group_size)
        inside = tile % per_group
        row = first + inside % height
        rest: Expr = inside // height
        others: list[Expr] = []
        for size in reversed(self.domain[2:]):
            others.append(rest % size)
            rest = rest // size
        return [row, rest, *reversed(others)]


@called("parallel")  # iterations of TVM's are independent, and may as well come in turn
@word
def serial(start: object, stop: object = None, step: object = None, annotations: object = None) -> LoopContext:
    """A loop in order, over ``range(start, stop, step)``; Python's ``range`` in a ``for`` is the same.

    Parameters
    ----------
    start, stop, step : as those of Python's ``range``: one argument is `stop`.
    annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> for k in T.serial(4):
    ...     C[k, 0] = A[k, 0]
    """
    return RangeLoop("T.serial", "serial", (start, stop, step))


@word
def unroll(
    start: object,
    stop: object = None,
    step: object = None,
    explicit: bool = False,
    unroll_factor: int | None = None,
    annotations: object = None,
) -> LoopContext:
    """A serial loop whose body the emitter repeats.

    Parameters
    ----------
    start, stop, step : as those of Python's ``range``.
    explicit, unroll_factor, annotations : accepted for TileLang's sake: all of its iterations are written out.

    Examples
    --------
    >>> for k in T.unroll(4):
    ...     C[k, 0] = A[k, 0]
    """
    return RangeLoop("T.unroll", "unroll", (start, stop, step))


@word
def vectorized(start: object, stop: object = None, annotations: object = None) -> LoopContext:
    """A loop whose iterations may run as vector lanes.

    Parameters
    ----------
    start, stop : as those of Python's ``range``.
    annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> for y in T.Parallel(64):
    ...     for v in T.vectorized(4):
    ...         C[y, v] = A[y, v]
    """
    return RangeLoop("T.vectorized", "vectorize", (start, stop))


@word
def Parallel(
    *extents: object,
    coalesced_width: object = None,
    loop_layout: object = None,
    prefer_async: object = None,
    annotations: object = None,
) -> LoopContext:
    """Element-wise work of the whole block: ``for i, j in T.Parallel(64, 32)``; iterations run in any order.

    Parameters
    ----------
    extents : sizes of the index space.
    coalesced_width : elements that a thread moves at once.
    loop_layout : a `T.Fragment` that says which thread runs which iteration.
    prefer_async, annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> for y, x in T.Parallel(64, 64):
    ...     tile[y, x] = A[y, x] * 2
    """
    sizes = tuple(extent(size, "an extent of T.Parallel") for size in extents)
    if not sizes:
        raise NumberExpected("T.Parallel", "at least one extent", "none")
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise NumberExpected("an extent of T.Parallel", "a size that is not negative", str(size))
    width = None if coalesced_width is None else constant(coalesced_width, "coalesced_width of T.Parallel")
    return ParallelLoop(sizes, getattr(loop_layout, "layout", loop_layout), width)


@word
def Pipelined(
    start: object,
    stop: object = None,
    num_stages: object = 0,
    order: Iterable[object] | None = None,
    stage: Iterable[object] | None = None,
    sync: object = None,
    group: object = None,
    annotations: object = None,
    specialize: bool | None = None,
) -> LoopContext:
    """A serial loop whose iterations may overlap: copies of later ones run beside the work of earlier ones.

    Parameters
    ----------
    start, stop : as those of Python's ``range``.
    sync, annotations : accepted for TileLang's sake.
    num_stages : buffers in flight; 0 for a loop that does not overlap.
    order, stage : the author's plan, one number a statement of the body.
    group : statements by their numbers, of which the plan has one number each.  A plan with groups, or with -1 for what
        other warps load, is one for warps that the compiler divides by its own plan: it is left out.
    specialize : whether producer and consumer warps take turns; None leaves it to the compiler.

    Examples
    --------
    >>> for k in T.Pipelined(2, num_stages=2):
    ...     T.copy(A[0, k * 32], strip)
    ...     for y, x in T.Parallel(64, 32):
    ...         C[y, k * 32 + x] = strip[y, x]
    """
    low, high = (0, start) if stop is None else (start, stop)
    stages = constant_that(lambda count: count >= 0, num_stages, "num_stages of T.Pipelined", "a number from 0 up")
    plan = {"order": _numbers(order), "stage": _numbers(stage)}
    if group is not None or any(number < 0 for numbers in plan.values() for number in numbers or ()):
        plan = dict.fromkeys(plan)
    options = {"num_stages": stages, **plan, "specialize": specialize}
    return PipelinedLoop(extent(low, "a bound of T.Pipelined"), extent(high, "a bound of T.Pipelined"), options)


def _numbers(plan: Iterable[object] | None) -> tuple[int, ...] | None:
    return None if plan is None else tuple(constant(number, "the plan of T.Pipelined") for number in plan)


@word
def grid(*extents: object) -> LoopContext:
    """Nested serial loops: ``for i, j in T.grid(4, 8)``.

    Parameters
    ----------
    extents : of the loops, the outermost first.

    Examples
    --------
    >>> for y, x in T.grid(4, 8):
    ...     C[y, x] = A[y, x]
    """
    if not extents:
        raise NumberExpected("T.grid", "at least one extent", "none")
    return GridLoop(tuple(extent(size, "an extent of T.grid") for size in extents))


@word
def Persistent(
    domain: Sequence[object],
    wave_size: object,
    index: object,
    group_size: object = 8,
    num_stages: object = None,
    annotations: object = None,
) -> LoopContext:
    """Tiles of `domain` for one of `wave_size` blocks that stay on the device.

    Parameters
    ----------
    domain : tiles along each dimension.
    wave_size : blocks that run at once.
    index : this block's number, below `wave_size`.
    group_size : rows of the first dimension that are walked together, for the L2 cache.
    num_stages, annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> for y, x in T.Persistent([4, 4], 2, bx):
    ...     C[y, x] = 1
    """
    sizes = tuple(extent(size, "an extent of T.Persistent") for size in domain)
    number = as_expr(known_value(index), None, "the index of T.Persistent")
    rows = constant_that(lambda count: count >= 1, group_size, "group_size of T.Persistent", "a number from 1 up")
    workers = extent(wave_size, "wave_size of T.Persistent")
    if isinstance(workers, int) and workers < 1:
        raise NumberExpected("wave_size of T.Persistent", "at least one block", str(workers))
    return PersistentLoop(sizes, workers, number, rows)


@word
def loop_break() -> None:
    """``break`` as a call: leaves the innermost serial loop.

    Examples
    --------
    >>> for k in T.serial(64):
    ...     if N[k] > 3:
    ...         T.loop_break()
    ...     C[k, 0] = 1
    """
    builder = current("T.loop_break")
    check_exit(builder, "break")
    builder.append(Break(span=statement_here()))


@word
def thread_return() -> None:
    """``return`` as a call: the thread is done; under a condition that no thread index decides, the block.

    Examples
    --------
    >>> if tx > 63:
    ...     T.thread_return()
    >>> C[0, tx] = A[0, tx]
    """
    in_kernel("T.thread_return").append(Return(span=statement_here()))


stand_in("range")(lambda *bounds: RangeLoop("range", "serial", bounds))
