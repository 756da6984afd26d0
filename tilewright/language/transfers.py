"""Copies that only begin where they stand: by the copy engine, by cp.async; and the words that wait for them."""

from __future__ import annotations

from tilewright import ops
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32, UINT32
from tilewright.language.barriers import barrier_of, call
from tilewright.language.buffers import region_of, row
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.pairs import pair
from tilewright.language.proxies import Scalar, as_expr, condition, constant, constant_that, constant_within
from tilewright.language.recording import in_kernel, made_word, record, statement_here, word
from tilewright.language.tile_ops import hints, record_tiles
from tilewright.language.warps import linear_thread
from tilewright.ops import BULK, BY_HAND, CP_ASYNC, TMA, TMA_LOADS, TMA_STORES


def scopes(source: ir.Region, destination: ir.Region) -> tuple[str, str]:
    """Of what memory a copy is, and to what memory."""
    return source.buffer.scope, destination.buffer.scope


def way(source: ir.Region, destination: ir.Region) -> str:
    """The same in words."""
    return "from {} to {} memory".format(*scopes(source, destination))


@word
def tma_copy(
    src: object,
    dst: object,
    *,
    barrier: object = None,
    cluster_mask: object = None,
    leader_scope_threads: object = None,
    eviction_policy: object = None,
    annotations: object = None,
) -> None:
    """Start an asynchronous copy of a tile by TMA (sm_90 and above).

    A load adds its bytes to the barrier's transaction count; threads still have to arrive, and readers
    wait with `mbarrier_wait_parity`. A store joins a group of its own: `tma_store_wait` waits for it; what threads
    wrote to the tile is fenced first. One of the executing threads starts it.

    Parameters
    ----------
    src, dst : as those of `copy`, one in global memory and one a shared tile, of one dtype.
    barrier : of loads: one of `alloc_barrier` or `alloc_cluster_barrier`.
    cluster_mask : of loads in a cluster: bits of the blocks that get this very tile. All of them execute the copy; the
        lowest loads for all, and each counts the bytes at its own barrier. Blocks that are not among them load for
        themselves.
    leader_scope_threads, annotations : accepted for TileLang's sake: the compiler picks the thread.
    eviction_policy : of loads: as that of `copy`.

    Raises
    ------
    NotAsynchronous : when compiling, where the engine cannot move such a tile; the reason is named.

    Examples
    --------
    >>> ready = T.alloc_barrier(1)
    >>> T.tma_copy(A, shared, barrier=ready)
    >>> if T.shuffle_elect(0):
    ...     T.barrier_arrive(ready)
    >>> T.barrier_wait(ready, 0)
    >>> T.copy(shared, C)
    """
    in_kernel("T.tma_copy")
    source, destination = pair(src, dst, "T.tma_copy")
    how = hints("T.tma_copy", TMA, eviction_policy)
    if scopes(source, destination) == ("global", "shared"):
        if barrier is None:
            raise TileExpected("the barrier of T.tma_copy", "None", "barrier=, one that T.alloc_barrier made")
        place = barrier_of(barrier, "T.tma_copy")
        mask = None if cluster_mask is None else constant(cluster_mask, "cluster_mask of T.tma_copy")
        operator = ops.Copy(source, destination, how, None, place, mask, token=TMA_LOADS, span=statement_here())
        record_tiles(operator, "T.tma_copy", source=source, destination=destination)
        return
    if scopes(source, destination) != ("shared", "global"):
        raise NumberExpected("T.tma_copy", "a copy between a tensor and a shared tile", way(source, destination))
    operator = ops.Copy(source, destination, how, token=TMA_STORES, span=statement_here())
    record_tiles(operator, "T.tma_copy", source=source, destination=destination)
    record(ir.Commit(TMA_STORES, span=statement_here()))


@word
def copy_cluster(
    src: object,
    dst: object,
    *,
    dst_block: object = None,
    cluster_mask: object = None,
    remote_barrier: object = None,
    eviction_policy: object = None,
    coalesced_width: object = None,
    annotations: object = None,
    loop_layout: object = None,
) -> None:
    """A copy that other blocks of the cluster see: of a shared tile to another block, or of a tensor to several.

    Parameters
    ----------
    eviction_policy : as that of `copy`.
    src, dst : shared tiles; or a tensor and a shared tile.
    dst_block : the block whose `dst` gets the tile.
    remote_barrier : that block's barrier, made by `alloc_cluster_barrier`: one thread arrives there with the bytes,
        which the receiver waits for. Of a tensor's tile as `barrier` of `tma_copy`.
    cluster_mask : as that of `tma_copy`.
    coalesced_width, annotations, loop_layout : accepted for TileLang's sake: no thread moves anything.
    """
    what = "T.copy_cluster"
    in_kernel(what)
    if dst_block is None:
        tma_copy(src, dst, barrier=remote_barrier, cluster_mask=cluster_mask, eviction_policy=eviction_policy)
        return
    source, destination = pair(src, dst, what)
    if scopes(source, destination) != ("shared", "shared"):
        raise NumberExpected(f"{what} to another block", "a copy between shared tiles", way(source, destination))
    if remote_barrier is None:
        raise TileExpected(f"remote_barrier of {what}", "None", "one that T.alloc_cluster_barrier made")
    rank = as_expr(dst_block, INT32, f"dst_block of {what}")
    how, barrier = ops.CopySchedule(prefer=BULK), barrier_of(remote_barrier, what)
    operator = ops.Copy(source, destination, how, rank, barrier, token=TMA_LOADS, span=statement_here())
    record_tiles(operator, what, source=source, destination=destination)


