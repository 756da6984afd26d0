"""Lets tiles that come behind a loop take the bytes of its ring, where both together are more than a block has.

Before (the producer fills the ring no more when the consumer's loop is done)::

    with role("consumer", ...):
        for k in range(steps):
            receive("loads", k)
            ...
        wait("wgmma", pending=0)
        release("loads", steps - 1)
        for i, j in parallel(128, 256):
            sums[i, j] = total[i, j]

After, in a kernel with the attribute ``overlaid=(("sums",), ("a_ring", "b_ring"))``, which `plan_shared_memory`
follows::

        release("loads", steps - 1)
        sync_threads()                      # of the role: nobody reads the ring any more
        for i, j in parallel(128, 256):
            sums[i, j] = total[i, j]

A role that goes on to another tile of the grid has no such place, so `persist_grid` leaves these kernels alone.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Buffer, Function, Kernel, Role, Statement, changed, perform
from tilewright.machine import Arch
from tilewright.passes import Context, map_kernels
from tilewright.passes.thread.plan_shared_memory import OVERLAID
from tilewright.passes.tile.copies.filled_tiles import slot_buffers
from tilewright.passes.tile.copies.stage_epilogue import shared_bytes, shared_room
from tilewright.passes.tile.pipelines.tiles_after_rings import tiles_after_rings
from tilewright.passes.tile.roles.divide_roles import SPECIALIZED


def overlay_rings(function: Function, context: Context) -> Function:
    """Find the tiles that may take a ring's bytes, in kernels whose tiles are too many to lie beside one another."""
    return map_kernels(function, lambda kernel: _overlay(kernel, context.arch))


def _overlay(kernel: Kernel, arch: Arch) -> Kernel:
    if shared_bytes(kernel, arch) <= shared_room(kernel, arch):
        return kernel
    found = tiles_after_rings(kernel) if kernel.attribute(SPECIALIZED) else {}
    if not found:
        return kernel
    names = tuple(tuple(sorted(one.name for one in tiles)) for tiles in (found, slot_buffers(kernel)))
    body = changed(kernel.body, Role, by=lambda role: _with_barrier(role, found))
    return replace(kernel, body=body, attributes=(*kernel.attributes, (OVERLAID, names)))


def _with_barrier(role: Role, tiles: dict[Buffer, Statement]) -> Role:
    """Lets a role's threads meet before the first of them writes where a ring was."""
    wanted = [one for one in role.body.statements if any(one is first for first in tiles.values())]
    if not wanted:
        return role
    statements = list(role.body.statements)
    place = min(statements.index(one) for one in wanted)
    statements.insert(place, perform("sync_threads", span=wanted[0].span))
    return replace(role, body=replace(role.body, statements=tuple(statements)))
