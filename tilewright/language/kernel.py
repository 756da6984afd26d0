"""`T.Kernel`: a grid of blocks, its indices, its hints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tilewright.ir import INT32, find, root, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.ir.nodes import Allocate, Buffer, Call, Extent, Load, Parallel, Region, Seq, Store, TileOperator
from tilewright.language.branches import BlockContext
from tilewright.language.divisions import divide
from tilewright.language.external import import_source
from tilewright.language.mistakes import NumberExpected, WrongUnpacking
from tilewright.language.mistakes_of_scopes import NestedKernel
from tilewright.language.proxies import Scalar, check_scope, constant, constant_within, extent, frame_of, one_of
from tilewright.language.recording import Builder, current, in_kernel, made_word, statement_here, word
from tilewright.language.roles import refuse_registers_of_others
from tilewright.language.several import Several
from tilewright.ops.fill import Fill

Made = TypeVar("Made")


class BlockIndex(Scalar):
    """The index of the one grid dimension; unpacks to itself, so that ``as (bx,)`` works too."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Scalar]:  # type: ignore[override]
        return iter((self,))


class KernelContext(BlockContext):
    """The ``with`` frame of a kernel."""

    def __init__(self, grid: tuple[ir.Extent, ...], threads: tuple[int, int, int], attributes: dict[str, Any]) -> None:
        self.grid, self.threads, self.attributes = grid, threads, attributes
        self.layouts: list[tuple[ir.Buffer, Any]] = []
        self.safe_values: list[tuple[ir.Buffer, ir.Expr]] = []
        self.span = statement_here()
        self.reducer: Any = None
        """How `T.tvm_thread_allreduce` combines, where `T.attr` says so."""
        self.stream: Any = None
        """What `T.rng_init` began."""
        self.divided = False
        """Whether the author speaks of warpgroups or barriers, so that conditions may divide warps into roles."""

    def __enter__(self) -> Any:
        builder = current("T.Kernel")
        _refuse_nesting(builder)
        if len(self.names) > 1 and len(self.names) != len(self.grid):
            raise WrongUnpacking("T.Kernel", len(self.grid), len(self.names)).at(self.span)
        names = self.names if len(self.names) == len(self.grid) else ("bx", "by", "bz")[: len(self.grid)]
        self.block_vars = tuple(
            ir.Var(extent.dtype if isinstance(extent, ir.Expr) else INT32, name)
            for name, extent in zip(names, self.grid, strict=True)
        )
        self.thread_vars = (ir.Var(INT32, "tx"), ir.Var(INT32, "ty"), ir.Var(INT32, "tz"))
        builder.ranges |= dict.fromkeys(self.block_vars, (0, None))  # what an index means hangs on no grid's size
        builder.bound(self.thread_vars, self.threads)
        self.frame = builder.push("T.Kernel", self.span)
        builder.kernel = self
        builder.kernels += 1
        if len(self.grid) == 1:
            return BlockIndex(self.block_vars[0], self.frame)
        names_of_blocks = f"with T.Kernel(...) as ({', '.join(('bx', 'by', 'bz')[: len(self.grid)])})"
        return Several.of("T.Kernel", names_of_blocks, (Scalar(var, self.frame) for var in self.block_vars))

    def __exit__(self, *exception: object) -> None:
        builder: Builder = current("T.Kernel")
        builder.kernel = None
        body = builder.pop(self.frame)
        if exception[0] is not None:
            return
        body = own_fragments(body, {buffer for buffer, _ in self.layouts})
        refuse_registers_of_others(body)
        if self.divided:
            body, copies = divide(body, self.thread_vars, self.threads)
            self.layouts += [(made, layout) for buffer, layout in self.layouts for made in copies.get(buffer, ())]
        threads = self.thread_vars, self.threads
        layouts, safe, said = tuple(self.layouts), tuple(self.safe_values), tuple(sorted(self.attributes.items()))
        builder.append(ir.Kernel(self.block_vars, self.grid, *threads, body, layouts, safe, said, span=self.span))


