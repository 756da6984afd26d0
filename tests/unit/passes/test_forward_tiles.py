"""Tiles that repeat rows of tensors are read from there, and others stay."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright.interpreter import interpret
from tilewright.ir import Function, Store, walk
from tilewright.ir.parser import parse
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context
from tilewright.passes.lower.forward_tiles import forward_tiles
from tilewright.targets.cpu.arch import arch

CONTEXT = Context(arch({"arch": "avx512"}))
X = np.random.default_rng(0).integers(-9, 9, (8, 64)).astype(np.float32)
FILL = """
for i in vectorize(64):
    row[i] = {value}
"""
SUM = """
total = scalar(float32[1], initial=0.0)
for k in range(64):
    total[0] = total[0] + row[k]
for j in vectorize(64):
    C[bx, j] = row[j] - total[0]
"""


def program(body: str, signature: str = "(A: float32[8, 64], B: float32[8, 64], C: float32[8, 64]) -> C") -> Function:
    head = f"""\
@stage("threaded")
def f{signature}:
    with kernel(blocks={{bx: 8}}, threads={{tx: 1, ty: 1, tz: 1}}):
        row = register(float32[64])
"""
    made = parse(head + textwrap.indent(textwrap.dedent(body).strip("\n") + "\n", "        "))
    verify(made)
    return made


def stores_to_row(function: Function) -> int:
    return sum(isinstance(node, Store) and node.buffer.name == "row" for node in walk(function.body))


def forwarded(body: str) -> Function:
    """The program after the pass, which computes what it did before."""
    before = program(body)
    after = forward_tiles(before, CONTEXT)
    verify(after)
    for one, other in zip(interpret(before, [X, X + 1]), interpret(after, [X, X + 1]), strict=True):
        np.testing.assert_array_equal(one, other)
    return after


@pytest.mark.parametrize("value", ["A[bx, i]", "min(A[bx, i], 5.0)", "abs(A[bx, i] * 2.0)", "-A[7 - bx, i]"])
def test_what_costs_little_is_computed_again(value: str) -> None:
    assert stores_to_row(forwarded(FILL.format(value=value) + SUM)) == 0


NOT_CHEAP = {
    "two tensors": "A[bx, i] + B[bx, i]",
    "a function": "exp2(A[bx, i])",
    "three operations": "abs(A[bx, i] * 2.0 + 1.0)",
    "every other element": "A[bx, (i * 2) % 64]",
    "a column": "A[i % 8, bx]",
    "what is written": "C[bx, i]",
}


@pytest.mark.parametrize("value", NOT_CHEAP.values(), ids=NOT_CHEAP)
def test_what_stays_a_tile(value: str) -> None:
    zero = "for j in vectorize(64):\n    C[bx, j] = 1.0\n"
    assert stores_to_row(forwarded(zero + FILL.format(value=value) + SUM)) == 1


def test_up_to_where_it_is_written_over() -> None:
    again = "for j in vectorize(64):\n    row[j] = exp2(row[j])\n"
    made = forwarded(FILL.format(value="A[bx, i]") + again + SUM)
    assert stores_to_row(made) == 1


@pytest.mark.parametrize(
    "between",
    [
        "for j in range(1, 64):\n    row[j] = row[j - 1]\n",  # reads what it has written
        "for j in vectorize(32):\n    row[j] = row[63 - j]\n",  # of what stays as it is
        "for j in vectorize(32):\n    row[j] = row[j] * 2.0\n",  # a half
        "row[0] = 3.0\n",
    ],
)
def test_what_is_written_over_in_another_way_stays(between: str) -> None:
    made = forwarded(FILL.format(value="A[bx, i]") + between + SUM)
    assert stores_to_row(made) == 2


def test_what_is_read_many_times_stays() -> None:
    """An operand of products lies in its tile as they want it."""
    many = "for m in range(8):\n    for k in vectorize(64):\n        C[m, k] = row[k]\n"
    made = program(FILL.format(value="A[bx, i]") + many)
    assert forward_tiles(made, CONTEXT) is made


def test_what_only_a_part_is_filled_of_stays() -> None:
    part = "row[63] = 0.0\nfor i in vectorize(63):\n    row[i] = A[bx, i]\n"
    assert stores_to_row(forwarded(part + SUM)) == 2
