"""Which shared tiles of a kernel with roles are used only when its rings no longer are."""

from __future__ import annotations

from tilewright.ir.nodes import Allocate, Buffer, Channel, ChannelStatement, Kernel, Role, Statement, Wait
from tilewright.ir.signature import root
from tilewright.ir.visitor import walk


def tiles_behind(kernel: Kernel) -> dict[Buffer, Statement]:
    """Shared tiles that one role alone uses, behind everything that it does with rings, and the statements that use them first."""
    roles = [node for node in walk(kernel.body) if isinstance(node, Role)]
    rings = frozenset(buffer for node in walk(kernel.body) if isinstance(node, Channel) for buffer in node.buffers)
    first: dict[Buffer, Statement] = {}
    users: dict[Buffer, set[str]] = {}
    early: set[Buffer] = set()
    for role in roles:
        statements = role.body.statements
        end = max((at for at, one in enumerate(statements) if _heeds_rings(one, rings)), default=-1)
        for at, statement in enumerate(statements):
            for tile in _tiles(statement) - rings:
                users.setdefault(tile, set()).add(role.name)
                first.setdefault(tile, statement)
                if at <= end:
                    early.add(tile)
    beside = {
        tile
        for one in kernel.body.statements
        if not any(one is node for node in _roles(kernel))
        for tile in _tiles(one)
    }
    return {
        tile: statement for tile, statement in first.items()
        if tile not in early and tile not in beside and len(users[tile]) == 1
    }  # fmt: skip


def _roles(kernel: Kernel) -> list[Statement]:
    return [one for one in kernel.body.statements if any(isinstance(node, Role) for node in walk(one))]


def _heeds_rings(statement: Statement, rings: frozenset[Buffer]) -> bool:
    """Whether a statement has to do with a ring, or waits for what may."""
    return any(
        isinstance(node, (ChannelStatement, Wait)) or (isinstance(node, Buffer) and root(node) in rings)
        for node in walk(statement)
    )


def _tiles(statement: Statement) -> set[Buffer]:
    """Shared tiles that a statement uses; to declare one is no use."""
    return {
        root(node) for node in walk(statement, lambda one: not isinstance(one, Allocate))
        if isinstance(node, Buffer) and node.scope == "shared"
    }  # fmt: skip
