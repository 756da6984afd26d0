"""The analyzer against brute force: every answer holds on every assignment of the variables within bounds."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.arith import Analyzer
from tilewright.ir import BOOL, DType, dtypes, same
from tilewright.ir.nodes import Binary, Cast, Const, Expr, Select, Unary, Var, binary, const, index_binary

QUICK = settings(max_examples=80, deadline=None)
SEEDS = st.integers(0, 1 << 40)

Ranges = dict[Var, tuple[int, int]]


# The meaning of integer expressions, on all assignments at once ----------------------------------


class Meaning:
    """Evaluates expressions as `ir.nodes` defines them.

    ``defined`` marks the assignments without an undefined step or an overflow of index arithmetic.
    """

    def __init__(self, env: dict[Var, np.ndarray]) -> None:
        self.env = env
        count = len(next(iter(env.values()))) if env else 1
        self.defined = np.ones(count, bool)
        self.reached = np.ones(count, bool)

    def __call__(self, expr: Expr) -> np.ndarray:
        if isinstance(expr, Const):
            return np.full(len(self.defined), int(expr.value), np.int64)
        if isinstance(expr, Var):
            return self.env[expr]
        if isinstance(expr, Cast):
            return wrap(self(expr.value), expr.dtype)
        if isinstance(expr, Select):
            condition = self(expr.condition).astype(bool)
            return np.where(condition, self.where(condition, expr.then), self.where(~condition, expr.otherwise))
        if isinstance(expr, Unary):
            value = self(expr.value)
            return self.within(expr, {"neg": -value, "not": 1 - value, "invert": ~value}[expr.op])
        assert isinstance(expr, Binary)
        left = self(expr.left)
        if expr.op in ("all", "any"):
            right = self.where(left.astype(bool) == (expr.op == "all"), expr.right)
            return left & right if expr.op == "all" else left | right
        return self.within(expr, self.operate(expr.op, left, self(expr.right), expr.left.dtype))

    def within(self, expr: Binary | Unary, value: np.ndarray) -> np.ndarray:
        """`value` wrapped; index arithmetic that would wrap counts as undefined."""
        wrapped = wrap(value, expr.dtype)
        if expr.dtype.name in ("int32", "int64") and expr.op != "shl":
            self.defined &= ~self.reached | (wrapped == value)
        return wrapped

    def where(self, condition: np.ndarray, expr: Expr) -> np.ndarray:
        outer, self.reached = self.reached, self.reached & condition
        value = self(expr)
        self.reached = outer
        return value

    def operate(self, op: str, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if op in ("floordiv", "floormod"):
            self.defined &= ~self.reached | (b != 0)
            divisor = np.where(b == 0, 1, b)
            return a // divisor if op == "floordiv" else a % divisor
        if op in ("shl", "shr"):
            inside = (b >= 0) & (b < dtype.bits)
            self.defined &= ~self.reached | inside
            steps = np.where(inside, b, 0)
            return a << steps if op == "shl" else a >> steps
        return np.asarray(_OPERATIONS[op](a, b), np.int64)


_OPERATIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def wrap(value: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.kind == "bool":
        return (value != 0).astype(np.int64)
    if dtype.bits == 64:
        return value
    value = value & ((1 << dtype.bits) - 1)
    return np.where(value >> (dtype.bits - 1), value - (1 << dtype.bits), value) if dtype.kind == "int" else value


def assignments(ranges: Ranges) -> dict[Var, np.ndarray]:
    points = np.array(list(itertools.product(*(range(low, high + 1) for low, high in ranges.values()))), np.int64)
    return {var: points[:, axis] for axis, var in enumerate(ranges)}


# Random expressions -----------------------------------------------------------------------------


class Source:
    """Random expressions over the variables of `ranges`, from a seed."""

    ARITHMETIC = ("add", "add", "add", "sub", "mul", "floordiv", "floormod", "min", "max", "and", "or", "xor")
    ORDERINGS = ("lt", "le", "gt", "ge", "eq", "ne")

    def __init__(self, seed: int, dtype: DType, ranges: Ranges | None = None) -> None:
        self.random, self.dtype = random.Random(seed), dtype
        self.ranges = ranges if ranges is not None else {Var(dtype, name): self._range() for name in "xyz"}

    def _range(self) -> tuple[int, int]:
        low = self.random.choice([0, 0, self.random.randint(-6 if self.dtype.kind == "int" else 0, 6)])
        return low, low + self.random.randint(0, 7)

    def literal(self) -> Const:
        smallest = -8 if self.dtype.kind == "int" else 0
        value = self.random.choice([self.random.randint(smallest, 12), self.random.choice([2, 4, 8, 16])])
        return const(value, self.dtype)

    def integer(self, depth: int = 4) -> Expr:
        pick = self.random.random()
        if depth == 0 or pick < 0.2:
            return self.random.choice(list(self.ranges)) if self.random.random() < 0.75 else self.literal()
        left = self.integer(depth - 1)
        if pick < 0.5:
            divisor = const(self.random.choice([2, 3, 4, 6, 8, 12]), self.dtype)
            return Binary(self.dtype, self.random.choice(["mul", "floordiv", "floormod"]), left, divisor)
        if pick < 0.55:
            return Binary(
                self.dtype, self.random.choice(["shl", "shr"]), left, const(self.random.randint(0, 3), self.dtype)
            )
        if pick < 0.6:
            return Unary(self.dtype, self.random.choice(["neg", "invert"]), left)
        if pick < 0.65:
            return Select(self.dtype, self.condition(depth - 1), left, self.integer(depth - 1))
        if pick < 0.7:
            return self.converted(left)
        return Binary(self.dtype, self.random.choice(self.ARITHMETIC), left, self.integer(depth - 1))

    def converted(self, value: Expr) -> Expr:
        other = self.random.choice([dtypes.INT64, dtypes.INT32, dtypes.UINT8, dtypes.INT8, dtypes.UINT32])
        middle = Binary(other, self.random.choice(self.ARITHMETIC), Cast(other, value), const(3, other))
        return Cast(self.dtype, middle)

    def condition(self, depth: int = 4) -> Expr:
        pick = self.random.random()
        if depth == 0 or pick < 0.6:
            left, right = self.integer(max(depth - 1, 0)), self.integer(max(depth - 1, 0))
            return binary(self.random.choice(self.ORDERINGS), left, right)
        if pick < 0.75:
            return Unary(BOOL, "not", self.condition(depth - 1))
        return Binary(BOOL, self.random.choice(["all", "any"]), self.condition(depth - 1), self.condition(depth - 1))

    def analyzer(self) -> Analyzer:
        analyzer = Analyzer()
        for var, (low, high) in self.ranges.items():
            analyzer.bind(var, low, high)
        return analyzer


def check_value(analyzer: Analyzer, expr: Expr, env: dict[Var, np.ndarray], where: np.ndarray | bool = True) -> None:
    """The simplified expression has the value of `expr` wherever that is defined, and the bounds hold."""
    meaning = Meaning(env)
    value = meaning(expr)
    kept = meaning.defined & where
    result = analyzer.simplify(expr)
    assert result.dtype == expr.dtype
    after = Meaning(env)
    assert (after(result) == value)[kept].all()
    assert after.defined[kept].all()
    low, high = analyzer.bounds(expr)
    assert low is None or (value >= low)[kept].all()
    assert high is None or (value <= high)[kept].all()


def check_proof(
    analyzer: Analyzer, condition: Expr, env: dict[Var, np.ndarray], where: np.ndarray | bool = True
) -> None:
    if analyzer.prove(condition):
        meaning = Meaning(env)
        assert meaning(condition).astype(bool)[meaning.defined & where].all()


TYPES = [dtypes.INT32, dtypes.INT64, dtypes.UINT32, dtypes.UINT8, dtypes.INT8]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@QUICK
@given(seed=SEEDS)
def test_values_are_kept_and_bounded(dtype: DType, seed: int) -> None:
    source = Source(seed, dtype)
    expr, condition, analyzer = source.integer(), source.condition(), source.analyzer()
    env = assignments(source.ranges)
    check_value(analyzer, expr, env)
    check_value(analyzer, condition, env)
    check_proof(analyzer, condition, env)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@QUICK
@given(seed=SEEDS)
def test_simplified_expressions_stay_as_they_are(dtype: DType, seed: int) -> None:
    source = Source(seed, dtype)
    analyzer = source.analyzer()
    for expr in (source.integer(), source.condition()):
        result = analyzer.simplify(expr)
        assert analyzer.simplify(result) is result
        assert same(source.analyzer().simplify(result), result)


@QUICK
@given(seed=SEEDS)
def test_facts_are_used_soundly(seed: int) -> None:
    source = Source(seed, dtypes.INT32)
    analyzer, env = source.analyzer(), assignments(source.ranges)
    held = np.ones(1, bool)
    for _ in range(source.random.randint(1, 3)):
        fact = source.condition(3)
        analyzer.assume(fact)
        meaning = Meaning(env)
        held = held & meaning(fact).astype(bool) & meaning.defined
    expr, divisor = source.integer(), source.random.randint(2, 8)
    check_value(analyzer, expr, env, held)
    check_proof(analyzer, source.condition(), env, held)
    if analyzer.divides(expr, divisor):
        meaning = Meaning(env)
        assert (meaning(expr) % divisor == 0)[held & meaning.defined].all()


@QUICK
@given(seed=SEEDS)
def test_symbolic_bounds_are_used_soundly(seed: int) -> None:
    """Loop variables below sizes of which only the sign is known."""
    m, n, i, j = (Var(dtypes.INT32, name) for name in "mnij")
    sizes: Ranges = {m: (1, 5), n: (1, 5), i: (0, 4), j: (0, 4)}
    source, env = Source(seed, dtypes.INT32, sizes), assignments(sizes)
    analyzer = Analyzer()
    analyzer.bind(m, 1, None)
    analyzer.bind(n, 1, None)
    analyzer.bind_extent(i, m)
    analyzer.bind_extent(j, n)
    held = (env[i] < env[m]) & (env[j] < env[n])
    check_value(analyzer, source.integer(), env, held)
    check_proof(analyzer, source.condition(), env, held)


@QUICK
@given(seed=SEEDS)
def test_stride_and_linear_give_the_expression_back(seed: int) -> None:
    source = Source(seed, dtypes.INT32)
    expr, analyzer = source.integer(3), source.analyzer()
    var = next(iter(source.ranges))
    env = assignments(source.ranges)
    meaning = Meaning(env)
    value = meaning(expr)
    terms, constant = analyzer.linear(expr)
    total = sum((c * Meaning(env)(term) for term, c in terms.items()), np.int64(constant))
    assert (total == value)[meaning.defined].all()
    stride = analyzer.stride(expr, var)
    if stride is not None:
        following = Meaning({**env, var: env[var] + 1})
        stepped = following(expr)
        inside = meaning.defined & following.defined & (env[var] < source.ranges[var][1])
        assert (stepped - value == Meaning(env)(stride))[inside].all()


@QUICK
@given(st.integers(-300, 300), st.integers(-300, 300), st.sampled_from(TYPES))
def test_literals_wrap(a: int, b: int, dtype: DType) -> None:
    analyzer = Analyzer()
    left, right = (const(int(wrap(np.array([value]), dtype)[0]), dtype) for value in (a, b))
    for op in ("add", "sub", "mul", "and", "or", "xor", "min", "max", "lt", "eq"):
        whole = analyzer.simplify(binary(op, left, right))
        assert isinstance(whole, Const)
        assert int(whole.value) == Meaning({})(Binary(whole.dtype, op, left, right))[0]
    assert analyzer.equal(index_binary("add", left, right), index_binary("add", right, left))


class Story:
    """Bindings, assumptions and questions in nested scopes; `held` marks the assignments that they leave.

    What was learnt about a variable stays true when another one is bound anew.
    """

    def __init__(self, seed: int) -> None:
        box: Ranges = {Var(dtypes.INT32, name): (-2, 7) for name in "xyz"}
        self.source, self.env, self.analyzer = Source(seed, dtypes.INT32, box), assignments(box), Analyzer()
        self.random = self.source.random
        self.held = np.ones((10, 10, 10), bool)
        self.questions = [self.source.integer(3) for _ in range(2)] + [self.source.condition(3) for _ in range(2)]

    def tell(self, depth: int = 2) -> None:
        for _ in range(self.random.randint(2, 4)):
            step = self.random.choice([self.bind, self.bind, self.assume, self.ask, self.ask])
            step()
            if depth and self.random.random() < 0.4:
                kept = self.held
                with self.analyzer.scope():
                    self.tell(depth - 1)
                self.held = kept
                self.ask()

    def bind(self) -> None:
        axis = self.random.randrange(3)
        var = list(self.env)[axis]
        ends: list[int | Expr] = [self.random.randint(-2, 3), self.random.randint(2, 7)]
        other = self.random.choice([other for other in self.env if other is not var])
        pick = self.random.random()
        if pick < 0.4:
            ends[1] = index_binary("sub", other, 1)
        elif pick < 0.6:
            ends = [index_binary("mul", other, self.random.randint(1, 3))] * 2
        self.analyzer.bind(var, *ends)
        low, high = (end if isinstance(end, int) else Meaning(self.env)(end) for end in ends)
        inside = (self.env[var] >= low) & (self.env[var] <= high)
        self.held = self.held.any(axis=axis, keepdims=True) & inside.reshape(self.held.shape)

    def assume(self) -> None:
        fact = self.source.condition(2)
        self.analyzer.assume(fact)
        meaning = Meaning(self.env)
        self.held = self.held & (meaning(fact).astype(bool) & meaning.defined).reshape(self.held.shape)

    def ask(self) -> None:
        question = self.random.choice(self.questions)
        check_value(self.analyzer, question, self.env, self.held.reshape(-1))
        if question.dtype.kind == "bool":
            check_proof(self.analyzer, question, self.env, self.held.reshape(-1))


@QUICK
@given(seed=SEEDS)
def test_scopes_and_bindings_are_kept_apart(seed: int) -> None:
    Story(seed).tell()
