"""On a machine where a block is one thread, statements of single threads become loops over the threads.

Before::

    @stage("lowered")
    def f(A: float32[128], B: float32[128]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            tile = shared(float32[128])
            tile[tx] = A[tx]
            sync_threads()
            B[tx] = tile[127 - tx]

After::

    @stage("lowered")
    def f(A: float32[128], B: float32[128]) -> B:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            tile = shared(float32[128])
            for tx_1 in vectorize(128):
                tile[tx_1] = A[tx_1]
            for tx_1 in vectorize(128):
                B[tx_1] = tile[127 - tx_1]

Loops end where threads meet: at barriers, at work of the whole block (`Parallel`) and at statements that do not
depend on a thread, which run once, unless they change memory by what is there. What a thread keeps from one loop to the
next gets a dimension of threads. Without data races the threads' order does not matter, so the loops may run as
vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from tilewright.errors import Span, TilewrightError
from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    Function,
    If,
    Kernel,
    Let,
    Parallel,
    Record,
    Return,
    Seq,
    Statement,
    Store,
    Var,
    While,
    binary,
    const,
    counted,
    load,
    seq,
)
from tilewright.ir.visitor import Rewriter, changed, find, having, holds, substitute, walk
from tilewright.passes.context import Context
from tilewright.passes.lower.thread_differences import PRIVATE, ThreadDifferences, statements_under
from tilewright.passes.scoped import fresh, map_kernels, reads_nothing, redirected


class NeedsWarps(TilewrightError):
    """A function of a warp, on a machine without warps."""


class DivergentBarrier(TilewrightError):
    """A barrier, or work of the whole block, that only some threads reach."""


def lower_threads(function: Function, context: Context) -> Function:
    """Turn statements of single threads into loops over the block's threads.

    Raises
    ------
    NeedsWarps, DivergentBarrier
    """
    return map_kernels(function, _lower_kernel)


def _lower_kernel(kernel: Kernel) -> Kernel:
    if not any(
        node in kernel.thread_vars or _is_barrier(node) or _is_collective_call(node) for node in walk(kernel.body)
    ) and not ThreadDifferences.updates(kernel.body):
        return replace(kernel, threads=(1, 1, 1))
    return replace(kernel, body=_Threads(kernel).kernel(), threads=(1, 1, 1))


def _is_barrier(node: Record) -> bool:
    return isinstance(node, Call) and node.function == "sync_threads"


def _is_collective_call(node: Record) -> bool:
    return isinstance(node, Call) and INTRINSICS[node.function].collective


class _Threads(ThreadDifferences):
    """One kernel.

    Attributes
    ----------
    vars, buffers : what differs between threads: names, and private memory.
    expanded : private memory that lives from one loop over threads to the next, with its memory for all.
    repeated : names that each loop computes again.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.kernel_node = kernel
        self.expanded: dict[Buffer, Buffer] = {}
        self.kept: dict[Var, Buffer] = {}
        self.repeated: dict[Var, Let] = {}
        self.running: Buffer | None = None

    def kernel(self) -> Seq:
        body = self.kernel_node.body
        self._check(body)
        self.find_varying(body)
        if holds(body, Return) and self.returns_vary(body):
            self.running = Buffer("running", (self.kernel_node.num_threads,), BOOL, "local")
        made = self.sequence(body)
        if self.running is not None:
            start = self._over_threads([Store(self.running, (self._thread_number(),), const(True))], first=True)
            made = replace(made, statements=(Allocate(self.running), start, *made.statements))
        return made

    def find_varying(self, body: Seq) -> None:
        super().find_varying(body)
        while found := self._stored_alone(body) - self.buffers:
            self.buffers |= found
            super().find_varying(body)

    def _stored_alone(self, body: Seq) -> set[Buffer]:
        """Private memory from outside that statements store into which threads run one by one: each has its own."""
        found: set[Buffer] = set()
        for statement in body.statements:
            if not self.synchronizes(statement):
                if self.varies(statement):
                    stores = {one.buffer for one in find(statement, Store) if one.buffer.scope in PRIVATE}
                    found |= stores - {one.buffer for one in find(statement, Allocate)}
            elif not isinstance(statement, Parallel):
                for child in statements_under(statement):
                    found |= self._stored_alone(child if isinstance(child, Seq) else seq(child))
        return found

    def _check(self, body: Seq) -> None:
        for statement in walk(body):
            if not isinstance(statement, Statement):
                continue
            for node in _own_expressions(statement):
                if _is_collective_call(node) and not _is_barrier(node):
                    raise NeedsWarps(
                        f"{node.function} exchanges values between the threads of a warp, which this machine "
                        "does not have",
                        span=statement.span, hint="run the kernel on a GPU, or on this machine with "
                                                  "kernel.emulate(...)")  # fmt: skip

    # Splitting

    def sequence(self, body: Seq) -> Seq:
        """`body` with its statements of single threads in loops over the threads."""
        made: list[Statement] = []
        pieces: list[list[Statement] | Statement] = []
        for single, found in groupby(body.statements, lambda one: not self.synchronizes(one) and self._is_single(one)):
            run = list(found)
            pieces += [run] if single else run
        self._keep_across(pieces)
        for piece in pieces:
            made += self._loop(piece) if isinstance(piece, list) else self._whole_block(piece)
        return replace(body, statements=tuple(made))

    def _is_single(self, statement: Statement) -> bool:
        """Whether the threads run `statement` one by one: it differs between them."""
        if isinstance(statement, Allocate):
            return statement.buffer in self.buffers
        return self.varies(statement) or (isinstance(statement, Return) and self.running is not None)

    def _keep_across(self, pieces: list[list[Statement] | Statement]) -> None:
        """Find the private memory and the names that a later piece still uses."""
        for position, piece in enumerate(pieces):
            for statement in piece if isinstance(piece, list) else []:
                if isinstance(statement, Allocate) and self._used_elsewhere(statement.buffer, pieces, position):
                    shape = (self.kernel_node.num_threads, *statement.buffer.shape)
                    self.expanded[statement.buffer] = replace(statement.buffer, shape=shape, scope="local")
                elif isinstance(statement, Let) and self._used_elsewhere(statement.var, pieces, position):
                    if reads_nothing(statement.value) and self._is_known_anywhere(statement.value):
                        self.repeated[statement.var] = statement
                    else:
                        shape, var = (self.kernel_node.num_threads,), statement.var
                        self.kept[var] = Buffer(var.name, shape, var.dtype, "local")

    def _is_known_anywhere(self, value: Expr) -> bool:
        """Whether a value can be computed again in each loop: of what is alike, of threads' indices, of names that are,
        too."""
        names = {node for node in find(value, Var) if node in self.vars}
        return names <= {*self.repeated, *self.kernel_node.thread_vars}

    @staticmethod
    def _used_elsewhere(thing: Var | Buffer, pieces: list[list[Statement] | Statement], position: int) -> bool:
        others = pieces[:position] + pieces[position + 1 :]
        return any(thing in walk(seq(piece)) for piece in others)

    def _whole_block(self, statement: Statement) -> list[Statement]:
        """A statement that the block runs as one, or a structure around a meeting of the threads."""
        if isinstance(statement, Evaluate) and _is_barrier(statement.value):
            return []
        if not self.synchronizes(statement) or not self.varies(statement):
            return [statement] if not any(map(_is_barrier, walk(statement))) else [_without_barriers(statement)]
        if isinstance(statement, Parallel):
            raise DivergentBarrier("T.Parallel is work of the whole block, but this one depends on a thread "
                                   "index", span=statement.span,
                                   hint="use the loop's own variables, or write the statement outside of "
                                        "T.Parallel")  # fmt: skip
        if isinstance(statement, Seq):
            return [self.sequence(statement)]
        if isinstance(statement, If) and self.varies(statement.condition) and self._is_block_work(statement):
            return self._once(statement)
        self._check_uniform(statement)
        if isinstance(statement, (For, While)):
            return [replace(statement, body=self.sequence(statement.body))]
        assert isinstance(statement, If), statement
        otherwise = None if statement.otherwise is None else self.sequence(statement.otherwise)
        return [replace(statement, then=self.sequence(statement.then), otherwise=otherwise)]

    def _check_uniform(self, statement: Any) -> None:
        conditions = (
            (statement.condition,)
            if isinstance(statement, (If, While))
            else (statement.start, statement.stop, statement.step)
        )
        if self.varies(conditions):
            raise DivergentBarrier("only some threads reach the work of the whole block in here: the condition "
                                   "depends on a thread",
                                   span=statement.span, hint="move T.sync_threads() and tile operators out of "
                                                             "the condition")  # fmt: skip

    def synchronizes(self, statement: Statement) -> bool:
        """Whether the threads meet inside `statement`: at a barrier, or for work of the whole block."""
        return any(
            _is_barrier(node) or (isinstance(node, Parallel) and not self._is_private(node)) for node in walk(statement)
        )

    def _is_private(self, loop: Parallel) -> bool:
        """Whether each thread runs the loop for itself, since all that it writes is the thread's own."""
        own = {node.buffer for node in find(loop, Allocate)}
        written = {node.buffer for node in find(loop, Store)} - own
        return bool(written) and written <= self.buffers

    def _is_block_work(self, branch: If) -> bool:
        """Whether nothing in a branch differs between threads, so that only its condition does."""
        inside = [branch.then] if branch.otherwise is None else [branch.then, branch.otherwise]
        return not any(self.varies(body) or any(map(_is_barrier, walk(body))) for body in inside)

    def _once(self, branch: If) -> list[Statement]:
        """Work of the whole block under a condition of its threads: done once where any of them asks for it."""
        made: list[Statement] = []
        opposite = nodes.Unary(BOOL, "not", branch.condition)
        for condition, body in ((branch.condition, branch.then), (opposite, branch.otherwise)):
            if body is None:
                continue
            asked, noted = self._any_thread("asked", condition)
            made += [*noted, If(asked, body, span=branch.span)]
        return made

    def _any_thread(self, name: str, condition: Expr, first: bool = False) -> tuple[Expr, list[Statement]]:
        """Whether a condition holds for any thread, and what finds that out."""
        found = Buffer(name, (1,), BOOL, "scalar")
        note = If(condition, seq(Store(found, (const(0),), const(True))))
        return load(found, 0), [Allocate(found, const(False)), self._over_threads([note], first)]

    # Loops over threads

    def _loop(self, run: list[Statement]) -> list[Statement]:
        """A loop over the threads that runs `run`, behind the memory that outlives it."""
        before: list[Statement] = []
        body: list[Statement] = []
        for statement in run:
            if isinstance(statement, Allocate) and statement.buffer in self.expanded:
                before.append(Allocate(self.expanded[statement.buffer], span=statement.span))
                if statement.initial is not None:
                    place = tuple(const(0) for _ in statement.buffer.shape)
                    body.append(Store(statement.buffer, place, statement.initial, span=statement.span))
            elif isinstance(statement, Let) and statement.var in self.kept:
                buffer = self.kept[statement.var]
                before.append(Allocate(buffer, span=statement.span))
                body += [statement, Store(buffer, (self._thread_number(),), statement.var, span=statement.span)]
            else:
                body.append(statement)
        if not body:
            return before
        made = [*before, self._over_threads(body)]
        if self.running is not None and any(isinstance(node, Return) for s in body for node in walk(s)):
            made += self._leave_when_all_have(body[0].span)
        return made

    def _leave_when_all_have(self, span: Span | None) -> list[Statement]:
        """The block is done where no thread is left."""
        assert self.running is not None
        left, noted = self._any_thread("left", load(self.running, self._thread_number()), first=True)
        return [*noted, If(nodes.Unary(BOOL, "not", left), seq(Return()), span=span)]

    def _over_threads(self, body: list[Statement], first: bool = False) -> Statement:
        used = dict.fromkeys(node for s in body for node in find(s, Var))  # in the same order in every process
        bound = {s.var for s in body if isinstance(s, Let)}
        recomputed = [self._kept_value(var) for var in self._needed(used) if var not in bound]
        statements: list[Statement] = [*recomputed, *body]
        if self.running is not None and not first:
            running = load(self.running, self._thread_number())
            leave = _Leave(self.running, self._thread_number())
            statements = [If(running, leave(seq(statements)))]
        made = Seq(tuple(statements))
        number = self._thread_number()
        made = redirected(made, {one: (wide, number) for one, wide in self.expanded.items()})
        kind = "serial" if holds(made, Return, nodes.Continue) else "vectorize"
        return self._nest(made, kind)

    def _needed(self, used: Iterable[Var]) -> list[Var]:
        """Names from earlier loops that `used` ones rest on, in an order in which they can be computed."""
        order: list[Var] = []

        def add(var: Var) -> None:
            if var in order or (var not in self.repeated and var not in self.kept):
                return
            if var in self.repeated:
                for other in walk(self.repeated[var].value):
                    if isinstance(other, Var):
                        add(other)
            order.append(var)

        for var in sorted(used, key=lambda v: v.name):
            add(var)
        return order

    def _kept_value(self, var: Var) -> Statement:
        if var in self.repeated:
            return self.repeated[var]
        return Let(var, load(self.kept[var], self._thread_number()))

    def _nest(self, body: Seq, kind: str) -> Statement:
        """`body` for every thread, the first index varying fastest."""
        kernel = self.kernel_node
        made: Statement = body
        for depth, (var, count) in enumerate(zip(kernel.thread_vars, kernel.threads, strict=True)):
            if count == 1:
                made = substitute(made, {var: const(0, var.dtype)})
                continue
            inner = made if isinstance(made, Seq) else Seq((made,))
            made = counted(var, count, inner, kind if depth == 0 else "serial")
        return fresh(made)

    def _thread_number(self) -> Expr:
        number: Expr = const(0)
        for var, count in reversed(list(zip(self.kernel_node.thread_vars, self.kernel_node.threads, strict=True))):
            number = binary("add", binary("mul", number, const(count)), nodes.cast(var, INT32))
        return number


