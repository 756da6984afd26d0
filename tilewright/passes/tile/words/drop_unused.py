"""On a machine with threads: tiles that the author declares and nobody uses are left out, before anybody counts their
bytes.

Before::

    a = shared(float32[64, 64])
    spare = shared(float32[64, 64])
    copy(source=A, destination=a)

After::

    a = shared(float32[64, 64])
    copy(source=A, destination=a)
"""

from __future__ import annotations

from tilewright.ir import Allocate, Buffer, Function, Kernel, find, root, uses, without_tiles
from tilewright.passes import Context, map_kernels

_TILES = ("shared", "fragment")


def drop_unused(function: Function, context: Context) -> Function:
    """Leave out shared tiles and fragments that no statement uses."""
    return map_kernels(function, _without)


def _without(kernel: Kernel) -> Kernel:
    declared = {one.buffer for one in find(kernel.body, Allocate) if root(one.buffer).scope in _TILES}
    used = {root(one) for one in uses(kernel.body) if isinstance(one, Buffer)} if declared else set()
    unused = {one for one in declared if root(one) not in used}
    return without_tiles(kernel, unused) if unused else kernel
