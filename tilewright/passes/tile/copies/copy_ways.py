"""Ways to make a copy, as `Copy.prefer` names them, and which tiles of a kernel are filled in which."""

from __future__ import annotations

from tilewright.ir.nodes import Buffer, Channel, Kernel, Role
from tilewright.ir.visitor import find
from tilewright.ops.copy import Copy
from tilewright.passes.tile.copies.select_async_copies import CP_ASYNC

TMA, BULK = "tma", "bulk"
"""What `Copy.prefer` says of a copy that the engine makes: boxes of a tensor, or bytes in one piece."""

ENGINE = (TMA, BULK)

QUADS = "quads"
"""What it says of a copy from global memory into the right operand of a matrix instruction that moves 16 bytes at once: four
lanes exchange words afterwards."""

QUAD_COLUMNS = 32
"""What the lanes of a quad read of a row at a time."""

SLOTS = f"{CP_ASYNC}_slots"
"""Token of copies whose arrivals a channel counts."""


def slot_buffers(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers of all channels of a kernel."""
    return frozenset(buffer for node in find(kernel, Channel) for buffer in node.buffers)


def private_channels(kernel: Kernel) -> list[Channel]:
    """Channels whose slots are those of single warps."""
    return [node for node in find(kernel, Channel) if node.is_private]


def is_by_hand(copy: Copy) -> bool:
    """Whether the author gives a copy to the engine (`T.tma_copy`): a load with a barrier, or a store with a token."""
    return copy.barrier is not None or (copy.prefer in ENGINE and copy.token is not None)


def tiles_by_hand(kernel: Kernel) -> frozenset[Buffer]:
    """Shared tiles that the author has the copy engine fill or empty."""
    copies = [node for node in find(kernel.body, Copy) if is_by_hand(node)]
    return frozenset(
        region.buffer for copy in copies for region in (copy.source, copy.destination) if region.buffer.scope == "shared"
    )  # fmt: skip


def by_bytes(kernel: Kernel) -> frozenset[Buffer]:
    """Tiles that the copy engine fills or empties with bytes in one piece: they are row-major."""
    copies = [
        *channel_copies(kernel),
        *(node for node in find(kernel.body, Copy) if is_by_hand(node)),
    ]
    found = {region.buffer for copy in copies if copy.prefer == BULK for region in (copy.source, copy.destination)}
    return frozenset(buffer for buffer in found if buffer.scope == "shared")


def channel_copies(kernel: Kernel) -> list[Copy]:
    """Copies that a role makes into the buffers of a channel."""
    slots = slot_buffers(kernel)
    roles = list(find(kernel, Role)) if slots else []
    copies = [node for role in roles for node in find(role, Copy)]
    return [copy for copy in copies if copy.destination.buffer in slots]
