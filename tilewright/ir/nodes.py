"""The whole intermediate representation: what a program is, and what it means.

One family of nodes serves every stage, from the traced tile program to what one thread does; which nodes
are legal when is a table in `stages`.  Tile operators (`ops/`) are statements too: subclasses of
`TileOperator` with named operands.  Expressions, buffers and regions are in `expressions`, statements
in `statements`; both are published here.

Meaning
-------
Integers     wrap modulo 2**bits (two's complement).  ``floordiv`` and ``floormod`` round towards minus
             infinity (Python's); division by zero is undefined.  Shifts beyond the width are undefined;
             ``shr`` is arithmetic on signed types.
Floats       every operation rounds to its own dtype, to nearest even.  ``min`` and ``max`` return the
             other operand when one is NaN.  A cast to a float without infinities saturates; a cast from
             float to integer truncates and saturates, NaN gives 0; to ``tfloat32`` it rounds to 10
             mantissa bits.
Types        both operands of a binary operator have the same dtype; promotion is the language's business.
             Comparisons and logical operators give ``bool``.
Purity       expressions have no side effect, except `Call` to a function that its record in `intrinsics`
             marks so; those stand only under `Evaluate`, `Let` or the value of a `Store`.
Order        operands are evaluated left to right, statements in order.  `Select` and the logical
             operators evaluate only what they need: a guarded load is never performed unguarded.
Bounds       at tile stages, a read of a *global* buffer out of bounds gives the buffer's safe value (0
             unless annotated), a write out of bounds is dropped; out of bounds on any other buffer is an
             error that the interpreter reports.  Lowering makes the guards explicit; in thread programs
             every access must be in bounds.
Uninitialised tile elements have no value; reading one is an error that the interpreter reports.
Identity     statements, buffers and variables compare by identity; expressions too (compare structure
             with `same` in `visitor`).  ``==`` never builds a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tilewright.errors import Span
from tilewright.ir import dtypes  # noqa: F401  (published)
from tilewright.ir.dtypes import BOOL, DType  # noqa: F401  (published)
from tilewright.ir.expressions import *  # noqa: F403  (published)
from tilewright.ir.expressions import Expr, Extent, N, Record, Var, const, dataclass_transform, node
from tilewright.ir.regions import *  # noqa: F403  (published)
from tilewright.ir.regions import Buffer, Region
from tilewright.ir.statements import *  # noqa: F403  (published)
from tilewright.ir.statements import For, If, Parallel, Pipelined, Seq, Statement


@node
class Kernel(Statement):
    """A grid of blocks: ``with T.Kernel(...)``.  A statement of the host program.

    Attributes
    ----------
    block_vars, grid : one index and one extent a grid dimension (1 to 3).
    thread_vars, threads : the three thread indices and the block's extents along them.
    layouts : the author's layouts, ``(buffer, layout)`` pairs (`T.annotate_layout`).
    safe_values : ``(buffer, value)`` pairs (`T.annotate_safe_value`).
    attributes : other hints as ``(name, value)`` pairs: ``raster`` (`T.use_swizzle`), ``cluster``, ...
    """

    block_vars: tuple[Var, ...]
    grid: tuple[Extent, ...]
    thread_vars: tuple[Var, Var, Var]
    threads: tuple[int, int, int]
    body: Seq
    layouts: tuple[tuple[Buffer, Any], ...] = ()
    safe_values: tuple[tuple[Buffer, Expr], ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def with_body(self, body: Seq) -> Kernel:
        """The kernel with another body; the very one where it is none."""
        return self if body is self.body else replace(self, body=body)

    @property
    def num_threads(self) -> int:
        return math.prod(self.threads)

    def attribute(self, name: str, default: object = None) -> Any:  # each attribute has its type
        return dict(self.attributes).get(name, default)


# Functions --------------------------------------------------------------------------------------


@node
class Function(Record):
    """A host program with its kernels.

    Attributes
    ----------
    params : global buffers and scalar variables, in the order of the author's signature.
    body : host statements: `Allocate` of global workspaces, `Let`, `If`, `For` on host scalars, `Kernel`.
    outputs : parameters that the caller does not pass but gets back (`T.empty`, ``out_idx``).
    stage : a key of `stages.STAGES`.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    body: Seq
    outputs: tuple[Buffer, ...] = ()
    stage: str = "traced"
    attributes: tuple[tuple[str, Any], ...] = ()
    span: Span | None = field(default=None, kw_only=True)

    def with_body(self, body: Seq, stage: str | None = None) -> Function:
        """The function with another body; the very one where nothing is another."""
        same = body is self.body and stage in (None, self.stage)
        return self if same else replace(self, body=body, stage=stage or self.stage)

    @property
    def inputs(self) -> tuple[Buffer | Var, ...]:
        return tuple(p for p in self.params if p not in self.outputs)

    def attribute(self, name: str, default: object = None) -> Any:  # each attribute has its type
        return dict(self.attributes).get(name, default)


