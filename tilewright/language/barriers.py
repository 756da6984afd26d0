"""Words of those who order the threads of a block themselves: mbarriers, copies that signal them, named barriers,
barriers of clusters and grids.

>>> full, empty = T.alloc_barrier([128] * stages), T.alloc_barrier([128] * stages)
>>> with T.ws(1):
...     for k in T.serial(steps):
...         T.mbarrier_wait_parity(empty[k % stages], k // stages % 2 ^ 1)
...         T.tma_copy(A[row, k * 64], A_shared[k % stages, :, :], barrier=full[k % stages])
...         T.mbarrier_arrive(full[k % stages])
>>> with T.ws(0):
...     for k in T.serial(steps):
...         T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
...         T.gemm(A_shared[k % stages, :, :], ...)
...         T.mbarrier_arrive(empty[k % stages])

A barrier counts phases 0, 1, 2, ...; one is complete when as many threads have arrived as it was made for and all bytes
announced in it have landed.  Every thread that executes an arrival counts once.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL, INT32, UINT32, UINT64
from tilewright.language.buffers import BufferProxy
from tilewright.language.mistakes import MisplacedRole, NumberExpected, TileExpected
from tilewright.language.proxies import (
    Element,
    as_expr,
    check_scope,
    constant,
    constant_that,
    constant_within,
    describe,
    named_by_author,
)
from tilewright.language.recording import called, check_tile_place, in_kernel, made_word, statement_here, word

MOST_ARRIVALS = (1 << 20) - 1
"""Arrivals that a barrier can count."""


def call(function: str, *arguments: ir.Expr | ir.Region | str) -> None:
    """Record a call for its effect."""
    builder = in_kernel(f"T.{function}")
    check_tile_place(builder, f"T.{function}")
    builder.append(ir.Evaluate(ir.Call(BOOL, function, arguments), span=statement_here()))


# mbarriers ----------------------------------------------------------------------------------------


def _barriers(counts: object, what: str, scope: str) -> BufferProxy:
    builder = in_kernel(what)
    given = counts if isinstance(counts, (list, tuple)) else [counts]
    arrivals = [constant(count, f"the arrivals of {what}") for count in given]
    if not arrivals or any(not 1 <= count <= MOST_ARRIVALS for count in arrivals):
        raise NumberExpected(f"the arrivals of {what}", f"1 to {MOST_ARRIVALS} for each barrier", str(arrivals))
    builder.kernel.divided = True
    row = ir.Buffer(builder.take_name("barrier"), (len(arrivals),), UINT64, "barrier")
    builder.append(ir.Allocate(row, span=statement_here()))
    call("begin_barriers", ir.whole(row), scope, *(ir.const(count, UINT32) for count in arrivals))
    return BufferProxy(row, builder.frame)


@word
def alloc_barrier(arrive_count: object) -> BufferProxy:
    """Barriers in shared memory that threads arrive at and wait for, and copies signal (sm_90 and above).

    Parameters
    ----------
    arrive_count : how many threads arrive in each phase: an int for one barrier, a list with one int a barrier.

    Returns
    -------
    the row of barriers; ``row[i]`` is one of them, the row itself its only one.

    Examples
    --------
    >>> ready = T.alloc_barrier(128)
    >>> T.barrier_arrive(ready)
    >>> T.barrier_wait(ready, 0)
    """
    return _barriers(arrive_count, "T.alloc_barrier", "block")


alloc_cluster_barrier = made_word(
    lambda arrive_count: _barriers(arrive_count, "T.alloc_cluster_barrier", "cluster"),
    "alloc_cluster_barrier",
    "`alloc_barrier` whose barriers threads of other blocks of the cluster may arrive at.",
    {"arrive_count": "as that of `alloc_barrier`."},
)


def barrier_of(value: object, what: str) -> ir.Region:
    """The one barrier that `value` names."""
    expected = "a barrier, such as `ready` of `ready = T.alloc_barrier(128)`, or `ready[i]` where there are several"
    if isinstance(value, BufferProxy) and value.buffer.scope == "barrier":
        if value.buffer.size != 1:
            raise TileExpected(f"the barrier of {what}", f"the row {value.name!r} of {value.buffer.size}", expected)
        return ir.Region(value.buffer, (ir.const(0),), (1,))
    if isinstance(value, Element) and value.buffer.scope == "barrier":
        check_scope(value.frame)
        return ir.Region(value.buffer, value.indices, (1,))
    raise TileExpected(f"the barrier of {what}", describe(value), expected)


@called("barrier_wait", "ptx_wait_barrier")
@word
def mbarrier_wait_parity(mbarrier: object, parity: object) -> None:
    """Wait until the barrier's phase of this parity is complete.

    Parameters
    ----------
    mbarrier : one of `alloc_barrier`.
    parity : 0 or 1, the lowest bit of the phase's number; on a new barrier a wait for parity 1 returns at once.

    Examples
    --------
    >>> ready = T.alloc_barrier(128)
    >>> T.barrier_arrive(ready)
    >>> T.barrier_wait(ready, 0)
    """
    bit = ir.cast(as_expr(parity, what="the parity of T.mbarrier_wait_parity"), UINT32)
    call(
        "signal_wait", barrier_of(mbarrier, "T.mbarrier_wait_parity"), ir.index_binary("and", bit, ir.const(1, UINT32))
    )


@called("barrier_arrive", "ptx_arrive_barrier")
@word
def mbarrier_arrive(mbarrier: object, cta_id: object = None) -> None:
    """Each executing thread arrives once.

    Parameters
    ----------
    mbarrier : one of `alloc_barrier`.
    cta_id : the block of the cluster whose barrier of this name is meant; the own one where None.

    Examples
    --------
    >>> ready = T.alloc_barrier(128)
    >>> T.barrier_arrive(ready)
    >>> T.barrier_wait(ready, 0)
    """
    barrier = barrier_of(mbarrier, "T.mbarrier_arrive")
    if cta_id is None:
        call("signal_arrive", barrier)
        return
    call("signal_arrive_cluster", barrier, as_expr(cta_id, INT32, "cta_id of T.mbarrier_arrive"))


def _expecting(name: str, function: str, meaning: str, *example: str) -> Callable[..., None]:
    def expect(mbarrier: object, tx: object) -> None:
        number = as_expr(tx, UINT32, f"the bytes of T.{name}")
        call(function, barrier_of(mbarrier, f"T.{name}"), number)

    parameters = {"mbarrier": "one of `alloc_barrier`.", "tx": "bytes."}
    return made_word(expect, name, meaning, parameters, "ready = T.alloc_barrier(128)", *example)


mbarrier_expect_tx = _expecting(
    "mbarrier_expect_tx",
    "signal_expect_tx",
    "Add bytes to the transaction count of the barrier's current phase; `tma_copy` does that for its own.",
    "if tx == 0:",
    "    T.mbarrier_expect_tx(ready, 0)",
    "T.mbarrier_arrive(ready)",
    "T.mbarrier_wait_parity(ready, 0)",
)
mbarrier_arrive_expect_tx = _expecting(
    "mbarrier_arrive_expect_tx",
    "signal_arrive_expect_tx",
    "`mbarrier_expect_tx`, then `mbarrier_arrive`.",
    "T.mbarrier_arrive_expect_tx(ready, 0)",
    "T.mbarrier_wait_parity(ready, 0)",
)


cp_async_barrier_noinc = made_word(
    lambda barrier: call("async_copy_signal_arrive_noinc", barrier_of(barrier, "T.cp_async_barrier_noinc")),
    "cp_async_barrier_noinc",
    "Each executing thread arrives once all its `cp.async` copies so far have landed.",
    {"barrier": "one of `alloc_barrier`."},
    "ready = T.alloc_barrier(128)",
    "T.ptx_cp_async(shared[tx // 2, tx % 2 * 4], A[tx // 2, tx % 2 * 4], 4)",
    "T.cp_async_barrier_noinc(ready)",
    "T.barrier_wait(ready, 0)",
)


# Threads of a block -------------------------------------------------------------------------------


@word
def sync_threads(barrier_id: object = None, arrive_count: object = None) -> None:
    """A barrier of the block's threads: their writes before it are visible to all of them after it.

    Parameters
    ----------
    barrier_id : a named barrier, 1 to 15; all threads of the block (or of the role) synchronise where None.
    arrive_count : threads that wait or `named_barrier_arrive` there, a multiple of 32; all those of the block where
        None.

    Examples
    --------
    >>> shared[tx // 2, tx % 2] = 1
    >>> T.sync_threads()
    >>> C[tx // 2, tx % 2] = shared[63 - tx // 2, tx % 2]
    """
    if barrier_id is None and arrive_count is None:
        call("sync_threads")
        return
    call("named_barrier_sync", *_named(barrier_id, arrive_count, "T.sync_threads"))


@word
def named_barrier_arrive(barrier_id: object, thread_count: object) -> None:
    """Arrive at a named barrier without waiting: others wait there with `sync_threads`.

    Parameters
    ----------
    barrier_id : 1 to 15.
    thread_count : threads that wait or arrive there, a multiple of 32.
    """
    call("named_barrier_arrive", *_named(barrier_id, thread_count, "T.named_barrier_arrive"))


def _named(barrier_id: object, arrive_count: object, what: str) -> tuple[ir.Expr, ir.Expr]:
    number = constant_within(0 if barrier_id is None else barrier_id, f"barrier_id of {what}", 1, ir.NAMED_BARRIERS - 1)
    threads = in_kernel(what).kernel.threads
    block = threads[0] * threads[1] * threads[2]
    count = constant_that(
        lambda count: count % ir.WARP == 0 and ir.WARP <= count <= block,
        block if arrive_count is None else arrive_count,
        f"arrive_count of {what}",
        f"a multiple of {ir.WARP} up to the block's {block}",
    )
    return ir.const(number), ir.const(count)


@word
def sync_warp(mask: object = None) -> None:
    """A barrier of the warp (`__syncwarp`); `mask`, if given, contains all lanes.

    Parameters
    ----------
    mask : all lanes, or None.

    Examples
    --------
    >>> shared[tx // 2, tx % 2] = 1
    >>> T.sync_warp()
    """
    if mask is not None and constant(mask, "the mask of T.sync_warp") != 0xFFFFFFFF:
        raise NumberExpected("the mask of T.sync_warp", "0xFFFFFFFF: all lanes synchronise", str(mask))
    call("sync_warp")


fence_proxy_async = made_word(
    lambda: call("fence_proxy_async"),
    "fence_proxy_async",
    "What this thread wrote before is seen by the copy engine "
    "and the matrix units after (and a barrier for other\nthreads).",
    {},
    "T.fence_proxy_async()",
)


# Clusters -----------------------------------------------------------------------------------------


block_rank_in_cluster = made_word(
    lambda: named_by_author(ir.Call(INT32, "cluster_rank", ()), "rank", "T.block_rank_in_cluster"),
    "block_rank_in_cluster",
    "Which block of its cluster this is, from 0.",
    {},
    'C[tx // 64, tx % 64] = T.cast(T.block_rank_in_cluster(), "float32")',
)


@called("sync_cluster")
@word
def cluster_sync(ordered: bool = True) -> None:
    """A barrier of the cluster: writes before it are visible to all of its threads after it.

    Parameters
    ----------
    ordered : False where no data is exchanged, as before the exit of a block whose shared memory others have read: no
        thread then waits for its stores to be visible.

    Examples
    --------
    >>> @T.prim_func
    ... def example(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    ...     with T.ClusterKernel(2, cluster_dims=2) as bx:
    ...         T.copy(A[bx * 32 : bx * 32 + 32, 0:64], C[bx * 32, 0])
    ...         T.cluster_sync()
    """
    if ordered:
        call("cluster_sync")
    else:
        call("cluster_arrive_relaxed")
        call("cluster_wait")


@word
def sync_grid() -> None:
    """A barrier of the whole grid: writes before it are visible to all threads after it.

    All blocks have to run at once, which a cooperative launch sees to: one that has more than fit on the device fails.

    Examples
    --------
    >>> T.sync_grid()
    """
    if in_kernel("T.sync_grid").enclosing("T.role", "T.ws") is not None:
        raise MisplacedRole("`T.sync_grid` stands in a role", "synchronise before the roles begin, or after they end")
    call("grid_sync")


_IN_A_CLUSTER = (
    "@T.prim_func",
    'def example(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):',
    "    with T.ClusterKernel(2, cluster_dims=2) as bx:",
    "        T.cluster_arrive()",
    "        T.copy(A[bx * 32 : bx * 32 + 32, 0:64], C[bx * 32, 0])",
    "        T.cluster_wait()",
)
cluster_arrive = made_word(
    lambda: call("cluster_arrive"),
    "cluster_arrive",
    "Arrive at the cluster barrier without waiting; `cluster_wait` must follow.",
    {},
    *_IN_A_CLUSTER,
)
called("cluster_arrive_relaxed")(cluster_arrive)
cluster_wait = made_word(
    lambda: call("cluster_wait"),
    "cluster_wait",
    "Wait until all threads of all blocks of the cluster have arrived at the cluster barrier.",
    {},
    *_IN_A_CLUSTER,
)
