"""Words in which older programs speak of threads: loops over them, and sums of what each of them has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.ir import BOOL, INT32, Rewriter, Rewritten, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.language.branches import BlockContext, LoopContext
from tilewright.language.external import access_ptr
from tilewright.language.kernel import DIMENSIONS, LaunchContext, get_thread_binding, get_thread_extents, launch_thread
from tilewright.language.mistakes import MisplacedRole, NumberExpected
from tilewright.language.proxies import Scalar, Value, as_expr, condition, constant, describe, known_value, one_of
from tilewright.language.recording import current, in_kernel, named, statement_here, word
from tilewright.language.warps import linear_thread
from tilewright.ops import BY_HAND

AXES = {f"threadIdx.{axis}": dim for dim, axis in enumerate("xyz")}


class LaunchLoop(LoopContext):
    """A loop outside `T.Kernel`, whose iterations are blocks or threads of the kernel that it opens."""

    word = "T.thread_binding"

    def __init__(self, start: int, count: object, thread: str) -> None:
        self.start, self.count, self.thread = start, count, thread

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        """Launch, yield the index, end the launch with the outermost such loop."""
        with launch_thread(self.thread, self.count) as index:
            yield Scalar(as_expr(index) + self.start, index.frame) if self.start else index


class ThreadLoop(Scalar, LoopContext):
    """A loop whose iterations are the threads of the block along one dimension; without ``for`` the number of the
    thread's."""

    word = "T.thread_binding"

    def __init__(self, start: int, stop: int, dim: int) -> None:
        self.start, self.stop, self.dim = start, stop, dim
        self.span = statement_here()
        in_kernel(self.word)
        index = get_thread_binding(dim)
        super().__init__(as_expr(index, INT32) + start if start else as_expr(index), index.frame)

    def iterate(self, names: tuple[str, ...]) -> Iterator[Any]:
        """Open a condition where threads are more than iterations, yield the thread's index, close it."""
        builder = in_kernel(self.word)
        extent = get_thread_extents()[self.dim]
        count = self.stop - self.start
        if count > extent:
            threads = f"{extent} threads of the block there"
            raise NumberExpected(self.word, f"no more iterations than the {threads}", str(count)).at(self.span)
        thread = as_expr(get_thread_binding(self.dim), INT32)
        frame = builder.push("T.thread_binding", self.span)
        yield Scalar(thread + self.start, frame)
        body = builder.pop(frame)
        if count == extent:
            builder.append(body)
        else:
            builder.append(ir.If(ir.index_binary("lt", thread, count), body, span=self.span))


@word
def thread_binding(
    start: Value, stop: Value | None = None, thread: object = "threadIdx.x", annotations: object = None
) -> LoopContext:
    """``for i in T.thread_binding(0, n, "threadIdx.x"):`` gives each thread the iteration of its index.

    ``tx = T.thread_binding(0, n, "threadIdx.x")`` gives that number a name. Outside `T.Kernel`, nested loops over
    ``"blockIdx.x"`` and ``"threadIdx.x"`` are the kernel.

    Parameters
    ----------
    annotations : accepted for TileLang's sake.
    start, stop : of the iterations, no more than the block has threads along that dimension.
    thread : ``"threadIdx.x"``, ``"threadIdx.y"`` or ``"threadIdx.z"``; outside `T.Kernel` one of a block's, too.

    Examples
    --------
    >>> for i in T.thread_binding(0, 64, "threadIdx.x"):
    ...     C[0, i] = A[0, i]
    """
    if isinstance(stop, str):
        stop, thread = None, stop
    builder = current("T.thread_binding")
    if thread in DIMENSIONS and (builder.kernel is None or isinstance(builder.kernel, LaunchContext)):
        first, count = (0, start) if stop is None else (constant(start, "the first index of T.thread_binding"), stop)
        return LaunchLoop(first, count - first, thread)
    bounds = [constant(one, "a bound of T.thread_binding") for one in ((0, start) if stop is None else (start, stop))]
    return ThreadLoop(bounds[0], bounds[1], AXES[one_of(thread, AXES, "thread of T.thread_binding")])


class Reducer:
    """What `comm_reducer` makes: a function of two values and the value that changes nothing."""

    description = "a reducer"

    def __init__(self, function: Callable[[Any, Any], object], identity: object) -> None:
        self.function, self.identity = function, identity


@word
def comm_reducer(function: object, identity: object) -> Reducer:
    """A reduction operator, for `tvm_thread_allreduce`.

    Parameters
    ----------
    function : of two values, such as ``lambda x, y: x + y``.
    identity : a list with the neutral element.

    Examples
    --------
    >>> total = T.alloc_local((1,), "float32")
    >>> with T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope", T.reinterpret(T.uint64(0), "handle")):
    ...     T.tvm_thread_allreduce(1, A[0, tx % 64], True, total[0], tx, dtype="handle")
    """  # noqa: E501
    values = identity if isinstance(identity, (list, tuple)) else [identity]
    if not callable(function) or len(values) != 1:
        raise NumberExpected(
            "T.comm_reducer", "a function of two values and a list with one identity", "something else"
        )
    return Reducer(function, values[0])


