"""What passes over kernels share: rewriting under the facts of the place, and copies with fresh names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tilewright.arith import Analyzer
from tilewright.errors import Span
from tilewright.ir import Rewriter, Rewritten, changed, children, find, holds, listed, size_variables, substitute
from tilewright.ir import nodes as ir
from tilewright.ir.substitution import fresh as fresh  # published

N = TypeVar("N")


def map_kernels(function: ir.Function, change: Callable[[ir.Kernel], Any], stage: str | None = None) -> ir.Function:
    """`function` with every kernel changed, or statements in its place; the very function where none was."""
    return function.with_body(changed(function.body, ir.Kernel, by=change), stage)


def linear_thread(kernel: ir.Kernel) -> ir.Expr:
    """The index of the executing thread in its block, x fastest."""
    x, y, z = kernel.thread_vars
    total: ir.Expr = x
    if kernel.threads[1] > 1:
        total = total + y * kernel.threads[0]
    if kernel.threads[2] > 1:
        total = total + z * (kernel.threads[0] * kernel.threads[1])
    return total


def counted_off(loop: ir.Parallel, number: ir.Expr) -> list[ir.Let]:
    """Names for the variables of a loop, the last one first, in the iteration of a running number."""
    names: list[ir.Let] = []
    for var, extent in zip(reversed(loop.vars), reversed(loop.extents), strict=True):
        names.append(ir.Let(var, ir.cast(number if var is loop.vars[0] else number % extent, var.dtype)))
        number = number // extent
    return names


def nested(
    vars: Sequence[ir.Var], extents: Sequence[ir.Extent], body: ir.Seq, kinds: Sequence[str], span: Span | None = None
) -> ir.For:
    """Loops in loops, one for each variable, that each count from 0."""
    for var, extent, kind in reversed(list(zip(vars, extents, kinds, strict=True))):
        stop = ir.cast(ir.expr(extent), var.dtype)
        made = ir.For(var, ir.const(0, var.dtype), stop, ir.const(1, var.dtype), body, kind, span=span)
        body = ir.Seq((made,), span=span)
    return made


def plain_loop(loop: ir.Pipelined) -> ir.For:
    """A pipelined loop without overlap."""
    start, stop = (ir.cast(end, loop.var.dtype) for end in (loop.start, loop.stop))
    return ir.For(loop.var, start, stop, ir.const(1, loop.var.dtype), loop.body, span=loop.span)


def free_of(expr: ir.Expr, *things: ir.Var) -> bool:
    """Whether none of the variables occurs in `expr`."""
    return not any(node is thing for node in find(expr, ir.Var) for thing in things)


def holders(node: ir.Statement, wanted: Callable[[Any], bool]) -> set[ir.Record]:
    """The nodes at or below `node` that hold one that is `wanted`, so that a pass can leave the others alone."""
    found: set[ir.Record] = set()

    def search(part: ir.Record) -> bool:
        holds = wanted(part)
        if not isinstance(part, ir.Buffer):
            for child in children(part):
                if search(child):
                    holds = True
        if holds:
            found.add(part)
        return holds

    search(node)
    return found


class ScopedRewriter(Rewriter):
    """A rewriter whose `analyzer` knows what holds where it is: ranges of loops, conditions, assumptions.

    Subclasses that change loops or conditions call the methods here for the rest.
    """

    alone_nothing = frozenset({"Kernel", "Role", "Seq", "For", "Pipelined", "Parallel", "If", "Select"})

    def __init__(self, function: ir.Function) -> None:
        self.analyzer = Analyzer()
        self.uniform: dict[ir.Var, ir.Expr] = {}
        """What names of numbers of warps stand for: conditions on them say something of thread indices."""
        self.thread_var: ir.Var | None = None
        for var in size_variables(function):
            self.analyzer.bind(var, 0, None)

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.thread_var = kernel.thread_vars[0]
        with self.analyzer.scope():
            self.bind_kernel(kernel)
            body = self(kernel.body)
        return kernel.with_body(body)

    def bind_kernel(self, kernel: ir.Kernel) -> None:
        """Blocks count to the grid's extents, threads to the block's."""
        vars, extents = (*kernel.block_vars, *kernel.thread_vars), (*kernel.grid, *kernel.threads)
        for var, extent in zip(vars, extents, strict=True):
            self.analyzer.bind_extent(var, extent)

    def is_outside(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> bool:
        """Whether an access is out of bounds whatever happens."""
        prove = self.analyzer.prove
        return any(
            prove(ir.index_binary("lt", index, 0))
            or prove(ir.index_binary("ge", index, extent))
            or prove(ir.index_binary("le", extent, 0))
            for index, extent in zip(indices, buffer.shape, strict=True)
        )

    def visit_Role(self, role: ir.Role) -> ir.Role:
        with self.analyzer.scope():
            self.bind_role(role)
            return self.generic(role)

    def bind_role(self, role: ir.Role) -> None:
        """In a role the first index of the thread counts all of the role's, whatever shape the block has."""
        if role.index is not None:
            self.analyzer.bind_extent(role.index, role.instances)
        if self.thread_var is not None:
            self.analyzer.bind_extent(self.thread_var, role.threads)

    def visit_Seq(self, seq: ir.Seq) -> ir.Seq:
        with self.analyzer.scope():
            return self.generic(seq)

    def visit_Let(self, let: ir.Let) -> ir.Let:
        result = self.generic(let)
        value = let.value
        if isinstance(value, ir.Call) and value.function == "warp_uniform":
            value = value.operands[0]
            self.uniform[let.var] = value
        if value.dtype.is_integer and value.dtype.lanes == 1 and reads_nothing(value):
            self.analyzer.bind(let.var, value, value)
        return result

    def visit_Assume(self, said: ir.Assume | ir.Assert) -> Rewritten:
        result = self.generic(said)
        self.analyzer.assume(said.condition)
        return result

    visit_Assert = visit_Assume

    def visit_For(self, loop: ir.For) -> Rewritten:
        start, stop, step = self.visit(loop.start), self.visit(loop.stop), self.visit(loop.step)
        with self.analyzer.scope():
            bind_loop(self.analyzer, loop)
            body = self(loop.body)
        if start is loop.start and stop is loop.stop and step is loop.step and body is loop.body:
            return loop
        return replace(loop, start=start, stop=stop, step=step, body=body)

    def visit_Pipelined(self, loop: ir.Pipelined) -> Rewritten:
        start, stop = (ir.cast(ir.expr(end), loop.var.dtype) for end in (loop.start, loop.stop))
        with self.analyzer.scope():
            self.analyzer.bind(loop.var, start, ir.binary("sub", stop, ir.const(1, stop.dtype)))
            return self.generic(loop)

    def visit_Parallel(self, loop: ir.Parallel) -> Rewritten:
        with self.analyzer.scope():
            for var, extent in zip(loop.vars, loop.extents, strict=True):
                self.analyzer.bind_extent(var, extent)
            return self.generic(loop)

    def visit_If(self, branch: ir.If) -> Rewritten:
        condition = self.visit(branch.condition)
        fact = substitute(branch.condition, self.uniform) if self.uniform else branch.condition
        with self.analyzer.scope():
            self.analyzer.assume(fact)
            then = self.then_of(branch)
        otherwise = branch.otherwise
        if otherwise is not None:
            with self.analyzer.scope():
                self.analyzer.assume(negated(fact))
                otherwise = self(otherwise)
        if condition is branch.condition and then is branch.then and otherwise is branch.otherwise:
            return branch
        return replace(branch, condition=condition, then=then, otherwise=otherwise)

    def then_of(self, branch: ir.If) -> ir.Seq:
        """What becomes of the statements below a condition, where it is known to hold."""
        return self(branch.then)

    def visit_Select(self, select: ir.Select) -> ir.Expr:
        condition = self.visit(select.condition)
        with self.analyzer.scope():
            self.analyzer.assume(select.condition)
            then = self.chosen_of(select)
        with self.analyzer.scope():
            self.analyzer.assume(negated(select.condition))
            otherwise = self.visit(select.otherwise)
        if condition is select.condition and then is select.then and otherwise is select.otherwise:
            return select
        return replace(select, condition=condition, then=then, otherwise=otherwise)

    def chosen_of(self, select: ir.Select) -> ir.Expr:
        """What becomes of the value that a choice has where its condition is known to hold."""
        return self.visit(select.then)


