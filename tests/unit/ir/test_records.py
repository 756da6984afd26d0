"""Programs as JSON: what is read back is what was written, shares what it shared, and nothing else can be made of a file."""

import json
import math
import os
import subprocess
import sys

import pytest

import tilewright.language as T
from tilewright.errors import Span
from tilewright.ir import FLOAT32, INT32, Const, Seq, Var, find
from tilewright.ir.printer import print_program
from tilewright.ir.records import Table, Unreadable, Unwritable, read
from tilewright.targets.registry import resolve


def written(value, table=None):
    table = table or Table()
    behind = len(table.values)
    return table.text(table.add(value), behind)


@T.prim_func
def program(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64, 64), "float32")):
    with T.Kernel(4, threads=64) as block:
        tile = T.alloc_shared((16, 64), "float32")
        T.copy(X[block * 16, 0], tile)
        for i, j in T.Parallel(16, 64):
            Y[block * 16 + i, j] = tile[i, j] * 2.0


def test_a_program_comes_back():
    function = program.function
    text = written(function)
    back = read(text)
    assert print_program(back) == print_program(function) and back.span == function.span
    assert written(back) == text
    assert len({id(one) for one in find(back, Var)}) == len({id(one) for one in find(function, Var)})


def test_a_table_goes_on_from_another():
    function = program.function
    table = Table()
    table.add(function)
    before = list(table.values)
    text = written((function.params[1], Var(INT32, "new"), function.params[1]), table)
    first, new, again = read(text, before)
    assert first is function.params[1] is again and new.name == "new"
    assert len(json.loads(text)[-1]) == 3  # nothing is written twice
    with pytest.raises(Unreadable):
        read(text)


@pytest.mark.parametrize(
    "value",
    [0, -1, 1 << 80, True, None, "", "\ud800", 'quo"te\n', 0.1, -0.0, 0.0, 1e308, math.inf, -math.inf, math.nan, (), ((),), (1, True, 1.0, "1"),
     frozenset({"b", "a"}), {"a": (1, 2), 3: None}, [1, [2]], Span("f.py", 1, 2, None), FLOAT32, INT32.with_lanes(4), resolve("cpu")[1],
     resolve("cuda -arch=sm_90a")[1]],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_come_back_exactly(value):
    text = written(value)
    back = read(text)
    assert type(back) is type(value) and written(back) == text
    assert back == value or value != value


def test_what_compares_by_value_stands_once_and_nodes_once_each():
    one, other = Const(INT32, 1), Const(INT32, 1)
    a, b, c = read(written((one, other, one)))
    assert a is c and a is not b
    spans = (Span("f.py", 1, 2), Span("f.py", 1, 2))
    assert len({id(span) for span in read(written(spans))}) == 1
    assert written((Span("f.py", 1, 2),) * 2) == written(spans)  # who shares what is no matter of the text
    assert [repr(x) for x in read(written((0, False, 0.0, -0.0)))] == ["0", "False", "0.0", "-0.0"]


class Own:
    """Of an author: what it is cannot be said in a file."""


@pytest.mark.parametrize(
    "value", [Own(), Own, lambda: 1, (1, [Own()]), b"bytes", 1j, object], ids=lambda value: repr(value)[:12]
)
def test_what_has_no_form_is_said(value):
    with pytest.raises(Unwritable, match="has no form on disk"):
        written(value)


def table_of(*classes, entries):
    return json.dumps([list(classes), 0, len(entries) - 1, entries])


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", "[" * 100_000, "[[], 0, 0, []]", "[[], 1, 0, [1]]", "[[], 0, 9, [1]]", '[[], 0, "0", [1]]',
     table_of("os:system", entries=["true", [0, 0]]),
     table_of("builtins:eval", entries=["1", [0, 0]]),
     table_of("tilewright.cache:cached", entries=["1", [0, 0]]),
     table_of("tilewright.cache:os.system", entries=["1", [0, 0]]),
     table_of("tilewright.processes:subprocess", entries=["1", [0, 0]]),
     table_of("tilewright.no_such_module:Var", entries=[[0]]),
     table_of("tilewright.errors:TilewrightError", entries=[[0]]),
     table_of("function", entries=["tilewright.cache", "digest", [0, 0, 1]]),
     table_of("tilewright.ir.expressions:Var", entries=["x", [0, 0]]),  # too few fields
     table_of("tilewright.ir.expressions:Var", entries=["x", [0, 0, 0, 0]]),
     table_of("tuple", entries=[[0, 7]]),
     table_of("dict", entries=[1, [0, 0]]),
     table_of(5, entries=[[0]]),
     table_of("tuple", entries=[[]])],
)  # fmt: skip
def test_what_no_table_wrote_is_refused(text):
    with pytest.raises(Unreadable):
        read(text)


def test_equal_programs_of_two_processes_have_equal_texts():
    """Whatever the order of their sets: the text is the program's key on disk."""
    script = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_records as t; from tilewright.cache import digest; print(digest(t.written(t.program.function)))"
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_empty_sequences_are_kept():
    assert isinstance(read(written(Seq(()))), Seq)