class _Leave(Rewriter):
    """Replaces the end of a thread by going on to the next one, noting that it is done."""

    def __init__(self, running: Buffer, thread: Expr) -> None:
        self.running, self.thread, self.in_loop = running, thread, False

    def visit_Return(self, end: Return) -> Seq:
        noted = Store(self.running, (self.thread,), const(False), span=end.span)
        return Seq((noted, nodes.Break() if self.in_loop else nodes.Continue()))

    def visit_For(self, loop: For | While) -> Statement:
        if not holds(loop, Return):
            return loop
        with having(self, in_loop=True):
            made: Statement = self.generic(loop)
        done = nodes.Unary(BOOL, "not", load(self.running, self.thread))
        return Seq((made, If(done, seq(nodes.Break() if self.in_loop else nodes.Continue()))))

    visit_While = visit_For


def _own_expressions(statement: Statement) -> Iterator[Any]:
    """Nodes in the expressions of a statement, not those of statements inside it."""
    return (
        node
        for node in walk(statement, lambda n: n is statement or not isinstance(n, Statement))
        if isinstance(node, Expr)
    )


def _without_barriers(statement: Statement) -> Statement:
    """A statement that all threads run alike, as one of them runs it."""
    return changed(statement, Evaluate, by=lambda one: None if _is_barrier(one.value) else one)
