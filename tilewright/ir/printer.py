"""Programs as text: a Python-like form that reads well and that `parser` reads back exactly.

The text is valid Python, so that editors highlight it and Python's own parser splits it::

    @stage("traced")
    def scale(A: float32[M, 64], C: float32[M, 64], *, M: int32) -> C:
        with kernel(blocks={bx: (M + 31) // 32}, threads={tx: 128, ty: 1, tz: 1}):
            tile = shared(float32[32, 64])
            copy(source=A[bx * 32 : +32, :], destination=tile)
            for i, j in parallel(32, 64):
                C[bx * 32 + i, j] = tile[i, j] * 2.0

Variables and buffers keep the author's names; two that are in scope together never share one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.errors import InternalError
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32, UINT64
from tilewright.ir.expression_text import ExpressionText, Names, quoted
from tilewright.ir.literals import record_fields
from tilewright.ir.signature import size_variables
from tilewright.ir.visitor import method_of
from tilewright.ir.walking import find, walk

WIDTH = 110
"""Headers and operators longer than this go over several lines, one operand each."""

Marks = Mapping[Any, Sequence[str]]
"""Remarks to put beside statements, by statement (or function)."""

SCOPE_WORDS = {scope: "tensor" if scope == "global" else scope for scope in ir.SCOPES}
"""How a buffer of each scope is made; ``global`` is a word of Python's."""


def print_program(function: ir.Function, *, marks: Marks | None = None, spans: bool = False) -> str:
    """The text of a program.

    Parameters
    ----------
    function : a program of any stage, valid or not.
    marks : remarks to show beside statements, as comments.
    spans : add a comment with the place in the author's file to each statement.

    Returns
    -------
    text, ending in a newline, such that ``print_program(parse(text)) == text`` where no marks are given.
    """
    printer = _Printer(marks or {}, spans)
    printer.function(function)
    return "\n".join(printer.lines) + "\n"