class Attribute(BlockContext):
    """The ``with`` frame of `attr`: what it says holds in its body."""

    def __init__(self, node: object, name: str) -> None:
        self.node, self.name = node, name

    def __enter__(self) -> None:
        context = in_kernel("T.attr").kernel
        self.before = context.reducer
        self.frame = in_kernel("T.attr").frame
        self.first = len(self.frame.statements)
        if self.name == "reduce_scope":
            context.reducer = self.node

    def __exit__(self, *exception: object) -> None:
        context = in_kernel("T.attr").kernel
        context.reducer = self.before
        if self.name == "async_scope" and exception[0] is None:
            inside = ir.seq(*self.frame.statements[self.first :])
            self.frame.statements[self.first :] = _Asynchronous()(inside).statements


class _Asynchronous(Rewriter):
    """Stores of a thread that copy from tensors to shared tiles become cp.async; of parallel loops the compiler sees to
    it."""

    def visit_Parallel(self, loop: ir.Parallel) -> ir.Parallel:
        return replace(loop, token=BY_HAND)

    def visit_For(self, loop: ir.For) -> Rewritten:
        if loop.kind != "vectorize" or not isinstance(loop.stop, ir.Const):
            return self.generic(loop)
        return [part for one in loop.body.statements for part in self._copies(one, loop.var, int(loop.stop.value))]

    def visit_Store(self, store: ir.Store) -> Rewritten:
        return self._copies(store, None, 1)

    def _copies(self, store: ir.Statement, var: ir.Var | None, count: int) -> list[ir.Statement]:
        if not isinstance(store, ir.Store) or store.buffer.scope != "shared":
            return [store]
        load = store.value
        pieces = None
        if isinstance(load, ir.Load) and load.buffer.scope == "global" and load.dtype == store.buffer.dtype:
            runs = _is_run(store.indices, var) and _is_run(load.indices, var)
            size = count * load.dtype.bits // 8
            piece = next((one for one in (16, 8, 4) if size % one == 0), 0) if runs else 0
            pieces = size // piece if piece else None
        if pieces is None:
            raise NumberExpected(
                "a store in T.attr(..., 'async_scope')",
                "vector loops that copy 4, 8 or 16 bytes from a tensor",
                "another",
            ).at(store.span)
        assert isinstance(load, ir.Load)
        width = count // pieces
        made: list[ir.Statement] = []
        for number in range(pieces):
            ends = [
                ir.Region(
                    place.buffer, _from(place.indices, var, number * width), (*(1,) * (len(place.indices) - 1), width)
                )
                for place in (store, load)
            ]
            made.append(ir.Evaluate(ir.Call(BOOL, "async_copy", tuple(ends)), span=store.span))
        return made


def _is_run(indices: tuple[ir.Expr, ...], var: ir.Var | None) -> bool:
    """Whether a loop over `var` goes from neighbour to neighbour along the last dimension."""
    if var is None:
        return True
    if any(node is var for index in indices[:-1] for node in walk(index)):
        return False
    return ir.is_literal(Analyzer().stride(indices[-1], var), 1)


def _from(indices: tuple[ir.Expr, ...], var: ir.Var | None, first: int) -> tuple[ir.Expr, ...]:
    return indices if var is None else (*indices[:-1], substitute(indices[-1], {var: ir.const(first)}))


@word
def attr(node: object, attr_key: object, value: object = None) -> Attribute:
    """``with T.attr(T.comm_reducer(...), "reduce_scope", ...):`` says how `tvm_thread_allreduce` combines.

    In ``with T.attr("default", "async_scope", 1):`` a thread's vector copies from tensors to shared tiles are cp.async,
    and so are parallel loops that do nothing else, where rows consist of pieces; `ptx_wait_group` or
    `cp_async_barrier_noinc` wait for them. Other attributes say nothing here.

    Parameters
    ----------
    node : accepted for TVM's sake.
    attr_key : ``"reduce_scope"`` or ``"async_scope"``; others say nothing.
    value : accepted for TVM's sake.

    Examples
    --------
    >>> with T.attr("default", "async_scope", 1):
    ...     for y, x in T.Parallel(64, 64):
    ...         shared[y, x] = A[y, x]
    >>> T.ptx_wait_group(0)
    """
    if attr_key == "reduce_scope" and not isinstance(node, Reducer):
        raise NumberExpected("the node of T.attr(..., 'reduce_scope')", "T.comm_reducer(...)", describe(node))
    return Attribute(node, str(attr_key))


