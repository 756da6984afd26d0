"""When results are written past the caches, when rows are fetched ahead, and that neither changes what a program does."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import numpy as np
import pytest

from tilewright.interpreter import interpret
from tilewright.ir import Call, Function, Let, Store, dtype, walk
from tilewright.ir.parser import parse
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context
from tilewright.passes.thread.forward_stores import forward_stores
from tilewright.passes.thread.prefetch_next import prefetch_next
from tilewright.passes.thread.stream_stores import stream_stores
from tilewright.targets.cpu.arch import arch

MACHINE = replace(arch({"arch": "avx512"}), l2_bytes=1 << 10)
CONTEXT = Context(MACHINE)
BFLOAT16 = dtype("bfloat16").numpy


def program(body: str, signature: str = "(A: float32[4096], C: float32[4096]) -> C", blocks: str = "1") -> Function:
    head = f"""\
@stage("final")
def f{signature}:
    with kernel(blocks={{bx: {blocks}}}, threads={{tx: 1, ty: 1, tz: 1}}):
"""
    made = parse(head + textwrap.indent(textwrap.dedent(body), "        "))
    verify(made)
    return made


def calls(function: Function, name: str) -> list[Call]:
    return [node for node in walk(function.body) if isinstance(node, Call) and node.function == name]


COPY = """
    for i in range(0, 4096, 16):
        C[i].x16 = A[i].x16
"""


def test_large_results_are_streamed_and_small_ones_are_not() -> None:
    assert len(calls(stream_stores(program(COPY), CONTEXT), "stream")) == 1
    small = Context(replace(MACHINE, l2_bytes=1 << 20))
    assert not calls(stream_stores(program(COPY), small), "stream")
    arm = Context(arch({"arch": "neon"}))
    assert not calls(stream_stores(program(COPY), arm), "stream")


NOT_STREAMED = {
    "every other vector": "for i in range(0, 2048, 16):\n    C[i * 2].x16 = A[i].x16",
    "half a register": "for i in range(0, 128, 8):\n    C[i].x8 = A[i].x8",
    "half a register of two results": "for i in range(0, 2048, 8):\n    C[i].x8 = A[i].x8\n    C[i + 2048].x8 = A[i].x8",
    "a register in two iterations": "for i in range(0, 4096, 16):\n    for j in range(0, 16, 8):\n        C[i + j].x8 = A[i + j].x8",
    "what is read again": "for i in range(0, 4096, 16):\n    C[i].x16 = A[i].x16\n    C[i].x16 = C[i].x16 + A[i].x16",
    "one vector alone": "C[0].x16 = A[0].x16",
}


@pytest.mark.parametrize("body", NOT_STREAMED.values(), ids=NOT_STREAMED)
def test_what_is_stored_as_ever(body: str) -> None:
    assert not calls(stream_stores(program(body), CONTEXT), "stream")


def test_rows_of_a_tensor_that_others_lie_between_are_stored_as_ever() -> None:
    apart = "(A: float32[4096], C: tensor(float32[4096], strides=(1,)))"
    assert not calls(stream_stores(program(COPY, apart), CONTEXT), "stream")


def test_a_size_known_at_launch_is_asked_for_once() -> None:
    body = "for i in range(0, n // 16 * 16, 16):\n    C[i].x16 = A[i].x16"
    made = stream_stores(program(body, "(A: float32[n], C: float32[n], *, n: int32) -> C"), CONTEXT)
    verify(made)
    asked, *bounds = (node.var.name for node in walk(made.body) if isinstance(node, Let))
    assert asked == "C_is_large" and bounds == ["i_line", "i_end"]
    for size in (512, 4096):  # below and above 4 KB
        values = np.arange(size, dtype=np.float32)
        (result,) = interpret(made, [values, size])
        np.testing.assert_array_equal(result, values)


def test_narrow_floats_are_streamed_by_their_bits() -> None:
    body = "for i in range(0, 4096, 32):\n    C[i].x32 = A[i].x32"
    made = stream_stores(program(body, "(A: bfloat16[4096], C: bfloat16[4096]) -> C"), CONTEXT)
    verify(made)
    assert len(calls(made, "stream")) == 1
    values = np.linspace(-3, 3, 4096).astype(BFLOAT16)
    (result,) = interpret(made, [values])
    np.testing.assert_array_equal(result.view(np.uint16), values.view(np.uint16))


def test_parts_of_lines_are_stored_together() -> None:
    """What does not fill a line, in front of the whole ones and behind them, is stored by itself."""
    body = "for i in range(0, 4000, 16):\n    C[i + 30].x16 = int8(round(A[i].x16))".replace("int8", "int8x16")
    made = stream_stores(program(body, "(A: float32[4096], C: int8[4096]) -> C"), CONTEXT)
    verify(made)
    (stream,) = calls(made, "stream")
    assert len(stream.arguments) == 1 + 4 + 1
    values = np.random.default_rng(0).integers(-100, 100, 4096).astype(np.float32)
    (result,) = interpret(made, [values])
    np.testing.assert_array_equal(result[30:4030], values[:4000].astype(np.int8))


def test_short_rows_are_stored_as_ever_where_streams_wait_for_other_stores() -> None:
    body = "for i in range(0, {}, 16):\n    C[i].x16 = A[i].x16"
    ordered = Context(replace(MACHINE, features=MACHINE.features | {"ordered_streams"}))
    for extent, context, count in ((512, CONTEXT, 1), (512, ordered, 0), (2048, ordered, 1)):
        assert len(calls(stream_stores(program(body.format(extent)), context), "stream")) == count, extent


ROWS = "(A: float32[64, 64], C: float32[64, 64]) -> C"
TWO_PASSES = """
    row = register(float32[64])
    for i in range(0, 64, 16):
        row[i].x16 = A[bx * 64 + i].x16
    for j in range(0, {stop}, 16):
        C[bx * 64 + j].x16 = row[j].x16 + {term}
