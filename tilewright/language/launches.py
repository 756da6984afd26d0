"""`T.launch_thread`: a kernel whose grid and block are said one dimension at a time, as older programs write it.

>>> bx = T.launch_thread("blockIdx.x", blocks)
>>> tx = T.launch_thread("threadIdx.x", 128)

opens the same kernel as ``with T.Kernel(blocks, threads=128) as bx:``. It ends with the function, or with the outermost
``with`` where the words stand in such ones.
"""

from __future__ import annotations

from tilewright.ir.nodes import Extent
from tilewright.language.branches import BlockContext
from tilewright.language.builder import current
from tilewright.language.interface import word
from tilewright.language.kernel import KernelContext
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, constant, extent, one_of

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