@word
def tvm_thread_allreduce(
    size: object, value: object, cond: object, out: object, *threads: object, dtype: object = "handle"
) -> None:
    """The values of the threads that differ in the indices given alone, combined; each of them gets the result.

    Parameters
    ----------
    dtype : accepted for TVM's sake.
    size : 1, the number of values.
    value, cond : a thread's value, and whether it takes part.
    out : the element that gets the result, such as ``total[0]``.
    threads : thread indices, as `get_thread_binding` gives them.

    Examples
    --------
    >>> total = T.alloc_local((1,), "float32")
    >>> with T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope", T.reinterpret(T.uint64(0), "handle")):
    ...     T.tvm_thread_allreduce(1, A[0, tx % 64], True, total[0], tx, dtype="handle")
    >>> C[tx // 64, tx % 64] = total[0]
    """  # noqa: E501
    what = "T.tvm_thread_allreduce"
    builder = in_kernel(what)
    if constant(size, f"the size of {what}") != 1:
        raise NumberExpected(f"the size of {what}", "1", str(known_value(size)))
    reducer: Reducer = builder.kernel.reducer or Reducer(lambda x, y: x + y, 0)
    dims = [_dimension(one, what) for one in threads]
    if not dims:
        raise NumberExpected(what, "the thread indices to combine along", "none")
    place = access_ptr(out, "w").region
    kind = place.dtype
    mine = as_expr(value, kind, f"the value of {what}")
    if isinstance(known := known_value(cond), Scalar) or not known:
        mine = ir.Select(kind, condition(cond), mine, as_expr(reducer.identity, kind))
    result = _by_shuffles(reducer, mine, dims)
    if result is None:
        result = _through_shared(reducer, mine, dims)
    builder.append(ir.Store(place.buffer, place.starts, as_expr(result, kind), span=statement_here()))


def _dimension(index: object, what: str) -> int:
    context = in_kernel(what).kernel
    for dim, var in enumerate(context.thread_vars):
        if isinstance(index, Scalar) and index.expr is var:
            return dim
    raise NumberExpected(what, "thread indices, as T.get_thread_binding() gives them", describe(index))


def _named(value: ir.Expr, name: str) -> Scalar:
    what = "a reduction of threads"
    return Scalar(named(value, name, what), in_kernel(what).frame)


def _stride(dim: int) -> int:
    return math.prod(get_thread_extents()[:dim])


def _by_shuffles(reducer: Reducer, value: ir.Expr, dims: list[int]) -> Scalar | None:
    """Threads of one warp tell one another; None where those that belong together are not in one."""
    extents = [get_thread_extents()[dim] for dim in dims]
    strides = [_stride(dim) for dim in dims]
    reach = max(stride * extent for stride, extent in zip(strides, extents, strict=True))
    x, y, z = get_thread_extents()
    powers = all(number & (number - 1) == 0 for number in (*extents, *strides))
    if not powers or reach > ir.WARP or x * y * z % ir.WARP:
        return None
    total = _named(value, "part")
    for stride, extent in zip(strides, extents, strict=True):
        distance = stride * extent // 2
        while distance >= stride:
            other = Scalar(ir.Call(value.dtype, "shuffle_xor", (as_expr(total), ir.const(distance))), total.frame)
            total = _named(as_expr(reducer.function(total, _named(other.expr, "other")), value.dtype), "part")
            distance //= 2
    return total


def _through_shared(reducer: Reducer, value: ir.Expr, dims: list[int]) -> Scalar:
    """Each thread leaves its value, and combines those of all that belong to it."""
    builder = in_kernel("a reduction of threads")
    if builder.enclosing("T.role", "T.ws") is not None:
        raise MisplacedRole(
            "`T.tvm_thread_allreduce` stands in a role, and combines values of threads that are not the role's",
            "reduce a fragment with T.reduce, or do it before the warps part",
        )
    span = statement_here()
    x, y, z = get_thread_extents()
    scratch = ir.Buffer("parts", (x * y * z,), value.dtype, "shared")
    total = ir.Buffer("total", (), value.dtype, "scalar")
    thread = linear_thread()
    barrier = ir.Evaluate(ir.Call(BOOL, "sync_threads", ()), span=span)
    builder.append(ir.Allocate(scratch, span=span))
    builder.append(ir.Store(scratch, (thread,), value, span=span))
    builder.append(barrier)
    builder.append(ir.Allocate(total, as_expr(reducer.identity, value.dtype), span=span))
    first: ir.Expr = thread
    for dim in dims:
        own = as_expr(get_thread_binding(dim), INT32)
        first = first - own * _stride(dim)
    counters = [ir.Var(INT32, "other") for _ in dims]
    at = first
    for dim, counter in zip(dims, counters, strict=True):
        at = at + counter * _stride(dim)
    frame = builder.push("for", span)
    so_far = Scalar(ir.Load(value.dtype, total, ()), frame)
    combined = reducer.function(so_far, Scalar(ir.Load(value.dtype, scratch, (at,)), frame))
    builder.append(ir.Store(total, (), as_expr(combined, value.dtype), span=span))
    body = builder.pop(frame)
    for dim, counter in zip(dims, counters, strict=True):
        body = ir.seq(ir.For(counter, ir.const(0), ir.const(get_thread_extents()[dim]), ir.const(1), body, span=span))
    builder.append(body)
    builder.append(barrier)
    return Scalar(ir.Load(value.dtype, total, ()), builder.frame)
