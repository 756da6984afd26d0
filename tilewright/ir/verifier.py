"""Checks that a program is well formed, and that its stage allows what it holds.

Every violation is reported at once, beside the statement it concerns in the printed program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import InvalidProgram, near
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import UINT64
from tilewright.ir.effects import root
from tilewright.ir.expression_rules import counted, extent_problems, index_problems
from tilewright.ir.printer import print_program
from tilewright.ir.scope_rules import ScopeRules, mark_sound
from tilewright.ir.signature import size_variables
from tilewright.ir.sizes import size_in
from tilewright.ir.stages import HOST_STATEMENTS, STAGES, Stage, illegal_statements
from tilewright.ir.visitor import method_of
from tilewright.ir.walking import children, holds


def verify(function: ir.Function, *, afresh: bool = True, by_author: bool = True) -> None:
    """Check `function` against the rules of the IR and of its stage; `by_author` says whether no pass has run yet.

    Nodes never change, and passes share them: where not `afresh`, statements that were found sound in a place like
    theirs are only asked whether the names that they use are in scope. That is cheap enough to follow every pass.

    Raises
    ------
    InvalidProgram : with every violation, and the program printed with each beside its statement.
    """
    found = violations(function, afresh=afresh, by_author=by_author)
    if not found:
        return
    marks: dict[object, list[str]] = {}
    for where, problem in found:
        marks.setdefault(where, []).append(problem)
    listed = "\n".join(f"  {number}. {problem}" for number, (_, problem) in enumerate(found, 1))
    text = print_program(function, marks=marks)
    span = next((where.span for where, _ in found if where.span is not None), None)
    raise InvalidProgram(
        f"{function.name} is invalid at stage {function.stage}: {counted(len(found), 'violation')}\n{listed}\n\n{text}",
        span=span,
    )


def violations(
    function: ir.Function, *, afresh: bool = True, by_author: bool = True
) -> list[tuple[ir.Statement | ir.Function, str]]:
    """Every violation in `function`: the statement (or the function itself) and one sentence."""
    verifier = _Verifier(function, afresh, by_author)
    verifier.function()
    return verifier.found


@dataclass(frozen=True, slots=True)
class _Sound:
    """What is left to ask of a statement in which nothing was wrong.

    Attributes
    ----------
    stage, place : what the rules look at around it.
    used, bound : the names that it takes from outside, and those that it binds.
    """

    stage: Stage
    place: tuple[bool, bool, bool, bool]
    used: set[ir.Var | ir.Buffer]
    bound: set[ir.Var | ir.Buffer]


class _Verifier(ScopeRules):
    # Functions

    def function(self) -> None:
        function = self.program
        if function.stage not in STAGES:
            hint = near(function.stage, list(STAGES)) or f"stages are {', '.join(STAGES)}"
            self.report(function, f"no stage {function.stage!r}; {hint}")
        for var in size_variables(function):
            self.bind(function, var)
        for param in function.params:
            self.bind(function, param)
        bare = {size_in(e) for p in function.params if isinstance(p, ir.Buffer) for e in (*p.shape, *(p.strides or ()))}
        for var in size_variables(function):
            if var not in bare:
                self.report(function, f"the size {var.name} never stands alone as an extent of a parameter")
        for param in function.params:
            if isinstance(param, ir.Buffer):
                self.buffer(function, param)
                if param.scope != "global":
                    self.report(function, f"the parameter {param.name} is {param.scope}, not global")
        for output in function.outputs:
            if output not in function.params:
                self.report(function, f"the output {output.name} is not a parameter")
        self.body(function.body)

    # Statements

    def body(
        self, body: ir.Seq, names: Sequence[ir.Var] = (), where: ir.Statement | None = None, **context: object
    ) -> None:
        """What stands in a sequence, where a statement binds `names` for it and `context` holds."""
        around = [(name, getattr(self, name)) for name in context]
        for name, value in context.items():
            setattr(self, name, value)
        outside, self.entered = self.entered, []  # by hand: every body of every program comes here after every pass
        for var in names:
            self.bind(where or body, var)
        for statement in body.statements:
            self.statement(statement)
        self.visible.difference_update(self.entered)
        self.entered = outside
        for name, value in around:
            setattr(self, name, value)

    verify_Seq = body

    def statement(self, statement: ir.Statement) -> None:
        place = (self.kernel is None, self.role is None, self.in_parallel, self.in_loop)
        known: _Sound | None = None if self.afresh else getattr(statement, "sound", None)
        if known is not None and known.place == place and self.known(statement, known):
            return
        reports, used, binds = self.reports, self.used, self.binds
        self.used, self.binds = set(), set()
        self.checked(statement)
        if reports == self.reports and not holds(statement, *_IN_CONTEXT):
            outside = self.used
            if self.binds:  # a view of what the statement declares is in scope there, wherever that stands
                free = outside - self.binds
                outside = {one for one in free if isinstance(one, ir.Var) or root(one) not in self.binds}
            mark_sound(statement, _Sound(self.stage, place, outside, self.binds))
        used |= self.used
        binds |= self.binds
        self.used, self.binds = used, binds

    def known(self, statement: ir.Statement, known: _Sound) -> bool:
        """Whether a statement that was sound in a place like this is so here, where its names must fit."""
        if known.stage is not self.stage and (
            known.stage not in self.as_strict or holds(statement, *illegal_statements(self.stage))
        ):
            return False
        views = [] if known.used <= self.visible else [*(known.used - self.visible)]
        if not (self.bound.isdisjoint(known.bound) and all(map(self.is_plain_view, views))):
            return False
        for view in views:
            self.use(statement, view)
        self.used |= known.used
        if known.bound:
            self.bound |= known.bound
            self.binds |= known.bound
            if isinstance(statement, ir.Let):
                self.enter(statement.var)
            elif isinstance(statement, ir.Allocate):
                self.enter(statement.buffer)
        return True

    def checked(self, statement: ir.Statement) -> None:
        self.allowed(statement)
        if isinstance(statement, ir.TileOperator):
            self.tile_operator(statement)
            return
        rule = method_of(_Verifier, "verify_", type(statement))
        if rule is not None:
            rule(self, statement)

    def allowed(self, statement: ir.Statement) -> None:
        """Whether this kind of statement may stand here at this stage."""
        cls = type(statement)
        name = statement.name if isinstance(statement, ir.TileOperator) else cls.__name__
        if self.kernel is None:
            if cls not in HOST_STATEMENTS:
                self.report(statement, f"{name} stands outside a kernel")
        elif isinstance(statement, ir.TileOperator):
            if not self.stage.tile_operators:
                self.report(statement, f"the tile operator {name} has no place at stage {self.stage.name}")
        elif cls not in self.stage.statements:
            misplaced = f"{name} has no place at stage {self.stage.name}"
            self.report(statement, "a kernel stands in a kernel" if cls is ir.Kernel else misplaced)

    def tile_operator(self, statement: ir.TileOperator) -> None:
        known = len(self.found)
        for child in children(statement):
            self.expression(statement, child)
            if not isinstance(child, ir.Region):
                continue
            for extent in child.extents:
                if isinstance(extent, ir.Expr) and not isinstance(extent, ir.Const):
                    self.report(statement, f"an extent of the tile of {child.buffer.name} is not known")
        if self.in_parallel:
            self.report(statement, f"{statement.name} acts on whole tiles and cannot stand in a parallel loop")
        if len(self.found) == known:  # what an operator says about malformed operands would only confuse
            for problem in statement.check():
                self.report(statement, f"{statement.name}: {problem}")

    def verify_Let(self, statement: ir.Let) -> None:
        of = statement.var.dtype
        self.typed(statement, statement.value, of, f"the value of {statement.var.name}", effect=True)
        self.bind(statement, statement.var)

    def verify_Allocate(self, statement: ir.Allocate) -> None:
        buffer = statement.buffer
        self.bind(statement, buffer)
        self.buffer(statement, buffer)
        self.placed(statement, buffer)
        if buffer.placed and (self.kernel is None or statement.initial is None or buffer.scope != "global"):
            self.report(statement, f"the placed buffer {buffer.name} is a global one with an address in a kernel")
        if self.kernel is not None and buffer.scope == "global" and buffer.source is None and not buffer.placed:
            self.report(statement, f"the global buffer {buffer.name} is allocated in a kernel")
        if statement.initial is not None and buffer.placed:
            self.typed(statement, statement.initial, UINT64, f"the address of {buffer.name}")
        elif statement.initial is not None:
            if buffer.scope != "scalar":
                self.report(statement, f"only a scalar has a first value; {buffer.name} is {buffer.scope}")
            self.typed(statement, statement.initial, buffer.dtype, f"the first value of {buffer.name}")

    def verify_Store(self, statement: ir.Store) -> None:
        buffer, value = statement.buffer, statement.value
        self.use(statement, buffer)
        self.placed(statement, buffer)
        for index in statement.indices:
            self.expression(statement, index)
        for problem in index_problems(buffer, statement.indices, self.stage):
            self.report(statement, problem)
        self.expression(statement, value, effect=True)
        if value.dtype.scalar != buffer.dtype.scalar:
            self.report(statement, f"a value of {value.dtype} is stored in {buffer.name}, which holds {buffer.dtype}")

    def verify_Evaluate(self, statement: ir.Evaluate) -> None:
        self.expression(statement, statement.value, effect=True)

    def verify_If(self, statement: ir.If) -> None:
        self.condition(statement, statement.condition)
        self.body(statement.then)
        if statement.otherwise is not None:
            self.body(statement.otherwise)

    def verify_For(self, statement: ir.For) -> None:
        if statement.kind not in ("serial", "unroll", "vectorize"):
            self.report(statement, f"no kind of loop {statement.kind!r}")
        for name in ("start", "stop", "step"):
            self.typed(statement, getattr(statement, name), statement.var.dtype, f"the {name} of the loop")
        if isinstance(statement.step, ir.Const) and statement.step.value <= 0:
            self.report(statement, f"the step of the loop is {statement.step.value}")
        self.body(statement.body, (statement.var,), statement, in_loop=statement.kind != "vectorize")

    def verify_Pipelined(self, statement: ir.Pipelined) -> None:
        for name in ("start", "stop"):
            self.typed(statement, getattr(statement, name), statement.var.dtype, f"the {name} of the loop")
        if statement.num_stages < 0:
            self.report(statement, f"the loop has {statement.num_stages} stages")
        for name in ("order", "stage"):
            plan = getattr(statement, name)
            if plan is not None and any(number < 0 for number in plan):
                self.report(statement, f"the {name} of the pipeline has a negative number")
        if self.in_parallel:
            self.report(statement, "a pipelined loop cannot stand in a parallel loop")
        self.body(statement.body, (statement.var,), statement, in_loop=False)

    def verify_Parallel(self, statement: ir.Parallel) -> None:
        if len(statement.vars) != len(statement.extents):
            self.report(
                statement, f"{counted(len(statement.vars), 'variable')} for {counted(len(statement.extents), 'extent')}"
            )
        for extent in statement.extents:
            for problem in extent_problems(extent, "an extent of the loop"):
                self.report(statement, problem)
            if isinstance(extent, ir.Expr):
                self.expression(statement, extent)
        self.body(statement.body, statement.vars, statement, in_parallel=True, in_loop=False)

    def verify_While(self, statement: ir.While) -> None:
        self.condition(statement, statement.condition)
        self.body(statement.body, in_loop=True)

    def verify_Break(self, statement: ir.Break | ir.Continue) -> None:
        if not self.in_loop:
            self.report(statement, f"{type(statement).__name__.lower()} stands outside a serial loop")

    verify_Continue = verify_Break

    def verify_Assert(self, statement: ir.Assert | ir.Assume) -> None:
        self.condition(statement, statement.condition)

    verify_Assume = verify_Assert

    def verify_Print(self, statement: ir.Print) -> None:
        for value in statement.values:
            if not isinstance(value, str):
                self.expression(statement, value)

    # Asynchrony and roles

    def verify_Wait(self, statement: ir.Wait) -> None:
        if statement.pending < 0:
            self.report(statement, f"{statement.pending} groups cannot be pending")
        if statement.full is not None:
            self.condition(statement, statement.full)

    def verify_Channel(self, channel: ir.Channel) -> None:
        if channel.name in self.channels:
            self.report(channel, f"a second channel is called {channel.name!r}")
        self.channels[channel.name] = channel
        if channel.scope not in ir.CHANNEL_SCOPES:
            self.report(channel, f"no scope {channel.scope!r} of channels")
        if channel.stages < 1:
            self.report(channel, f"the channel has {channel.stages} slots")
        for buffer in channel.buffers:
            self.use(channel, buffer)
            slots = buffer.shape[1 if channel.is_private else 0] if buffer.rank > 1 + channel.is_private else None
            if buffer.scope != "shared" or slots != channel.stages:
                self.report(channel, f"{buffer.name} is no shared buffer of {channel.stages} slots")
        if channel.is_private and (len(channel.writers) != 1 or channel.writers != channel.readers):
            self.report(channel, f"the slots of a warp in {channel.name!r} are not written and read by one role")
        if channel.alternate and (channel.is_private or len(channel.readers) != 1):
            self.report(channel, f"the readers of {channel.name!r} alternate, which the instances of one role do")

    def verify_ChannelStatement(self, statement: ir.ChannelStatement) -> None:
        self.typed(statement, statement.iteration, statement.iteration.dtype, "the iteration's number")
        if not statement.iteration.dtype.is_integer:
            self.report(statement, f"the iteration's number is {statement.iteration.dtype}, not an integer")
        channel = self.channels.get(statement.channel)
        word = type(statement).__name__.lower()
        if channel is None:
            self.report(statement, f"there is no channel {statement.channel!r}")
        elif self.role is None:
            self.report(statement, f"{word} stands outside of roles")
        else:
            writes = isinstance(statement, (ir.Acquire, ir.Publish))
            if self.role.name not in (channel.writers if writes else channel.readers):
                kind = "writer" if writes else "reader"
                self.report(statement, f"the role {self.role.name!r} is no {kind} of the channel {channel.name!r}")

    def verify_Roles(self, roles: ir.Roles) -> None:
        names = [role.name for role in roles.roles]
        if len(set(names)) != len(names):
            self.report(roles, "two roles have one name")
        if self.role is not None:
            self.report(roles, "roles stand in a role")
        warps = sum(role.all_warps for role in roles.roles)
        if self.kernel is not None and warps * ir.WARP != self.kernel.num_threads:
            self.report(roles, f"the roles have {warps} warps, and the block {self.kernel.num_threads} threads")
        for group in roles.warpgroups():
            kept = {role.registers for role in group}
            if kept != {None} and (len(kept) > 1 or sum(role.all_warps for role in group) % 4):
                self.report(group[0], f"registers are given to whole warpgroups, {ir.REGISTER_COUNTS_SAID}")
        for role in roles.roles:
            registers = role.registers
            if role.warps < 1 or role.instances < 1:
                self.report(role, f"the role has {role.instances} instances of {role.warps} warps")
            if registers is not None and registers not in ir.REGISTER_COUNTS:
                self.report(role, f"registers are given to whole warpgroups, {ir.REGISTER_COUNTS_SAID}")
            with self.naming() as (used, binds):
                self.body(role.body, () if role.index is None else (role.index,), role, role=role, in_loop=False)
            for found in sorted((one for one in used if isinstance(one, ir.Buffer)), key=lambda one: one.name):
                if found.scope == "fragment" and root(found) not in binds:
                    self.report(role, f"the fragment {found.name} lies in registers of other threads than this role's")

    def verify_Kernel(self, kernel: ir.Kernel) -> None:
        if not 1 <= len(kernel.grid) <= 3 or len(kernel.grid) != len(kernel.block_vars):
            self.report(
                kernel,
                f"a grid of {counted(len(kernel.grid), 'extent')} has {counted(len(kernel.block_vars), 'index')}",
            )
        for extent in kernel.grid:
            for problem in extent_problems(extent, "an extent of the grid"):
                self.report(kernel, problem)
            if isinstance(extent, ir.Expr):
                self.expression(kernel, extent)
        if len(kernel.threads) != 3 or len(kernel.thread_vars) != 3 or any(count < 1 for count in kernel.threads):
            self.report(kernel, "a block has three thread indices with at least one thread each")
        around = (*kernel.block_vars, *kernel.thread_vars)
        with self.naming() as (used, binds):
            self.body(kernel.body, around, kernel, kernel=kernel, in_loop=False, channels={})
        self.annotations(kernel, used | binds)

    def annotations(self, kernel: ir.Kernel, named: set[ir.Var | ir.Buffer]) -> None:
        """Layouts and safe values must concern buffers that the kernel can reach."""
        for buffer, value in kernel.safe_values:
            if value.dtype != buffer.dtype:
                self.report(kernel, f"the safe value of {buffer.name} is {value.dtype}, not {buffer.dtype}")
        for buffer, _ in (*kernel.layouts, *kernel.safe_values):
            if buffer not in named and buffer not in self.visible:
                self.report(kernel, f"{buffer.name} has an annotation, but is not in the kernel")


_IN_CONTEXT = (ir.Kernel, ir.Roles, ir.Channel, ir.ChannelStatement)
"""What is asked about more than its place: other channels, other roles, the block."""
