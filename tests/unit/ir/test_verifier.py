"""The verifier on programs that text cannot write: shared nodes, wrong dtypes inside nodes, foreign buffers.

What text can write is in ``tests/filetests/ir/verify.tile``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilewright.ops  # noqa: F401  (registers the tile operators)
from tilewright.errors import InvalidProgram, Span
from tilewright.ir import BOOL, FLOAT16, FLOAT32, INT32, INTRINSICS, Intrinsic, nodes
from tilewright.ir.nodes import Buffer, Const, Function, Kernel, Seq, Statement, Var, const, load, seq
from tilewright.ir.parser import parse
from tilewright.ir.stages import STAGES
from tilewright.ir.verifier import verify, violations

A = Buffer("A", (8,), FLOAT32)


def in_kernel(*statements: Statement, **changes: Any) -> Function:
    threads: Any = tuple(Var(INT32, name) for name in ("tx", "ty", "tz"))
    kernel = Kernel((Var(INT32, "bx"),), (8,), threads, (32, 1, 1), seq(*statements))
    return Function("f", (A,), seq(replace(kernel, **changes)))


def problems(function: Function) -> list[str]:
    return [problem for _, problem in violations(function)]


def test_a_valid_program_passes() -> None:
    verify(in_kernel(nodes.Store(A, (const(0),), const(1.0))))


def test_a_variable_is_bound_once() -> None:
    i = Var(INT32, "i")
    loop = nodes.For(i, const(0), const(8), const(1), seq())
    assert problems(in_kernel(loop, replace(loop))) == ["the variable i is bound a second time"]


def test_a_buffer_is_allocated_once() -> None:
    allocate = nodes.Allocate(Buffer("tile", (4,), FLOAT32, "shared"))
    assert problems(in_kernel(allocate, allocate)) == ["the buffer tile is bound a second time"]


def test_what_is_named_in_a_block_ends_with_it() -> None:
    tile, x = Buffer("tile", (4,), FLOAT32, "shared"), Var(FLOAT32, "x")
    inside = Seq((nodes.Allocate(tile), nodes.Let(x, load(tile, 0))))
    after = nodes.Store(A, (const(0),), nodes.binary("add", load(tile, 0), x))
    assert problems(in_kernel(inside, after)) == ["the buffer tile is not in scope", "the variable x is not in scope"]


def test_a_view_is_in_scope_where_its_source_is() -> None:
    tile = Buffer("tile", (4,), FLOAT32, "shared")
    view = Buffer("bits", (2, 2), INT32, "shared", source=tile)
    use = nodes.Let(Var(INT32, "x"), load(view, 0, 1))
    assert not problems(in_kernel(nodes.Allocate(tile), Seq((use,)), nodes.Let(Var(INT32, "y"), load(view, 1, 1))))
    assert problems(in_kernel(Seq((nodes.Allocate(tile), use)), nodes.Let(Var(INT32, "y"), load(view, 1, 1)))) == [
        "the buffer tile is not in scope"
    ]


def test_a_view_fits_into_its_source() -> None:
    tile = Buffer("tile", (4,), FLOAT32, "shared")
    view = Buffer("wide", (4,), FLOAT32.with_lanes(2), "register", source=tile)
    found = problems(in_kernel(nodes.Allocate(tile), nodes.Evaluate(nodes.Load(view.dtype, view, (const(0),)))))
    assert "wide is register, but the buffer it views is shared" in found
    assert "wide has 32 bytes, the buffer it views 16" in found


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (nodes.Binary(FLOAT16, "add", const(1.0), const(1.0)), "+ of float32 gives float32, not float16"),
        (nodes.Binary(FLOAT32, "plus", const(1.0), const(1.0)), "unknown operator 'plus'"),
        (nodes.Unary(FLOAT32, "minus", const(1.0)), "unknown operator 'minus'"),
        (nodes.Unary(FLOAT16, "neg", const(1.0)), "neg of float32 gives float32, not float16"),
        (nodes.Load(FLOAT16, A, (const(0),)), "a load from A (float32) cannot give float16"),
        (Const(INT32, 1 << 40), f"{1 << 40} is not a value of int32"),
        (Const(INT32, 1.5), "1.5 is not a value of int32"),
        (Const(BOOL, 2), "2 is not a bool"),
        (Const(FLOAT32, True), "True is not a value of float32"),
        (nodes.Call(FLOAT32, "expp", (const(1.0),)), "no function 'expp'"),
        (nodes.Call(FLOAT32, "exp", ("one",)), "exp of a text: its arguments must be floats"),
    ],
)
def test_expressions(value: nodes.Expr, problem: str) -> None:
    assert problem in problems(in_kernel(nodes.Evaluate(value)))


def test_vectors_in_thread_programs() -> None:
    four = FLOAT32.with_lanes(4)
    wrong = nodes.Broadcast(four, const(1, INT32))
    cast = nodes.Cast(FLOAT32, nodes.Broadcast(four, const(1.0)))
    constant = Const(four, 1.0)
    program = replace(in_kernel(*map(nodes.Evaluate, (wrong, cast, constant))), stage="threaded")
    assert problems(program) == [
        "a broadcast of int32 cannot give float32x4",
        "a cast from float32x4 to float32 changes the number of lanes",
        "a constant of float32x4: a vector is made with broadcast",
    ]


def test_an_effect_stands_alone() -> None:
    INTRINSICS["ticket"] = Intrinsic("ticket", 0, None, pure=False)
    try:
        call = nodes.Call(INT32, "ticket", ())
        alone = [nodes.Evaluate(call), nodes.Let(Var(INT32, "x"), call)]
        assert not problems(in_kernel(*alone))
        nested = nodes.Evaluate(nodes.binary("add", call, const(1)))
        assert problems(in_kernel(nested)) == ["ticket has an effect, so it stands alone, in a binding or in a store"]
    finally:
        del INTRINSICS["ticket"]


def test_kernels() -> None:
    assert problems(in_kernel(grid=())) == ["a grid of 0 extents has 1 index"]
    assert problems(in_kernel(grid=(-1,))) == ["an extent of the grid is -1, not a size"]
    assert problems(in_kernel(grid=(const(1.0),))) == ["an extent of the grid is float32, not an integer"]
    assert problems(in_kernel(threads=(32, 0, 1))) == ["a block has three thread indices with at least one thread each"]
    other = Buffer("other", (4,), FLOAT32, "shared")
    assert problems(in_kernel(layouts=((other, None),))) == ["other has an annotation, but is not in the kernel"]
    assert problems(in_kernel(safe_values=((A, const(0)),))) == ["the safe value of A is int32, not float32"]


def test_functions() -> None:
    other = Buffer("other", (4,), FLOAT32)
    assert problems(Function("f", (A,), seq(), outputs=(other,))) == ["the output other is not a parameter"]
    assert problems(Function("f", (A, A), seq())) == ["the buffer A is bound a second time"]
    odd = Buffer("odd", (4, 4), FLOAT32, "global", strides=(4,))
    assert problems(Function("f", (odd,), seq())) == [
        "odd: strides belong to a global buffer or a local view of one, one a dimension"
    ]
    assert problems(Function("f", (Buffer("B", (4,), FLOAT32, "heap"),), seq()))[0] == "B has the unknown scope 'heap'"


def test_operators_check_themselves() -> None:
    program = parse(
        "def f(A: float32[8], B: float32[4]):\n"
        "    with kernel(blocks={bx: 8}, threads={tx: 32, ty: 1, tz: 1}):\n"
        "        copy(source=A, destination=B)\n"
    )
    assert problems(program) == ["copy: shapes differ: source (8), destination (4)"]


def test_the_error_lists_everything_and_shows_the_place() -> None:
    span = Span("kernel.py", 7, 4)
    program = in_kernel(nodes.Store(A, (), const(1), span=span), nodes.Break())
    with pytest.raises(InvalidProgram) as caught:
        verify(program)
    assert str(caught.value) == (
        "f is invalid at stage traced: 3 violations\n"
        "  1. A has 1 dimension, but is accessed with 0 indices\n"
        "  2. a value of int32 is stored in A, which holds float32\n"
        "  3. break stands outside a serial loop\n"
        "\n"
        '@stage("traced")\n'
        "def f(A: float32[8]):\n"
        "    with kernel(blocks={bx: 8}, threads={tx: 32, ty: 1, tz: 1}):\n"
        "        A[()] = 1  # <-- A has 1 dimension, but is accessed with 0 indices\n"
        "        # <-- a value of int32 is stored in A, which holds float32\n"
        "        break  # <-- break stands outside a serial loop\n"
        "\n"
        "  --> kernel.py:7:5"
    )


def test_every_stage_has_its_table() -> None:
    assert list(STAGES) == ["traced", "pipelined", "laid_out", "lowered", "threaded", "final"]
    for name, stage in STAGES.items():
        assert stage.name == name and stage.meaning and stage.scopes <= set(nodes.SCOPES)
