"""Which named barriers the roles of a kernel use: a block has sixteen, of which the author may use some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import BarrierMisuse
from tilewright.ir import NAMED_BARRIERS, WARP, WARPGROUP, Call, Const, Kernel, Role, Roles, find

NAMED = ("named_barrier_sync", "named_barrier_arrive")


@dataclass(frozen=True, slots=True)
class NamedBarriers:
    """Numbers of named barriers.

    Attributes
    ----------
    meetings : by the name of a role, where its threads meet; where it has several instances of several warps, the first
        of as many barriers.
    operators : the first of those that warpgroups meet at within an operator: one a warpgroup of the block.
    turns : the first of those by which who takes turns lets the next one go on.
    """

    of_roles: Mapping[str, int]
    operators: int = 1
    ordered: int = 1


def named_by_author(kernel: Kernel) -> frozenset[int]:
    """Numbers of the named barriers in a tile program: no pass has used any yet."""
    numbers = [node.arguments[0] for node in find(kernel.body, Call) if node.function in NAMED]
    return frozenset(int(number.value) for number in numbers if isinstance(number, Const))


def number_barriers(roles: Roles, taken: frozenset[int]) -> NamedBarriers:
    """Numbers that the author leaves free: one a role, and the others one behind the other.

    Raises
    ------
    BarrierMisuse : the author's leave too few.
    """
    alone = [role for role in roles.roles if not _are_separate(role)]
    groups = max(1, sum(role.all_warps for role in roles.roles) * WARP // WARPGROUP)
    ordered = max((_ordered_barriers(role) for role in roles.roles), default=0)
    separate = sum(role.instances for role in roles.roles if _are_separate(role))
    left = [number for number in range(1, NAMED_BARRIERS) if number not in taken]
    needed = groups + ordered + separate
    for first in (*range(len(alone) + 1, NAMED_BARRIERS - needed + 1), *range(1, len(alone) + 1)):
        run = list(range(first, first + needed))
        others = [number for number in left if number not in run]
        if not all(number in left for number in run) or len(others) < len(alone):
            continue
        of_roles = {role.name: number for role, number in zip(alone, others)}
        free = run[groups + ordered :]
        for role in roles.roles:
            if _are_separate(role):
                of_roles[role.name], free = free[0], free[role.instances :]
        return NamedBarriers(of_roles, first, first + groups)
    needed += len(alone)
    raise BarrierMisuse(
        f"{len(taken)} of the {NAMED_BARRIERS - 1} named barriers are the author's, and roles need {needed}",
        span=roles.span,
        hint="use fewer numbers in T.sync_threads and T.named_barrier_arrive",
    )


def _are_separate(role: Role) -> bool:
    """Whether each instance of a role has a barrier of its own; one warp needs none."""
    return role.instances > 1 and role.warps > 1


def _ordered_barriers(role: Role) -> int:
    """Barriers for the ping-pong schedule of a role: one an instance, or one a warpgroup of the only instance."""
    takes = any(node.function == "take_turn" for node in find(role, Call))
    return 0 if not takes else role.instances if role.instances > 1 else role.threads // WARPGROUP
