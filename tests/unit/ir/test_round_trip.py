"""Programs print and parse: random programs of every node kind come back as the same text."""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright.ops  # noqa: F401  (registers the tile operators)
from tilewright.errors import ProgramSyntaxError
from tilewright.ir import BOOL, INT32, INTRINSICS, DType, dtype, dtypes, nodes
from tilewright.ir.literals import LITERALS, RECORDS, register_literal, register_record, shown_fields
from tilewright.ir.nodes import Buffer, Const, Expr, Function, Region, Seq, Statement, Var
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify

NAMES = st.sampled_from(["i", "j", "A", "A_1", "x", "float32", "for", "inf", "größe", "a b", "1st", ""])
DTYPES = st.sampled_from([*dtypes.ALL.values(), dtype("float32x4"), dtype("int8x16")])
SCALARS = st.sampled_from([d for d in dtypes.ALL.values() if d.bits >= 8 and d.kind != "bool"])
TEXTS = st.text(alphabet="ab'\"\\\n é😀{}", max_size=6)


def constants(of: DType) -> st.SearchStrategy[Const]:
    """Literals of any dtype, the awkward floats among them."""
    if of.kind == "bool":
        return st.builds(Const, st.just(of), st.booleans())
    if of.is_integer:
        return st.builds(Const, st.just(of), st.integers(int(of.minimum), int(of.maximum)))
    special = st.sampled_from([0.0, -0.0, 0.1, 1e300, -1e-300, math.inf, -math.inf, math.nan])
    return st.builds(Const, st.just(of), special | st.floats(width=64))


@dataclass
class Scope:
    """What an expression or statement may mention."""

    vars: list[Var]
    buffers: list[Buffer]


@st.composite
def expressions(draw: st.DrawFn, scope: Scope, of: DType, depth: int = 3) -> Expr:
    """A well-typed expression of dtype `of`."""
    scalar = of.lanes == 1
    choices = ["const"] if scalar else ["broadcast"]
    choices += ["var"] * any(v.dtype == of for v in scope.vars)
    choices += ["load"] * 2 * any(b.dtype.scalar == of.scalar for b in scope.buffers)
    if depth > 0:
        choices += ["binary", "binary", "select", "cast", "call", "unary", "reinterpret"]
    kind = draw(st.sampled_from(choices))
    below = lambda other=of: expressions(scope, other, depth - 1)  # noqa: E731
    if kind == "const":
        return draw(constants(of))
    if kind == "broadcast":
        return nodes.Broadcast(of, draw(expressions(scope, of.scalar, 0)))
    if kind == "var":
        return draw(st.sampled_from([v for v in scope.vars if v.dtype == of]))
    if kind == "load":
        buffer = draw(st.sampled_from([b for b in scope.buffers if b.dtype.scalar == of.scalar]))
        indices = tuple(draw(expressions(scope, INT32, 0)) for _ in buffer.shape)
        return nodes.Load(of, buffer, indices)
    if kind == "select":
        return nodes.Select(of, draw(below(BOOL)), draw(below()), draw(below()))
    if kind == "cast":
        return nodes.Cast(of, draw(below(draw(SCALARS).with_lanes(of.lanes))))
    if kind == "reinterpret":
        return nodes.Reinterpret(of, draw(below()))
    if kind == "call":
        name = draw(st.sampled_from(["exp", "fma", "abs", "sync_threads", "a name that no table has"]))
        arguments: list[Any] = [draw(below()) for _ in range(draw(st.integers(0, 3)))]
        if draw(st.booleans()):
            arguments.insert(0, draw(TEXTS))
        return nodes.Call(of, name, tuple(arguments))
    if kind == "unary":
        return nodes.Unary(of, draw(st.sampled_from(["neg", "not", "invert"])), draw(below()))
    return draw(binaries(scope, of, depth))


