"""Loops of the program, and how Python's ``range`` becomes one of them; branches as builders of programs say them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.nodes import Break, Return, Seq
from tilewright.ir.nodes import If as Conditional
from tilewright.language.branches import BlockContext, LoopContext, check_exit, stand_in
from tilewright.language.loop_contexts import GridLoop, ParallelLoop, PersistentLoop, PipelinedLoop, RangeLoop
from tilewright.language.mistakes import AuthorError, NumberExpected
from tilewright.language.proxies import as_expr, condition, constant, constant_that, extent, known_value
from tilewright.language.recording import Builder, Frame, called, current, in_kernel, made_word, statement_here, word


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
    """A serial loop that is unrolled.

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
    """A loop whose iterations may run as vector lanes; those that modify the same element or variable run in order.

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

    Sums, products, maxima and minima in an element that several iterations share, ``s[i] += x[i, j]``, have what all of
    them add. Where numbers decide which iterations share one, ``s[I[i]] += 1``, sums are made by `atomic_add`, and what
    memory has no operation for is refused. Where no two do, ``old = s[I[i]]`` and ``s[I[i]] = old + 1`` is plain.

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
    group : statements by their numbers, of which the plan has one number each.  A plan with groups, or with -1 for the
        loads of producer warps, is ignored: the compiler has its own plan for specialised warps.
    specialize : whether the loop is divided into producer and consumer warps. None: the compiler chooses.

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
    """The tiles of `domain` for one of `wave_size` persistent blocks.

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
    """`return` as a call: ends the thread, or the block under a condition that is uniform.

    Examples
    --------
    >>> if tx > 63:
    ...     T.thread_return()
    >>> C[0, tx] = A[0, tx]
    """
    in_kernel("T.thread_return").append(Return(span=statement_here()))


stand_in("range")(lambda *bounds: RangeLoop("range", "serial", bounds))


class MisplacedBranch(AuthorError):
    """`T.Then` or `T.Else` outside of `T.If`, twice there, or beside other statements."""


class Branching(BlockContext):
    """The ``with`` frame of `T.If`; its own statements are its two branches."""

    def __init__(self, test: object) -> None:
        in_kernel("T.If")
        self.condition, self.span = condition(test), statement_here()
        self.branches: dict[str, Seq] = {}

    def __enter__(self) -> None:
        builder = current("T.If")
        self.frame = builder.push("T.If", self.span)
        self.frame.indices = (self,)

    def __exit__(self, *exception: object) -> None:
        builder = current("T.If")
        beside = builder.pop(self.frame)
        if exception[0] is not None:
            return
        if beside.statements or "T.Then" not in self.branches:
            why = "something stands beside its branches" if beside.statements else "it has no T.Then"
            raise MisplacedBranch(
                f"of `with T.If`, {why}", hint="write all of it in `with T.Then():` and `with T.Else():`"
            )
        builder.append(
            Conditional(self.condition, self.branches["T.Then"], self.branches.get("T.Else"), span=self.span)
        )


class BranchFrame(BlockContext):
    """The ``with`` frame of one of the branches."""

    def __init__(self, word: str) -> None:
        self.word, self.span = word, statement_here()

    def __enter__(self) -> None:
        builder: Builder = current(self.word)
        around: Frame = builder.frame
        if around.kind != "T.If" or self.word in around.indices[0].branches:
            where = "does not stand in `with T.If`" if around.kind != "T.If" else "stands there twice"
            raise MisplacedBranch(
                f"{self.word} {where}", hint="with T.If(condition): with T.Then(): ... with T.Else(): ..."
            )
        self.branching: Branching = around.indices[0]
        self.frame = builder.push(self.word, self.span)

    def __exit__(self, *exception: object) -> None:
        self.branching.branches[self.word] = current(self.word).pop(self.frame)


@word
def If(condition: object) -> Branching:
    """`with T.If(condition):` contains `Then` and `Else`; equivalent to Python's `if`.

    Parameters
    ----------
    condition : a condition of the program.

    Examples
    --------
    >>> with T.If(n > 3):
    ...     with T.Then():
    ...         A[0, 0] = 1.0
    ...     with T.Else():
    ...         A[0, 0] = 2.0
    """
    return Branching(condition)


_BRANCHES = (
    "with T.If(n > 3):", "    with T.Then():", "        A[0, 0] = 1.0", "    with T.Else():", "        A[0, 0] = 2.0",
)  # fmt: skip
Then = made_word(
    lambda: BranchFrame("T.Then"),
    "Then",
    "`with T.Then():` in `with T.If(...):` is the branch of a true condition.",
    {},
    *_BRANCHES[:3],
)
Else = made_word(
    lambda: BranchFrame("T.Else"),
    "Else",
    "`with T.Else():` in `with T.If(...):` is the branch of a false condition.",
    {},
    *_BRANCHES,
)