@word
def Kernel(
    *blocks: object,
    threads: object = None,
    is_cpu: bool = False,
    cluster_dims: object = None,
    persistent: bool | str | None = None,
    ping_pong: bool | None = None,
    specialize: bool | None = None,
    beside: bool = False,
    prelude: str | None = None,
) -> KernelContext:
    """A grid of blocks; ``with T.Kernel(...) as (bx, by):`` holds what one block does.

    Parameters
    ----------
    blocks : up to 3 extents of the grid, x first; ints or symbolic sizes; none for a single block.
    threads : threads of a block: an int or a tuple of 1 to 3; default 128.
    is_cpu : accepted for TileLang's sake; the target decides.
    cluster_dims : blocks of a cluster along each grid dimension; if the compiler specialises the kernel, their common
        loads are multicast. None: the compiler chooses.
    persistent : whether the kernel is persistent: a block computes many tiles of the grid. None: the compiler chooses.
        ``"claim"`` is dynamic scheduling: a block takes the next tile when it is ready, which suits tiles of unequal
        cost.
    ping_pong : whether two consumer groups of `threads` threads take tiles alternately (ping-pong schedule), so that
        the epilogue of one overlaps with the products of the other; the kernel is then persistent.
    specialize : whether pipelined loops are warp-specialised (producer and consumer warps) unless they say so
        themselves. None: the compiler chooses.
    beside : whether the kernel may overlap with the previous one: neither reads or writes what the other writes, and
        this one has no blocks if that one has none. Its blocks start as soon as all blocks of the previous kernel have
        started and there is room.
    prelude : source code in the device's language, as for `T.import_source`.

    Yields
    ------
    the block's index, or a tuple of them, one a grid dimension.

    Examples
    --------
    >>> @T.prim_func
    ... def example(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    ...     with T.Kernel(2, 4, threads=64) as (bx, by):
    ...         T.copy(A[by * 16 : by * 16 + 16, bx * 32 : bx * 32 + 32], C[by * 16, bx * 32])
    """
    builder = current("T.Kernel")
    if len(blocks) > 3:
        raise NumberExpected("the grid of T.Kernel", "at most 3 extents", str(len(blocks)))
    _refuse_nesting(builder)
    for block in blocks:
        check_scope(frame_of(block))
    if prelude is not None:
        import_source(prelude)
    attributes: dict[str, Any] = {}
    if cluster_dims is not None:
        attributes["cluster"] = _three(cluster_dims, "cluster_dims of T.Kernel")
    if persistent is not None:
        attributes["persistent"] = persistent if persistent == "claim" else bool(persistent)
    if ping_pong is not None:
        attributes["ping_pong"] = bool(ping_pong)
    if specialize is not None:
        attributes["specialize"] = bool(specialize)
    if beside:
        attributes["beside"] = True
    grid = tuple(extent(block, "an extent of the grid of T.Kernel") for block in blocks or (1,))
    return KernelContext(grid, _three(128 if threads is None else threads, "threads of T.Kernel"), attributes)


@word
def ClusterKernel(
    *blocks: object, cluster_dims: object, threads: object = None, prelude: str | None = None
) -> KernelContext:
    """`Kernel` whose blocks form clusters of `cluster_dims`.

    Parameters
    ----------
    blocks, threads, prelude : as those of `Kernel`.
    cluster_dims : blocks of a cluster along each dimension of the grid.

    Examples
    --------
    >>> @T.prim_func
    ... def example(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    ...     with T.ClusterKernel(2, cluster_dims=2) as bx:
    ...         T.copy(A[bx * 32 : bx * 32 + 32, 0:64], C[bx * 32, 0])
    """
    context: KernelContext = Kernel(*blocks, threads=threads, cluster_dims=cluster_dims, prelude=prelude)
    return context


def _refuse_nesting(builder: Builder) -> None:
    if builder.kernel is not None:
        raise NestedKernel(f" of line {builder.kernel.span.line}" if builder.kernel.span else "")


