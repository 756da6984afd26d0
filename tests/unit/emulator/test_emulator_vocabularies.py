"""A vocabulary of another machine: waves of 64 lanes under the same scheduler and checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.emulator import Emulation, run
from tilewright.errors import EmulationFailed
from tilewright.machine import CopyEngine
from tilewright.targets.emulation import HOST, Vocabulary

HEADER = """
#pragma once
#include "interface.h"
#define TW_WARP_SIZE 64
#define TW_KERNEL(threads, min_blocks) extern "C" void
#define SITE ::TwSite site = ::TwSite::here()
inline unsigned char* shared() { return ::tw_dynamic_shared(); }
inline int thread() { return ::tw_thread()->thread_index.x; }
inline void wave_barrier(SITE) { ::tw_sync_warp(~0ull, site); }
inline tw_u64 wave_ballot(bool x, SITE) { return ::tw_vote(~0ull, x, site); }
inline int wave_xor(int x, int lanes, SITE) { return int(::tw_shuffle(TW_SHUFFLE_XOR, ~0ull, tw_u32(x), tw_u32(lanes), 64, site)); }
"""

KERNEL = """#include "wave.h"
TW_KERNEL(128, 1) exchanged(int* out, tw_u64* votes) {
  int* tile = reinterpret_cast<int*>(shared());
  const int t = thread(), lane = t % 64;
  tile[t] = t;
  @
  out[t] = tile[t - lane + 63 - lane] + wave_xor(lane, 32);
  const tw_u64 odd = wave_ballot(lane % 2);
  if (lane == 0) votes[t / 64] = odd;
}
"""


def launched(
    folder: Path, header: str, part: str, schedule: str, **facts: Any
) -> tuple[Emulation, np.ndarray, np.ndarray]:
    (folder / "wave.h").write_text(header)
    out, votes = np.zeros(128, np.int32), np.zeros(2, np.uint64)
    found = run(
        KERNEL.replace("@", part), "exchanged", [out, votes], grid=(1,), block=(128,), shared_bytes=1024, registers=0,
        schedule=schedule, seed=3, vocabulary=Vocabulary("waves", folder, **facts),
    )  # fmt: skip
    return found, out, votes


def test_the_core_knows_no_makers_words() -> None:
    """Words of one maker's machine are in its vocabulary: a folder beside the core, or its manifest."""
    words = re.compile(
        r"wgmma|mbarrier|setmaxnreg|warpgroup|cp[._]async|\btw?_?tma|ldmatrix|nvidia|cuda|mfma|simdgroup", re.I
    )
    files = sorted((HOST / "core").iterdir())
    assert len(files) > 25
    assert [f"{path.name}: {found[0]}" for path in files if (found := words.search(path.read_text()))] == []


MEETING = "::tw_named_sync(4, 128, ::TwSite::here()); wave_barrier();"
HERE = "::TwSite::here()"
SIGNAL = f"if (t == 0) ::tw_signal_init(::tw_shared_address(shared() + 512, {HERE}), 7, {HERE}); wave_barrier();"
SHARES = "::tw_set_registers(40, 0, ::TwSite::here()); wave_barrier();"


@pytest.mark.parametrize(
    ("part", "facts", "kind", "hint"),
    [
        (MEETING, {"named_barriers": 5}, None, ""),
        (MEETING, {"named_barriers": 4}, "barrier-arguments", "ids are 0 to 3,"),
        (SHARES, {"registers_least": 40, "registers_most": 64, "registers_step": 4}, None, ""),
        (SHARES, {"registers_least": 41, "registers_most": 64}, "register-count", "counts are 41 to 64,"),
        (SIGNAL, {"signal_most": 7}, None, ""),
        (SIGNAL, {"signal_most": 6}, "barrier-count", "counts are 1 to 6"),
        ("wave_barrier();", {"shared_base": 4096}, None, ""),
    ],
)
def test_the_manifest_says_what_a_machine_has(
    tmp_path: Path, part: str, facts: dict[str, Any], kind: str | None, hint: str
) -> None:
    found, _, _ = launched(tmp_path, HEADER, part, "late", **facts)
    assert {report.kind for report in found.reports} == ({kind} if kind else set())
    assert all(report.hint.startswith(hint) for report in found.reports)


