"""Arrays that all threads fill alike from tensors, element for element, are read where they came from.

Before::

    mask = local(bool[8])
    for k in range(8):
        mask[k] = Mask[by, bx, k]
    for k in pipelined(bx + 1, stages=1):
        if mask[k]:
            ...

After::

    for k in pipelined(bx + 1, stages=1):
        if Mask[by, bx, k]:
            ...

Registers have no addresses: an array of a thread that a loop's variable indexes lies in slow memory, and what its
elements decide is known to no other warp. An element of a tensor that nobody writes is at hand for all of them.
"""

from __future__ import annotations

from tilewright.interpreter.varying import find_varying
from tilewright.ir import Buffer, Const, Function, Kernel, Load, Store, declared, find, without_tiles
from tilewright.passes import Context, map_kernels
from tilewright.passes.forwarding import ForwardingTiles


def forward_locals(function: Function, context: Context) -> Function:
    """Replace what is read of arrays that hold elements of tensors by those elements."""
    return map_kernels(function, _forwarded)


def _forwarded(kernel: Kernel) -> Kernel:
    indexed = {node.buffer for node in find(kernel.body, Load) if not all(isinstance(i, Const) for i in node.indices)}
    arrays = indexed.intersection(declared(kernel.body, "local"))
    if not arrays:
        return kernel
    stored = [store.buffer for store in find(kernel.body, Store)]
    arrays = {one for one in arrays if stored.count(one) == 1} - find_varying(kernel).names
    body = _Arrays(kernel, arrays)(kernel.body)
    return without_tiles(kernel.with_body(body), arrays - {node.buffer for node in find(body, Load, Store)})


class _Arrays(ForwardingTiles):
    def __init__(self, kernel: Kernel, arrays: set[Buffer]) -> None:
        super().__init__(kernel)
        self.arrays = arrays

    def wants(self, tile: Buffer) -> bool:
        return tile in self.arrays
