"""What loops of the language record: their variables, bounds and bodies."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.ir import INT32, INT64, Const, DType, Expr, Extent, For, If, Let, Select, Seq, Var, nodes
from tilewright.ir.nodes import Parallel as ParallelNode
from tilewright.ir.nodes import Pipelined as PipelinedNode
from tilewright.language.branches import LoopContext
from tilewright.language.collisions import check_collisions, check_order, check_together
from tilewright.language.mistakes import NumberExpected, WrongUnpacking
from tilewright.language.parallel_sums import reduced
from tilewright.language.proxies import Scalar, as_expr, extent, here
from tilewright.language.reaches import check_reaches
from tilewright.language.recording import check_tile_place, current, in_kernel, statement_here
from tilewright.language.scope import settle
from tilewright.language.several import Several


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
        first, stop, along = _fixed(self.start, self.stop, self.step)
        start, step, by_count = first, along, not isinstance(along, int) or along < 0
        if by_count:
            start, stop, step = 0, _steps(first, stop, along), 1
        dtype = _index_dtype(first, start, stop, step)
        var = Var(dtype, names[0] if names else "i")
        builder.bound([var], [stop], start)
        frame = builder.push("for" if self.kind == "serial" else self.word, span)
        yield Scalar(first + var * along if by_count else var, frame)
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


def _steps(start: Extent, stop: Extent, step: Extent) -> Extent:
    """How many steps a loop takes whose step is negative, or known only where the program runs; of 0 none."""
    down = (start - stop - step - 1) // (0 - step)
    if isinstance(step, int):
        return int(down.value) if isinstance(down, Const) else down
    zero = nodes.const(0, _index_dtype(start, stop, step))
    up, down, of = (nodes.cast(nodes.expr(one), zero.dtype) for one in ((stop - start + step - 1) // step, down, step))
    backwards = Select(zero.dtype, nodes.binary("lt", of, zero), down, zero)
    return Select(zero.dtype, nodes.binary("gt", of, zero), up, backwards)


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


def _yielded(word: str, variables: Sequence[Scalar]) -> object:
    names = ", ".join("ijklmn"[: len(variables)])
    return variables[0] if len(variables) == 1 else Several.of(word, f"for {names} in {word}(...)", variables)


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
            yield _yielded(self.word, [Scalar(var, frame) for var in variables])
            body = builder.pop(frame)
            for var, size in zip(reversed(variables), reversed(extents), strict=True):
                loop = For(var, nodes.const(0), nodes.expr(size), nodes.const(1), body, span=span)
                body = Seq((loop,), span=span)
            builder.append(body)
            return
        check_tile_place(builder, "T.Parallel")
        frame = builder.push("T.Parallel", span)
        yield _yielded(self.word, [Scalar(var, frame) for var in variables])
        body = builder.pop(frame)
        check_together(body)
        whole = ParallelNode(variables, extents, body, self.layout, self.coalesced_width, span=span)
        for made in reduced(whole, math.prod(builder.kernel.threads)):
            if isinstance(made, ParallelNode):
                check_collisions(made.vars, made.extents, made.body)
                check_reaches(made.vars, made.extents, made.body)
                check_order(made.vars, made.extents, made.body)
            builder.append(made)


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
        yield _yielded(self.word, [Scalar(var, frame) for var, frame in zip(variables, frames, strict=True)])
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
        yield _yielded(self.word, [Scalar(index, inside) for index in self._position(tile)])
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
