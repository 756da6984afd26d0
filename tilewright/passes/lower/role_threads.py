"""Lowers roles to threads: a condition on the warp for each role, its barriers, registers and shared tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.errors import InternalError, MissingCapability, RegistersExceeded
from tilewright.ir import BOOL, INT32, Rewritten, declared, find, perform, root, variables
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.passes import Context, DecidingRewriter, PlaceRewriter, linear_thread
from tilewright.passes.lower.named_barriers import NamedBarriers, named_by_author, number_barriers
from tilewright.passes.tile.roles.divide_roles import MIN_BLOCKS


class RoleThreads(DecidingRewriter):
    """Knows who executes a statement: the threads of a block, or of one of its roles."""

    def __init__(self, function: ir.Function, context: Context) -> None:
        super().__init__(function)
        self.context = context
        self.threads = 1
        self.thread: ir.Expr = ir.const(0)
        self.warpgroup: ir.Expr = ir.const(0)
        self.role: ir.Role | None = None
        self.taken: frozenset[int] = frozenset()
        """Named barriers that the author uses."""
        self.barriers = NamedBarriers({})
        self.groups_before: ir.Expr = ir.const(0)
        """Warpgroups of the block before the first of the role's instance."""
        self.operators: list[ir.TileOperator] = []
        self.endings: dict[object, ir.Statement] = {}

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.operators = list(find(kernel, ir.TileOperator))
        self.taken = named_by_author(kernel)
        self.thread = linear_thread(kernel)
        self.threads = kernel.num_threads
        if self.context.arch.role_registers is not None:
            for roles in find(kernel.body, ir.Roles):
                check_register_shares(roles, kernel, self.context.arch)
        group = ir.Var(INT32, "warpgroup")
        self.warpgroup = group
        made = super().visit_Kernel(kernel)
        if group in variables(made.body):
            number = self.thread // ir.WARPGROUP
            name = ir.Let(group, ir.Call(INT32, "warp_uniform", (number,)))
            made = replace(made, body=replace(made.body, statements=(name, *made.body.statements)))
        return made

    def visit_Roles(self, roles: ir.Roles) -> Rewritten:
        """Each role under a condition on the warp; its threads are numbered from 0."""
        outside = (self.thread, self.threads, self.warpgroup, self.operators, self.groups_before)
        warp = ir.Var(INT32, "warp")
        warps = self.thread // ir.WARP
        head = ir.Let(warp, ir.Call(INT32, "warp_uniform", (warps,)), span=roles.span)
        self.barriers = number_barriers(roles, self.taken)
        first, groups = 0, []
        for group in roles.warpgroups():
            branches = []
            for role in group:
                body = self._role(role, outside[0], warp, first)
                first += role.all_warps
                branches.append((first, body, role))
            chosen = _by_warp(warp, branches)
            groups.append((first, ir.seq(self._registers(group[0]), chosen.statements), group[0]))
        self.role = None
        self.thread, self.threads, self.warpgroup, self.operators, self.groups_before = outside
        return [head, *_by_warp(warp, groups).statements]

    def _registers(self, role: ir.Role) -> list[ir.Statement]:
        """The reallocation of a warpgroup's registers; nothing on a machine that has none."""
        if role.registers is None or self.context.arch.role_registers is None:
            return []
        return [perform("set_registers", ir.const(role.registers), span=role.span)]

    def _role(self, role: ir.Role, thread: ir.Expr, warp: ir.Var, first: int) -> ir.Seq:
        """The body of one role, whose first warp is number `first` of the block."""
        threads = role.threads
        own, group = ir.Var(INT32, "thread"), ir.Var(INT32, "warpgroup")
        self.thread, self.threads, self.warpgroup = own, threads, group
        self.operators, self.endings = list(find(role, ir.TileOperator)), {}
        self.role, self.groups_before = role, ir.const(first * ir.WARP // ir.WARPGROUP)
        if role.index is not None and role.instances > 1:
            own_groups = role.index * (threads // ir.WARPGROUP)
            self.groups_before = self.groups_before + own_groups
        with self.analyzer.scope():
            self.bind_role(role)
            self.analyzer.bind_extent(own, threads)
            self.analyzer.bind_extent(group, max(1, threads // ir.WARPGROUP))
            body = self(role.body)
        body = own_tiles(role, ir.seq(body.statements, list(self.endings.values())), self.context.arch.tile_alignment)
        if not body.statements:
            return body
        head: list[ir.Statement] = []
        number = thread - first * ir.WARP
        if threads & (threads - 1) == 0:  # tells the target's compiler of the range, also where there is one instance
            number = ir.binary("and", number, ir.const(threads - 1))
        elif role.instances > 1:
            number = number % threads
        head.append(ir.Let(own, number))
        own_threads = (ir.binary("ge", own, ir.const(0)), ir.binary("lt", own, ir.const(threads)))
        head.append(ir.Assume(ir.binary("all", *own_threads), span=role.span))
        if role.index is not None:
            instance = (warp - first) // role.warps
            head.append(ir.Let(role.index, instance, span=role.span))
            inside = (ir.binary("ge", role.index, ir.const(0)), ir.binary("lt", role.index, ir.const(role.instances)))
            head.append(ir.Assume(ir.binary("all", *inside), span=role.span))
        if group in variables(body):
            head.append(ir.Let(group, ir.Call(INT32, "warp_uniform", (own // ir.WARPGROUP,))))
        return ir.seq(head, body.statements)

    def map_var(self, var: ir.Var) -> ir.Expr:
        return self.thread if self.role is not None and var is self.thread_var else var

    def visit_Evaluate(self, evaluate: ir.Evaluate) -> Rewritten:
        value = evaluate.value
        if value.function == "settle":
            registers = self.map_buffer(value.regions[0].buffer)
            return perform("hold_registers", ir.whole(registers), span=evaluate.span)
        if value.function in ("take_turn", "pass_turn", "end_turns"):
            return self._ordered_barrier(value, evaluate.span)
        if value.function == "sync_threads":
            return replace(evaluate, value=self.barrier())
        return self.generic(evaluate)

    def barrier(self) -> ir.Call:
        """A barrier of all threads of the role, or of the block."""
        if self.role is None:
            return ir.Call(BOOL, "sync_threads", ())
        if self.role.warps == 1:
            return ir.Call(BOOL, "sync_warp", ())
        if not self.context.arch.named_barriers:
            raise MissingCapability(
                f"{self.context.arch.name} has no barriers of some of a block's warps, and {self.role.name} needs one",
                span=self.role.span,
                hint="let one warp do it, or all threads of the block",
            )
        number: ir.Expr = ir.const(self.barriers.of_roles[self.role.name])
        if self.role.instances > 1 and self.role.index is not None:
            number = self.role.index + number
        return ir.Call(BOOL, "named_barrier_sync", (number, ir.const(self.threads)))

    def _ordered_barrier(self, word: ir.Call, span: Any) -> ir.Statement:
        """An ordered barrier: warpgroups, or instances of the role, go on one after the other by named barriers."""
        assert self.role is not None
        several = self.role.instances > 1 and self.role.index is not None
        number = self.role.index if several and self.role.index is not None else self.warpgroup
        count, threads = (
            (self.role.instances, self.threads) if several else (self.threads // ir.WARPGROUP, ir.WARPGROUP)
        )
        own = number
        if word.function == "pass_turn":
            own = (own + 1) % count
        function = "named_barrier_arrive" if word.function == "pass_turn" else "named_barrier_sync"
        place = self.analyzer.simplify(own + self.barriers.ordered)
        barrier = perform(function, place, ir.const(2 * threads), span=span)
        leads = ir.index_binary("eq", number, 0)
        if word.function == "end_turns":
            return ir.If(leads, ir.seq(barrier), span=span)
        alone = [self.visit(one) for one in word.operands]
        if not alone or (isinstance(alone[0], ir.Const) and not alone[0].value):
            return ir.seq(barrier)
        free = self.analyzer.simplify(ir.binary("all", leads, alone[0]))
        return ir.If(ir.Unary(BOOL, "not", free), ir.seq(barrier), span=span)


def _by_warp(warp: ir.Var, branches: Sequence[tuple[int, ir.Seq, ir.Role]]) -> ir.Seq:
    """Each warp takes the first of the branches that ends behind it."""
    *others, (_, otherwise, _) = branches
    for end, body, role in reversed(others):
        otherwise = ir.seq(ir.If(ir.binary("lt", warp, ir.const(end)), body, otherwise, span=role.span))
    return otherwise


def check_register_shares(roles: ir.Roles, kernel: ir.Kernel, arch: Arch) -> None:
    """Raise where the warpgroups of `roles` ask for more registers than a block has.

    A block starts with as many registers for each thread as let the asked number of blocks run at once
    (`Arch.launch_registers`). Warpgroups give some back and take others (`T.set_max_nreg`); one that asks for more than
    are left waits for ever.

    Raises
    ------
    RegistersExceeded : names what each keeps, and what there is.
    """
    if all(role.registers is None for role in roles.roles):
        return
    blocks = kernel.attribute(MIN_BLOCKS, 1)
    there_are = arch.block_registers(kernel.num_threads, blocks)
    launched = there_are // kernel.num_threads
    groups = [(sum(role.all_warps for role in group) * ir.WARP, group[0]) for group in roles.warpgroups()]
    asked = sum(threads * (launched if role.registers is None else role.registers) for threads, role in groups)
    if asked > there_are:
        most = max((role for _, role in groups), key=lambda role: role.registers or 0)
        kept = ", ".join(
            f"{launched if role.registers is None else role.registers} x {threads}" for threads, role in groups
        )
        together = f" of which {blocks} share a multiprocessor" if blocks > 1 else ""
        raise RegistersExceeded(
            f"the warps of this block keep {asked} registers ({kept} threads), but a block of "
            f"{kernel.num_threads} threads{together} has {there_are}",
            span=most.span,
            hint=f"ask for fewer: a thread starts with {launched}, and some may take what others give back",
        )


def own_tiles(role: ir.Role, body: ir.Seq, alignment: int) -> ir.Seq:
    """The body of a role, threads assigned, with the shared tiles that it declares one for each instance.

    One tile holds those of all instances, in equal parts. Before, in a role of two instances that declares
    ``boxes``::

        boxes = shared(float16[8192])
        boxes[tx * 8] = ...

    After::

        boxes = shared(float16[2, 8192])
        boxes[consumer, tx * 8] = ...

    Each part of a tile that has a layout begins at a multiple of `alignment` bytes, where a swizzle's pattern does.
    """
    if role.instances == 1 or role.index is None:
        return body
    made: ir.Seq = _Own(role, set(declared(body, "shared", "barrier")), alignment)(body)
    return made


class _Own(PlaceRewriter):
    """Gives tiles a leading dimension, and what touches them the instance's number in front."""

    def __init__(self, role: ir.Role, owned: set[ir.Buffer], alignment: int) -> None:
        assert role.index is not None
        self.instances, self.index, self.owned, self.alignment = role.instances, role.index, owned, alignment
        self.made: dict[ir.Buffer, ir.Buffer] = {}

    def _is_owned(self, buffer: ir.Buffer) -> bool:
        return root(buffer) in self.owned

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        if not self._is_owned(buffer):
            return buffer
        if buffer not in self.made:
            if not all(isinstance(extent, int) for extent in buffer.shape):
                raise InternalError(f"the size of {buffer.name} is not known, so that instances cannot have one each")
            self.made[buffer] = self._parted(buffer)
        return self.made[buffer]

    def _parted(self, buffer: ir.Buffer) -> ir.Buffer:
        tile = root(buffer)
        part = tile.dtype.nbytes(math.prod(tile.static_shape))
        if tile.rank == 1:
            part = -(-part // self.alignment) * self.alignment
        elif buffer.dtype.nbytes(math.prod(buffer.static_shape)) != part and buffer.rank > 1:
            raise InternalError(
                f"{buffer.name} is a view of another size than its tile, of which instances have one each"
            )
        elements = part * 8 // buffer.dtype.stored_bits
        shape = (self.instances, elements) if buffer.rank == 1 else (self.instances, *buffer.shape)
        source = None if buffer.source is None else self.map_buffer(buffer.source)
        return replace(buffer, shape=shape, source=source)

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        return self.map_buffer(buffer), (self.index, *indices) if self._is_owned(buffer) else indices