def seq(*statements: Statement | Sequence[Statement] | None) -> Seq:
    """A Seq of the statements given; nested plain sequences and Nones are flattened away.

    A nested `Seq` node is kept, since it is a scope.
    """
    flat: list[Statement] = []
    for statement in statements:
        if statement is None:
            continue
        if isinstance(statement, Statement):
            flat.append(statement)
        else:
            flat.extend(statement)
    return Seq(tuple(flat))


def counted(var: Var, count: int, body: Seq, kind: str = "serial", span: Span | None = None) -> For:
    """A loop whose variable counts from 0."""
    return For(var, const(0, var.dtype), const(count, var.dtype), const(1, var.dtype), body, kind, span=span)


def is_empty(statement: Statement) -> bool:
    """Whether a statement is a branch or a loop of which nothing is left: no expression of it has an effect."""
    if isinstance(statement, If):
        return not statement.then.statements and not (statement.otherwise and statement.otherwise.statements)
    return isinstance(statement, (For, Pipelined, Parallel)) and not statement.body.statements


# Tile operators ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effects:
    """What a tile operator reads and writes, in the order of its reference's arguments and results."""

    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    atomic: bool = False
    """The writes combine with what is there, whoever else writes at the same time."""


UNPRINTED: Mapping[str, bool] = {"printed": False}
"""Metadata of fields that passes fill and printed programs leave out, since parsing has nothing to make them of."""

SPREAD: Mapping[str, bool] = {"spread": True}
"""Metadata of fields that hold a record of plain values, whose fields programs show as the operator's own."""


@node
class TileOperator(Statement):
    """Base of the operators in `ops/`: one statement that acts on whole tiles.

    A concrete operator is a ``@tile_operator`` dataclass whose fields are named operands (`Region`, `Expr`
    or None) and named constants (int, float, bool, str, DType, tuples of those).  Hints that do not change what it
    means are the fields of one record, its schedule (see `SPREAD`).  It defines

    ``check()``      problems with shapes and dtypes, as sentences (empty where it is well formed)
    ``effects()``    the regions read and written
    ``reference(*reads, *scalars)``  NumPy meaning: arrays of `effects().reads`, each shaped as its region's
        extents, then the values of the operands that are expressions (in the fields' order), to a tuple of
        arrays for the writes (as many elements as the region in the same order, or one for all)
    ``lower()``      the generic lowering, in terms of `Parallel` loops on elements
    """

    name = "?"
    token: str | None = field(default=None, kw_only=True)
    """Where given, the operator is asynchronous: see `Token`."""

    conditions: ClassVar[tuple[str, ...]] = ()
    """Fields that are a bool or a condition known only when running; whoever runs the operator puts the bool
    in its place before asking for `effects` and `reference`."""

    dimensions: ClassVar[Mapping[str, str]] = {}
    """Fields that name a dimension, and the operand whose dimension it is. They are kept counted from that region's end
    (-1 the last): passes put dimensions in front of regions, as the stages of a pipeline, and never behind them."""

    def __post_init__(self) -> None:
        for name, operand in self.dimensions.items():
            dimension, rank = getattr(self, name), len(getattr(self, operand).extents)
            if 0 <= dimension < rank:
                object.__setattr__(self, name, dimension - rank)

    def check(self) -> Iterator[str]:
        raise NotImplementedError(f"{type(self).__name__}.check")

    def effects(self) -> Effects:
        raise NotImplementedError(f"{type(self).__name__}.effects")

    def overwrites(self, buffer: Buffer) -> bool:
        """Whether the operator sets the whole of a buffer and reads nothing of it, through a view neither."""
        effects = self.effects()
        sets = any(region.buffer is buffer and region.is_whole for region in effects.writes)
        return sets and not any(_shows(region.buffer, buffer) for region in effects.reads)

    def reference(self, *reads: Any) -> tuple[Any, ...]:  # operators name what they read
        raise NotImplementedError(f"{type(self).__name__}.reference")

    def lower(self) -> Statement:
        raise NotImplementedError(f"{type(self).__name__}.lower")


def _shows(view: Buffer | None, buffer: Buffer) -> bool:
    while view is not None and view is not buffer:
        view = view.source
    return view is buffer


TILE_OPERATORS: dict[str, type[TileOperator]] = {}
"""Every operator by its printed name; filled by `tile_operator`."""


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def tile_operator(name: str) -> Callable[[type[N]], type[N]]:
    """Class decorator: makes a frozen record of an operator and registers it under its printed name."""

    def register(cls: type[N]) -> type[N]:
        made: Any = node(cls)
        made.name = name
        TILE_OPERATORS[name] = made
        return made

    return register
