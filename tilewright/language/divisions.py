"""Warps that part ways become roles: what ``with T.ws(...)`` and conditions on the thread's index divide among them.

Before (what the author writes; 256 threads)::

    total = fragment(float32[64, 64])
    if tx < 128:
        signal_wait(full[0], 0)
        gemm(a, b, total)
    if tx >= 128:
        copy(A, a, barrier=full[0])

After::

    with roles():
        with role("warps_0_3", warps=4):
            total = fragment(float32[64, 64])
            signal_wait(full[0], 0)
            gemm(a, b, total)
        with role("warps_4_7", warps=4):
            copy(A, a, barrier=full[0])

Only kernels that speak of barriers or warpgroups are divided, and only conditions that all threads of a warp decide
alike around work that threads do together. Neighbouring conditions run at once where they divide the warps alike, but
where one changes memory that the other uses and neither speaks of barriers: these run one after the other. Loops
and conditions of the block around nothing but such conditions are each warp group's own. What threads have for
themselves goes to the roles that use it (`sinking`). In roles the thread's index stays that of the block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.interpreter.over_threads import over_threads, thread_indices
from tilewright.ir import Rewriter, children, find, flattened, fresh, holds, root, substitute, walk, with_statements
from tilewright.ir import nodes as ir
from tilewright.language import shared_work
from tilewright.language.mistakes import MisplacedRole
from tilewright.language.sinking import Sink, allocated, mentioned


def divide(
    body: ir.Seq, thread_vars: tuple[ir.Var, ir.Var, ir.Var], threads: tuple[int, int, int]
) -> tuple[ir.Seq, dict[ir.Buffer, list[ir.Buffer]]]:
    """The body of a kernel whose warps part ways, and what took the place of fragments that several roles use.

    Raises
    ------
    MisplacedRole : warps that do not lie side by side share work, registers are set in the middle of it, or a fragment
        of all threads is used where only some come.
    """
    dividing = _Divide(thread_vars, threads)
    made = dividing.sequence(_Narrow()(body), {})
    for role in find(made, ir.Role):
        leaves = next(_leaving(role.body), None)
        if leaves is not None:
            raise MisplacedRole(
                f"only some warps leave this iteration ({role.name}), and the others work on with them in it",
                "put what they skip under a condition, or let all threads leave",
            ).at(leaves.span)
        own = set(allocated(role.body))
        for node in find(role.body, ir.Statement):
            foreign = {one for one in map(root, find(node, ir.Buffer)) if one.scope == "fragment"} - own
            if foreign and not isinstance(node, ir.Seq):
                raise MisplacedRole(
                    f"only some threads come here, and the fragment {min(one.name for one in foreign)} is held "
                    "by all of the block",
                    "allocate it where these warps part from the others",
                ).at(node.span)
    return made, dividing.copies


def _leaving(body: ir.Statement) -> Iterator[ir.Statement]:
    """Statements that leave, or go on with, a loop around."""
    if isinstance(body, (ir.Break, ir.Continue)):
        yield body
    elif not isinstance(body, (ir.For, ir.Pipelined, ir.While)):
        for child in children(body):
            if isinstance(child, ir.Statement):
                yield from _leaving(child)


def parts_work(body: ir.Seq, thread_vars: tuple[ir.Var, ir.Var, ir.Var], threads: tuple[int, int, int]) -> bool:
    """Whether whole warps have work of their own to do together, in a kernel that says nothing else of them.

    What every thread does for itself, because its own index is in it, is none.
    """
    dividing = _Divide(thread_vars, threads)
    names: dict[ir.Var, ir.Expr] = {}
    for node in walk(body):
        if isinstance(node, ir.Let) and _is_plain(node.value):
            names[node.var] = substitute(node.value, names)
        elif isinstance(node, ir.If) and dividing._deciding(node.condition, names) is not None:
            works = (one for one in find(node, ir.TileOperator, ir.Parallel) if shared_work.is_dealt(one))
            if any(not set(find(one, ir.Var)) & {*thread_vars, *names} for one in works):
                return True
    return False


@dataclass(slots=True)
class _Divide:
    thread_vars: tuple[ir.Var, ir.Var, ir.Var]
    threads: tuple[int, int, int]
    copies: dict[ir.Buffer, list[ir.Buffer]] = field(default_factory=dict)
    around: dict[ir.Statement, dict[frozenset[int], ir.Seq] | None] = field(default_factory=dict)
    """How loops and conditions around chains of conditions are divided."""

    @property
    def warps(self) -> int:
        return math.prod(self.threads) // ir.WARP

    def indices(self, first: int) -> dict[ir.Var, ir.Expr]:
        """What the block's thread indices are in a role, whose threads count from 0 at number `first` of the block."""
        tx, ty, tz = self.thread_vars
        thread = tx + first
        x, y, z = self.threads
        if (y, z) == (1, 1):
            return {tx: thread} if first else {}
        rest = thread // x
        return {tx: thread % x, ty: rest % y, tz: rest // y}

    # Conditions -----------------------------------------------------------------------------------

    def _deciding(self, condition: ir.Expr, names: dict[ir.Var, ir.Expr]) -> list[bool] | None:
        """What each warp decides; None where its threads, or other things, do."""
        by_warp = self._by_warp(condition, names)
        if by_warp is None:
            return None
        alike = by_warp.all(axis=1) | ~by_warp.any(axis=1)
        return list(map(bool, by_warp[:, 0])) if alike.all() and len(set(by_warp[:, 0])) > 1 else None

    def _by_warp(self, condition: ir.Expr, names: dict[ir.Var, ir.Expr]) -> np.ndarray | None:
        """What each thread decides, a row for each warp; None where other things do."""
        if math.prod(self.threads) % ir.WARP:
            return None
        indices = thread_indices(self.thread_vars, self.threads)
        values = over_threads(substitute(condition, names) if names else condition, indices)
        if values is None or np.ndim(values) == 0:
            return None
        return np.asarray(values, bool).reshape(-1, ir.WARP)

    def _refuse_parts(self, body: ir.Seq, warps: range, names: dict[ir.Var, ir.Expr]) -> None:
        """Some of the threads that work together cannot have work of their own to do together."""
        for node in walk(body):
            if not isinstance(node, ir.If):
                continue
            by_warp = self._by_warp(node.condition, names)
            if by_warp is None or len(set(by_warp[warps.start : warps.stop].reshape(-1).tolist())) == 1:
                continue
            work = next((one for one in find(node, ir.Statement) if shared_work.is_shared_work(one)), None)
            if work is not None:
                raise MisplacedRole(
                    f"only some of the threads of {_name(warps.start, warps.stop - 1)} come here, where all of "
                    "them work together",
                    "let the outermost conditions say which warps work together",
                ).at(work.span or node.span)

    def _parts(self, statement: ir.Statement, names: dict[ir.Var, ir.Expr]) -> dict[frozenset[int], ir.Seq] | None:
        """The bodies of a chain of conditions, by the warps that execute them; None where it divides nothing.

        A loop, or a condition of the block's, around such chains alone is divided as these are; a body that is such a
        chain, behind names and words on registers, is divided further.
        """
        if not isinstance(statement, (ir.If, ir.For)) or not shared_work.is_together(statement):
            return None
        if isinstance(statement, ir.For) or self._deciding(statement.condition, names) is None:
            if statement not in self.around:
                self.around[statement] = self._parts_around(statement, names)
            return self.around[statement]
        found: dict[frozenset[int], ir.Seq] = {}
        left = frozenset(range(self.warps))
        rest: ir.Statement | None = statement
        while rest is not None:
            only = rest.statements[0] if isinstance(rest, ir.Seq) and len(rest.statements) == 1 else rest
            decided = self._deciding(only.condition, names) if isinstance(only, ir.If) else None
            if decided is None:
                if rest is statement:
                    return None
                found[left] = rest if isinstance(rest, ir.Seq) else ir.Seq((rest,))
                break
            assert isinstance(only, ir.If)
            taken = frozenset(warp for warp in left if decided[warp])
            if taken:
                found[taken] = only.then
            left -= taken
            rest = only.otherwise if left else None
        parts: dict[frozenset[int], ir.Seq] = {}
        for warps, body in found.items():
            shares = self._shares(body, names, warps) if len(warps) > 1 else None
            parts |= self._own(shares) if shares else {warps: body}
        return parts

    def _own(self, shares: dict[frozenset[int], ir.Seq]) -> dict[frozenset[int], ir.Seq]:
        """The same, with names and tiles of its own for each group of warps but the first."""
        made: dict[frozenset[int], ir.Seq] = {}
        for warps, one in shares.items():
            made[warps] = fresh(one) if made else one
            self.remember(one, made[warps])
        return made

    def _parts_around(
        self, statement: ir.If | ir.For, names: dict[ir.Var, ir.Expr]
    ) -> dict[frozenset[int], ir.Seq] | None:
        """The same loop or condition for each group of warps with what this group does there; None where all do
        something."""
        bodies = (statement.body,) if isinstance(statement, ir.For) else (statement.then, statement.otherwise)
        shares = [self._shares(body, names) if body is not None else {} for body in bodies]
        found = [share for share in shares if share is not None]
        if len(found) < len(shares) or not all(shared_work.agree(one, other) for one in found for other in found):
            return None
        groups = sorted({warps for share in found for warps in share}, key=min)
        if not groups:
            return None
        wholes: dict[frozenset[int], ir.Seq] = {}
        for warps in groups:
            own = [share.get(warps, ir.Seq(())) for share in found]
            whole: ir.Statement = (
                replace(statement, body=own[0])
                if isinstance(statement, ir.For)
                else replace(statement, then=own[0], otherwise=own[1] if statement.otherwise is not None else None)
            )
            wholes[warps] = ir.Seq((whole,), span=statement.span)
        return self._own(wholes)

    def _shares(
        self, body: ir.Seq, names: dict[ir.Var, ir.Expr], among: frozenset[int] | None = None
    ) -> dict[frozenset[int], ir.Seq] | None:
        """What each group of warps (of those that come here) does of a sequence; None where others than chains of
        conditions, names and, before these, words on registers are in it.

        Groups that run on for themselves must tell one another when memory is ready.
        """
        coming = frozenset(range(self.warps)) if among is None else among
        names = dict(names)
        shares: dict[frozenset[int], list[ir.Statement]] = {}
        known: list[ir.Statement] = []
        for one in flattened(body):
            if isinstance(one, ir.Let):
                if _is_plain(one.value):
                    names[one.var] = substitute(one.value, names)
                for share in (known, *shares.values()):
                    share.append(one)
                continue
            if among is not None and not shares and shared_work.kept_registers(one) is not None:
                known.append(one)
                continue
            found = self._parts(one, names)
            if found is None:
                return None
            parts = {warps & coming: part for warps, part in found.items() if warps & coming}
            if not shared_work.agree(shares, parts):
                return None
            for warps, part in parts.items():
                shares.setdefault(warps, list(known)).extend(part.statements)
        idle = coming.difference(*shares)
        if shares and idle and any(shared_work.kept_registers(one) is not None for one in known):
            shares[idle] = known
        made = {warps: ir.Seq(tuple(share), span=body.span) for warps, share in shares.items()}
        alone = [part for part in made.values() if not shared_work.waits(part)]
        if any(shared_work.hands_on(one, other) for one in alone for other in made.values() if other is not one):
            return None
        return made

    def remember(self, old: ir.Seq, new: ir.Seq) -> None:
        """Fragments of a copy of a sequence have the layouts that the author gave to those of the sequence."""
        for one, other in zip(allocated(old), allocated(new), strict=True):
            if one is not other:
                self.copies.setdefault(one, []).append(other)

    # Sequences ------------------------------------------------------------------------------------

    def sequence(self, body: ir.Seq, names: dict[ir.Var, ir.Expr]) -> ir.Seq:
        """A sequence with its neighbouring divisions as roles."""
        names = dict(names)
        made: list[ir.Statement] = []
        waiting = list(flattened(body))
        while waiting:
            statement = waiting.pop(0)
            parts = self._parts(statement, names)
            if parts is None:
                if isinstance(statement, ir.Let) and _is_plain(statement.value):
                    names[statement.var] = substitute(statement.value, names)
                made.append(_Inner(self, names)(statement))
                continue
            bodies = {warps: [part] for warps, part in parts.items()}
            while waiting:
                further = self._parts(waiting[0], names)
                if further is None or not shared_work.agree(bodies, further) or shared_work.in_order(bodies, further):
                    break
                for warps, part in further.items():
                    bodies.setdefault(warps, []).append(part)
                waiting.pop(0)
            for warps, parts_of in bodies.items():
                for part in parts_of:
                    self._refuse_parts(part, range(min(warps), max(warps) + 1), names)
            made, roles, waiting = Sink(self.thread_vars, self.indices, self.remember, made, waiting).around(
                self._roles(bodies, statement)
            )
            made.append(roles)
        return replace(body, statements=tuple(made))

    def _roles(self, bodies: dict[frozenset[int], list[ir.Seq]], at: ir.Statement) -> ir.Roles:
        found: list[ir.Role] = []
        next_warp = 0
        for warps, parts in sorted(bodies.items(), key=lambda one: min(one[0])):
            first, last = min(warps), max(warps)
            if len(warps) != last - first + 1:
                raise MisplacedRole(
                    "warps that do not lie side by side do this together",
                    "let neighbouring warps share work, one condition for each group of them",
                ).at(parts[0].span or at.span)
            if first > next_warp:
                found.append(_idle(next_warp, first))
            body, registers = self._registers(ir.seq(*(part.statements for part in parts)))
            found.append(ir.Role(_name(first, last), last - first + 1, body, registers, span=parts[0].span or at.span))
            next_warp = last + 1
        if next_warp < self.warps:
            found.append(_idle(next_warp, self.warps))
        made = ir.Roles(tuple(found), span=at.span)
        for group in made.warpgroups():
            kept = {role.registers for role in group}
            if kept != {None} and (len(kept) > 1 or sum(role.all_warps for role in group) % 4):
                raise MisplacedRole(
                    "some warps of a warpgroup set their registers, and others do not, or otherwise",
                    "write the same T.set_max_nreg for all 128 threads of a warpgroup",
                ).at(next(role for role in group if role.registers is not None).span)
        return made

    def _registers(self, body: ir.Seq) -> tuple[ir.Seq, int | None]:
        """A role's body without its first word on registers, and their number."""
        head = next((one for one in body.statements if not isinstance(one, (ir.Allocate, ir.Let))), None)
        count = shared_work.kept_registers(head)
        if count is not None:
            body = replace(body, statements=tuple(one for one in body.statements if one is not head))
        stray = next((one for one in find(body, ir.Statement) if shared_work.kept_registers(one) is not None), None)
        if stray is not None:
            raise MisplacedRole(
                "T.set_max_nreg stands in the middle of what its warpgroups do", "write it first, once"
            ).at(stray.span)
        return body, count


class _Inner(Rewriter):
    """Divides the sequences in loops and conditions that all warps go through."""

    def __init__(self, dividing: _Divide, names: dict[ir.Var, ir.Expr]) -> None:
        self.dividing, self.names = dividing, names

    def visit_Seq(self, body: ir.Seq) -> ir.Seq:
        return self.dividing.sequence(body, self.names)

    def visit_If(self, branch: ir.If) -> ir.If:
        """Under a condition that threads of a warp decide differently no warps part ways."""
        by_warp = self.dividing._by_warp(branch.condition, self.names)
        apart = by_warp is not None and (by_warp != by_warp[:, :1]).any()
        return branch if apart else self.generic(branch)

    def visit_Roles(self, roles: ir.Roles) -> ir.Roles:
        return roles

    def visit_Evaluate(self, statement: ir.Evaluate) -> ir.Evaluate:
        if shared_work.kept_registers(statement) is not None:
            raise MisplacedRole(
                "T.set_max_nreg stands outside of any warpgroup's work", "write it first in `with T.ws(...)`"
            ).at(statement.span)
        return statement


def _is_plain(value: ir.Expr) -> bool:
    return not holds(value, ir.Load, ir.Call)


def _name(first: int, last: int) -> str:
    return f"warps_{first}_{last}" if last > first else f"warp_{first}"


def _idle(first: int, end: int) -> ir.Role:
    return ir.Role(_name(first, end - 1), end - first, ir.Seq(()))


class _Narrow(Rewriter):
    """Fragments are allocated under the condition under which alone they are used."""

    def visit_Seq(self, body: ir.Seq) -> ir.Seq:
        statements = list(body.statements)
        for allocate in [one for one in statements if isinstance(one, ir.Allocate) and one.buffer.scope == "fragment"]:
            users = [one for one in statements if one is not allocate and allocate.buffer in mentioned(one)]
            if len(users) != 1 or not isinstance(users[0], ir.If):
                continue
            user: ir.If = users[0]
            branches = {name: getattr(user, name) for name in ("then", "otherwise")}
            using = [name for name, one in branches.items() if one is not None and allocate.buffer in mentioned(one)]
            if len(using) == 1 and allocate.buffer not in set(find(user.condition, ir.Buffer)):
                inside = replace(branches[using[0]], statements=(allocate, *branches[using[0]].statements))
                statements[statements.index(user)] = replace(user, **{using[0]: inside})
                statements.remove(allocate)
        return self.generic(with_statements(body, statements))