def _three(counts: object, what: str) -> tuple[int, int, int]:
    sizes = [constant(c, what) for c in (counts if isinstance(counts, (tuple, list)) else (counts,))]
    if not 1 <= len(sizes) <= 3 or any(size < 1 for size in sizes):
        raise NumberExpected(what, "1 to 3 positive integers", str(tuple(sizes)))
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _context(what: str) -> KernelContext:
    context: KernelContext = in_kernel(what).kernel
    return context


def _along(
    name: str, meaning: str, of_all: str, where: str, example: str, of: Callable[[KernelContext], tuple[Made, ...]]
) -> tuple[Callable[..., Made], Callable[[], tuple[Made, ...]]]:
    """Two words: for one dimension, and for all of them."""
    one, every = f"get_{name}", f"get_{name}s"

    def along(dim: int = 0) -> Made:
        found = of(_context(f"T.{one}"))
        return found[constant_within(dim, f"the dimension of T.{one}", 0, len(found) - 1)]

    parameters = {"dim": f"0, 1 or 2, a dimension of the {where}."}
    return (
        made_word(along, one, meaning, parameters, example.format(f"T.{one}(0)")),
        made_word(lambda: of(_context(f"T.{every}")), every, of_all, {}, example.format(f"T.{every}()[0]")),
    )


get_thread_binding, get_thread_bindings = _along(
    "thread_binding",
    "The thread's index in its block along a dimension, from 0.",
    "The thread's three indices.",
    "block",
    "C[0, {} % 64] = 1",
    lambda context: tuple(Scalar(var, context.frame) for var in context.thread_vars),
)
get_thread_extent, get_thread_extents = _along(
    "thread_extent",
    "Threads of a block along a dimension.",
    "Threads of a block along x, y, z.",
    "block",
    "C[0, 0] = {}",
    lambda context: context.threads,
)
get_block_binding, get_block_bindings = _along(
    "block_binding",
    "The block's index in the grid along a dimension.",
    "The block's index along every grid dimension.",
    "grid",
    "C[0, {}] = 1",
    lambda context: tuple(Scalar(var, context.frame) for var in context.block_vars),
)
get_block_extent, get_block_extents = _along(
    "block_extent",
    "Blocks of the grid along a dimension.",
    "Blocks of the grid along every dimension.",
    "grid",
    "C[0, 0] = {}",
    lambda context: tuple(size if isinstance(size, int) else Scalar(size) for size in context.grid),
)


@word
def get_cluster_dims() -> list[int]:
    """How many blocks a cluster has along each dimension of the grid; 1 where there are none.

    Examples
    --------
    >>> C[0, 0] = T.get_cluster_dims()[0]
    """
    return list(_context("T.get_cluster_dims").attributes.get("cluster", (1, 1, 1)))


# Fragments that are arrays of threads -------------------------------------------------------------


def own_fragments(body: Seq, kept: set[Buffer]) -> Seq:
    """The body of a kernel with such fragments as arrays of threads.

    Parameters
    ----------
    kept : fragments of which the author says how they lie in the block's threads.
    """
    shared = kept | {root(buffer) for buffer in _of_the_block(body)}
    alone = {
        node.buffer
        for node in find(body, Load, Store)
        if node.buffer.scope == "fragment" and root(node.buffer) not in shared
    }
    made = {node.buffer: replace(node.buffer, scope="local") for node in find(body, Allocate) if node.buffer in alone}
    return substitute(body, buffers=made) if made else body


def _of_the_block(body: Seq) -> Iterator[Buffer]:
    """What statements of the whole block touch, and what is seen in another shape."""
    for node in walk(body):
        if isinstance(node, Parallel):
            yield from (one.buffer for one in find(node, Load, Store, Region))
        elif isinstance(node, TileOperator) and not isinstance(node, Fill):
            effects = node.effects()
            yield from (region.buffer for region in (*effects.reads, *effects.writes))
        elif isinstance(node, Call):
            yield from (one.buffer for one in find(node, Region))
        elif isinstance(node, (Load, Store)) and node.buffer.source is not None:
            yield node.buffer