class _Printer:
    def __init__(self, marks: Marks, spans: bool) -> None:
        self.marks, self.spans = marks, spans
        self.lines: list[str] = []
        self.depth = 0
        self.names = Names()
        self.text = ExpressionText(self.names)
        self.views: dict[ir.Buffer, list[ir.Buffer]] = {}
        self.annotations: dict[ir.Buffer, list[str]] = {}

    # Layout of lines

    def line(self, text: str, statement: ir.Statement | ir.Function | None = None) -> None:
        indent = "    " * self.depth
        remarks = list(self.marks.get(statement, ()))
        span = getattr(statement, "span", None)
        comment = f"  # {os.path.basename(span.file)}:{span.line}" if self.spans and span is not None else ""
        if remarks:
            comment += f"  # <-- {remarks[0]}"
        self.lines.append(indent + text + comment)
        self.lines.extend(f"{indent}# <-- {remark}" for remark in remarks[1:])

    def call(self, head: str, items: Sequence[str], tail: str, statement: ir.Statement | ir.Function) -> None:
        """``head(items)tail``, over several lines where it is long."""
        whole = f"{head}({', '.join(items)}){tail}"
        if len(whole) + 4 * self.depth <= WIDTH or not items:
            self.line(whole, statement)
            return
        self.line(f"{head}(", statement)
        for item in items:
            self.lines.append("    " * (self.depth + 1) + f"{item},")
        self.lines.append("    " * self.depth + f"){tail}")

    @contextmanager
    def block(self) -> Iterator[None]:
        """Lines inside are indented, names end with it."""
        self.depth += 1
        with self.names.scope():
            start = len(self.lines)
            yield
            if len(self.lines) == start:
                self.line("pass")
        self.depth -= 1

    # Functions and buffers

    def function(self, function: ir.Function) -> None:
        allocated = {found.buffer for found in find(function, ir.Allocate)}
        for found in walk(function):
            if isinstance(found, ir.Buffer):
                self._note_view(found, allocated | set(function.params))
        sizes = size_variables(function)
        for owner in (*(p for p in function.params if isinstance(p, ir.Buffer)), *sizes, *function.params):
            self.names.declare(owner)
        items = [f"{self.names(p)}: {self._parameter(p)}" for p in function.params]
        if sizes:
            items += ["*", *(f"{self.names(size)}: {size.dtype}" for size in sizes)]
        self.line(f"@stage({quoted(function.stage)})")
        for name, value in function.attributes:
            self.line(f"@attribute({quoted(name)}, {self.text.value(value)})")
        outputs = [self.names(output) for output in function.outputs]
        returned = outputs[0] if len(outputs) == 1 else self.text.group(outputs)
        self.call(f"def {function.name}", items, f" -> {returned}:" if outputs else ":", function)
        with self.block():
            for param in function.params:
                if isinstance(param, ir.Buffer):
                    self._declare_views(param)
            self._statements(function.body)

    def _note_view(self, buffer: ir.Buffer, declared: set[ir.Record]) -> None:
        """Remember a view that no statement declares, so that it is declared behind its source."""
        if buffer.source is None or buffer in declared:
            return
        siblings = self.views.setdefault(buffer.source, [])
        if buffer not in siblings:
            siblings.append(buffer)
            self._note_view(buffer.source, declared)

    def _parameter(self, param: ir.Buffer | ir.Var) -> str:
        if isinstance(param, ir.Var):
            return str(param.dtype)
        bare = param.strides is None and param.source is None and not param.packed
        plain = param.scope == "global" and bare and param.alignment == ir.GLOBAL_ALIGNMENT
        return self._type(param) if plain else self._maker(param, [])

    def _type(self, buffer: ir.Buffer) -> str:
        return f"{buffer.dtype}[{', '.join(self.text.extent(e) for e in buffer.shape) or '()'}]"

    def _maker(self, buffer: ir.Buffer, more: Sequence[str]) -> str:
        """The expression that makes a buffer: ``shared(float16[128, 32], ...)``."""
        items = [self._type(buffer)]
        if buffer.strides is not None:
            items.append(f"strides={self.text.group([self.text.extent(s) for s in buffer.strides])}")
        if buffer.source is not None:
            items.append(f"source={self.names(buffer.source)}")
        items += self._said(buffer, "packed", "alignment", "placed")
        return f"{SCOPE_WORDS.get(buffer.scope, buffer.scope)}({', '.join([*items, *more])})"

    def _declare_views(self, source: ir.Buffer) -> None:
        for view in self.views.get(source, ()):
            strides = [self.text.extent(s) for s in view.strides or ()]
            more = f", strides={self.text.group(strides)}" if view.strides is not None else ""
            self.line(f"{self.names.declare(view)} = view({self.names(source)}, {self._type(view)}{more})")
            self._declare_views(view)

    # Statements

    def statement(self, statement: ir.Statement) -> None:
        if isinstance(statement, ir.TileOperator):
            items = [f"{name}={self.text.value(value)}" for name, value in record_fields(statement) if name != "span"]
            self.call(statement.name, items, "", statement)
            return
        printer = method_of(_Printer, "print_", type(statement))
        if printer is None:
            raise InternalError(f"no printed form for the statement {type(statement).__name__}")
        printer(self, statement)

    def _statements(self, body: ir.Seq) -> None:
        for statement in body.statements:
            self.statement(statement)

    def _body(self, body: ir.Seq) -> None:
        with self.block():
            self._statements(body)

    def print_Seq(self, body: ir.Seq) -> None:
        self.line("with scope():", body)
        self._body(body)

    def print_Let(self, let: ir.Let) -> None:
        value = self.text(let.value, let.var.dtype)
        self.line(f"{self.names.declare(let.var)}: {let.var.dtype} = {value}", let)

    def print_Allocate(self, allocate: ir.Allocate) -> None:
        buffer = allocate.buffer
        more = []
        if allocate.initial is not None:
            more.append(f"initial={self.text(allocate.initial, UINT64 if buffer.placed else buffer.dtype)}")
        more += self.annotations.pop(buffer, [])
        maker = self._maker(buffer, more)
        self.line(f"{self.names.declare(buffer)} = {maker}", allocate)
        self._declare_views(buffer)

    def print_Store(self, store: ir.Store) -> None:
        lanes = store.buffer.dtype.with_lanes(store.value.dtype.lanes)
        target = self.text.element(store.buffer, store.indices, lanes)
        self.line(f"{target} = {self.text(store.value, store.buffer.dtype)}", store)

    def print_Evaluate(self, evaluate: ir.Evaluate) -> None:
        self.line(self.text(evaluate.value), evaluate)

    def print_If(self, branch: ir.If) -> None:
        self.line(f"if {self.text(branch.condition)}:", branch)
        self._body(branch.then)
        if branch.otherwise is not None:
            self.line("else:")
            self._body(branch.otherwise)

    def print_For(self, loop: ir.For) -> None:
        of = loop.var.dtype
        start, stop, step = (self.text(bound, of) for bound in (loop.start, loop.stop, loop.step))
        bounds = [start, stop, step] if step != "1" else [start, stop] if start != "0" else [stop]
        word = "range" if loop.kind == "serial" else loop.kind
        self._loop((loop.var,), word, bounds, loop)

    def print_Pipelined(self, loop: ir.Pipelined) -> None:
        of = loop.var.dtype
        start, stop = self.text(loop.start, of), self.text(loop.stop, of)
        items = [start, stop] if start != "0" else [stop]
        items += self._said(loop, "num_stages", "order", "stage", "specialize")
        self._loop((loop.var,), "pipelined", items, loop)

    def _said(self, node: ir.Record, *names: str) -> list[str]:
        """Fields of a node by their names, those that are not as they are by default."""
        return [f"{name}={self.text.value(value)}" for name, value in record_fields(node) if name in names]

    def print_Parallel(self, loop: ir.Parallel) -> None:
        items = [self.text.extent(extent) for extent in loop.extents]
        items += self._said(loop, "layout", "coalesced_width", "prefer", "token")
        self._loop(loop.vars, "parallel", items, loop)

    def _loop(self, vars: Sequence[ir.Var], word: str, items: list[str], loop: Any) -> None:
        types = [str(var.dtype) for var in vars]
        if any(var.dtype != INT32 for var in vars):
            items = [*items, f"dtype={types[0] if len(set(types)) == 1 else self.text.group(types)}"]
        with self.names.scope():
            names = [self.names.declare(var) for var in vars]
            self.line(f"for {', '.join(names) or '()'} in {word}({', '.join(items)}):", loop)
            self._body(loop.body)

    def print_While(self, loop: ir.While) -> None:
        self.line(f"while {self.text(loop.condition)}:", loop)
        self._body(loop.body)

    def print_Break(self, statement: ir.Statement) -> None:
        self.line(type(statement).__name__.lower(), statement)

    print_Continue = print_Return = print_Break

    def print_Assert(self, statement: ir.Assert) -> None:
        message = f", {quoted(statement.message)}" if statement.message else ""
        self.line(f"assert {self.text(statement.condition)}{message}", statement)

    def print_Assume(self, statement: ir.Assume) -> None:
        self.line(f"assume({self.text(statement.condition)})", statement)

    def print_Print(self, statement: ir.Print) -> None:
        items = [*map(self.text.value, statement.values), *self._said(statement, "thread")]
        self.call("breakpoint" if statement.stop else "print", items, "", statement)

    def print_Commit(self, commit: ir.Commit) -> None:
        self.line(f"commit({quoted(commit.token)})", commit)

    def print_Wait(self, wait: ir.Wait) -> None:
        items = [quoted(wait.token), f"pending={wait.pending}", *self._said(wait, "reading_only", "others")]
        items += [f"full={self.text(wait.full)}"] if wait.full is not None else []
        self.call("wait", items, "", wait)

    def print_Channel(self, channel: ir.Channel) -> None:
        items = [quoted(channel.name), *(f"{self.names(buffer)}" for buffer in channel.buffers)]
        items.append(f"stages={channel.stages}")
        items += [f"{word}={self.text.value(getattr(channel, word))}" for word in ("writers", "readers")]
        self.call("channel", [*items, f"scope={quoted(channel.scope)}", *self._said(channel, "alternate")], "", channel)

    def print_ChannelStatement(self, statement: ir.ChannelStatement) -> None:
        word = type(statement).__name__.lower()
        self.line(f"{word}({quoted(statement.channel)}, {self.text(statement.iteration)})", statement)

    def print_Roles(self, roles: ir.Roles) -> None:
        self.line("with roles():", roles)
        with self.block():
            for role in roles.roles:
                items = [quoted(role.name), f"warps={role.warps}"]
                if role.registers is not None:
                    items.append(f"registers={role.registers}")
                with self.names.scope():
                    if role.index is not None:
                        items += [f"instances={role.instances}", f"index={self.names.declare(role.index)}"]
                    self.call("with role", items, ":", role)
                    self._body(role.body)

    def print_Kernel(self, kernel: ir.Kernel) -> None:
        before = self.annotations
        self.annotations, outside = self._split_annotations(kernel)
        with self.names.scope():
            grid = [self.text.extent(extent) for extent in kernel.grid]
            blocks = [f"{self._index(v)}: {n}" for v, n in zip(kernel.block_vars, grid, strict=False)]
            threads = [f"{self._index(v)}: {n}" for v, n in zip(kernel.thread_vars, kernel.threads, strict=False)]
            items = [f"blocks={{{', '.join(blocks)}}}", f"threads={{{', '.join(threads)}}}", *outside]
            items += [f"{name}={self.text.value(value)}" for name, value in kernel.attributes]
            self.call("with kernel", items, ":", kernel)
            self._body(kernel.body)
        self.annotations = before

    def _index(self, var: ir.Var) -> str:
        name = self.names.declare(var)
        return name if var.dtype == INT32 else f"{var.dtype}({name})"

    def _split_annotations(self, kernel: ir.Kernel) -> tuple[dict[ir.Buffer, list[str]], list[str]]:
        """Layouts and safe values: by buffer where the kernel allocates it, else as items of the header."""
        local = {found.buffer for found in find(kernel.body, ir.Allocate)}
        inside: dict[ir.Buffer, list[str]] = {}
        outside = []
        for word, pairs in (("layout", kernel.layouts), ("safe_value", kernel.safe_values)):
            header = []
            for buffer, value in pairs:
                shown = self.text(value, buffer.dtype) if word == "safe_value" else self.text.value(value)
                if buffer in local:
                    inside.setdefault(buffer, []).append(f"{word}={shown}")
                else:
                    header.append(f"{self.names(buffer)}: {shown}")
            if header:
                outside.append(f"{word}s={{{', '.join(header)}}}")
        return inside, outside
