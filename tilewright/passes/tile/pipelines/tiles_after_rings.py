"""Which shared tiles of a kernel with roles are used only when its rings no longer are."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Buffer, ChannelStatement, Kernel, Role, Statement, Wait, find, holds, root, uses, walk
from tilewright.ops import Copy, Transpose
from tilewright.passes.tile.copies.filled_tiles import slot_buffers


def tiles_after_rings(kernel: Kernel) -> dict[Buffer, Statement]:
    """Shared tiles that one role alone uses, behind everything that it does with rings, and the statements that use
    them first."""
    roles = list(find(kernel.body, Role))
    rings = slot_buffers(kernel)
    first: dict[Buffer, Statement] = {}
    elsewhere = {tile for one in kernel.body.statements if not holds(one, Role) for tile in _tiles(one)}
    users: dict[Buffer, str] = {}
    for role in roles:
        behind = after_rings(role, rings)
        for statement in role.body.statements:
            for tile in _tiles(statement) - rings:
                first.setdefault(tile, statement)
                if statement not in behind or users.setdefault(tile, role.name) != role.name:
                    elsewhere.add(tile)
    return {tile: statement for tile, statement in first.items() if tile not in elsewhere}


def after_rings(role: Role, rings: frozenset[Buffer]) -> Sequence[Statement]:
    """The statements of a role behind everything that it does with rings, and that it waits for."""
    statements = role.body.statements
    last = max((at for at, one in enumerate(statements) if _uses_rings(one, rings)), default=-1)
    return statements[last + 1 :]


def _uses_rings(statement: Statement, rings: frozenset[Buffer]) -> bool:
    """Whether a statement has to do with a ring, or waits for what may."""
    return any(
        isinstance(node, (ChannelStatement, Wait)) or (isinstance(node, Buffer) and root(node) in rings)
        for node in walk(statement)
    )


def _tiles(statement: Statement) -> set[Buffer]:
    """Shared tiles that a statement uses, or through which what it stores leaves; to declare one is no use."""
    staged = (copy.schedule.staging for copy in find(statement, Copy, Transpose))
    named = {root(node) for node in uses(statement) if isinstance(node, Buffer) and node.scope == "shared"}
    return named.union(one.boxes for one in staged if one is not None)
