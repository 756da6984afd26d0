"""Fragments that threads only touch one element after the other, each for itself: arrays of each thread by another
name.

Before::

    counts = fragment(float32[4])
    fill(destination=counts, value=0.0)
    for i in range(4):
        counts[i] = counts[i] + A[i]

After, the same with ``counts = local(float32[4])``.  What parallel loops, copies, products or reductions touch stays a
tile of the whole block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir.effects import root
from tilewright.ir.nodes import Allocate, Buffer, Call, Load, Parallel, Region, Seq, Store, TileOperator
from tilewright.ir.substitution import substitute
from tilewright.ir.visitor import find, walk
from tilewright.ops.fill import Fill


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
