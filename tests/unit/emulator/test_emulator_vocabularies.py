"""A vocabulary of another machine: waves of 64 lanes under the same scheduler and checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.emulator import Emulation, run
from tilewright.errors import EmulationFailed
from tilewright.targets.emulation import Vocabulary

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


def launched(folder: Path, header: str, part: str, schedule: str) -> tuple[Emulation, np.ndarray, np.ndarray]:
    (folder / "wave.h").write_text(header)
    out, votes = np.zeros(128, np.int32), np.zeros(2, np.uint64)
    found = run(
        KERNEL.replace("@", part), "exchanged", [out, votes], grid=(1,), block=(128,), shared_bytes=512, registers=0,
        schedule=schedule, seed=3, vocabulary=Vocabulary("waves", folder),
    )  # fmt: skip
    return found, out, votes


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
