"""`match_operands`, `forward_locals`, `rasterize_grid` and `check_tiles` as passes: before, after, and what each leaves alone."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from one_pass import result_of

from tilewright.interpreter import interpret
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.passes.context import Context, Pass
from tilewright.passes.tile.gemms.match_operands import match_operands
from tilewright.passes.tile.grids.rasterize_grid import rasterize_grid
from tilewright.passes.tile.processors.check_tiles import check_tiles
from tilewright.passes.tile.words.forward_locals import forward_locals
from tilewright.targets.cpu.arch import arch as processor

HEAD = """\
@stage("traced")
def words(A: float32[64, 64], mask: int32[4, 8], C: float32[64, 64]):
    with kernel(blocks={bx: 4}, threads={tx: 128, ty: 1, tz: 1}):
"""


def body(run: Pass, lines: str, context: Context | None = None) -> list[str]:
    text = print_program(result_of(run, HEAD + textwrap.indent(lines, " " * 8) + "\n", context))
    return [line[8:] for line in text.splitlines()[3:]]


# match_operands -----------------------------------------------------------------------------------

MIXED = """\
a = shared(float16[64, 32])
b = shared(float8_e4m3fn[32, 64])
c = fragment(float32[64, 64])
gemm(a=a, b=b, c=c)"""


def test_an_operand_becomes_the_narrowest_type_that_holds_both() -> None:
    assert body(match_operands, MIXED)[3:] == [
        "b_wide = shared(float16[32, 64])",
        "copy(source=b, destination=b_wide)",
        "gemm(a=a, b=b_wide, c=c)",
    ]
    both = MIXED.replace("float16[64, 32]", "int8[64, 32]").replace("float8_e4m3fn", "bfloat16")
    assert "a_wide = shared(bfloat16[64, 32])" in body(match_operands, both)
    held = MIXED.replace("b = shared", "b = fragment")
    assert "b_wide = fragment(float16[32, 64])" in body(match_operands, held)


LEFT_ALONE = {
    "an instruction multiplies them": MIXED.replace("float8_e4m3fn", "float16"),
    "one that has begun": MIXED.replace("gemm(", 'gemm(token="wgmma", '),
    "no type holds both": MIXED.replace("float16[64, 32]", "int64[64, 32]"),
    "no instruction for the wider type": MIXED.replace("float32[64, 64]", "float64[64, 64]"),
    "no room": MIXED.replace("a = shared", "much = shared(float32[57000])\na = shared"),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_products_that_stay_as_they_are(case: str) -> None:
    assert body(match_operands, LEFT_ALONE[case]) == LEFT_ALONE[case].splitlines()


# forward_locals ------------------------------------------------------------------------------------

FILL = "kept = local(int32[8])\nfor k in range(8):\n    kept[k] = mask[bx, k]\n"
USE = "for k in range(8):\n    if kept[k] != 0:\n        C[k, 0] = 1.0"
READ = "for k in range(8):\n    if mask[bx, k] != 0:\n        C[k, 0] = 1.0"


def test_elements_of_a_tensor_are_read_where_they_are() -> None:
    assert body(forward_locals, FILL + USE) == READ.splitlines()
    assert body(forward_locals, FILL.replace("range(8)", "parallel(8)") + USE) == READ.splitlines()
    named = FILL.replace("    kept[k] = mask[bx, k]", "    found: int32 = mask[bx, k]\n    kept[k] = found")
    assert body(forward_locals, named + USE) == READ.splitlines()


KEPT = {
    "only a part is filled": FILL.replace("range(8)", "range(7)") + USE,
    "it is written again": FILL + "kept[0] = 1\n" + USE,
    "the kernel writes to the tensor": FILL + "mask[0, 0] = 1\n" + USE,
    "threads hold different ones": FILL.replace("mask[bx, k]", "mask[tx % 4, k]") + USE,
    "it is read before it is filled": "kept = local(int32[8])\nC[0, 1] = float32(kept[1])\n"
    + FILL.partition("\n")[2]
    + USE,
    "the value is of no tensor": FILL.replace("mask[bx, k]", "k * 2") + USE,
}


@pytest.mark.parametrize("case", KEPT)
def test_arrays_that_stay(case: str) -> None:
    assert body(forward_locals, KEPT[case]) == KEPT[case].splitlines()


# rasterize_grid -----------------------------------------------------------------------------------


def grid(columns: int, rows: int, attributes: str) -> str:
    """Each block writes its number in the order of launches where it stands."""
    return f"""\
@stage("traced")
def panels(C: int32[{rows}, {columns}]) -> C:
    with kernel(blocks={{bx: {columns}, by: {rows}}}, threads={{tx: 1, ty: 1, tz: 1}}{attributes}):
        C[by, bx] = bx * 1000 + by
"""


@pytest.mark.parametrize("order", ["row", "column", "mlx"])
@pytest.mark.parametrize(("columns", "rows", "size"), [(10, 6, 4), (7, 5, 2), (1, 3, 8), (3, 1, 1), (5, 8, 3)])
def test_every_block_is_visited_once(order: str, columns: int, rows: int, size: int) -> None:
    made = result_of(rasterize_grid, grid(columns, rows, f', raster=("{order}", {size})'))
    assert "panel: int32" in print_program(made) and "raster" not in print_program(made)
    (result,) = interpret(made, ())
    assert np.array_equal(result, np.arange(columns)[None, :] * 1000 + np.arange(rows)[:, None])


@pytest.mark.parametrize(
    ("order", "places"),
    [("row", [[0, 2, 4], [1, 3, 5], [10, 8, 6], [11, 9, 7]]), ("mlx", [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]])],
)
def test_panels_are_walked_back_and_forth(order: str, places: list[list[int]]) -> None:
    """Launched number n stands at: rows of two, column by column, the second panel from the right, MLX's from the left."""
    text = grid(3, 4, f', raster=("{order}", 2)').replace("bx * 1000 + by", "0")
    made = print_program(result_of(rasterize_grid, text)).replace("C[by, bx] = 0", "C[by, bx] = block")
    (result,) = interpret(parse(made), ())
    assert result.tolist() == places


@pytest.mark.parametrize("attributes", ["", ', cluster=(2, 1, 1), raster=("row", 2)'])
def test_other_grids_stay(attributes: str) -> None:
    text = grid(4, 4, attributes)
    assert print_program(result_of(rasterize_grid, text)) == print_program(parse(text))


# check_tiles --------------------------------------------------------------------------------------

SUM = "a = shared(float32[64, 64])\nfill(destination=a, value=float32(1.0))\nc = fragment(float32[64, 64])\n"
ADD = "gemm(a=a, b=a, c=c)\ncopy(source=c, destination=C)"


@pytest.mark.parametrize("first", ["", "fill(destination=c, value=float32(0.0))\n", "c[0, 0] = 0.0\n"])
def test_sums_without_a_first_value_are_named(first: str) -> None:
    context = Context(processor({"arch": "avx512"}))
    assert body(check_tiles, SUM + first + ADD, context) == (SUM + first + ADD).splitlines()
    said = [one.message for one in context.diagnostics]
    expected = "c is read here, but nothing gives it a first value: write it first, for example with T.clear(c)"
    assert said == ([] if first else [expected])


def test_tiles_beyond_the_second_level_cache_are_named() -> None:
    context = Context(processor({"arch": "avx512"}))
    body(check_tiles, "a = shared(float32[4096, 4096])\nfill(destination=a, value=float32(1.0))", context)
    (said,) = [one.message for one in context.diagnostics]
    assert "the largest is a, 4096 x 4096 of float32 (65536 KiB): make it smaller" in said