class DecidingRewriter(ScopedRewriter):
    """One that leaves out what never runs: under facts that contradict one another anything can be proved, and indices
    become any number."""

    def decided(self, condition: ir.Expr) -> bool | None:
        """The value of a condition, where it is certain."""
        result = self.analyzer.simplify(condition)
        return bool(result.value) if isinstance(result, ir.Const) else None

    def visit_If(self, branch: ir.If) -> Rewritten:
        value = self.decided(branch.condition)
        if value is None:
            return _unless_empty(super().visit_If(branch))
        taken = branch.then if value else branch.otherwise
        return None if taken is None else _spliced(self(taken))

    def visit_Select(self, select: ir.Select) -> ir.Expr:
        value = self.decided(select.condition)
        if value is None:
            return super().visit_Select(select)
        return self.visit(select.then if value else select.otherwise)

    def visit_For(self, loop: ir.For) -> Rewritten:
        return None if self.never_runs(loop) else _unless_empty(super().visit_For(loop))

    def visit_Parallel(self, loop: ir.Parallel) -> Rewritten:
        return _unless_empty(super().visit_Parallel(loop))

    def never_runs(self, loop: ir.For) -> bool:
        """Whether a loop has no iteration, for certain."""
        return self.analyzer.prove(ir.index_binary("ge", loop.start, loop.stop))


class _Decisions(DecidingRewriter):
    def __init__(self, analyzer: Analyzer, uniform: dict[ir.Var, ir.Expr]) -> None:
        self.analyzer, self.uniform = analyzer, uniform


