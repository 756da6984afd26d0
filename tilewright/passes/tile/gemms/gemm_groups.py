"""Groups of gemms in flight: what passes over roles share that start gemms and wait for them later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tilewright.errors import Span
from tilewright.ir import Channel, Commit, Const, Expr, If, Kernel, Rewriter, Role, Statement, find, having, seq

WGMMA = "wgmma"
"""The token of such groups; where a role has several, numbers follow it."""


class RoleRewriter(Rewriter):
    """Rewrites the roles of a kernel, and names groups of gemms in them.

    Attributes
    ----------
    channels : of the kernel, by name.
    role : the one that is rewritten; None outside of roles.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.channels = {node.name: node for node in find(kernel.body, Channel)}
        self.role: Role | None = None
        self.taken: set[str] = set()

    def visit_Role(self, role: Role) -> Role:
        with having(self, role=role, taken={node.token for node in find(role, Commit)}):
            return self.generic(role)

    def new_group(self) -> str:
        """A name for a group that no other of the role has."""
        numbered = (f"{WGMMA}_{number}" if number else WGMMA for number in count())
        name = next(name for name in numbered if name not in self.taken)
        self.taken.add(name)
        return name


def conditional(condition: Expr, body: Sequence[Statement], span: Span | None = None) -> list[Statement]:
    """`body` under a condition, or as it is where that is a literal."""
    if isinstance(condition, Const):
        return list(body) if condition.value else []
    return [If(condition, seq(body), span=span)]
