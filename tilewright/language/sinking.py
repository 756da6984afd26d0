"""What threads have for themselves goes into the roles that use it: fragments, arrays, scalars, and names of what
depends on the thread.

A statement moves only where it says the same when it runs later: what it reads must not be changed by a statement that
stays behind it, and it must make nothing else beside. Other scalars stay where they are, since each thread keeps its
own there too, and so do scalars that some role changes and all threads read behind the roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import find, fresh, mentioned, root, substitute, touched
from tilewright.ir import nodes as ir
from tilewright.language.mistakes import MisplacedRole

PRIVATE = ("fragment", "local", "scalar")
"""Scopes of memory that threads have for themselves, alone or with their role."""

TOGETHER = (
    "signal_wait", "named_barrier_sync", "sync_threads", "cluster_sync", "cluster_arrive", "cluster_wait",
    "set_registers",
)  # fmt: skip
"""Functions in which threads wait for one another, or that whole warpgroups call."""


@dataclass(slots=True)
class Sink:
    """Takes what threads have for themselves into the roles that use it.

    Attributes
    ----------
    thread_vars : the block's thread indices.
    indices : what these are in a role, by the number of its first thread.
    remember : is told of copies of sequences.
    before, after : statements around the roles, in the same sequence.
    """

    thread_vars: tuple[ir.Var, ir.Var, ir.Var]
    indices: Callable[[int], dict[ir.Var, ir.Expr]]
    remember: Callable[[ir.Seq, ir.Seq], None]
    before: list[ir.Statement]
    after: list[ir.Statement]

    def around(self, roles: ir.Roles) -> tuple[list[ir.Statement], ir.Roles, list[ir.Statement]]:
        """What stays before the roles, the roles, and what stays behind them."""
        own = self._own()
        bodies, after = self._with_endings(roles, own)
        own = self._movable(own - self._crossing(bodies, after), bodies)
        slices = [self._slice(self.before, body, own) for body in bodies]
        moved = {one for needed in slices for one in needed}
        stays = [one for one in self.before if one not in moved]
        kept = set(self._slice([one for one in self.before if one in moved], ir.Seq((*stays, *after)), own))
        before = [one for one in self.before if one not in moved or one in kept]
        made: list[ir.Role] = []
        taken = bool(kept)
        first = 0
        for role, body, needed in zip(roles.roles, bodies, slices, strict=True):
            whole = ir.Seq((*needed, *body.statements), span=body.span)
            if needed and (taken or any(one in earlier for earlier in slices[: len(made)] for one in needed)):
                copied = fresh(whole)
                self.remember(whole, copied)
                whole = copied
            made.append(replace(role, body=substitute(whole, self.indices(first * ir.WARP))))
            first += role.warps
        return before, replace(roles, roles=tuple(made)), after

    def _own(self) -> set[ir.Buffer | ir.Var]:
        """Memory that threads have for themselves, and names whose values differ between them or depend on it."""
        own: set[ir.Buffer | ir.Var] = set(self.thread_vars)
        own |= {one.buffer for one in self.before if isinstance(one, ir.Allocate) and one.buffer.scope in PRIVATE}
        for one in self.before:
            if isinstance(one, ir.Let) and not own.isdisjoint(mentioned(one)):
                own.add(one.var)
        return own - set(self.thread_vars)

    def _movable(self, own: set[ir.Buffer | ir.Var], bodies: Sequence[ir.Seq]) -> set[ir.Buffer | ir.Var]:
        """What of the threads' own roles may make for themselves, later than all of them would.

        Whatever else is left out is what each thread has, in the roles as before them; a fragment that is left out is
        refused there.
        """
        written = [{one for one in touched(body).writes if one.scope not in PRIVATE} for body in bodies]
        while True:
            stuck: set[ir.Buffer | ir.Var] = set()
            needs = [self._needs(self.before, body, own) for body in bodies]
            changed: set[ir.Buffer | ir.Var] = set()
            for one in reversed(self.before):
                made, reads = _made(one), mentioned(one) - own
                others = touched(one).writes - own
                elsewhere = {
                    tile
                    for of, need in enumerate(needs)
                    if one in need
                    for by, tiles in enumerate(written)
                    if by != of
                    for tile in tiles
                }
                if not reads.isdisjoint(changed | elsewhere) or _synchronises(one):
                    stuck |= made & own
                elif others:  # what is of no thread alone is made once; fragments beside it are no role's
                    stuck |= {
                        thing for thing in made & own if not isinstance(thing, ir.Buffer) or thing.scope != "fragment"
                    }
                changed |= others
            if not stuck:
                return own
            own = own - stuck

    @staticmethod
    def _crossing(bodies: Sequence[ir.Seq], after: Sequence[ir.Statement]) -> set[ir.Buffer]:
        """What a thread sets in its role and reads behind it: a copy of the role's own would be lost."""
        found = {one for body in bodies for one in touched(body).writes if one.scope in PRIVATE}
        first = {one: next((user for user in after if one in mentioned(user)), None) for one in found}
        return {one for one, user in first.items() if user is not None and not _overwrites(user, one)}

    def _with_endings(self, roles: ir.Roles, own: set[ir.Buffer | ir.Var]) -> tuple[list[ir.Seq], list[ir.Statement]]:
        """The roles' bodies, each with the statements behind the roles that go on with its fragments alone: what is in
        them of a thread for itself, all threads do."""
        users = [mentioned(role.body) & own for role in roles.roles]
        bodies = [list(role.body.statements) for role in roles.roles]
        after: list[ir.Statement] = []
        for one in self.after:
            used = mentioned(one) & own
            held = {node for node in used if isinstance(node, ir.Buffer) and node.scope == "fragment"}
            owners = [number for number, of_role in enumerate(users) if not held.isdisjoint(of_role)]
            tiles = [node for node in find(one, ir.Buffer) if root(node).scope in ("shared", "barrier")]
            goes_on = len(owners) == 1 and not tiles and isinstance(one, (ir.TileOperator, ir.Parallel, ir.For, ir.If))
            if goes_on and not _follows(one, after):
                bodies[owners[0]].append(one)
                users[owners[0]] |= used
            else:
                after.append(one)
        return [replace(role.body, statements=tuple(body)) for role, body in zip(roles.roles, bodies)], after

    @staticmethod
    def _needs(before: Sequence[ir.Statement], body: ir.Seq, own: set[ir.Buffer | ir.Var]) -> list[ir.Statement]:
        """The statements that make what `body` uses of the threads' own, in order."""
        needed, found = mentioned(body) & own, []
        for one in reversed(before):
            if _made(one) & needed:
                found.append(one)
                needed |= mentioned(one) & own
        return found[::-1]

    def _slice(self, before: Sequence[ir.Statement], body: ir.Seq, own: set[ir.Buffer | ir.Var]) -> list[ir.Statement]:
        """The same, where each of them makes nothing else."""
        found = self._needs(before, body, own)
        for one in found:
            others = touched(one).writes - own
            if others:
                raise MisplacedRole(
                    f"this prepares what some warps use alone ({_names(_made(one) & own)}) and writes {_names(others)}",
                    "write what the warps have for themselves where they part",
                ).at(one.span)
        return found


