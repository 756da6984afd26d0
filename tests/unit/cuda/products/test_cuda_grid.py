"""Matrix products over the grid of types, orders, tiles, threads and tails: right, on matrix units, in registers."""

import warnings

import pytest
from gemm_grid import ARCHITECTURES, Case, cases, opcodes

from tilewright.errors import TilewrightWarning
from tilewright.ir.dtypes import dtype as dtype_of

UNITS = ("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA", "QMMA", "DMMA")
HOPPER = ("HGMMA", "IGMMA", "QGMMA", "UTMALDG")


def check(case, schedules=("random",), interpret=False):
    a, b = case.operands()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        kernel = case.kernel(a, b)
        for schedule in schedules:
            problem = case.wrong(a, b, kernel.emulate(a, b, schedule=schedule, seed=1))
            assert problem is None, f"{case} {schedule}: {problem}"
        if interpret:
            assert case.wrong(a, b, kernel.interpret(a, b)) is None
        found = opcodes(kernel)
    assert found["STL"] == found["LDL"] == 0, f"{case} uses local memory"
    assert any(found[unit] for unit in UNITS), f"{case}: {kernel.explain()}"
    size = max(1, dtype_of(case.dtype).bits // 8)
    if all(operand.shape[1] * size % 4 == 0 for operand in (a, b)) and case.stages:
        assert found["LDGSTS"] or found["UTMALDG"], f"{case}: {kernel.explain()}"
    return found


@pytest.mark.parametrize("case", cases(seed=3, count=6), ids=str)
def test_a_sample(case):
    check(case, interpret=True)


@pytest.mark.parametrize("block, threads", [((48, 80, 32), 256), ((80, 48, 64), 128)], ids=str)
def test_tiles_that_do_not_divide_among_all_warps(block, threads):
    """Some warps do the same as others, on matrix units, and one of them stores."""
    case = Case("sm_80", "float16", False, True, block, threads, 2, (77, 130, 66))
    assert check(case, ("late", "random"))["HMMA"] > 0


def test_hopper_takes_its_own_instructions():
    found = check(Case("sm_90a", "float16", False, True, (128, 96, 64), 128, 4, (200, 264, 192)))
    assert found["HGMMA"] and found["UTMALDG"] and not found["LDGSTS"] and not found["HMMA"]


@pytest.mark.parametrize("transpose_B, width", [(False, 96), (False, 48), (False, 192), (True, 96), (False, 64)])
def test_warpgroups_share_columns_where_spans_begin(transpose_B, width):
    """An instruction on rows of n may not begin within a span of the tile's swizzle, unless it ends there too."""
    found = check(Case("sm_90a", "float16", False, transpose_B, (64, width, 64), 256, 2, (192, 192, 40)))
    assert found["HGMMA"] or width != 64


def test_ends_of_rows_that_are_hard_to_prove():
    """24 vectors of two a row, dealt to 256 threads, in rows of 66."""
    check(Case("sm_90a", "uint8", False, False, (16, 48, 48), 256, 3, (77, 130, 66)))


@pytest.mark.parametrize(
    "case",
    [
        Case("sm_80", "bfloat16", False, False, (128, 16, 32), 32, 1, (136, 24, 64)),
        Case("sm_80", "float64", False, False, (16, 96, 96), 64, 0, (33, 67, 35)),
        Case("sm_90a", "float16", False, True, (192, 16, 32), 256, 1, (77, 34, 66)),
    ],
    ids=str,
)
def test_turns_of_a_loop_are_not_written_out(case):
    """Several turns at once spilled, or made the assembler serialise asynchronous products."""
    assert sum(check(case)[unit] for unit in UNITS) <= 96


def test_one_turn_of_asynchronous_products():
    """The zeros that all sums begin with stood behind the products' fence, so the assembler waited for each product."""
    check(Case("sm_90a", "int8", True, True, (192, 48, 64), 256, 2, (64, 64, 64)))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_pieces_with_guards_are_not_all_in_flight(architecture):
    """Rows of 130 bytes come in eight guarded pieces a vector: those of all vectors and stages at once spilled."""
    check(Case(architecture, "float8_e5m2", True, True, (64, 96, 96), 64, 4, (130, 136, 200)))


@pytest.mark.proof
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(6))
def test_the_whole_grid(architecture, seed):
    for case in cases(100 + seed, 32, (architecture,)):
        check(case)
