"""Reads printed programs back: the inverse of `printer`, at every stage.

Tile operators come from `nodes.TILE_OPERATORS` and their dataclass fields alone, so that a new operator
prints and parses without a word here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.errors import ProgramSyntaxError, Span
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32, UINT64
from tilewright.ir.expression_parser import _DTYPE, SCOPES, ExpressionParser
from tilewright.ir.syntax import called, items
from tilewright.ir.visitor import method_of
from tilewright.texts import keep_lines


def parse(text: str, *, file: str | None = None, first_line: int = 1) -> ir.Function:
    """The program that `text` prints.

    Parameters
    ----------
    text : one program, as `printer.print_program` writes it; comments are ignored.
    file, first_line : where the text stands.  Where given, statements carry their place in it.

    Raises
    ------
    ProgramSyntaxError : the text is not a program; the message shows the line.
    """
    name = file or "<program>"
    if file is None:
        keep_lines(text, name)
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        span = Span(name, (error.lineno or 1) + first_line - 1, max((error.offset or 1) - 1, 0))
        raise ProgramSyntaxError(f"this is not a program: {error.msg}", span=span) from None
    parser = _Parser(text, name, first_line, spans=file is not None)
    definitions = [found for found in module.body if isinstance(found, ast.FunctionDef)]
    if len(definitions) != 1 or len(module.body) != 1:
        raise ProgramSyntaxError("expected one program, `def name(...):`", span=Span(name, first_line))
    function = parser.function(definitions[0])
    parser.check_read(definitions[0])
    return function


class _Parser(ExpressionParser):
    def __init__(self, source: str, file: str, first_line: int, *, spans: bool) -> None:
        super().__init__(source, file, first_line)
        self.spans = spans
        self.layouts: list[tuple[ir.Buffer, Any]] = []
        self.safe_values: list[tuple[ir.Buffer, ir.Expr]] = []

    @contextmanager
    def block(self) -> Iterator[None]:
        """Names bound inside are gone at the end."""
        self.scope = self.scope.new_child()
        yield
        self.scope = self.scope.parents

    def place(self, node: ast.AST) -> Span | None:
        return self.span(node) if self.spans else None

    def check_read(self, definition: ast.FunctionDef) -> None:
        """Refuse what is said and nothing was made of: a printed program says nothing else."""
        for node in ast.walk(definition):
            for part in _OPTIONAL.get(type(node), lambda _: [])(node):
                if part is not None and self.read.isdisjoint(ast.walk(part)):
                    raise self.fail("nothing is said by this here", part)

    # Functions and buffers

    def function(self, definition: ast.FunctionDef) -> ir.Function:
        arguments = definition.args
        for argument in (*arguments.kwonlyargs, *arguments.args):
            annotation = argument.annotation
            if annotation is None:
                raise self.fail("a parameter has a type", argument)
            if isinstance(annotation, ast.Name) and _DTYPE.fullmatch(annotation.id):
                self.scope[argument.arg] = ir.Var(self.dtype(annotation), argument.arg)
        for argument in arguments.args:
            if argument.arg not in self.scope and argument.annotation is not None:
                self.scope[argument.arg] = self._parameter(argument.arg, argument.annotation)
        params = tuple(self.scope[argument.arg] for argument in arguments.args)
        stage, attributes = "traced", []
        for decorator in definition.decorator_list:
            word, values = self._decorator(decorator)
            if word == "stage":
                stage = str(values[0])
            else:
                attributes.append((str(values[0]), values[1]))
        returned = definition.returns
        names = [] if returned is None else returned.elts if isinstance(returned, ast.Tuple) else [returned]
        outputs = tuple(self.buffer(name) for name in names)
        body = self.body(definition.body)
        return ir.Function(
            definition.name, params, body, outputs, stage, tuple(attributes), span=self.place(definition)
        )

    def _decorator(self, node: ast.expr) -> tuple[str, list[Any]]:
        arity = {"stage": 1, "attribute": 2}
        word = called(node)
        if not isinstance(node, ast.Call) or len(node.args) != arity.get(word):
            raise self.fail("expected @stage(name) or @attribute(name, value)", node)
        return word, [self.value(argument) for argument in node.args]

    def _parameter(self, name: str, annotation: ast.expr) -> ir.Buffer:
        if isinstance(annotation, ast.Subscript):
            of, shape = self.shaped_type(annotation)
            return ir.Buffer(name, shape, of)
        made = self.made_buffer(name, annotation)
        if made is None:
            raise self.fail("expected a dtype, `dtype[shape]` or `tensor(...)`", annotation)
        return made[0]

    # Statements

    def body(self, statements: list[ast.stmt]) -> ir.Seq:
        with self.block():
            return ir.seq(*(self.statement(statement) for statement in statements))

    def statement(self, node: ast.stmt) -> ir.Statement | None:
        reader = method_of(_Parser, "read_", type(node))
        if reader is None:
            raise self.fail("no such statement", node)
        made: ir.Statement | None = reader(self, node)
        return made

    def read_AnnAssign(self, node: ast.AnnAssign) -> ir.Statement:
        if not isinstance(node.target, ast.Name) or node.value is None:
            raise self.fail("expected `name: dtype = value`", node)
        of = self.dtype(node.annotation)
        value = self.expression(node.value, of)
        var = ir.Var(of, node.target.id)
        self.scope[var.name] = var
        return ir.Let(var, value, span=self.place(node))

    def read_Assign(self, node: ast.Assign) -> ir.Statement | None:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            return self._allocate(target.id, node)
        wide = target if isinstance(target, ast.Attribute) else None
        target = target if wide is None else wide.value
        if not isinstance(target, ast.Subscript):
            raise self.fail("expected an element of a buffer or a new buffer's name", node)
        buffer = self.buffer(target.value)
        value = self.expression(node.value, buffer.dtype)
        if wide is not None and self.lanes(wide, buffer).lanes != value.dtype.lanes:
            raise self.fail(f"what is stored has {value.dtype.lanes} lanes", wide)
        return ir.Store(buffer, self.indices(target.slice), value, span=self.place(node))

    def _allocate(self, name: str, node: ast.Assign) -> ir.Statement | None:
        made = self.made_buffer(name, node.value)
        if made is None:
            raise self.fail("expected a new buffer", node.value, f"known kinds: view, {', '.join(SCOPES)}")
        buffer, keywords = made
        self.scope[name] = buffer
        assert isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        if node.value.func.id == "view":
            return None
        initial = keywords.get("initial")
        if "layout" in keywords:
            self.layouts.append((buffer, self.value(keywords["layout"])))
        if "safe_value" in keywords:
            self.safe_values.append((buffer, self.expression(keywords["safe_value"], buffer.dtype)))
        first = None if initial is None else self.expression(initial, UINT64 if buffer.placed else buffer.dtype)
        return ir.Allocate(buffer, first, span=self.place(node))

    def read_Expr(self, node: ast.Expr) -> ir.Statement:
        call = node.value
        word = called(call)
        span = self.place(node)
        if isinstance(call, ast.Call) and word in ir.TILE_OPERATORS:
            return self.construct(ir.TILE_OPERATORS[word], call, self.words(call), span=span)
        if isinstance(call, ast.Call) and word in _ASYNCHRONY:
            return _ASYNCHRONY[word](self, call, span)
        if isinstance(call, ast.Call) and word == "assume" and len(call.args) == 1:
            return ir.Assume(self.expression(call.args[0]), span=span)
        if isinstance(call, ast.Call) and word in ("print", "breakpoint"):
            values = tuple(self.value(argument) for argument in call.args)
            thread = next((self.integer(keyword.value) for keyword in call.keywords if keyword.arg == "thread"), 0)
            return ir.Print(values, word == "breakpoint", thread, span=span)
        value = self.expression(call)
        if not isinstance(value, ir.Call):
            raise self.fail("only a call has an effect", call)
        return ir.Evaluate(value, span=span)

    def _group(self, call: ast.Call, span: Span | None) -> ir.Statement:
        """``commit("loads")`` or ``wait("loads", pending=1)``."""
        assert isinstance(call.func, ast.Name)
        token = [self.value(argument) for argument in call.args]
        keywords: dict[str, object] = {
            keyword.arg or "": self.expression(keyword.value) if keyword.arg == "full" else self.value(keyword.value)
            for keyword in call.keywords
        }
        if len(token) != 1:
            raise self.fail("expected commit(token) or wait(token, pending=n)", call)
        return self.construct(_GROUPS[call.func.id], call, keywords, *token, span=span)

    def _channel(self, call: ast.Call, span: Span | None) -> ir.Statement:
        if not call.args:
            raise self.fail("expected the channel's name and its buffers", call)
        buffers = tuple(self.buffer(argument) for argument in call.args[1:])
        return self.construct(ir.Channel, call, self.words(call), self.value(call.args[0]), buffers, span=span)

    def _channel_statement(self, call: ast.Call, span: Span | None) -> ir.Statement:
        assert isinstance(call.func, ast.Name)
        if len(call.args) != 2 or call.keywords:
            raise self.fail("expected the channel's name and the iteration's number", call)
        return _CHANNEL_STATEMENTS[call.func.id](self.value(call.args[0]), self.expression(call.args[1]), span=span)

    def _roles(self, node: ast.With) -> ir.Statement:
        found = []
        for inner in node.body:
            call = inner.items[0].context_expr if isinstance(inner, ast.With) else None
            if (
                not isinstance(inner, ast.With)
                or not isinstance(call, ast.Call)
                or not isinstance(call.func, ast.Name)
                or call.func.id != "role"
                or len(call.args) != 1
            ):
                raise self.fail("roles hold `with role(name, warps=n):` alone", inner)
            with self.block():
                words = {keyword.arg or "": self._role_word(keyword) for keyword in call.keywords}
                name, body = self.value(call.args[0]), self.body(inner.body)
            found.append(self.construct(ir.Role, call, words, name, body=body, span=self.place(inner)))
        return ir.Roles(tuple(found), span=self.place(node))

    def _role_word(self, keyword: ast.keyword) -> Any:
        """A keyword of a role; ``index`` is the name by which its body knows the instance."""
        if keyword.arg != "index" or not isinstance(keyword.value, ast.Name):
            return self.value(keyword.value)
        self.read.add(keyword.value)
        var = ir.Var(INT32, keyword.value.id)
        self.scope[var.name] = var
        return var

    def read_If(self, node: ast.If) -> ir.Statement:
        condition = self.expression(node.test)
        otherwise = self.body(node.orelse) if node.orelse else None
        return ir.If(condition, self.body(node.body), otherwise, span=self.place(node))

    def read_While(self, node: ast.While) -> ir.Statement:
        return ir.While(self.expression(node.test), self.body(node.body), span=self.place(node))

    def read_Assert(self, node: ast.Assert) -> ir.Statement:
        message = self.value(node.msg) if isinstance(node.msg, ast.Constant) else ""
        return ir.Assert(self.expression(node.test), str(message), span=self.place(node))

    def read_Break(self, node: ast.stmt) -> ir.Statement:
        jump = {ast.Break: ir.Break, ast.Continue: ir.Continue, ast.Return: ir.Return}[type(node)]
        return jump(span=self.place(node))

    read_Continue = read_Return = read_Break

    def read_Pass(self, node: ast.Pass) -> None:
        """A body of nothing."""

    # Loops and kernels

    def read_For(self, node: ast.For) -> ir.Statement:
        call = node.iter
        word = called(call)
        if not isinstance(call, ast.Call) or word not in _LOOPS:
            raise self.fail("no such loop", node.iter, f"loops: {', '.join(_LOOPS)}")
        keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
        names = [item.id for item in items(node.target) if isinstance(item, ast.Name)]
        given = keywords.pop("dtype", None)
        types = [INT32] if given is None else [self.dtype(item) for item in items(given)]
        vars = tuple(ir.Var(types[min(d, len(types) - 1)], name) for d, name in enumerate(names))
        make = _LOOPS[word](self, vars, call, keywords)
        with self.block():
            self.scope.update({var.name: var for var in vars})
            body = self.body(node.body)
        return make(body, self.place(node))

    def _bounds(self, vars: tuple[ir.Var, ...], call: ast.Call) -> tuple[ir.Expr, ...]:
        if len(vars) != 1 or not 1 <= len(call.args) <= 3:
            raise self.fail("expected one variable and (stop), (start, stop) or (start, stop, step)", call)
        of = vars[0].dtype
        bounds = [self.expression(argument, of) for argument in call.args]
        return tuple(bounds) if len(bounds) > 1 else (ir.Const(of, 0), *bounds)

    def _serial(self, vars: tuple[ir.Var, ...], call: ast.Call, keywords: dict[str, ast.expr]) -> _MakeLoop:
        bounds = self._bounds(vars, call)
        step = bounds[2] if len(bounds) == 3 else ir.Const(vars[0].dtype, 1)
        assert isinstance(call.func, ast.Name)
        kind = "serial" if call.func.id == "range" else call.func.id
        return lambda body, span: ir.For(vars[0], bounds[0], bounds[1], step, body, kind, span=span)

    def _pipelined(self, vars: tuple[ir.Var, ...], call: ast.Call, keywords: dict[str, ast.expr]) -> _MakeLoop:
        start, stop, *step = self._bounds(vars, call)
        if step:
            raise self.fail("a pipelined loop counts by one", call)
        words = {word: self.value(value) for word, value in keywords.items()}
        return lambda body, span: self.construct(ir.Pipelined, call, words, vars[0], start, stop, body, span=span)

    def _parallel(self, vars: tuple[ir.Var, ...], call: ast.Call, keywords: dict[str, ast.expr]) -> _MakeLoop:
        extents = tuple(self.extent(argument) for argument in call.args)
        words = {word: self.value(value) for word, value in keywords.items()}
        return lambda body, span: self.construct(ir.Parallel, call, words, vars, extents, body, span=span)

    def read_With(self, node: ast.With) -> ir.Statement:
        call = node.items[0].context_expr
        word = called(call)
        if word == "scope":
            body = self.body(node.body)
            return ir.Seq(body.statements, span=self.place(node))
        if word == "roles":
            return self._roles(node)
        if word != "kernel" or not isinstance(call, ast.Call):
            raise self.fail("expected `with kernel(...):`, `with roles():` or `with scope():`", node)
        return self._kernel(node, {keyword.arg or "": keyword.value for keyword in call.keywords})

    def _kernel(self, node: ast.With, keywords: dict[str, ast.expr]) -> ir.Kernel:
        layouts = tuple(
            (self.buffer(name), self.value(held)) for name, held in self._pairs(keywords.pop("layouts", None))
        )
        safe: list[tuple[ir.Buffer, ir.Expr]] = []
        for name, held in self._pairs(keywords.pop("safe_values", None)):
            buffer = self.buffer(name)
            safe.append((buffer, self.expression(held, buffer.dtype)))
        blocks = [(self._index(name), self.extent(held)) for name, held in self._pairs(keywords.pop("blocks", None))]
        threads = [(self._index(name), self.integer(held)) for name, held in self._pairs(keywords.pop("threads", None))]
        attributes = tuple((word, self.value(value)) for word, value in keywords.items())
        outer = self.layouts, self.safe_values
        self.layouts, self.safe_values = [], []
        with self.block():
            self.scope.update({var.name: var for var, _ in (*blocks, *threads)})
            body = self.body(node.body)
        layouts, safe_values = (*layouts, *self.layouts), (*safe, *self.safe_values)
        self.layouts, self.safe_values = outer
        block_vars, grid = tuple(var for var, _ in blocks), tuple(extent for _, extent in blocks)
        thread_vars: Any = tuple(var for var, _ in threads)
        shape: Any = tuple(extent for _, extent in threads)
        return ir.Kernel(
            block_vars, grid, thread_vars, shape, body, layouts, safe_values, attributes, span=self.place(node)
        )

    def _pairs(self, node: ast.expr | None) -> list[tuple[ast.expr, ast.expr]]:
        """Keys and values of a dictionary display."""
        if node is None:
            return []
        if not isinstance(node, ast.Dict) or None in node.keys:
            raise self.fail("expected `{name: value}`", node)
        self.read.add(node)
        return [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]

    def _index(self, node: ast.expr) -> ir.Var:
        """An index variable of a kernel: ``bx``, or ``int64(bx)``."""
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return ir.Var(self.dtype(node.func), node.args[0].id)
        if not isinstance(node, ast.Name):
            raise self.fail("expected the name of an index", node)
        return ir.Var(INT32, node.id)


_MakeLoop = Callable[[ir.Seq, "Span | None"], ir.Statement]


_OPTIONAL: dict[type, Callable[..., Sequence[ast.AST | None]]] = {
    ast.Call: lambda node: [*node.args, *node.keywords],
    ast.For: lambda node: node.orelse,
    ast.While: lambda node: node.orelse,
    ast.With: lambda node: node.items[1:],
    ast.Assign: lambda node: node.targets[1:],
    ast.arguments: lambda node: [node.vararg, node.kwarg, *node.defaults, *node.kw_defaults],
    ast.Slice: lambda node: [node.step],
    ast.Assert: lambda node: [node.msg],
}
"""What may stand in a piece of syntax without being read."""

_CHANNEL_STATEMENTS: dict[str, type[ir.ChannelStatement]] = {
    cls.__name__.lower(): cls for cls in (ir.Acquire, ir.Publish, ir.Receive, ir.Release)
}

_GROUPS = {"commit": ir.Commit, "wait": ir.Wait}

_ASYNCHRONY: dict[str, Callable[[_Parser, ast.Call, Span | None], ir.Statement]] = {
    **dict.fromkeys(_GROUPS, _Parser._group),
    "channel": _Parser._channel,
    **dict.fromkeys(_CHANNEL_STATEMENTS, _Parser._channel_statement),
}

_LOOPS: dict[str, Callable[[_Parser, tuple[ir.Var, ...], ast.Call, dict[str, ast.expr]], _MakeLoop]] = {
    "range": _Parser._serial,
    "unroll": _Parser._serial,
    "vectorize": _Parser._serial,
    "pipelined": _Parser._pipelined,
    "parallel": _Parser._parallel,
}