def _names(things: Iterable[ir.Buffer | ir.Var]) -> str:
    return ", ".join(sorted(thing.name for thing in things))


def _synchronises(statement: ir.Statement) -> bool:
    """Whether all threads of the block wait for one another in a statement."""
    return any(
        node.function in TOGETHER or node.function.startswith("sync_threads") for node in find(statement, ir.Call)
    )


def _follows(statement: ir.Statement, earlier: Sequence[ir.Statement]) -> bool:
    """Whether a statement needs what stands before it to be done first: its values, its reads, or that threads meet."""
    used, made = mentioned(statement), _made(statement)
    in_memory = any(root(node).scope == "global" for node in find(statement, ir.Buffer))
    return any(
        not used.isdisjoint(_made(one))
        or not made.isdisjoint(mentioned(one))
        or (in_memory and any(node.function in TOGETHER for node in find(one, ir.Call)))
        for one in earlier
    )


def _overwrites(statement: ir.Statement, tile: ir.Buffer) -> bool:
    """Whether a statement sets the whole of a tile and reads nothing of it."""
    if isinstance(statement, ir.TileOperator):
        return statement.overwrites(tile)
    if not isinstance(statement, ir.Parallel) or any(root(node.buffer) is tile for node in find(statement, ir.Load)):
        return False
    return any(
        isinstance(one, ir.Store)
        and one.buffer is tile
        and one.indices == statement.vars
        and tuple(statement.extents) == tuple(tile.shape)
        for one in statement.body.statements
    )


def _made(statement: ir.Statement) -> set[ir.Buffer | ir.Var]:
    """Names and memory that a statement makes or writes."""
    if isinstance(statement, ir.Let):
        return {statement.var}
    if isinstance(statement, ir.Allocate):
        return {statement.buffer}
    return set(touched(statement).writes)


def allocated(body: ir.Seq) -> list[ir.Buffer]:
    return [node.buffer for node in find(body, ir.Allocate)]