def decided_parts(loop: ir.Parallel, place: ScopedRewriter) -> ir.Parallel | None:
    """A loop without what never runs of it where a rewriter stands; None where nothing is left."""
    result = _Decisions(place.analyzer, place.uniform).visit(loop)
    return result if isinstance(result, ir.Parallel) else None


def _unless_empty(made: Rewritten) -> Rewritten:
    return None if isinstance(made, ir.Statement) and ir.is_empty(made) else made


def _spliced(body: ir.Seq) -> Rewritten:
    """The statements of a branch in place of it; in a scope of their own where they declare names."""
    return body if body.declares else list(body.statements)


def bind_loop(analyzer: Analyzer, loop: ir.For) -> None:
    """Tell `analyzer` the range of a loop's variable."""
    analyzer.bind(loop.var, loop.start, ir.binary("sub", loop.stop, ir.const(1, loop.stop.dtype)))


def reads_nothing(expr: ir.Expr) -> bool:
    """Whether the value of `expr` depends on variables alone, so that it holds as long as they do."""
    return not holds(expr, ir.Load, ir.Call)


def negated(condition: ir.Expr) -> ir.Expr:
    """``not condition``, pushed into a comparison of integers; of a literal the other one."""
    if isinstance(condition, ir.Const):
        return ir.const(not condition.value)
    if isinstance(condition, ir.Binary) and condition.op in ir.OPPOSITE and condition.left.dtype.is_integer:
        return ir.binary(ir.OPPOSITE[condition.op], condition.left, condition.right)
    return ir.Unary(condition.dtype, "not", condition)


def with_values(node: N, values: Mapping[ir.Var, ir.Expr], buffers: Mapping[ir.Buffer, ir.Buffer] | None = None) -> N:
    """`node` with variables (and buffers) replaced, and the arithmetic on literals that this allows done."""
    return _Fold(values, buffers or {})(node)


class _Fold(Rewriter):
    """Variables replaced by literals, and the arithmetic on them done."""

    def __init__(self, values: Mapping[ir.Var, ir.Expr], buffers: Mapping[ir.Buffer, ir.Buffer]) -> None:
        self.values, self.buffers = values, buffers

    def map_var(self, var: ir.Var) -> ir.Expr:
        return self.values.get(var, var)

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        return self.buffers.get(buffer, buffer)

    def visit_Binary(self, node: ir.Binary) -> ir.Expr:
        made = self.generic(node)
        return made if made is node else ir.binary(made.op, made.left, made.right)

    def visit_Cast(self, node: ir.Cast) -> ir.Expr:
        made = self.generic(node)
        return made if made is node else ir.cast(made.value, made.dtype)


def redirected(node: N, slots: Mapping[ir.Buffer, tuple[ir.Buffer, ir.Expr]]) -> N:
    """`node` with every access of some tiles going to a slot of a ring instead.

    Parameters
    ----------
    slots : for each tile its ring, which has one dimension more in front, and the index of the slot.
    """
    return _Redirect(slots)(node)


class HoistingRewriter(Rewriter):
    """One whose expressions may need statements before the one that they stand in, which they add to `before`."""

    def __init__(self) -> None:
        self.before: list[ir.Statement] = []

    def visit_Seq(self, body: ir.Seq) -> ir.Seq:
        statements: list[ir.Statement] = []
        outer = self.before
        for one in body.statements:
            self.before = []
            made = self.visit(one)
            statements += [*self.before, *listed(self.placed(made))]
        self.before = outer
        return ir.Seq(tuple(statements), span=body.span)

    def placed(self, made: Rewritten) -> Rewritten:
        """What stands behind `before` for a statement that has been rewritten."""
        return made


class PlaceRewriter(Rewriter):
    """Moves accesses: loads, stores and regions go where `place` says."""

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """The buffer and the indices in the place of those of an access, which have been rewritten; a region gets an
        extent of 1 for each index that is added in front."""
        raise NotImplementedError

    def _moved(self, access: Any) -> Any:
        made = self.generic(access)
        buffer, indices = self.place(access.buffer, made.indices)
        return made if indices is made.indices else replace(made, buffer=buffer, indices=indices)

    visit_Load = visit_Store = _moved

    def visit_Region(self, region: ir.Region) -> ir.Region:
        made = self.generic(region)
        buffer, starts = self.place(region.buffer, made.starts)
        added = (1,) * (len(starts) - len(made.starts))
        return made if starts is made.starts else ir.Region(buffer, starts, (*added, *made.extents))


class _Redirect(PlaceRewriter):
    """Accesses of tiles that have stages go to the slot of their iteration."""

    def __init__(self, slots: Mapping[ir.Buffer, tuple[ir.Buffer, ir.Expr]]) -> None:
        self.slots = slots

    def place(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        if buffer not in self.slots:
            return buffer, indices
        staged, slot = self.slots[buffer]
        return staged, (slot, *indices)
