"""Registers that a loop hands to others as they are: whole words of them, by one function."""

from __future__ import annotations

import pytest

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import FLOAT16, FLOAT32, INT32
from tilewright.targets.hip.emit import moved_words

i = ir.Var(INT32, "i")


def loop(to: ir.Expr, source: ir.Expr, dtype: ir.DType = FLOAT16, count: int = 4, kind: str = "unroll") -> ir.For:
    into, out_of = (ir.Buffer(name, (32,), dtype, "register") for name in ("into", "out_of"))
    return ir.counted(i, count, ir.seq(ir.Store(into, (to,), ir.Load(dtype, out_of, (source,)))), kind)


@pytest.mark.parametrize("behind", [False, True])
def test_words_are_moved_from_one_place_to_another(behind: bool) -> None:
    to, source = (ir.const(8) + i, ir.const(4) + i) if behind else (i + ir.const(8), i + ir.const(4))
    found = moved_words(loop(to, source))
    assert found is not None
    (into, first), (out_of, taken), function = found
    assert (into.name, int(first.value), out_of.name, int(taken.value)) == ("into", 8, "out_of", 4)
    assert function == "move_fragment"


def test_a_loop_from_the_first_element_on() -> None:
    found = moved_words(loop(i, i))
    assert found is not None and [int(first.value) for _, first in found[:2]] == [0, 0]


@pytest.mark.parametrize(
    "other",
    [
        loop(i + i, i),
        loop(i, i * ir.const(2)),
        loop(i, i * ir.const(3) + i),
        loop(i, ir.const(4)),
        loop(i, i, FLOAT32),
        loop(i, i, count=3),
        loop(i, i, kind="serial"),
    ],
    ids=["twice", "every other", "four apart", "one for all", "words", "half a word", "a loop that stays"],
)
def test_what_is_no_run_of_whole_words_is_moved_one_by_one(other: ir.For) -> None:
    assert moved_words(other) is None