@st.composite
def binaries(draw: st.DrawFn, scope: Scope, of: DType, depth: int) -> Expr:
    """``left op right`` that gives `of`: any operands for a comparison."""
    operand = draw(SCALARS).with_lanes(of.lanes) if of.kind == "bool" and draw(st.booleans()) else of
    known = nodes.COMPARISONS if operand != of else set(nodes.BINARY) - nodes.COMPARISONS
    if of.kind != "bool":
        known = known - nodes.LOGICAL
    op = draw(st.sampled_from(sorted(known)))
    left, right = (draw(expressions(scope, operand, depth - 1)) for _ in range(2))
    return nodes.Binary(nodes.result_dtype(op, operand), op, left, right)


@st.composite
def regions(draw: st.DrawFn, scope: Scope) -> Region:
    buffer = draw(st.sampled_from(scope.buffers))
    if draw(st.booleans()):
        return nodes.whole(buffer)
    extents = tuple(draw(st.sampled_from([1, 4, 8, *scope.vars])) for _ in buffer.shape)
    starts = tuple(draw(expressions(scope, INT32, 1)) for _ in buffer.shape)
    return Region(buffer, starts, extents)


def values(scope: Scope) -> st.SearchStrategy[Any]:
    """What a field of a tile operator may hold."""
    plain = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | DTYPES
    deep = st.sampled_from(list(dtypes.ALL.values())).flatmap(lambda of: expressions(scope, of, 2))
    each = plain | regions(scope) | deep | st.sampled_from([Swizzle(3, 4), Swizzle(0, 1), Packing("low", None)])
    return each | st.lists(each, max_size=3).map(tuple)


@st.composite
def buffers(draw: st.DrawFn, scope: Scope, scope_name: str | None = None) -> Buffer:
    extents = st.sampled_from([1, 3, 64, *(v for v in scope.vars if v.dtype == INT32)])
    shape = tuple(draw(st.lists(extents, max_size=3)))
    memory = scope_name or draw(st.sampled_from(nodes.SCOPES))
    strides = tuple(draw(extents) for _ in shape) if draw(st.booleans()) else None
    source = draw(st.sampled_from([None, *scope.buffers]))
    return Buffer(draw(NAMES), shape, draw(DTYPES), memory, strides, source, draw(st.booleans()))


@st.composite
def bodies(draw: st.DrawFn, scope: Scope, depth: int) -> Seq:
    """Statements, each of which sees what the earlier ones bound."""
    inner = Scope(list(scope.vars), list(scope.buffers))
    return Seq(tuple(draw(statements(inner, depth)) for _ in range(draw(st.integers(0, 3)))))


