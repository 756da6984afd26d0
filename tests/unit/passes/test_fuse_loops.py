"""Which neighbouring loops are joined, and which must not be; what is named instead of loaded again."""

from __future__ import annotations

import textwrap

import pytest

from tilewright.ir import Function, nodes, walk
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context
from tilewright.passes.thread.forward_stores import forward_stores
from tilewright.passes.thread.fuse_loops import fuse_loops
from tilewright.targets.cpu.arch import arch

CONTEXT = Context(arch({"arch": "avx512"}))


def program(body: str) -> Function:
    head = """\
@stage("final")
def f(A: float32[n], C: float32[128], *, n: int32) -> C:
    with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
        row = register(float32[128])
"""
    made = parse(head + textwrap.indent(textwrap.dedent(body), "        "))
    verify(made)
    return made


def loops(function: Function) -> list[nodes.For]:
    return [node for node in walk(function.body) if isinstance(node, nodes.For)]


JOINED = {
    "same windows": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 64, 16):
            C[i].x16 = row[i].x16
    """,
    "what stands between has nothing to do with the first": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        total = register(float32[4])
        total[0].x4 = broadcast(0.0, 4)
        for i in range(0, 64, 4):
            total[0].x4 = total[0].x4 + row[i].x4
        C[0].x4 = total[0].x4
    """,
    "a size known at launch, the same steps": """
        for i in range(0, n // 16 * 16, 16):
            row[i].x16 = A[i].x16
        for i in range(0, n // 16 * 16, 16):
            C[i].x16 = row[i].x16
    """,
    "rows of two dimensions": """
        for i in range(8):
            for j in range(0, 16, 4):
                row[i * 16 + j].x4 = A[i * 16 + j].x4
        for i in range(8):
            for j in range(0, 16, 4):
                C[i * 16 + j].x4 = row[i * 16 + j].x4
    """,
    "both only read what they share": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 64, 16):
            C[i].x16 = A[64 - i].x16
    """,
}

APART = {
    "the second reads what a later iteration writes": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 64, 16):
            C[i].x16 = row[i + 16].x16
    """,
    "the second overwrites what a later iteration reads": """
        for i in range(0, 64, 16):
            C[i].x16 = row[i + 16].x16
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
    """,
    "windows that overlap by one element": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 64, 16):
            C[i].x16 = row[i + 1].x16
    """,
    "windows of narrower steps that overlap by one element": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 64, 4):
            row[i + 1].x4 = broadcast(1.0, 4)
    """,
    "windows of narrower steps that begin one element early": """
        for i in range(0, 64, 4):
            row[i + 1].x4 = broadcast(1.0, 4)
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
    """,
    "other ranges": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 128, 16):
            C[i].x16 = row[i].x16
    """,
    "a total of all is wanted before the second begins": """
        total = scalar(float32[1], initial=0.0)
        for i in range(64):
            total[0] = total[0] + A[i]
        for i in range(64):
            C[i] = A[i] * total[0]
    """,
    "what stands between reads what the first writes": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        first: float32 = row[0]
        for i in range(0, 64, 16):
            C[i].x16 = row[i].x16 * broadcast(first, 16)
    """,
    "a wider step that does not end with the narrower": """
        for i in range(0, 48, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 48, 32):
            C[i].x16 = row[i].x16
    """,
    "nothing shared": """
        for i in range(0, 64, 16):
            row[i].x16 = A[i].x16
        for i in range(0, 64, 16):
            C[i].x16 = broadcast(0.0, 16)
    """,
}


@pytest.mark.parametrize("what", JOINED)
def test_loops_over_the_same_places_are_joined(what: str) -> None:
    made = fuse_loops(program(JOINED[what]), CONTEXT)
    verify(made)
    outermost = [loop for loop in loops(made) if not any(loop in loops_below(other) for other in loops(made))]
    assert len(outermost) == 1, print_program(made)


def loops_below(loop: nodes.For) -> list[nodes.For]:
    return [node for node in walk(loop.body) if isinstance(node, nodes.For)]


@pytest.mark.parametrize("what", APART)
def test_a_dependence_carried_backwards_keeps_loops_apart(what: str) -> None:
    before = program(APART[what])
    assert len(loops(fuse_loops(before, CONTEXT))) == len(loops(before))


def test_a_value_stored_and_overwritten_in_part_is_loaded() -> None:
    before = program("""
        row[0].x16 = A[0].x16
        row[8] = A[100]
        C[0].x16 = row[0].x16
    """)
    assert "C[0].x16 = row[0].x16" in print_program(forward_stores(before, CONTEXT))


def test_a_value_stored_beside_others_is_named() -> None:
    before = program("""
        row[0].x16 = A[0].x16
        row[16].x16 = A[16].x16
        C[0].x16 = row[0].x16
        C[16].x16 = row[16].x16
    """)
    made = forward_stores(before, CONTEXT)
    verify(made)
    assert "register" not in print_program(made)


def test_a_value_that_a_call_may_change_is_loaded() -> None:
    before = program("""
        row[0] = A[0]
        atomic_add(row[0 : +1], A[1], "relaxed")
        C[0] = row[0]
    """)
    assert "C[0] = row[0]" in print_program(forward_stores(before, CONTEXT))


def test_a_tile_that_a_loop_rewrites_is_loaded() -> None:
    before = program("""
        row[0] = A[0]
        for i in range(4):
            row[i] = A[i + 1]
        C[0] = row[0]
    """)
    assert "C[0] = row[0]" in print_program(forward_stores(before, CONTEXT))
