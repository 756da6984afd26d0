"""Rewriting of the author's function: the only surgery on syntax trees in tilewright.

The rewritten function is executed once.  Whether a ``for``, an ``if`` or an ``and`` is Python's or the program's
is decided while it runs, by what it meets: a symbolic value makes it the program's.  So an ``if`` becomes

    branch = scope.branch(test)
    if branch.then():       # always entered where the test is symbolic, with a statement list open
        ...
    if branch.otherwise():
        ...
    branch.close()

and loops, conditional expressions and assignments likewise call methods of `Scope`.  Nested functions and lambdas
are left to Python, except for conditional expressions in lambdas; lines and columns stay those of the author.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from tilewright.language.mistakes import UNSUPPORTED, UnsupportedStatement
from tilewright.language.source import FunctionSource

SCOPE = "__scope__"
BUILTIN_NAMES = frozenset({"print", "breakpoint", "min", "max", "round"})


class Rewrite(ast.NodeTransformer):
    """Rewrites one function's body; nested functions are not entered."""

    def __init__(self, source: FunctionSource, parameters: frozenset[str]) -> None:
        self.source, self.parameters = source, parameters
        self.count = 0
        self.loops: list[str] = []

    # Pieces -------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"__{stem}_{self.count}__"

    def call(self, method: str, *arguments: ast.expr, at: ast.AST) -> ast.Call:
        """``__scope__.method(arguments)``, placed where `at` is."""
        return _place(ast.Call(_attribute(SCOPE, method), list(arguments), []), at)

    def assign_name(self, name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
        """``name = __scope__.assign("name", value)``."""
        return assigned(name, self.call("assign", text_of(name), value, at=at), at)

    def named(self, names: Sequence[str], value: ast.expr) -> ast.expr:
        """The names as text; where the value comes from a call, they are announced to it first."""
        if any(isinstance(part, ast.Call) for part in ast.walk(value)):
            return self.call("naming", *map(text_of, names), at=value)
        return text_of(names[0]) if len(names) == 1 else ast.Tuple([text_of(name) for name in names], ast.Load())

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        rewritten: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            rewritten.extend(result if isinstance(result, list) else [result])
        return rewritten

    def forget(self, handle: str, statements: Sequence[ast.stmt], at: ast.AST) -> list[ast.stmt]:
        """After a loop or branch of the program, names that it assigned mean nothing any more."""
        names = sorted(_stored_names(statements))
        if not names:
            return []
        body = [assigned(name, self.call("after", text_of(name), at=at), at) for name in names]
        return [_place(ast.If(_attribute(handle, "symbolic"), body, []), at)]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        known = UNSUPPORTED.get(type(node).__name__)
        if known is not None and isinstance(node, (ast.expr, ast.stmt)):
            raise UnsupportedStatement(*known, span=self.source.span(node))
        return super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    # Assignments --------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = node.value
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if len(node.targets) == 1 and names:
            announced = self.named(names, value)
            return assigned(names[0], self.call("assign", announced, self.visit(value), at=node), node)
        if len(node.targets) == 1 and isinstance(node.targets[0], (ast.Tuple, ast.List)):
            return self._unpack(node, node.targets[0])
        if len(node.targets) == 1:
            return self.generic_visit(node)
        temporary = self.fresh("value")
        shared = assigned(temporary, self.visit(value), node)
        parts = (ast.Assign([target], ast.Name(temporary, ast.Load())) for target in node.targets)
        return [shared, *self.block([_place(part, node) for part in parts])]

    def _unpack(self, node: ast.Assign, target: ast.Tuple | ast.List) -> list[ast.stmt]:
        names: list[tuple[str, str]] = []

        def replace(part: ast.expr) -> ast.expr:
            if isinstance(part, ast.Name):
                names.append((part.id, self.fresh(part.id)))
                return ast.copy_location(ast.Name(names[-1][1], ast.Store()), part)
            if isinstance(part, ast.Starred):
                return ast.copy_location(ast.Starred(replace(part.value), ast.Store()), part)
            if isinstance(part, (ast.Tuple, ast.List)):
                return ast.copy_location(ast.Tuple([replace(item) for item in part.elts], ast.Store()), part)
            return self.visit(part)

        replaced = replace(target)
        announced = self.named([name for name, _ in names] or ["value"], node.value)
        tuple_of_names = announced if len(names) > 1 else ast.Tuple([announced], ast.Load())
        unpacked = self.call("unpack", tuple_of_names, self.visit(node.value), at=node)
        statements: list[ast.stmt] = [_place(ast.Assign([replaced], unpacked), node)]
        statements.extend(self.assign_name(name, ast.Name(temporary, ast.Load()), node) for name, temporary in names)
        return statements

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        op = text_of(type(node.op).__name__)
        if isinstance(node.target, ast.Name):
            old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            call = self.call("augment", text_of(node.target.id), op, old, self.visit(node.value), at=node)
            return assigned(node.target.id, call, node)
        if isinstance(node.target, ast.Subscript):
            key = ast.Subscript(_attribute(SCOPE, "key"), self.visit(node.target.slice), ast.Load())
            parts = self.visit(node.target.value), _place(key, node.target), op, self.visit(node.value)
            call = self.call("augment_item", *parts, at=node)
            return _place(ast.Expr(call), node)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node) if node.value else _place(ast.Pass(), node)
        name = node.target.id
        if node.value is None:
            if name not in self.parameters:
                return _place(ast.Pass(), node)
            old = _place(ast.Name(name, ast.Load()), node.target)
            call = self.call("annotate", text_of(name), self.visit(node.annotation), old, at=node.annotation)
        else:
            announced = self.named([name], node.value)
            call = self.call("typed", announced, _thunk(node.annotation), self.visit(node.value), at=node)
        return assigned(name, call, node)

    # Control flow -------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        handle = self.fresh("if")
        made = assigned(handle, self.call("branch", self.visit(node.test), at=node.test), node.test)
        then = ast.If(_method(handle, "then"), self.block(node.body), [])
        otherwise = ast.If(_method(handle, "otherwise"), self.block(node.orelse) or [ast.Pass()], [])
        statements = [made, then, otherwise, ast.Expr(_method(handle, "close"))]
        placed = [_place(statement, node.test) for statement in statements]
        return [*placed, *self.forget(handle, [*node.body, *node.orelse], node.test)]

    def visit_Match(self, node: ast.Match) -> ast.stmt:
        node.subject = self.call("matched", self.visit(node.subject), at=node.subject)
        for case in node.cases:
            case.guard = case.guard and self.visit(case.guard)
            case.body = self.block(case.body)
        return node

    def _refuse_else(self, loop: ast.For | ast.While) -> None:
        if loop.orelse:
            advice = "set a T.alloc_var in the loop and test it after"
            raise UnsupportedStatement("`else` of a loop", advice, span=self.source.span(loop))

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        self._refuse_else(node)
        handle = self.fresh("for")
        names = _target_names(node.target)
        iterable = self.call("loop", self._iterable(node.iter), *map(text_of, names), at=node.iter)
        made = assigned(handle, iterable, node.iter)
        calls = (self.call("declare", text_of(name), ast.Name(name, ast.Load()), at=node.target) for name in names)
        declared = [assigned(name, call, node.target) for name, call in zip(names, calls, strict=True)]
        self.loops.append(handle)
        body = self.block(node.body)
        self.loops.pop()
        loop = _place(ast.For(node.target, ast.Name(handle, ast.Load()), [*declared, *body], []), node.iter)
        return [made, loop, *self.forget(handle, [node, *node.body], node.iter)]

    def _iterable(self, node: ast.expr) -> ast.expr:
        """What a ``for`` iterates over; ``range`` is the program's serial loop there."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            arguments = [self.visit(argument) for argument in node.args]
            function = self.call("builtin", ast.copy_location(ast.Name("range", ast.Load()), node), at=node.func)
            return ast.copy_location(ast.Call(function, arguments, node.keywords), node)
        visited: ast.expr = self.visit(node)
        return visited

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self._refuse_else(node)
        handle = self.fresh("while")
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        made = assigned(handle, self.call("while_loop", ast.Constant(forever), at=node.test), node.test)
        test = ast.Call(_attribute(handle, "test"), [self.visit(node.test)], [])
        self.loops.append(handle)
        body = self.block(node.body)
        self.loops.pop()
        loop = ast.While(ast.BoolOp(ast.And(), [_method(handle, "again"), test]), body, [])
        return [made, _place(loop, node.test), *self.forget(handle, node.body, node.test)]

    def _leave(self, node: ast.Break | ast.Continue) -> ast.stmt:
        word = text_of(type(node).__name__.lower())
        test = self.call("leaves", ast.Name(self.loops[-1], ast.Load()), word, at=node)
        return _place(ast.If(test, [node], []), node)

    visit_Break = visit_Continue = _leave

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is None:
            return [_place(ast.If(self.call("returns", at=node), [node], []), node)]
        result = self.fresh("result")
        made = assigned(result, self.visit(node.value), node)
        test = self.call("returns", ast.Name(result, ast.Load()), at=node)
        value = self.call("result", ast.Name(result, ast.Load()), at=node)
        return [made, _place(ast.If(test, [_place(ast.Return(value), node)], []), node)]

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        declared: list[ast.stmt] = []
        for item in node.items:
            names = _target_names(item.optional_vars) if item.optional_vars else []
            context = item.context_expr
            item.context_expr = self.call("enter", self.visit(context), *map(text_of, names), at=context)
            for name in names:
                declared.append(self.assign_name(name, ast.Name(name, ast.Load()), context))
        node.body = [*declared, *self.block(node.body)]
        return [node]

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        return [_place(ast.Expr(self.call("before_raise", at=node)), node), self.generic_visit(node)]

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        message = _thunk(self.visit(node.msg)) if node.msg else _thunk(ast.Constant(None))
        return _place(ast.Expr(self.call("check", self.visit(node.test), message, at=node)), node)

    # Expressions --------------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        then, otherwise = _thunk(self.visit(node.body)), _thunk(self.visit(node.orelse))
        return self.call("choose", self.visit(node.test), then, otherwise, at=node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        first, *others = [self.visit(value) for value in node.values]
        method = "all_of" if isinstance(node.op, ast.And) else "any_of"
        return self.call(method, first, *map(_thunk, others), at=node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            return self.call("negate", self.visit(node.operand), at=node)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) == 1:
            return self.generic_visit(node)
        links = [
            ast.Tuple([text_of(type(op).__name__), _thunk(self.visit(right))], ast.Load())
            for op, right in zip(node.ops, node.comparators, strict=True)
        ]
        return self.call("chain", self.visit(node.left), *links, at=node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in BUILTIN_NAMES:
            node.func = self.call("builtin", node.func, at=node.func)
        return node


def _place(node: Any, at: ast.AST) -> Any:
    """`node`, and what was made together with it, where `at` is; the author's own parts keep their places."""
    ast.copy_location(node, at)
    pending = list(ast.iter_child_nodes(node))
    while pending:
        made = pending.pop()
        if not hasattr(made, "lineno"):
            if "lineno" in made._attributes:
                ast.copy_location(made, at)
            pending.extend(ast.iter_child_nodes(made))
    return node


def assigned(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    """``name = value``, where `at` is."""
    return _place(ast.Assign([ast.Name(name, ast.Store())], value), at)


def text_of(value: str) -> ast.expr:
    return ast.Constant(value)


def _thunk(value: ast.expr) -> ast.expr:
    """``lambda: value``."""
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return _place(ast.Lambda(nothing, value), value) if hasattr(value, "lineno") else ast.Lambda(nothing, value)


def _attribute(name: str, attribute: str) -> ast.expr:
    return ast.Attribute(ast.Name(name, ast.Load()), attribute, ast.Load())


def _method(name: str, method: str) -> ast.Call:
    return ast.Call(_attribute(name, method), [], [])


def _target_names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _stored_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that statements of the author bind, nested functions apart."""
    found: set[str] = set()
    pending: list[ast.AST] = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not node.id.startswith("__"):
            found.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return found
