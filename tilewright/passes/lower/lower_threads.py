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
from functools import partial
from itertools import groupby

from tilewright.errors import TilewrightError
from tilewright.interpreter.varying import PRIVATE, find_varying, is_exchange
from tilewright.ir import (
    INTRINSICS,
    changed,
    children,
    find,
    having,
    header,
    holds,
    mentioned,
    root,
    substitute,
    updates,
    walk,
    without_jumps,
)
from tilewright.ir import nodes as ir
from tilewright.passes import Context, fresh, linear_thread, map_kernels, reads_nothing, redirected


class NeedsWarps(TilewrightError):
    """A function of a warp, on a machine without warps."""


class DivergentBarrier(TilewrightError):
    """A barrier, or work of the whole block, that only some threads reach."""


def lower_threads(function: ir.Function, context: Context) -> ir.Function:
    """Turn statements of single threads into loops over the block's threads.

    Raises
    ------
    NeedsWarps, DivergentBarrier
    """
    return map_kernels(function, _lower_kernel)


def _lower_kernel(kernel: ir.Kernel) -> ir.Kernel:
    extents = dict(zip(kernel.thread_vars, kernel.threads, strict=True))
    kernel = changed(kernel, ir.Binary, by=partial(_of_few_threads, extents))
    if not any(
        node in kernel.thread_vars or _is_barrier(node) or _is_collective(node) for node in walk(kernel.body)
    ) and not _updates(kernel.body):
        return replace(kernel, threads=(1, 1, 1))
    return replace(kernel, body=_Threads(kernel).kernel(), threads=(1, 1, 1))


def _updates(node: ir.Statement) -> bool:
    """Whether each thread changes memory by what is there: not in parallel loops, whose iterations do so in turn."""
    inside = walk(node, lambda found: not isinstance(found, ir.Parallel))
    return any(isinstance(one, ir.Statement) and updates(one) for one in inside)


def _of_few_threads(extents: dict[ir.Var, int], node: ir.Binary) -> ir.Expr:
    """The number of a warp, or a lane, where all threads are in one."""
    if node.op not in ("floordiv", "floormod") or node.left not in extents or not isinstance(node.right, ir.Const):
        return node
    if node.right.value < extents[node.left]:
        return node
    return ir.const(0, node.dtype) if node.op == "floordiv" else node.left


def _is_barrier(node: ir.Record) -> bool:
    return isinstance(node, ir.Call) and node.function == "sync_threads"


def _is_collective(node: ir.Record) -> bool:
    return isinstance(node, ir.Call) and INTRINSICS[node.function].collective