@word
def tma_store_arrive() -> None:
    """Close the group of the `tma_copy` stores so far; `tma_copy` does that for its own.

    Examples
    --------
    >>> T.copy(A, shared)
    >>> T.tma_copy(shared, C)
    >>> T.tma_store_arrive()
    >>> T.tma_store_wait(0)
    """
    in_kernel("T.tma_store_arrive")


@word
def tma_store_wait(count: object = 0, read: bool = True) -> None:
    """Wait until at most `count` of the stores by `tma_copy` are unfinished.

    Parameters
    ----------
    count : how many may still be pending.
    read : wait until their tiles have been read, and may be overwritten; False: until the tensors are written.

    Examples
    --------
    >>> T.copy(A, shared)
    >>> T.tma_copy(shared, C)
    >>> T.tma_store_wait(0)
    """
    in_kernel("T.tma_store_wait")
    record(ir.Wait(TMA_STORES, _pending(count, "T.tma_store_wait"), bool(read), span=statement_here()))


@word
def async_copy(
    src: object,
    dst: object,
    *,
    coalesced_width: object = None,
    annotations: object = None,
    loop_layout: object = None,
    eviction_policy: object = None,
) -> None:
    """Begin a copy from a tensor to a shared tile by cp.async, and close its group; `ptx_wait_group` waits for it.

    Parameters
    ----------
    coalesced_width : elements that a thread moves at once.
    src, dst : as those of `copy`, of one dtype.
    eviction_policy : as that of `copy`.
    annotations, loop_layout : accepted for TileLang's sake.

    Raises
    ------
    NotAsynchronous : when compiling, where cp.async cannot move such a tile; the reason is named.

    Examples
    --------
    >>> T.async_copy(A, shared)
    >>> T.ptx_wait_group(0)
    """
    in_kernel("T.async_copy")
    source, destination = pair(src, dst, "T.async_copy")
    if scopes(source, destination) != ("global", "shared"):
        raise NumberExpected("T.async_copy", "a copy from a tensor to a shared tile", way(source, destination))
    how = hints("T.async_copy", CP_ASYNC, eviction_policy, coalesced_width)
    operator = ops.Copy(source, destination, how, token=BY_HAND, span=statement_here())
    record_tiles(operator, "T.async_copy", source=source, destination=destination)
    record(ir.Commit(BY_HAND, span=statement_here()))


@word
def ptx_cp_async(dst_access_ptr: object, src_access_ptr: object, num_elems: object, predicate: object = None) -> None:
    """Each thread begins a copy of its own, of a few neighbours in a tensor to a shared tile; `ptx_commit_group` closes
    its group.

    Parameters
    ----------
    dst_access_ptr, src_access_ptr : the first elements, such as ``tile[tx * 8]``, or what `access_ptr` gives.
    num_elems : elements that make up 4, 8 or 16 bytes; both places are multiples of these.
    predicate : where false, zeros are written instead.

    Examples
    --------
    >>> T.ptx_cp_async(shared[tx // 2, tx % 2 * 4], A[tx // 2, tx % 2 * 4], 4)
    >>> T.ptx_commit_group()
    >>> T.ptx_wait_group(0)
    """
    what = "T.ptx_cp_async"
    count = constant(num_elems, f"num_elems of {what}")
    to = row(region_of(dst_access_ptr, f"the destination of {what}", "an element such as A[i, j]"), count)
    origin = row(region_of(src_access_ptr, f"the source of {what}", "an element such as A[i, j]"), count)
    size = count * to.dtype.bits // 8
    if size not in (4, 8, 16) or origin.dtype.bits != to.dtype.bits:
        found = f"{count} of {origin.dtype} to {to.dtype}"
        raise NumberExpected(f"num_elems of {what}", "elements that make up 4, 8 or 16 bytes", found)
    if scopes(origin, to) != ("global", "shared"):
        raise NumberExpected(what, "a copy from a tensor to a shared tile", way(origin, to))
    if predicate is None:
        call("async_copy", to, origin)
        return
    valid = ir.Select(UINT32, condition(predicate), ir.const(size, UINT32), ir.const(0, UINT32))
    call("async_copy_zfill", to, origin, valid)


ptx_commit_group = made_word(
    lambda: in_kernel("T.ptx_commit_group").append(ir.Commit(BY_HAND, span=statement_here())),
    "ptx_commit_group",
    "Close the executing threads' group of `ptx_cp_async` copies.",
    {},
    "T.ptx_cp_async(shared[tx // 2, tx % 2 * 4], A[tx // 2, tx % 2 * 4], 4)",
    "T.ptx_commit_group()",
    "T.ptx_wait_group(0)",
)


@word
def ptx_wait_group(num: object = 0) -> None:
    """Wait until at most `num` of the threads' groups of cp.async copies are unfinished.

    Parameters
    ----------
    num : how many may still be pending.

    Examples
    --------
    >>> T.async_copy(A, shared)
    >>> T.ptx_wait_group(0)
    """
    in_kernel("T.ptx_wait_group")
    record(ir.Wait(BY_HAND, _pending(num, "T.ptx_wait_group"), span=statement_here()))


def _pending(count: object, what: str) -> int:
    return constant_within(count, f"the argument of {what}", 0, 255)


@word
def shuffle_elect(thread_extent: object = ir.WARP) -> Scalar:
    """Whether this is the one thread that acts for each `thread_extent` neighbours, for the whole block where 0.

    Parameters
    ----------
    thread_extent : a multiple of 32 or 0.

    Examples
    --------
    >>> if T.shuffle_elect(0):
    ...     C[0, 0] = 1
    """
    what = "the argument of T.shuffle_elect"
    count = constant_that(lambda threads: threads % ir.WARP == 0, thread_extent, what, "a multiple of 32")
    index = linear_thread() % count if count else linear_thread()
    return Scalar(ir.binary("eq", index, ir.const(0)), in_kernel("T.shuffle_elect").frame)
