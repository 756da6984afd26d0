"""Staging that gemms can do without goes; what they need stays, with the rows that exist noted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tilewright
import tilewright.language as T
from tilewright.ir import Function, walk
from tilewright.machine.arch import Arch
from tilewright.ops import Copy, Decode, Gemm
from tilewright.passes.context import Context
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.passes.tile.processors.forward_operands import SOURCES, forward_operands
from tilewright.passes.tile.processors.plan_operand_layouts import FACT, plan_operand_layouts
from tilewright.targets.cpu.arch import arch

MACHINE = replace(arch({"arch": "avx512-vnni"}), l1_bytes=32 << 10)


@tilewright.jit
def staged(
    rows: int, depth: int = 64, packed: bool = True, twice: bool = False, K: int = 256, steps: int | None = None
) -> Any:
    M = T.dynamic("M")

    @T.prim_func
    def staged(
        A: T.Tensor((M, K), "int8"),
        W: (T.Packed if packed else T.Tensor)((96, K), "uint4"),
        C: T.Tensor((M, 96), "int32"),
    ):
        with T.Kernel(T.ceildiv(M, rows), threads=1) as block:
            a = T.alloc_shared((rows, depth), "int8")
            w = T.alloc_fragment((96, depth), "uint8")
            c = T.alloc_fragment((rows, 96), "int32")
            T.clear(c)
            for k in T.serial(steps or T.ceildiv(K, depth)):
                T.copy(A[block * rows, k * depth], a)
                T.decode(W[0:96, k * depth : k * depth + depth], w)
                if twice:
                    T.fill(a, 1)
                T.gemm(a, w, c, transpose_B=True)
            T.copy(c, C[block * rows, 0])

    return staged


def forwarded(machine: Arch = MACHINE, **options: Any) -> tuple[Function, Context]:
    context = Context(machine)
    return forward_operands(select_instructions(staged.trace(**options).function, context), context), context


def the_gemm(function: Function) -> Gemm:
    (gemm,) = [node for node in walk(function) if isinstance(node, Gemm)]
    return gemm


def fillings(function: Function) -> list[str]:
    return [node.destination.buffer.name for node in walk(function) if isinstance(node, (Copy, Decode))]


def test_few_rows_and_packed_codes_are_read_where_they_are() -> None:
    function, _ = forwarded(rows=16)
    assert (the_gemm(function).a.buffer.name, the_gemm(function).b.buffer.name) == ("A", "W")
    assert fillings(function) == ["C"]


def test_columns_beyond_the_last_are_no_other_row() -> None:
    """Steps whose columns begin behind the tensor's last multiply by zeros, not by what lies there."""
    function, _ = forwarded(rows=16, steps=5)
    assert the_gemm(function).a.buffer.name == "a"


def test_many_rows_keep_a_tile_of_unpacked_codes() -> None:
    function, context = forwarded(replace(MACHINE, l1_bytes=16 << 10), rows=128, depth=256)
    gemm = the_gemm(function)
    assert (gemm.a.buffer.name, gemm.b.buffer.name) == ("a", "w")
    assert context.facts[SOURCES][gemm.a].buffer.name == "A"


def test_few_rows_of_a_length_that_no_tiles_cover_are_copied_and_counted() -> None:
    function, context = forwarded(rows=16, K=250)
    gemm = the_gemm(function)
    assert gemm.a.buffer.name == "a"
    assert context.facts[SOURCES][gemm.a].buffer.name == "A"


def test_a_tile_that_is_written_twice_stays() -> None:
    function, _ = forwarded(rows=16, twice=True)
    assert the_gemm(function).a.buffer.name == "a"
    assert "a" in fillings(function)


@T.prim_func
def cleared(A: T.Tensor((16, 64), "int8"), W: T.Packed((96, 64), "uint4"), C: T.Tensor((16, 96), "int32")):
    """Rows that are zeros in the tensor, under another name, before they are multiplied."""
    with T.Kernel(1, threads=1):
        a = T.alloc_shared((16, 64), "int8")
        w = T.alloc_fragment((96, 64), "uint8")
        c = T.alloc_fragment((16, 96), "int32")
        flat = T.reshape(A, (1024,))
        T.copy(A, a)
        T.decode(W, w)
        for i in T.serial(1024):
            flat[i] = T.int8(0)
        T.clear(c)
        T.gemm(a, w, c, transpose_B=True)
        T.copy(c, C)


def test_a_source_that_is_written_by_another_name_is_copied() -> None:
    context = Context(MACHINE)
    gemm = the_gemm(forward_operands(select_instructions(cleared.function, context), context))
    assert (gemm.a.buffer.name, gemm.b.buffer.name) == ("a", "W")


def test_codes_in_row_order_are_decoded_into_a_tile() -> None:
    function, _ = forwarded(rows=16, packed=False)
    assert the_gemm(function).b.buffer.name == "w"


def test_a_packed_weight_has_one_layout_whoever_reads_it() -> None:
    layouts = set()
    for rows in (1, 16, 128):
        function, context = forwarded(rows=rows)
        planned = plan_operand_layouts(function, context)
        layouts.add(dict(planned.attribute("packed_layouts"))["W"])
        assert len(context.facts[FACT]) == 1 + (rows > 32)
    assert {str(layout) for layout in layouts} == {"panels1[nk 96x256: 16 lanes, run 4, share 2, 4 beside]"}
