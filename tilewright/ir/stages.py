"""What is legal at each stage of a program's way from the author's tiles to one thread's work.

`STAGES` is a table, and `verifier` its only reader.  A pass that takes a program to the next stage says so
with ``function.with_body(body, stage="laid_out")``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilewright.ir import nodes as ir


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One stage.

    Attributes
    ----------
    name : its key in `STAGES`.
    meaning : one sentence.
    statements : statement classes that may stand in a kernel, tile operators apart.
    scopes : scopes of the buffers that a kernel may use.
    tile_operators : whether tile operators may stand there.
    vectors : whether loads, stores and arithmetic may have several lanes.
    flat : whether every buffer of a kernel has one dimension, and every access of it one index.
    by_author : whether accesses are as the author wrote them, so that one that misses its tile is a mistake. Passes
        write iterations out, under conditions that only the arguments decide: an index there may be any number.
    """

    name: str
    meaning: str
    statements: frozenset[type[ir.Statement]]
    scopes: frozenset[str]
    tile_operators: bool = False
    vectors: bool = False
    flat: bool = False
    by_author: bool = False


HOST_STATEMENTS: frozenset[type[ir.Statement]] = frozenset({
    ir.Seq, ir.Let, ir.Allocate, ir.If, ir.For, ir.While, ir.Break, ir.Continue,
    ir.Return, ir.Assert, ir.Assume, ir.Print, ir.Kernel,
})  # fmt: skip
"""What may stand in a host program, outside its kernels, at every stage."""

_THREAD_STATEMENTS: frozenset[type[ir.Statement]] = frozenset({
    ir.Seq, ir.Let, ir.Allocate, ir.Store, ir.Evaluate, ir.If, ir.For, ir.While,
    ir.Break, ir.Continue, ir.Return, ir.Assert, ir.Assume, ir.Print,
})  # fmt: skip
_ASYNCHRONY: frozenset[type[ir.Statement]] = frozenset({
    ir.Commit, ir.Wait, ir.Channel, ir.Acquire, ir.Publish, ir.Receive, ir.Release, ir.Roles,
})  # fmt: skip
_TILE_STATEMENTS = _THREAD_STATEMENTS | _ASYNCHRONY | {ir.Parallel}
_THREAD_SCOPES = frozenset({"global", "shared", "scalar", "register", "barrier"})
_TILE_SCOPES = frozenset({"global", "shared", "fragment", "local", "scalar", "barrier"})

_IN_ORDER = (
    Stage("traced", "what the author wrote: loops, tile operators, pipelines as wishes",
          _TILE_STATEMENTS | {ir.Pipelined}, _TILE_SCOPES, tile_operators=True, by_author=True),
    Stage("pipelined", "pipelines have become plain loops whose buffers have stages",
          _TILE_STATEMENTS, _TILE_SCOPES, tile_operators=True),
    Stage("laid_out", "every tile has a layout, every dependence its synchronisation",
          _TILE_STATEMENTS, _TILE_SCOPES, tile_operators=True),
    Stage("lowered", "tile operators have become loops over elements, or a target's own vectors and instructions",
          _TILE_STATEMENTS, _TILE_SCOPES | _THREAD_SCOPES, vectors=True),
    Stage("threaded", "what one thread does: scalars, short vectors, machine instructions",
          _THREAD_STATEMENTS, _THREAD_SCOPES, vectors=True),
    Stage("final", "ready to emit: one dimension a buffer",
          _THREAD_STATEMENTS, _THREAD_SCOPES, vectors=True, flat=True),
)  # fmt: skip
STAGES: dict[str, Stage] = {stage.name: stage for stage in _IN_ORDER}
"""Every stage by name, in order."""


@functools.cache
def between_passes(stage: Stage) -> Stage:
    """What is legal at a stage when a pass has run."""
    return replace(stage, by_author=False) if stage.by_author else stage


@functools.cache
def as_strict(stage: Stage) -> frozenset[Stage]:
    """The stages where nothing is legal that is not at `stage` as well, apart from kinds of statements."""
    every = [*STAGES.values(), *map(between_passes, STAGES.values())]
    return frozenset(
        one
        for one in every
        if one.scopes <= stage.scopes
        and one.vectors <= stage.vectors
        and one.flat == stage.flat
        and one.by_author >= stage.by_author
    )


@functools.cache
def illegal_statements(stage: Stage) -> tuple[type[ir.Statement], ...]:
    """Kinds of statements that other stages have, and this one has not."""
    every = frozenset[type[ir.Statement]]().union(*(one.statements for one in STAGES.values()))
    tiles = () if stage.tile_operators else (ir.TileOperator,)
    return (*sorted(every - stage.statements, key=lambda cls: cls.__name__), *tiles)