@st.composite
def statements(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    choices = ["let", "allocate", "store", "evaluate", "operator", "print", "assume", "assert", "jump", "group"]
    choices += ["if", "for", "pipelined", "parallel", "while", "seq", "kernel"] * (depth > 0)
    kind = draw(st.sampled_from(choices))
    if kind in ("if", "for", "pipelined", "parallel", "while", "seq", "kernel"):
        return draw(_COMPOUND[kind](scope, depth - 1))
    if kind == "let":
        var = Var(draw(DTYPES), draw(NAMES))
        statement: Statement = nodes.Let(var, draw(expressions(scope, var.dtype)))
        scope.vars.append(var)
        return statement
    if kind == "allocate":
        buffer = draw(buffers(scope))
        first = draw(st.none() | expressions(scope, buffer.dtype, 1))
        scope.buffers.append(buffer)
        return nodes.Allocate(buffer, first)
    if kind == "store":
        buffer = draw(st.sampled_from(scope.buffers))
        indices = tuple(draw(expressions(scope, INT32, 1)) for _ in buffer.shape)
        return nodes.Store(buffer, indices, draw(expressions(scope, buffer.dtype)))
    if kind == "evaluate":
        return nodes.Evaluate(nodes.Call(INT32, "sync_threads", ()))
    if kind == "operator":
        return draw(operators(scope))
    if kind == "group":
        full = draw(st.none() | expressions(scope, BOOL, 1))
        wait = nodes.Wait(draw(TEXTS), draw(st.integers(0, 9)), draw(st.booleans()), draw(st.integers(0, 2)), full)
        return draw(st.sampled_from([wait, nodes.Commit(wait.token)]))
    if kind == "print":
        shown = st.lists(TEXTS | regions(scope) | expressions(scope, INT32, 1), max_size=3).map(tuple)
        return nodes.Print(draw(shown), draw(st.booleans()))
    condition = draw(expressions(scope, BOOL))
    if kind == "assume":
        return nodes.Assume(condition)
    if kind == "assert":
        return nodes.Assert(condition, draw(TEXTS))
    return draw(st.sampled_from([nodes.Break, nodes.Continue, nodes.Return]))()


@st.composite
def operators(draw: st.DrawFn, scope: Scope) -> Statement:
    """Any registered operator with any values: printing goes by its fields alone, but a dimension is one of a region."""
    cls = nodes.TILE_OPERATORS[draw(st.sampled_from(sorted(nodes.TILE_OPERATORS)))]
    made: dict[str, Any] = {}
    records: dict[tuple[str, type], dict[str, Any]] = {}
    for word, place in shown_fields(cls).items():
        (made if place is None else records.setdefault(place, {}))[word] = draw(values(scope))
    made |= {name: record(**words) for (name, record), words in records.items()}
    for name, operand in cls.dimensions.items():
        made |= {name: draw(st.integers(-3, 3)), operand: draw(regions(scope))}
    return cls(**made)


def with_vars(scope: Scope, *vars: Var) -> Scope:
    return Scope([*scope.vars, *vars], scope.buffers)


@st.composite
def branches(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    otherwise = draw(bodies(scope, depth)) if draw(st.booleans()) else None
    if otherwise is not None and not otherwise.statements:
        otherwise = None
    return nodes.If(draw(expressions(scope, BOOL)), draw(bodies(scope, depth)), otherwise)


@st.composite
def loops(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    var = Var(draw(st.sampled_from([INT32, dtypes.INT64])), draw(NAMES))
    start, stop, step = (draw(expressions(scope, var.dtype, 1)) for _ in range(3))
    kind = draw(st.sampled_from(["serial", "unroll", "vectorize"]))
    return nodes.For(var, start, stop, step, draw(bodies(with_vars(scope, var), depth)), kind)


@st.composite
def pipelines(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    var = Var(INT32, draw(NAMES))
    start, stop = (draw(expressions(scope, INT32, 1)) for _ in range(2))
    plan = st.none() | st.lists(st.integers(-1, 9), max_size=3).map(tuple)
    body = draw(bodies(with_vars(scope, var), depth))
    special = draw(st.sampled_from([None, True, False]))
    return nodes.Pipelined(var, start, stop, body, draw(st.integers(0, 4)), draw(plan), draw(plan), special)


@st.composite
def parallels(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    types = st.lists(st.sampled_from([INT32, dtypes.INT64]), min_size=1, max_size=3)
    vars = tuple(Var(of, draw(NAMES)) for of in draw(types))
    extents = tuple(draw(st.sampled_from([1, 64, *scope.vars])) for _ in vars)
    layout = draw(st.sampled_from([None, Swizzle(1, 2)]))
    width = draw(st.sampled_from([None, 4]))
    return nodes.Parallel(vars, extents, draw(bodies(with_vars(scope, *vars), depth)), layout, width)


@st.composite
def whiles(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    return nodes.While(draw(expressions(scope, BOOL)), draw(bodies(scope, depth)))


@st.composite
def kernels(draw: st.DrawFn, scope: Scope, depth: int) -> Statement:
    blocks = tuple(Var(INT32, draw(NAMES)) for _ in range(draw(st.integers(1, 3))))
    grid = tuple(draw(st.sampled_from([1, 64, *scope.vars])) for _ in blocks)
    threads: Any = tuple(Var(INT32, draw(NAMES)) for _ in range(3))
    body = draw(bodies(with_vars(scope, *blocks, *threads), depth))
    annotated = draw(st.lists(st.sampled_from(scope.buffers), unique=True, max_size=2))
    annotated += [s.buffer for s in body.statements if isinstance(s, nodes.Allocate)]
    layouts = tuple((buffer, draw(st.sampled_from([Swizzle(1, 2), Packing("high", 3)]))) for buffer in annotated)
    safe = tuple((b, draw(constants(b.dtype.scalar))) for b in annotated if b.dtype.lanes == 1)
    hints = (("raster", draw(values(scope))),) if draw(st.booleans()) else ()
    return nodes.Kernel(blocks, grid, threads, (128, 1, 2), body, layouts, safe, hints)


_COMPOUND: dict[str, Any] = {
    "if": branches, "for": loops, "pipelined": pipelines, "parallel": parallels, "while": whiles,
    "seq": bodies, "kernel": kernels,
}  # fmt: skip


@st.composite
def functions(draw: st.DrawFn) -> Function:
    sizes = Scope([Var(INT32, draw(NAMES)) for _ in range(draw(st.integers(0, 2)))], [])
    params: list[Buffer | Var] = []
    known = Scope(list(sizes.vars), [])
    for _ in range(draw(st.integers(1, 3))):
        param = draw(buffers(Scope(sizes.vars, [p for p in params if isinstance(p, Buffer)])))
        params.append(param)
        known.buffers.append(param)
    if draw(st.booleans()):
        params.append(Var(draw(DTYPES), draw(NAMES)))
        known.vars.append(params[-1])  # type: ignore[arg-type]
    outputs = tuple(draw(st.lists(st.sampled_from(known.buffers), unique=True, max_size=2)))
    mentioned = [p for p in params if isinstance(p, Buffer)]
    bound = {e for b in mentioned for e in (*b.shape, *(b.strides or ())) if isinstance(e, Var)}
    known.vars = [v for v in known.vars if v in bound or v in params]
    attributes = (("note", draw(values(known))),) if draw(st.booleans()) else ()
    stage = draw(st.sampled_from(["traced", "pipelined", "laid_out", "threaded", "final"]))
    return Function("f", tuple(params), draw(bodies(known, 2)), outputs, stage, attributes)


@dataclass(frozen=True)
class Swizzle:
    """Stands for a layout: a class whose ``str`` its own room reads back."""

    bits: int
    base: int

    def __str__(self) -> str:
        return f"swizzle({self.bits}).base({self.base})"


@dataclass(frozen=True)
class Packing:
    """Stands for a record, such as a number format."""

    order: str
    width: int | None = None


def read_swizzle(text: str) -> Swizzle:
    bits, base = text.removeprefix("swizzle(").removesuffix(")").split(").base(")
    return Swizzle(int(bits), int(base))


@pytest.fixture(autouse=True, scope="module")
def literals() -> Any:
    """Register this file's own classes for the time of its tests."""
    register_literal("swizzle", read_swizzle)
    register_record(Packing)
    yield
    del LITERALS["swizzle"], RECORDS["Packing"]


ANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(ANY, max_examples=2000)
VALUES = st.sampled_from([INT32, BOOL, dtype("float16"), dtype("float32"), dtype("int64")]).flatmap(
    lambda of: expressions(Scope([], []), of, 4)
)


@ANY
@given(functions())
def test_any_program_comes_back_as_the_same_text(function: Function) -> None:
    text = print_program(function)
    assert print_program(parse(text)) == text


@pytest.mark.proof
@MANY
@given(functions())
def test_many_programs_come_back_as_the_same_text(function: Function) -> None:
    text = print_program(function)
    assert print_program(parse(text)) == text


def with_more(text: str, draw: Any) -> str:
    """A program in which one piece of syntax says one thing more."""
    module = ast.parse(text)
    kinds = (ast.Call, ast.For, ast.While, ast.With, ast.Assign, ast.Slice)
    own = {below for node in ast.walk(module) if ast.unparse(node).startswith("swizzle(") for below in ast.walk(node)}
    found = [node for node in ast.walk(module) if isinstance(node, kinds) and node not in own] or [module.body[0]]
    node = draw(st.sampled_from(found))
    more = ast.parse(draw(st.sampled_from(["1", "()", "float32", "'x'", "f(1)"]))).body[0].value
    if isinstance(node, ast.Call) and draw(st.booleans()):
        node.args.append(more)
    elif isinstance(node, ast.Call):
        node.keywords.append(ast.keyword(draw(st.sampled_from(["stray", "span", "plan", "staging", "step"])), more))
    elif isinstance(node, (ast.For, ast.While)):
        node.orelse.append(ast.Pass())
    elif isinstance(node, ast.With):
        node.items.append(ast.withitem(more))
    elif isinstance(node, ast.Assign):
        node.targets.append(ast.Name("again", ast.Store()))
    elif isinstance(node, ast.Slice):
        node.step = more
    else:
        node.args.vararg = ast.arg("more")
    return ast.unparse(ast.fix_missing_locations(module))


def nothing_is_passed_over(function: Function, data: st.DataObject) -> None:
    """Whether what a text says more is refused, or said again when it is printed."""
    text = print_program(function)
    assert print_program(parse(ast.unparse(ast.parse(text)))) == text
    more = with_more(text, data.draw)
    try:
        back = print_program(parse(more))
    except ProgramSyntaxError:
        return
    assert back != text, more


@ANY
@given(functions(), st.data())
def test_what_a_program_would_not_print_is_refused(function: Function, data: st.DataObject) -> None:
    nothing_is_passed_over(function, data)


@pytest.mark.proof
@MANY
@given(functions(), st.data())
def test_what_many_programs_would_not_print_is_refused(function: Function, data: st.DataObject) -> None:
    nothing_is_passed_over(function, data)


@pytest.mark.parametrize("name", sorted(nodes.TILE_OPERATORS))
def test_fields_that_are_not_printed_are_not_read(name: str) -> None:
    shown = shown_fields(nodes.TILE_OPERATORS[name])
    for one in dataclasses.fields(nodes.TILE_OPERATORS[name]):
        if one.name not in shown:
            with pytest.raises(ProgramSyntaxError, match=f"{name}: got an unexpected keyword argument '{one.name}'"):
                parse(f"def f():\n    {name}({one.name}=None)")


@ANY
@given(VALUES)
def test_expressions_come_back_as_the_same_tree(value: Expr) -> None:
    comes_back(value)


@pytest.mark.proof
@MANY
@given(VALUES)
def test_many_expressions_come_back_as_the_same_tree(value: Expr) -> None:
    comes_back(value)


def comes_back(value: Expr) -> None:
    """Whether a printed expression is read as the same tree."""
    out = Buffer("out", (1,), value.dtype, "shared")
    program = Function("f", (), Seq((nodes.Allocate(out), nodes.Store(out, (nodes.const(0),), value))))
    store = parse(print_program(program)).body.statements[1]
    assert isinstance(store, nodes.Store)
    assert structure(store.value) == structure(value)


def structure(node: Any) -> Any:
    """A tree of tuples: what two equal expressions share, with NaN equal to itself."""
    if isinstance(node, Const):
        return ("Const", str(node.dtype), repr(float(node.value) if node.dtype.is_float else node.value))
    if isinstance(node, Expr):
        fields = [getattr(node, name) for name in node.__dataclass_fields__ if name != "dtype"]
        return (type(node).__name__, str(node.dtype), *(structure(held) for held in fields))
    return tuple(structure(item) for item in node) if isinstance(node, tuple) else node


def one_store(text: str) -> str:
    """The value of the first store of a program, read and printed."""
    program = parse(
        "def f(A: float16[8], B: int64[8], C: float32[8]):\n"
        "    with kernel(blocks={bx: 8}, threads={tx: 1, ty: 1, tz: 1}):\n"
        f"        {text}\n"
    )
    return print_program(program).splitlines()[-1].strip()


@pytest.mark.parametrize(
    "text",
    [
        "A[bx] = A[bx] * 2.0 + -3.0",
        "A[bx] = float16(C[bx] * 2.0)",
        "C[bx] = float32(float16(1.0))",
        "C[bx] = 1.0 if bx < 3 and not bx == 2 else -inf",
        "C[bx] = C[(bx - 1) // 2 - (bx - 2)]",
        "B[bx] = min(B[bx], 4) << int64(bx)",
        "C[bx] = neg(1.0) - (C[bx] - 1.0)",
        "C[bx] = exp(C[0], dtype=float32) if isnan(A[bx], dtype=bool) else nan",
        "A[bx].x4 = A[0].x4 + broadcast(float16(1.0), 4)",
        "B[bx] = reinterpret(int64, float64(0.5))",
    ],
)  # fmt: skip
def test_text_is_written_as_it_was_read(text: str) -> None:
    assert one_store(text) == text.replace("exp(C[0], dtype=float32)", "exp(C[0])")


def test_names_are_the_authors_and_never_clash() -> None:
    i, again, inner = Var(INT32, "i"), Var(INT32, "i"), Var(INT32, "i")
    A = Buffer("A", (8,), INT32)
    store = nodes.Store(A, (again,), nodes.binary("add", again, inner))
    nested = nodes.For(again, nodes.const(0), nodes.const(8), nodes.const(1), nodes.seq(nodes.Let(inner, i), store))
    outer = nodes.For(i, nodes.const(0), nodes.const(8), nodes.const(1), nodes.seq(nested))
    after = nodes.For(Var(INT32, "i"), nodes.const(1), nodes.const(8), nodes.const(2), nodes.seq())
    text = print_program(Function("f", (A,), nodes.seq(outer, after)))
    assert text == (
        '@stage("traced")\n'
        "def f(A: int32[8]):\n"
        "    for i in range(8):\n"
        "        for i_1 in range(8):\n"
        "            i_2: int32 = i\n"
        "            A[i_1] = i_1 + i_2\n"
        "    for i in range(1, 8, 2):\n"
        "        pass\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "this is not a program: invalid syntax"),
        ("x = 1", "expected one program, `def name(...):`"),
        ("def f(A: float32[4]):\n    A[k] = 1.0", "'k' is not in scope here"),
        ("def f(A: float32[4]):\n    cpy(source=A)", "no function 'cpy'"),
        ("def f(A: float32[4]):\n    copy(source=A)", "copy: missing 1 required positional argument: 'destination'"),
        ("def f(A: float33[4]):\n    pass", "expected a dtype"),
        ("def f(A: float32[4]):\n    A[0] = 1 < 2 < 3", "a comparison has two sides"),
        ("def f(A: float32[4]):\n    A[0:2] = 1.0", "this is not an expression of a program"),
        ("def f(A: float32[4]):\n    print(A[0:2])", "a part of a buffer is written `start : +extent`"),
        ("def f(A: float32[4]):\n    import os", "no such statement"),
        ("def f(A: float32[4]):\n    for i in steps(4):\n        pass", "no such loop"),
    ],
)
def test_what_is_not_a_program_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ProgramSyntaxError) as caught:
        parse(text)
    assert caught.value.message == message
    assert "<program>" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "printed"), [("False", "bool(False)"), ("0", "int32(0)"), ("-inf", "float32(-inf)")]
)
def test_a_bare_literal_is_a_constant_where_a_field_holds_an_expression(written: str, printed: str) -> None:
    """It stayed a number of Python's: the verifier ended in an AttributeError."""
    opened = "def f(A: float32[4]):\n    with kernel(blocks={b: 1}, threads={x: 32, y: 1, z: 1}):\n"
    program = parse(f"{opened}        fill(destination=A, value={written})")
    verify(program)
    assert f"value={printed}" in print_program(program)


def test_statements_read_from_a_file_know_their_place(tmp_path: Any) -> None:
    source = tmp_path / "one.tile"
    source.write_text("\n\ndef f(A: float32[4]):\n    A[0] = 1.0\n")
    program = parse(source.read_text().lstrip(), file=str(source), first_line=3)
    span = program.body.statements[0].span
    assert span is not None and (span.line, span.column) == (4, 4)
    assert "# one.tile:4" in print_program(program, spans=True)


def test_every_intrinsic_prints_and_parses() -> None:
    C = Buffer("C", (8,), dtype("float32"))
    for name, record in INTRINSICS.items():
        arguments = tuple(nodes.load(C, k) for k in range(record.arity or 0))
        call = nodes.Call(dtype("float32"), name, arguments)
        text = print_program(Function("f", (C,), nodes.seq(nodes.Evaluate(call))))
        assert print_program(parse(text)) == text


def test_the_example_of_the_documentation_is_a_valid_program() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "program_text.md").read_text()
    program = parse(page.split("```python\n")[1].split("```")[0])
    verify(program)
    assert print_program(parse(print_program(program))) == print_program(program)