class _Threads:
    """One kernel.

    Attributes
    ----------
    names : what differs between threads: variables, and private memory.
    expanded : private memory that lives from one loop over threads to the next, with its memory for all.
    kept : what a name, or a tensor by its address, is for each thread in later loops.
    repeated : names that each loop computes again.
    """

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel_node, self.number = kernel, linear_thread(kernel)
        self.names: set[ir.Var | ir.Buffer] = set()
        self.expanded: dict[ir.Buffer, ir.Buffer] = {}
        self.kept: dict[ir.Var | ir.Buffer, ir.Buffer] = {}
        self.repeated: dict[ir.Var, ir.Let] = {}
        self.running: ir.Buffer | None = None

    def kernel(self) -> ir.Seq:
        body = self.kernel_node.body
        self._check(body)
        while found := {*find_varying(self.kernel_node, self.names).names, *self._own_memory(body)} - self.names:
            self.names |= found
        if holds(body, ir.Return) and self._leave_apart(body, (ir.Return,)):
            self.running = ir.Buffer("running", (self.kernel_node.num_threads,), ir.BOOL, "local")
        made = self.sequence(body)
        if self.running is not None:
            start = self._over_threads([ir.Store(self.running, (self.number,), ir.const(True))], first=True)
            made = replace(made, statements=(ir.Allocate(self.running), start, *made.statements))
        return made

    def varies(self, node: object) -> bool:
        """Whether `node` mentions something that differs between threads."""
        if isinstance(node, tuple):
            return any(map(self.varies, node))
        return (isinstance(node, ir.Statement) and _updates(node)) or not self.names.isdisjoint(mentioned(node))

    def _leave_apart(self, body: ir.Statement, words: tuple[type[ir.Statement], ...], divergent: bool = False) -> bool:
        """Whether one of these words is that of some threads only: `Return`, or what leaves this loop or iteration."""
        if isinstance(body, words):
            return divergent
        if isinstance(body, (ir.For, ir.While)) and ir.Return not in words:
            return False
        if isinstance(body, (ir.If, ir.While)):
            divergent = divergent or self.varies(body.condition)
        return any(self._leave_apart(child, words, divergent) for child in _below(body))

    def _own_memory(self, body: ir.Seq) -> set[ir.Buffer]:
        """Tensors at an address of each thread's own; and private memory from outside that statements store into which
        threads run one by one: each has its own."""
        found: set[ir.Buffer] = set()
        for statement in body.statements:
            if isinstance(statement, ir.Allocate):
                if statement.initial is not None and self.varies(statement.initial):
                    found.add(statement.buffer)
            elif not self.synchronizes(statement):
                if self.varies(statement):
                    stores = (one.buffer for one in find(statement, ir.Store) if one.buffer.scope in PRIVATE)
                    found |= set(map(root, stores)) - {one.buffer for one in find(statement, ir.Allocate)}
            elif not isinstance(statement, ir.Parallel):
                for child in _below(statement):
                    found |= self._own_memory(child if isinstance(child, ir.Seq) else ir.seq(child))
        return found

    def _check(self, body: ir.Seq) -> None:
        for statement in filter(is_exchange, find(body, ir.Statement)):
            first = next(one for one in find(statement, ir.Call) if _is_collective(one) and not _is_barrier(one))
            raise NeedsWarps(
                f"{first.function} exchanges values between the threads of a warp, which this machine does not have",
                span=statement.span,
                hint="run the kernel on a GPU, or on this machine with kernel.emulate(...)",
            )

    # Splitting

    def sequence(self, body: ir.Seq) -> ir.Seq:
        """`body` with its statements of single threads in loops over the threads."""
        made: list[ir.Statement] = []
        pieces: list[list[ir.Statement] | ir.Statement] = []
        for single, found in groupby(body.statements, lambda one: not self.synchronizes(one) and self._is_single(one)):
            run = list(found)
            pieces += [run] if single else run
        self._keep_across(pieces)
        for piece in pieces:
            made += self._loop(piece) if isinstance(piece, list) else self._whole_block(piece)
        return replace(body, statements=tuple(made))

    def _is_single(self, statement: ir.Statement) -> bool:
        """Whether the threads run `statement` one by one: it differs between them."""
        if isinstance(statement, ir.Allocate):
            return statement.buffer in self.names
        return self.varies(statement) or (isinstance(statement, ir.Return) and self.running is not None)

    def _keep_across(self, pieces: list[list[ir.Statement] | ir.Statement]) -> None:
        """Find the private memory and the names that a later piece still uses."""
        for position, piece in enumerate(pieces):
            for statement in piece if isinstance(piece, list) else []:
                if isinstance(statement, ir.Allocate) and self._used_elsewhere(statement.buffer, pieces, position):
                    buffer, threads = statement.buffer, self.kernel_node.num_threads
                    if buffer.placed and statement.initial is not None:
                        self.kept[buffer] = ir.Buffer(buffer.name, (threads,), statement.initial.dtype, "local")
                    else:
                        self.expanded[buffer] = replace(buffer, shape=(threads, *buffer.shape), scope="local")
                elif isinstance(statement, ir.Let) and self._used_elsewhere(statement.var, pieces, position):
                    if reads_nothing(statement.value) and self._is_known_anywhere(statement.value):
                        self.repeated[statement.var] = statement
                    else:
                        shape, var = (self.kernel_node.num_threads,), statement.var
                        self.kept[var] = ir.Buffer(var.name, shape, var.dtype, "local")

    def _is_known_anywhere(self, value: ir.Expr) -> bool:
        """Whether a value can be computed again in each loop: of what is alike, of threads' indices, of names that are,
        too."""
        names = {node for node in find(value, ir.Var) if node in self.names}
        return names <= {*self.repeated, *self.kernel_node.thread_vars}

    @staticmethod
    def _used_elsewhere(
        thing: ir.Var | ir.Buffer, pieces: list[list[ir.Statement] | ir.Statement], position: int
    ) -> bool:
        others = pieces[:position] + pieces[position + 1 :]
        nodes = (node for piece in others for node in walk(ir.seq(piece)))
        return any((root(node) if isinstance(node, ir.Buffer) else node) is thing for node in nodes)

    def _whole_block(self, statement: ir.Statement) -> list[ir.Statement]:
        """A statement that the block runs as one, or a structure around a meeting of the threads."""
        if isinstance(statement, ir.Evaluate) and _is_barrier(statement.value):
            return []
        if not self.synchronizes(statement) or not self.varies(statement):
            return [statement] if not any(map(_is_barrier, walk(statement))) else [_without_barriers(statement)]
        if isinstance(statement, ir.Parallel):
            raise DivergentBarrier(
                "T.Parallel is work of the whole block, but this one depends on a thread index",
                span=statement.span,
                hint="use the loop's own variables, or write the statement outside of T.Parallel",
            )
        if isinstance(statement, ir.Seq):
            return [self.sequence(statement)]
        if isinstance(statement, ir.If) and self.varies(statement.condition) and self._is_block_work(statement):
            return self._once(statement)
        assert isinstance(statement, (ir.If, ir.For, ir.While)), statement
        if not isinstance(statement, ir.If) and self._leave_apart(statement.body, (ir.Break, ir.Continue)):
            raise DivergentBarrier(
                "threads leave this loop, or the rest of an iteration, at different times, and meet in it",
                span=statement.span,
                hint="let all threads leave at once, or run the kernel on a GPU or by kernel.emulate(...)",
            )
        if self.varies(header(statement)):
            raise DivergentBarrier(
                "only some threads reach the work of the whole block in here: the condition depends on a thread",
                span=statement.span,
                hint="move T.sync_threads(), tile operators and exchanges between lanes out of the condition",
            )
        if isinstance(statement, (ir.For, ir.While)):
            return [replace(statement, body=self.sequence(statement.body))]
        otherwise = None if statement.otherwise is None else self.sequence(statement.otherwise)
        return [replace(statement, then=self.sequence(statement.then), otherwise=otherwise)]

    def synchronizes(self, statement: ir.Statement) -> bool:
        """Whether the threads meet inside `statement`: at a barrier, or for work of the whole block."""
        return any(
            _is_barrier(node) or (isinstance(node, ir.Parallel) and not self._is_private(node))
            for node in walk(statement)
        )

    def _is_private(self, loop: ir.Parallel) -> bool:
        """Whether each thread runs the loop for itself, since all that it writes is the thread's own."""
        own = {node.buffer for node in find(loop, ir.Allocate)}
        written = {node.buffer for node in find(loop, ir.Store)} - own
        return bool(written) and written <= self.names

    def _is_block_work(self, branch: ir.If) -> bool:
        """Whether nothing in a branch differs between threads, so that only its condition does; what is made and bound
        in there is of those that come."""
        body = ir.seq(branch.then, branch.otherwise)
        made = {_made(node) for node in find(body, ir.Let, ir.Allocate)} | {node.var for node in find(body, ir.For)}
        with having(self, names=find_varying(self.kernel_node.with_body(body), self.names - made).names):
            return not self.varies(body)

    def _once(self, branch: ir.If) -> list[ir.Statement]:
        """Work of the whole block under a condition of its threads: done once where any of them asks for it."""
        made: list[ir.Statement] = []
        opposite = ir.Unary(ir.BOOL, "not", branch.condition)
        for condition, body in ((branch.condition, branch.then), (opposite, branch.otherwise)):
            if body is None:
                continue
            asked, noted = self._any_thread("asked", condition)
            made += [*noted, ir.If(asked, ir.seq(_without_barriers(body)), span=branch.span)]
        return made

    def _any_thread(self, name: str, condition: ir.Expr, first: bool = False) -> tuple[ir.Expr, list[ir.Statement]]:
        """Whether a condition holds for any thread, and what finds that out."""
        found = ir.Buffer(name, (1,), ir.BOOL, "scalar")
        note = ir.If(condition, ir.seq(ir.Store(found, (ir.const(0),), ir.const(True))))
        return ir.load(found, 0), [ir.Allocate(found, ir.const(False)), self._over_threads([note], first)]

    # Loops over threads

    def _loop(self, run: list[ir.Statement]) -> list[ir.Statement]:
        """A loop over the threads that runs `run`, behind the memory that outlives it."""
        before: list[ir.Statement] = []
        body: list[ir.Statement] = []
        for statement in run:
            if isinstance(statement, ir.Allocate) and statement.buffer in self.expanded:
                before.append(ir.Allocate(self.expanded[statement.buffer], span=statement.span))
                if statement.initial is not None:
                    place = tuple(ir.const(0) for _ in statement.buffer.shape)
                    body.append(ir.Store(statement.buffer, place, statement.initial, span=statement.span))
            elif isinstance(statement, (ir.Let, ir.Allocate)) and _made(statement) in self.kept:
                buffer = self.kept[_made(statement)]
                value = statement.var if isinstance(statement, ir.Let) else statement.initial
                assert value is not None
                before.append(ir.Allocate(buffer, span=statement.span))
                body += [statement, ir.Store(buffer, (self.number,), value, span=statement.span)]
            else:
                body.append(statement)
        if not body:
            return before
        made = [*before, self._over_threads(body)]
        if self.running is not None and any(holds(one, ir.Return) for one in body):  # the block is done with the last
            left, noted = self._any_thread("left", ir.load(self.running, self.number), first=True)
            made += [*noted, ir.If(ir.Unary(ir.BOOL, "not", left), ir.seq(ir.Return()), span=body[0].span)]
        return made

    def _over_threads(self, body: list[ir.Statement], first: bool = False) -> ir.Statement:
        used = dict.fromkeys(node for s in body for node in find(s, ir.Var))  # in the same order in every process
        bound = {_made(s) for s in body if isinstance(s, (ir.Let, ir.Allocate))}
        recomputed = [self._kept_value(var) for var in self._needed(used) if var not in bound]
        tensors = {root(node) for s in body for node in find(s, ir.Buffer)} - bound
        placed = [self._kept_value(one) for one in self.kept if one in tensors]
        statements: list[ir.Statement] = [*recomputed, *placed, *body]
        if self.running is not None and not first:
            runs = ir.load(self.running, self.number)
            statements = [ir.If(runs, ir.seq(*without_jumps(statements, {ir.Return: (runs,)})))]
        made = ir.Seq(tuple(statements))
        wider = dict(self.expanded)
        for view in find(made, ir.Buffer):
            if view.source is not None and root(view) in self.expanded:
                shape = (self.kernel_node.num_threads, *view.shape)
                wider[view] = replace(view, shape=shape, scope="local", source=self.expanded[root(view)])
        made = redirected(made, {one: (wide, self.number) for one, wide in wider.items()})
        in_order = any(holds(one, ir.Return, ir.Continue) for one in body)
        return self._nest(made, "serial" if in_order else "vectorize")

    def _needed(self, used: Iterable[ir.Var]) -> list[ir.Var]:
        """Names from earlier loops that `used` ones rest on, in an order in which they can be computed."""
        order: list[ir.Var] = []

        def add(var: ir.Var) -> None:
            if var in order or (var not in self.repeated and var not in self.kept):
                return
            if var in self.repeated:
                for other in find(self.repeated[var].value, ir.Var):
                    add(other)
            order.append(var)

        for var in sorted(used, key=lambda v: v.name):
            add(var)
        return order

    def _kept_value(self, thing: ir.Var | ir.Buffer) -> ir.Statement:
        if isinstance(thing, ir.Var) and thing in self.repeated:
            return self.repeated[thing]
        value = ir.load(self.kept[thing], self.number)
        return ir.Let(thing, value) if isinstance(thing, ir.Var) else ir.Allocate(thing, value)

    def _nest(self, body: ir.Seq, kind: str) -> ir.Statement:
        """`body` for every thread, the first index varying fastest."""
        kernel = self.kernel_node
        made: ir.Statement = body
        for depth, (var, count) in enumerate(zip(kernel.thread_vars, kernel.threads, strict=True)):
            if count == 1:
                made = substitute(made, {var: ir.const(0, var.dtype)})
                continue
            inner = made if isinstance(made, ir.Seq) else ir.Seq((made,))
            made = ir.counted(var, count, inner, kind if depth == 0 else "serial")
        return fresh(made)


def _below(statement: ir.Statement) -> Iterator[ir.Statement]:
    """The statements directly below a statement."""
    return (child for child in children(statement) if isinstance(child, ir.Statement))


def _made(statement: ir.Let | ir.Allocate) -> ir.Var | ir.Buffer:
    return statement.var if isinstance(statement, ir.Let) else statement.buffer


def _without_barriers(statement: ir.Statement) -> ir.Statement:
    """A statement that all threads run alike, as one of them runs it."""
    return changed(statement, ir.Evaluate, by=lambda one: None if _is_barrier(one.value) else one)
