"""Which tiles of a kernel channels, authors, the copy engine and gemms fill or read: what decides how a copy may be
made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.arith import Analyzer
from tilewright.ir import Buffer, Channel, Kernel, Role, find
from tilewright.layout import Layout
from tilewright.machine import Arch
from tilewright.ops import BULK, Copy, Product


@dataclass(frozen=True)
class Site:
    """Where copies stand: in a kernel, on a machine, with what the analyzer knows there.

    Attributes
    ----------
    threads : the numbers of those that make copies, of the role where they stand in one.
    """

    kernel: Kernel
    arch: Arch
    analyzer: Analyzer
    threads: range

    @cached_property
    def slots(self) -> frozenset[Buffer]:
        """The buffers of all channels."""
        return slot_buffers(self.kernel)

    @cached_property
    def private_slots(self) -> frozenset[Buffer]:
        """Those that are single warps'."""
        return frozenset(buffer for node in find(self.kernel, Channel) if node.is_private for buffer in node.buffers)

    @cached_property
    def into_slots(self) -> frozenset[Copy]:
        return frozenset(channel_copies(self.kernel))

    @cached_property
    def operands(self) -> frozenset[Buffer]:
        """Tiles that gemms multiply."""
        return frozenset(region.buffer for gemm in find(self.kernel, Product) for region in (gemm.a, gemm.b))

    @cached_property
    def transposed(self) -> frozenset[Buffer]:
        """Right operands in registers whose rows are columns of the product."""
        tiles = (gemm.b.buffer for gemm in find(self.kernel, Product) if gemm.transpose_b)
        return frozenset(tile for tile in tiles if tile.scope == "fragment" and tile.rank == 2)

    def layout(self, tile: Buffer) -> Layout | None:
        """What the author says of how a tile lies."""
        found = dict(self.kernel.layouts).get(tile)
        return found if isinstance(found, Layout) else None


def slot_buffers(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers of all channels of a kernel."""
    return frozenset(buffer for node in find(kernel, Channel) for buffer in node.buffers)


def copies_by_hand(kernel: Kernel) -> list[Copy]:
    """Copies that the author gives to the engine."""
    return [node for node in find(kernel.body, Copy) if node.by_hand]


def tiles_by_hand(kernel: Kernel) -> frozenset[Buffer]:
    """Shared tiles that the author has the copy engine fill or empty."""
    moved = {region.buffer for copy in copies_by_hand(kernel) for region in (copy.source, copy.destination)}
    return frozenset(buffer for buffer in moved if buffer.scope == "shared")


def by_bytes(kernel: Kernel) -> frozenset[Buffer]:
    """Tiles that the copy engine fills or empties with bytes in one piece: they are row-major."""
    copies = [one for one in (*channel_copies(kernel), *copies_by_hand(kernel)) if one.schedule.prefer == BULK]
    found = {region.buffer for copy in copies for region in (copy.source, copy.destination)}
    return frozenset(buffer for buffer in found if buffer.scope == "shared")


def channel_copies(kernel: Kernel) -> list[Copy]:
    """Copies that a role makes into the buffers of a channel."""
    slots = slot_buffers(kernel)
    roles = list(find(kernel, Role)) if slots else []
    copies = [node for role in roles for node in find(role, Copy)]
    return [copy for copy in copies if copy.destination.buffer in slots]