"""
BIG_CACHE = Context(replace(MACHINE, l2_bytes=1 << 20))
SLOW_STREAMS = Context(replace(BIG_CACHE.arch, features=MACHINE.features | {"slow_streams"}))


def test_the_second_pass_fetches_the_next_row() -> None:
    made = prefetch_next(program(TWO_PASSES.format(stop=64, term="row[j].x16"), ROWS, "64"), BIG_CACHE)
    verify(made)
    assert len(calls(made, "prefetch")) == 1
    values = np.arange(4096, dtype=np.float32).reshape(64, 64)
    (result,) = interpret(made, [values])
    np.testing.assert_array_equal(result, 2 * values)


def test_every_line_that_an_iteration_takes_is_fetched() -> None:
    wide = TWO_PASSES.format(stop=64, term="row[j].x16").replace(
        "range(0, 64, 16):\n        C", "range(0, 64, 32):\n        C"
    )
    wide += "        C[bx * 64 + j + 16].x16 = row[j + 16].x16 + row[j + 16].x16\n"
    made = prefetch_next(program(wide, ROWS, "64"), BIG_CACHE)
    verify(made)
    assert len(calls(made, "prefetch")) == 2


def test_rows_with_an_end_of_some_lanes_are_fetched_too() -> None:
    """The first pass goes in steps of its own, and reads a part of a vector behind them."""
    body = """
        row = register(float32[64])
        for i in range(0, 32, 32):
            row[i].x32 = A[bx * 64 + i].x32
        store_first(row[48 : +5], load_first(A[bx * 64 + 48 : +5], dtype=float32x16), dtype=float32x16)
        for j in range(0, 48, 16):
            C[bx * 64 + j].x16 = row[j].x16
    """
    made = prefetch_next(program(body, ROWS, "64"), BIG_CACHE)
    verify(made)
    assert len(calls(made, "prefetch")) == 1


@pytest.mark.parametrize(
    "stop, term, blocks, context",
    [
        (32, "row[j].x16", "64", BIG_CACHE),  # walks over half a row
        (64, "A[(63 - bx) * 64 + j].x16", "64", BIG_CACHE),  # reads another row
        (64, "A[bx * 64 + 63 - j].x16", "64", BIG_CACHE),  # reads it another way
        (64, "row[j].x16", "1", BIG_CACHE),  # there is no next row
        (64, "row[j].x16", "64", Context(replace(MACHINE, l2_bytes=512))),  # a row would fill the cache
    ],
)
def test_nothing_is_fetched(stop: int, term: str, blocks: str, context: Context) -> None:
    made = prefetch_next(program(TWO_PASSES.format(stop=stop, term=term), ROWS, blocks), context)
    assert not calls(made, "prefetch")


def test_a_row_that_is_read_again_leaves_time_for_the_next() -> None:
    """It is in the cache; what the first pass reads is asked for once, though both read it."""
    body = """
        total = register(float32[16])
        for i in range(0, 64, 16):
            total[0].x16 = total[0].x16 + A[bx * 64 + i].x16
        for j in range(0, 64, 16):
            C[bx * 64 + j].x16 = A[bx * 64 + j].x16 * total[0].x16
        for k in range(0, 64, 16):
            C[bx * 64 + k].x16 = C[bx * 64 + k].x16 + A[bx * 64 + k].x16
    """
    made = prefetch_next(program(body, ROWS, "64"), BIG_CACHE)
    verify(made)
    assert len(calls(made, "prefetch")) == 1


def test_who_writes_less_than_it_reads_asks_only_where_streams_are_slow() -> None:
    body = """
        row = register(float32[64])
        for i in range(0, 64, 16):
            row[i].x16 = A[bx * 64 + i].x16
        for j in range(0, 64, 16):
            C[bx * 64 + j].x16 = int8x16(row[j].x16)
    """
    rows = "(A: float32[64, 64], C: int8[64, 64]) -> C"
    for context, count in ((BIG_CACHE, 0), (SLOW_STREAMS, 1)):
        assert len(calls(prefetch_next(program(body, rows, "64"), context), "prefetch")) == count


def test_rows_are_asked_for_where_more_lines_may_be_underway() -> None:
    machine = replace(BIG_CACHE.arch, features=MACHINE.features | {"far_requests"})
    made = prefetch_next(program(TWO_PASSES.format(stop=64, term="row[j].x16"), ROWS, "64"), Context(machine))
    verify(made)
    assert len(calls(made, "prefetch_far")) == 1 and not calls(made, "prefetch")


def test_halves_of_lines_are_asked_for_too() -> None:
    rows = "(A: bfloat16[64, 64], C: bfloat16[64, 64]) -> C"
    body = TWO_PASSES.format(stop=64, term="row[j].x16").replace("float32", "bfloat16")
    made = prefetch_next(program(body, rows, "64"), BIG_CACHE)
    verify(made)
    assert len(calls(made, "prefetch")) == 1


def test_rows_begin_with_a_line_whatever_else_their_loop_does() -> None:
    """Nobody says that a tensor begins with a line; the next row is asked for by the loop that writes this one."""

    def wider(text: str) -> str:
        return text.replace("64", "256")

    made = prefetch_next(program(wider(TWO_PASSES.format(stop=64, term="row[j].x16")), wider(ROWS), "256"), BIG_CACHE)
    streamed = stream_stores(made, CONTEXT)
    verify(streamed)
    assert len(calls(streamed, "stream_head")) == len(calls(streamed, "stream")) == 1
    assert len(calls(streamed, "prefetch")) == 3
    values = np.arange(65536, dtype=np.float32).reshape(256, 256)
    (result,) = interpret(streamed, [values])
    np.testing.assert_array_equal(result, 2 * values)


def stores_to_row(body: str) -> int:
    made = forward_stores(program("row = register(float32[64])\n" + textwrap.dedent(body)), CONTEXT)
    verify(made)
    return sum(isinstance(node, Store) and node.buffer.name == "row" for node in walk(made.body))


FILL = """
for i in range(0, 64, 16):
    row[i].x16 = A[i].x16
"""


def test_stores_that_nobody_loads_are_gone() -> None:
    last = FILL + "for j in range(0, 64, 16):\n    row[j].x16 = row[j].x16 * row[j].x16\n    C[j].x16 = row[j].x16\n"
    assert stores_to_row(last) == 1
    assert stores_to_row(last + "C[64].x16 = row[0].x16\n") == 2


def test_a_store_that_a_later_iteration_loads_stays() -> None:
    shifted = "for j in range(0, 32, 16):\n    row[j + 16].x16 = row[j].x16 + row[j].x16\n"
    assert stores_to_row(FILL + shifted + "C[0].x16 = A[0].x16\n") == 2
