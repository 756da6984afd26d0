"""Which kernel serves how many rows: choices that cover every problem and compile without spilling."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tilewright.ir.dtypes import ALL
from tilewright.kernels.hopper_quant import chosen
from tilewright.kernels.hopper_quant_skinny import skinny_quant_matmul
from tilewright.kernels.hopper_quant_slices import sliced_quant_matmul
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.machine.fragment_codes import E2M1
from tilewright.machine.fragment_records import FragmentRecords

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
HALF, BRAIN = ALL["float16"], ALL["bfloat16"]
SHAPES = [
    (28672, 8192),
    (8192, 28672),
    (4096, 4096),
    (14336, 4096),
    (4096, 14336),
    (7168, 18432),
    (1000, 700),
    (33, 64),
]
FORMS = [
    FragmentRecords(4, HALF, HALF), FragmentRecords(2, HALF, HALF), FragmentRecords(1, BRAIN, BRAIN),
    FragmentRecords(8, BRAIN, BRAIN, group=64), FragmentRecords(4, HALF, HALF, HALF, 32),
    FragmentRecords(4, BRAIN, ALL["float8_e8m0fnu"], group=32, values=E2M1),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_choices_fit_a_multiprocessor_and_cover_the_columns(form: FragmentRecords) -> None:
    for N, K in SHAPES:
        _, across, words = form.shape(N, K)
        for M in (1, 2, 3, 8, 9, 16, 17, 33, 64, 100, 128, 200, 4096):
            sizes, factory = chosen(N, K, M, form)
            assert min(sizes.values()) >= 0 and across % sizes["records"] == 0
            if factory in (skinny_quant_matmul, sliced_quant_matmul):
                assert sizes["tokens"] >= M and sizes["stages"] >= 1
                assert sizes["cluster"] * sizes["warps"] * sizes["records"] * 128 >= K
                ring = sizes["warps"] * sizes["stages"] * sizes["records"] * words * 4
            else:
                assert factory is wgmma_quant_matmul and sizes["weight_stages"] >= 2 and sizes["stages"] >= 2
                parts = 128 * sizes["tiles"] // form.rows
                ring = sizes["weight_stages"] * parts * sizes["records"] * words * 4
                ring += sizes["stages"] * sizes["halves"] * sizes["tokens"] * 128
            assert ring < 227 << 10


def test_few_rows_of_very_long_columns_go_to_the_other_kernel() -> None:
    form = FragmentRecords(4, HALF, HALF)
    assert chosen(28672, 8192, 8, form)[1] is skinny_quant_matmul
    assert chosen(8192, 28672, 16, form)[1] is wgmma_quant_matmul
    assert chosen(8192, 28672, 1, form)[1] is skinny_quant_matmul


def few_rows_timed() -> dict[tuple[int, int, int], list[tuple[dict[str, int], float]]]:
    """Ways to compute products of 9 to 16 rows by 4-bit weights, and their microseconds on an H200."""
    found = defaultdict(list)
    for log in ("choosers", "trials"):
        for text in (RESULTS / f"2026-11-27-h200-{log}.jsonl").read_text().splitlines():
            line = json.loads(text)
            kind, *problem = (
                line["case"] if "case" in line else (line["family"], line.get("M"), line.get("N"), line.get("K"))
            )
            if kind == "int4 by float16" or (kind == "lowbit" and line["bits"] == 4):
                for one in line.get("lines", [line]):
                    if "options" in one and 9 <= problem[0] <= 16:
                        found[tuple(problem)].append((one["options"], one["us"]))
    return found


def test_nine_to_sixteen_rows_go_where_they_are_fastest() -> None:
    form = FragmentRecords(4, HALF, HALF)
    names = {skinny_quant_matmul: "small", wgmma_quant_matmul: "medium"}  # as the logs of then call them
    compared = 0
    for (M, N, K), timed in few_rows_timed().items():
        sizes, factory = chosen(N, K, M, form)
        best = {name: min((us for one, us in timed if one["kernel"] == name), default=None) for name in names.values()}
        if None not in best.values():
            compared += 1
            assert best[names[factory]] <= 1.02 * min(best.values()), (M, N, K, sizes, best)
    assert compared >= 15


def test_workers_have_whole_records_where_two_of_them_divide_the_columns() -> None:
    """K of 74 or 86 records: with four to a copy one worker of each block reads its part of A number by number."""
    form, compared = FragmentRecords(4, HALF, HALF), 0
    for log in ("27-h200-choosers", "28-h200-short"):
        found = defaultdict(dict)
        for text in (RESULTS / f"2026-11-{log}.jsonl").read_text().splitlines():
            line = json.loads(text)
            kind, M, N, K = line.get("case") or (line["family"], line.get("M"), line.get("N"), line.get("K"))
            if kind != "int4 by float16" and not (kind == "lowbit" and line["bits"] == 4):
                continue
            for one in line.get("lines", [line]):
                options = one.get("options", {})
                if options.get("kernel") in ("small", "skinny") and 3 <= M <= 8 and -(-K // 128) % 4 == 2 and K > 8192:
                    found[M, N, K][tuple(options[name] for name in ("warps", "records", "cluster"))] = one["us"]
        for (M, N, K), timed in found.items():
            sizes, factory = chosen(N, K, M, form)
            if factory is skinny_quant_matmul and len(timed) > 2:
                compared += 1
                taken = timed[tuple(sizes[name] for name in ("warps", "records", "cluster"))]
                assert taken <= 1.03 * min(timed.values()), (M, N, K, sizes, timed)
    assert compared >= 3


def test_one_or_two_rows_by_narrow_codes_are_taken_apart_into_bytes() -> None:
    form = FragmentRecords(2, HALF, HALF)
    assert chosen(28672, 8192, 1, form)[1] is chosen(28672, 8192, 2, form)[1] is sliced_quant_matmul
    assert chosen(28672, 8192, 3, form)[1] is chosen(4096, 4096, 2, form)[1] is skinny_quant_matmul
    assert chosen(4096, 4096, 1, form)[1] is sliced_quant_matmul
    sizes = [chosen(N, K, 1, form)[0] for N, K in ((28672, 8192), (14336, 4096), (8192, 28672))]
    assert [(one["warps"], one["records"], one["cluster"]) for one in sizes] == [(8, 4, 2), (8, 2, 2), (14, 4, 4)]
    assert [chosen(28672, 8192, M, form)[0]["tokens"] for M in (1, 2)] == [1, 2]
    four = FragmentRecords(4, HALF, HALF)
    assert [chosen(N, 8192, 1, four)[1] is sliced_quant_matmul for N in (28672, 8192)] == [True, False]
    assert chosen(28672, 8192, 1, FragmentRecords(2, HALF, HALF, group=64))[1] is skinny_quant_matmul
