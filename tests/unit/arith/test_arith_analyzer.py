"""What passes ask of the analyzer: index arithmetic, guards, sizes known at launch, the author's facts."""

from __future__ import annotations

import math

import pytest

from tilewright.arith import Analyzer, common_knowledge
from tilewright.ir import BOOL, FLOAT32, INT32, INT64, UINT8, UINT32, dtypes
from tilewright.ir.nodes import (
    BINARY,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    binary,
    const,
    index_binary,
)


class Index:
    """Python's operators on index expressions, for the tests."""

    def __init__(self, node: Expr) -> None:
        self.node = node


def make(op: str, swap: bool = False):
    def of(self: Index, other: Index | int) -> Index:
        right = other.node if isinstance(other, Index) else const(other, self.node.dtype)
        return Index(index_binary(op, right, self.node) if swap else index_binary(op, self.node, right))

    return of


for _op, _name in [
    ("add", "add"), ("sub", "sub"), ("mul", "mul"), ("floordiv", "floordiv"), ("floormod", "mod"), ("and", "and"),
    ("or", "or"), ("xor", "xor"), ("shl", "lshift"), ("shr", "rshift"),
]:  # fmt: skip
    setattr(Index, f"__{_name}__", make(_op))
    setattr(Index, f"__r{_name}__", make(_op, swap=True))
for _op in ("lt", "le", "gt", "ge"):
    setattr(Index, f"__{_op}__", make(_op))


def equals(a: Index, b: Index | int) -> Index:
    return make("eq")(a, b)


def show(node: Expr) -> str:
    match node:
        case Const():
            return str(node.value)
        case Var():
            return node.name
        case Binary(op="min" | "max" as op):
            return f"{op}({show(node.left)}, {show(node.right)})"
        case Binary():
            return f"({show(node.left)} {BINARY[node.op]} {show(node.right)})"
        case Unary():
            return f"{node.op} {show(node.value)}"
        case Cast():
            return f"{node.dtype}({show(node.value)})"
        case Select():
            return f"select({show(node.condition)}, {show(node.then)}, {show(node.otherwise)})"
        case Load():
            return f"{node.buffer.name}[{', '.join(map(show, node.indices))}]"
    raise AssertionError(node)


M, N, K = (Index(Var(INT32, name)) for name in "MNK")
i, j, k, x, y = (Index(Var(INT32, name)) for name in "ijkxy")
bx, tx, w = (Index(Var(INT32, name)) for name in ("bx", "tx", "w"))