# Launches by threads' bindings --------------------------------------------------------------------


DIMENSIONS = {f"{kind}Idx.{axis}": (kind, dim) for kind in ("block", "thread") for dim, axis in enumerate("xyz")}


class LaunchContext(KernelContext):
    """A kernel whose extents become known while it is open."""

    def __init__(self) -> None:
        super().__init__((1, 1, 1), (1, 1, 1), {})
        self.said: set[str] = set()
        self.withs = 0

    def set_extent(self, name: str, size: Extent) -> None:
        """Take the extent of one dimension; saying it twice is allowed where both agree."""
        kind, dim = DIMENSIONS[name]
        sizes = list(self.grid if kind == "block" else self.threads)
        if name in self.said and sizes[dim] != size:
            raise NumberExpected(f"the extent of {name}", f"{sizes[dim]}, as before", str(size))
        self.said.add(name)
        sizes[dim] = size
        if kind == "block":
            self.grid = tuple(sizes)
        else:
            self.threads = (constant(sizes[0], name), constant(sizes[1], name), constant(sizes[2], name))

    def __exit__(self, *exception: object) -> None:
        dims = max((DIMENSIONS[name][1] + 1 for name in self.said if name.startswith("block")), default=1)
        self.grid, self.block_vars = self.grid[:dims], self.block_vars[:dims]
        super().__exit__(*exception)


class LaunchedIndex(Scalar, BlockContext):
    """The index along a dimension of the launch; in a ``with`` it also says where the kernel ends."""

    def __init__(self, context: KernelContext, name: str) -> None:
        kind, dim = DIMENSIONS[name]
        variables = context.block_vars if kind == "block" else context.thread_vars
        super().__init__(variables[dim], context.frame)
        self.context = context

    def __enter__(self) -> Scalar:
        if isinstance(self.context, LaunchContext):
            self.context.withs += 1
        return Scalar(self._expr, self.frame)

    def __exit__(self, *exception: object) -> None:
        if isinstance(self.context, LaunchContext):
            self.context.withs -= 1
            if self.context.withs == 0:
                self.context.__exit__(*exception)


@word
def launch_thread(thread: object, extent_: object) -> LaunchedIndex:
    """One dimension of a launch, and the index along it.

    Parameters
    ----------
    thread : ``"blockIdx.x"`` to ``"blockIdx.z"``, ``"threadIdx.x"`` to ``"threadIdx.z"``.
    extent_ : how many; of threads an int.

    Examples
    --------
    >>> @T.prim_func
    ... def example(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    ...     bx = T.launch_thread("blockIdx.x", 64)
    ...     tx = T.launch_thread("threadIdx.x", 64)
    ...     C[bx, tx] = A[bx, tx]
    """
    builder = current("T.launch_thread")
    name = one_of(thread, DIMENSIONS, "the dimension of T.launch_thread")
    size = extent(extent_, f"the extent of {name}")
    context: KernelContext | None = builder.kernel
    if context is None:
        context = LaunchContext()
        context.__enter__()
    if isinstance(context, LaunchContext):
        context.set_extent(name, size)
    else:
        _check_agrees(context, name, size)
    return LaunchedIndex(context, name)


def _check_agrees(context: KernelContext, thread: str, size: Extent) -> None:
    """Within `T.Kernel` the words only name what is there."""
    kind, dim = DIMENSIONS[thread]
    sizes = context.grid if kind == "block" else context.threads
    there = sizes[dim] if dim < len(sizes) else 1
    if there != size:
        raise NumberExpected(f"the extent of {thread}", f"{there}, as T.Kernel says", str(size))


def close_launch() -> None:
    """End the kernel that `launch_thread` opened outside any ``with``, where there is one."""
    context = current("T.launch_thread").kernel
    if isinstance(context, LaunchContext):
        context.__exit__(None, None, None)