@pytest.mark.parametrize("unit", [16, 32])
def test_copies_are_whole_units_of_the_machines_copy_engine(tmp_path: Path, unit: int) -> None:
    place = f"::tw_shared_address(shared() + 512, {HERE})"
    stored = (
        f"::tw_bulk_store(votes, {place}, 16, 0, {HERE}); ::tw_store_commit({HERE}); ::tw_store_wait(0, 0, {HERE});"
    )
    engine = CopyEngine(rank=5, box=256, unit=unit, place=128)
    found, _, _ = launched(tmp_path, HEADER, f"if (t == 0) {{ {stored} }} wave_barrier();", "late", copy_engine=engine)
    reported = [report.hint for report in found.reports if report.kind == "bulk-arguments"]
    assert reported == ([] if unit == 16 else ["addresses and size must be multiples of 32, and the size positive"])


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_waves_of_64_lanes(tmp_path: Path, schedule: str) -> None:
    found, out, votes = launched(tmp_path, HEADER, "wave_barrier();", schedule)
    assert not found.reports
    lane = np.arange(128) % 64
    assert np.array_equal(out, np.arange(128) // 64 * 64 + 63 - lane + (lane ^ 32))
    assert votes.tolist() == [0xAAAAAAAAAAAAAAAA] * 2
    found, _, _ = launched(tmp_path, HEADER, "", schedule)
    assert "race-shared" in {report.kind for report in found.reports}


def test_a_vocabulary_says_how_many_lanes_run_together(tmp_path: Path) -> None:
    with pytest.raises(EmulationFailed, match="does not say how many threads run together"):
        launched(tmp_path, HEADER.replace("TW_WARP_SIZE", "WAVE"), "", "late")


PRODUCT = """
inline TwPlace left(tw_u32 lane, tw_u32 index) { return {lane % 64, index}; }
inline TwPlace right(tw_u32 lane, tw_u32 index) { return {index, lane % 64}; }
inline TwPlace sums(tw_u32 lane, tw_u32 index) { return {lane / 64 * 32 + index, lane % 64}; }
inline void product(float* d, const float* a, const float* b, SITE) {
  static constexpr TwWaveForm form = {128, 64, 64, 4, TW_F32, TW_F32, TW_F32, 4, 4, 32, left, right, sums};
  ::tw_wave_mma(&form, d, a, b, d, site);
}
"""
"""A product of two waves, each of which holds all of both operands, and half of the sums."""

MULTIPLIED = """#include "wave.h"
TW_KERNEL(256, 1) exchanged(const float* A, const float* B, float* C) {
  const int t = thread(), lane = t % 64, group = t / 128;
  float a[4], b[4], d[32];
  for (int i = 0; i < 4; ++i) a[i] = A[(group * 64 + lane) * 4 + i], b[i] = B[i * 64 + lane];
  for (int i = 0; i < 32; ++i) d[i] = 1;
  @
  for (int i = 0; i < 32; ++i) C[((group * 2 + t / 64 % 2) * 32 + i) * 64 + lane] = d[i];
}
"""


def multiplied(folder: Path, call: str, threads: int = 256) -> tuple[Emulation, np.ndarray, np.ndarray]:
    (folder / "wave.h").write_text(HEADER + PRODUCT)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((128, 4), (4, 64), (128, 64)))
    vocabulary = Vocabulary("waves", folder)
    text = MULTIPLIED.replace("@", call)
    found = run(text, "exchanged", [a, b, c], grid=(1,), block=(threads,), registers=0, seed=3, vocabulary=vocabulary)
    return found, c, a @ b + 1


def test_two_waves_multiply_together(tmp_path: Path) -> None:
    """A product was a single wave's, of at most 32 rows and columns: of more it wrote beside its memory."""
    found, c, expected = multiplied(tmp_path, "product(d, a, b);")
    assert not found.reports and np.array_equal(c, expected)


@pytest.mark.parametrize(
    ("call", "threads", "message"),
    [
        ("if (t == 70) b[2] += 1; product(d, a, b);", 256, "lane 70 holds another number in register 2 of the right"),
        ("product(d, a, b);", 192, "made by 128 threads, and the block of 3 warps of 64 lanes has no such group"),
        ("if (t < 64) product(d, a, b);", 256, "no thread of cluster 0 can go on"),
        ("if (t / 64 == 1) product(d, a, b);\n else product(d, a, b);", 256, "synchronise in different instructions"),
    ],
)
def test_what_two_waves_do_wrong(tmp_path: Path, call: str, threads: int, message: str) -> None:
    found, _, _ = multiplied(tmp_path, call, threads)
    assert any(message in str(report) for report in found.reports), found.reports