@pytest.fixture
def analyzer() -> Analyzer:
    a = Analyzer()
    for size in (M, N, K):
        a.bind(size.node, 1, None)
    a.bind_extent(j.node, 32)
    a.bind_extent(tx.node, 128)
    a.bind_extent(i.node, M.node)
    a.bind_extent(bx.node, ((M + 127) // 128).node)
    return a


def simplified(analyzer: Analyzer, e: Index) -> str:
    return show(analyzer.simplify(e.node))


CASES = [
    ((i * 32 + j) // 32, "i"),
    ((i * 32 + j) % 32, "j"),
    ((i * 8 + j) % 4, "(j % 4)"),
    ((i * 64 + j) // 16, "((i * 4) + (j // 16))"),
    ((i * 64 + j * 2 + 1) % 16, "(((j % 8) * 2) + 1)"),
    ((x // 4) * 4 + x % 4, "x"),
    ((x // 4) % 8 * 4 + x % 4, "(x % 32)"),
    ((x // 32) * 32 + (x // 4) % 8 * 4 + x % 4, "x"),
    (((x * 12 + 8) // 4) % 3, "2"),
    (x // 4 // 8, "(x // 32)"),
    (x % 32 // 8, "(x // 8 % 4)".replace("x // 8", "(x // 8)")),
    (x % 32 % 8, "(x % 8)"),
    ((x - 1) // 8, "(((x + 7) // 8) - 1)"),
    (x // -4, "(neg x // 4)"),
    (j + 5 - j, "5"),
    (2 * (x + y) - y - y, "(x * 2)"),
    ((i * N + j * N) // N, "(i + j)"),
    ((i * N + N) % N, "0"),
    ((bx * 128 + tx) * N + (j + 3), "(((((bx * 128) + tx) * N) + j) + 3)"),
    (x * N + y * N + N, "(((x + y) + 1) * N)"),
    (x & 7, "(x % 8)"),
    (x & -8, "(x - (x % 8))"),
    (x >> 3, "(x // 8)"),
    (j << 3, "(j * 8)"),
    (x << 3, "(x << 3)"),
    ((x << 28) >> 28, "((x << 28) // 268435456)"),
    (j * 8 | (tx % 8), "((j * 8) + (tx % 8))"),
    (j ^ 5, "(j ^ 5)"),
    (j ^ j, "0"),
]


@pytest.mark.parametrize("expr, text", CASES, ids=[text for _, text in CASES])
def test_canonical_forms(analyzer: Analyzer, expr: Index, text: str) -> None:
    assert simplified(analyzer, expr) == text
    assert simplified(analyzer, Index(analyzer.simplify(expr.node))) == text


def test_what_is_canonical_is_returned_itself(analyzer: Analyzer) -> None:
    node = (i * 32 + j).node
    assert analyzer.simplify(node) is node


PROVED = [
    i < M,
    i * K + 0 * j < M * K,
    (M + 127) // 128 * 128 >= M,
    (M + 127) // 128 * 128 < M + 128,
    bx * 128 < M,
    tx // 4 < 32,
    tx % 32 // 8 * 8 + tx % 8 < 32,
    j * K + K <= 32 * K,
    i * N * K + N * K <= M * N * K,
    Index(index_binary("min", (M - bx * 128).node, 128)) > 0,
    Index(index_binary("min", M.node, 128)) <= 128,
    Index(index_binary("max", (x - y).node, 0)) >= 0,
    x % 8 < 8,
    x % 8 >= 0,
    (x * 4 + 2) % 4 > 0,
    x // 8 * 8 <= x,
]


@pytest.mark.parametrize("condition", PROVED, ids=[show(condition.node) for condition in PROVED])
def test_proofs(analyzer: Analyzer, condition: Index) -> None:
    assert analyzer.prove(condition.node)
    assert not analyzer.prove(Unary(BOOL, "not", condition.node))


def test_tiles_of_a_symbolic_row(analyzer: Analyzer) -> None:
    analyzer.bind_extent(k.node, K.node)
    assert analyzer.prove((i * K + k < M * K).node)
    assert simplified(analyzer, (i * K + k) // K) == "i"
    assert simplified(analyzer, (i * K + k) % K) == "k"


@pytest.mark.parametrize("condition", [bx * 128 + tx < M, i < N, x < y, x * x >= 0 - x, i + j < M])
def test_what_is_not_certain_is_not_proved(analyzer: Analyzer, condition: Index) -> None:
    assert not analyzer.prove(condition.node)


def test_divisibility_from_the_author(analyzer: Analyzer) -> None:
    assert not analyzer.prove((bx * 128 + tx < M).node)
    assert not analyzer.divides(M.node, 8)
    with analyzer.scope():
        analyzer.assume(equals(M % 128, 0).node)
        analyzer.bind_extent(bx.node, ((M + 127) // 128).node)
        assert analyzer.prove((bx * 128 + tx < M).node)
        assert analyzer.divides(M.node, 64) and analyzer.divides((M * 3 + 256).node, 128)
        assert not analyzer.divides((M + 1).node, 2)
        assert simplified(analyzer, (M + 127) // 128 * 128) == "M"
        assert simplified(analyzer, (M + 64) % 128) == "64"
    assert not analyzer.divides(M.node, 8)


def test_assumptions(analyzer: Analyzer) -> None:
    with analyzer.scope():
        analyzer.assume(binary("all", (x < 4).node, (x >= 2).node))
        assert analyzer.bounds(x.node) == (2, 3)
        analyzer.assume(equals(y, x * 2).node)
        assert analyzer.equal((y + 1).node, (x * 2 + 1).node)
        assert analyzer.bounds(y.node) == (4, 6)
    assert analyzer.bounds(x.node) == (None, None)
    with analyzer.scope():
        analyzer.assume(equals(x % 4, 1).node)
        analyzer.assume(equals(x % 6, 3).node)
        assert simplified(analyzer, x % 12) == "9"
    with analyzer.scope():
        flag = Var(BOOL, "flag")
        analyzer.assume(Unary(BOOL, "not", flag))
        assert simplified(analyzer, Index(Select(INT32, flag, x.node, y.node))) == "y"


def test_a_new_binding_forgets_the_old(analyzer: Analyzer) -> None:
    analyzer.bind_extent(j.node, 8)
    assert simplified(analyzer, j // 8) == "0"
    analyzer.bind(j.node, 8, 15)
    assert simplified(analyzer, j // 8) == "1"
    analyzer.bind(j.node)
    assert simplified(analyzer, j // 8) == "(j // 8)"


def test_a_loop_that_may_not_run_says_nothing_of_its_extent() -> None:
    analyzer = Analyzer()
    analyzer.bind_extent(x.node, y.node)
    assert analyzer.prove((y > 0).node)  # here x has a value, so there is one
    analyzer.bind_extent(x.node, 4)
    assert not analyzer.prove((y > 0).node) and analyzer.bounds(y.node) == (None, None)


def test_an_extent_in_memory_may_change() -> None:
    count = Load(INT32, Buffer("count", (1,), INT32), (const(0),))
    analyzer = Analyzer()
    analyzer.bind_extent(x.node, count)
    assert analyzer.bounds(x.node) == (0, None)
    assert not analyzer.prove(binary("lt", x.node, count))


def test_scopes_restore_even_after_an_error(analyzer: Analyzer) -> None:
    with pytest.raises(KeyError), analyzer.scope():
        analyzer.bind_extent(x.node, 4)
        assert analyzer.prove((x < 4).node)
        raise KeyError
    assert not analyzer.prove((x < 4).node)


def test_memory_gives_no_lasting_facts() -> None:
    mutable, fixed = Buffer("a", (4,), INT32), Buffer("b", (4,), INT32)
    analyzer = Analyzer(constant_buffers={fixed})
    for buffer, kept in ((mutable, False), (fixed, True)):
        element = Load(INT32, buffer, (const(0),))
        analyzer.assume(binary("lt", element, const(5)))
        assert analyzer.prove(binary("lt", Load(INT32, buffer, (const(0),)), const(6))) is kept


def test_calls_with_effects_are_never_merged() -> None:
    call = Call(INT32, "sync_threads", ())
    assert not Analyzer().equal(call, Call(INT32, "sync_threads", ()))


def test_calls_without_effects_are_one(analyzer: Analyzer) -> None:
    x = Var(INT32, "x")
    once, again = (Call(INT32, "popcount", (argument,)) for argument in (x + const(2), const(1) + x + const(1)))
    assert analyzer.equal(once, again) and not analyzer.equal(once, Call(INT32, "popcount", (x,)))


def test_index_widths() -> None:
    analyzer = Analyzer()
    row, column = Var(INT32, "row"), Var(INT32, "column")
    wide = binary("add", binary("mul", Cast(INT64, row), const(4096, INT64)), Cast(INT64, column))
    assert show(analyzer.simplify(wide)) == "((int64(row) * 4096) + int64(column))"
    analyzer.bind_extent(row, 128)
    analyzer.bind_extent(column, 4096)
    assert show(analyzer.simplify(wide)) == "int64(((row * 4096) + column))"
    assert analyzer.bounds(wide) == (0, 128 * 4096 - 1)
    assert show(analyzer.simplify(Cast(INT32, wide))) == "((row * 4096) + column)"
    analyzer.bind_extent(row, 1 << 30)
    assert show(analyzer.simplify(wide)) == "((int64(row) * 4096) + int64(column))"
    assert show(analyzer.simplify(Cast(INT32, wide))) == "int32(((int64(row) * 4096) + int64(column)))"


def test_unsigned_arithmetic_wraps() -> None:
    analyzer = Analyzer()
    a = Var(UINT8, "a")
    around = binary("sub", binary("add", a, const(1, UINT8)), const(2, UINT8))
    assert show(analyzer.simplify(around)) == "(a + 255)"
    assert not analyzer.prove(binary("ge", binary("add", a, const(1, UINT8)), a))
    assert analyzer.bounds(binary("add", a, const(1, UINT8))) == (0, 255)
    analyzer.bind(a, 0, 10)
    assert analyzer.bounds(binary("add", a, const(1, UINT8))) == (1, 11)
    assert analyzer.prove(binary("lt", a, const(11, UINT8)))
    assert analyzer.simplify(binary("sub", const(0, UINT32), const(1, UINT32))).value == (1 << 32) - 1


def test_literals_of_an_index_type_wrap() -> None:
    analyzer = Analyzer()
    total = Binary(INT32, "add", const(2**31 - 1), const(1))
    assert analyzer.simplify(total).value == -(2**31)
    assert analyzer.simplify(Unary(INT32, "neg", const(-(2**31)))).value == -(2**31)


def test_floats_fold_only_where_that_is_exact() -> None:
    analyzer = Analyzer()
    f = Var(FLOAT32, "f")

    def of(op: str, value: float) -> str:
        return show(analyzer.simplify(Binary(FLOAT32, op, f, Const(FLOAT32, value))))

    assert of("mul", 1.0) == "f" and of("sub", 0.0) == "f" and of("add", -0.0) == "f"
    assert of("add", 0.0) == "(f + 0.0)" and of("sub", -0.0) == "(f - -0.0)" and of("mul", 0.0) == "(f * 0.0)"
    assert show(analyzer.simplify(binary("eq", f, f))) == "(f == f)"
    assert show(analyzer.simplify(Unary(BOOL, "not", binary("lt", f, f)))) == "True"
    third = analyzer.simplify(Binary(FLOAT32, "div", Const(FLOAT32, 1.0), Const(FLOAT32, 3.0)))
    assert third.value == 0.3333333432674408
    large = Binary(FLOAT32, "mul", Const(FLOAT32, 3e38), Const(FLOAT32, 10.0))
    assert analyzer.simplify(large).value == math.inf
    half = dtypes.FLOAT16
    assert analyzer.simplify(Cast(half, Const(FLOAT32, 0.1))).value == 0.0999755859375
    assert analyzer.simplify(Cast(INT32, Const(FLOAT32, math.nan))).value == 0
    assert analyzer.simplify(Cast(UINT8, Const(FLOAT32, 300.7))).value == 255


def test_conversions_there_and_back() -> None:
    analyzer = Analyzer()
    h, s = Var(dtypes.FLOAT16, "h"), Var(FLOAT32, "s")
    assert analyzer.simplify(Cast(dtypes.FLOAT16, Cast(FLOAT32, h))) is h
    back = Cast(FLOAT32, Cast(dtypes.FLOAT16, s))
    assert analyzer.simplify(back) is back


def test_guards_stay_guards() -> None:
    """A load under a condition is not moved out of it."""
    analyzer = Analyzer()
    a = Buffer("a", (16,), INT32)
    guarded = Select(INT32, (x < 16).node, Load(INT32, a, (x.node,)), const(0))
    assert show(analyzer.simplify(guarded)) == "select((x < 16), a[x], 0)"
    analyzer.bind_extent(x.node, 16)
    assert show(analyzer.simplify(guarded)) == "a[x]"


def test_lazy_operators_know_their_left_side(analyzer: Analyzer) -> None:
    both = Binary(BOOL, "all", (x < 5).node, (x < 8).node)
    assert simplified(analyzer, Index(both)) == "(x < 5)"
    either = Binary(BOOL, "any", (x < 8).node, (x >= 5).node)
    assert simplified(analyzer, Index(either)) == "True"


def test_stride_and_linear(analyzer: Analyzer) -> None:
    index = ((i * 4 + 3) * K + j * 8 + 5).node
    assert show(analyzer.stride(index, i.node)) == "(K * 4)"
    assert show(analyzer.stride(index, j.node)) == "8"
    assert show(analyzer.stride(index, x.node)) == "0"
    assert analyzer.stride((i // 4).node, i.node) is None
    assert analyzer.stride((i * i).node, i.node) is None
    terms, constant = analyzer.linear(index)
    assert {show(term): c for term, c in terms.items()} == {"(K * i)": 4, "K": 3, "j": 8} and constant == 5


def test_division_by_zero_is_left_alone(analyzer: Analyzer) -> None:
    for op in ("floordiv", "floormod"):
        node = Binary(INT32, op, const(7), const(0))
        assert show(analyzer.simplify(node)) == f"(7 {BINARY[op]} 0)"
        assert analyzer.bounds(node) is not None


def test_facts_given_outside_after_a_question_inside():
    analyzer, x, y = Analyzer(), Var(INT32, "x"), Var(INT32, "y")
    with analyzer.scope():
        analyzer.bind_extent(x, 8)
        assert analyzer.prove(binary("lt", x, const(8)))
    assert not analyzer.prove(binary("lt", x, const(8)))
    analyzer.bind_extent(x, 16)
    with analyzer.scope():
        analyzer.bind(y, x, x)
        assert analyzer.bounds(y) == (0, 15)
        analyzer.assume(binary("lt", x, const(4)))
        assert analyzer.bounds(x) == (0, 3)
    assert analyzer.bounds(x) == (0, 15)
    assert analyzer.bounds(y) == (None, None)


def test_a_question_finds_facts_through_other_variables():
    analyzer, x, y, z = Analyzer(), Var(INT32, "x"), Var(INT32, "y"), Var(INT32, "z")
    analyzer.bind_extent(z, 10)
    analyzer.bind(y, z, z)
    analyzer.assume(binary("lt", x, y))
    assert analyzer.prove(binary("lt", x, const(9)))
    analyzer.bind(z, 100, 200)
    assert analyzer.bounds(z) == (100, 200)


def test_parts_of_a_conjunction_bear_on_questions_of_their_own():
    analyzer, x, y, z = Analyzer(), Var(INT32, "x"), Var(INT32, "y"), Var(INT32, "z")
    analyzer.bind(z, y, y)
    analyzer.assume(binary("all", binary("lt", x, const(5)), binary("lt", z, const(3))))
    assert analyzer.bounds(x)[1] == 4
    assert analyzer.bounds(z)[1] == 2


def test_analyzers_with_common_knowledge_keep_their_own_facts():
    x, y = Var(INT32, "x"), Var(INT32, "y")
    with common_knowledge():
        first, second = Analyzer(), Analyzer()
        first.bind_extent(x, 8)
        assert first.bounds(x) == (0, 7)
        assert second.bounds(x) == (None, None)
        second.bind_extent(x, 4)
        second.bind(y, x, x)
        assert (first.bounds(x), second.bounds(y)) == ((0, 7), (0, 3))
        third = Analyzer()
        third.bind_extent(x, 8)
        assert third.simplify(binary("floordiv", x, const(8))).value == 0


def test_distance_is_that_of_the_difference():
    analyzer, x, y = Analyzer(), Var(INT32, "x"), Var(INT32, "y")
    analyzer.bind_extent(x, 8)
    a, b = binary("add", binary("mul", y, const(16)), x), binary("mul", y, const(16))
    assert analyzer.distance(a, b) == (0, 7)
    assert analyzer.distance(b, a) == (-7, 0)
    assert analyzer.distance(a, a) == (0, 0)
    assert analyzer.distance(y, x) == (None, None)
