"""Each class of mistake gives its report, at the author's line, and the same text without the mistake gives none."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.collection import no_collection
from tilewright.emulator import Emulation, Named, Report, TensorMap, emulate, run
from tilewright.emulator.toolchain import follow_unset
from tilewright.errors import EmulationError, EmulationFailed, InvalidTensorMap
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.gpu.copies.boxes import Swizzle

HEAD = '#include "tilewright_cuda.cuh"\nusing namespace tw;\n'


@dataclass(frozen=True)
class Mistake:
    """A kernel body with one mistake: `wrong` in place of `right`; MARK stands at the line that is to be reported."""

    kind: str
    body: str
    right: str
    wrong: str
    threads: int = 64
    blocks: int = 1
    cluster: int = 1
    shared: int = 4096
    options: dict[str, Any] = field(default_factory=dict)
    schedules: tuple[str, ...] = ("late", "early", "random")


def text_of(mistakes: list[Mistake]) -> str:
    """One text with every body in both forms, so that one compilation serves all tests: body 2 i is right, 2 i + 1 wrong."""
    parameters = "const int* X, int* Y, const TensorMap& map, int n"
    lines = ['#include "tilewright_cuda.cuh"', '#include "tilewright_debug.cuh"', "using namespace tw;"]
    for i, mistake in enumerate(mistakes):
        for which, part in enumerate((mistake.right, mistake.wrong)):
            lines += [
                f"static void body_{2 * i + which}({parameters}) {{",
                "  TW_DYNAMIC_SHARED(smem); int* tile = reinterpret_cast<int*>(smem); const uint32_t base = shared_address(smem);",
                "  const int t = threadIdx.x, lane = threadIdx.x % 32;",
                f'#line 1 "mistake_{i}.cu"',
                mistake.body.replace("@", part),
                "}",
            ]
    lines.append(
        f"TW_KERNEL(128, 1) kernel({parameters.replace('const TensorMap&', 'const TW_GRID_CONSTANT TensorMap')}, int which) {{"
    )
    lines += [f"  if (which == {i}) body_{i}(X, Y, map, n);" for i in range(2 * len(mistakes))]
    return "\n".join([*lines, "}"])


def run_body(number: int, which: int, schedule: str) -> Emulation:
    mistake = MISTAKES[number]
    x, y = np.arange(1024, dtype=np.int32), np.zeros(1024, np.int32)
    tensor = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    return run(
        TEXT, "kernel", [x, y, TensorMap(tensor, (8, 32), Swizzle.NONE), 64, 2 * number + which], grid=(mistake.blocks,),
        block=(mistake.threads,), cluster=(mistake.cluster,), shared_bytes=mistake.shared, schedule=schedule,
        names=["X", "Y", "map", "n", "which"], workers=1,
        unsettled=[x] if mistake.kind == "before-grid-wait" else [], **{"registers": 0, **mistake.options},
    )  # fmt: skip


RING = """
  const uint32_t full = base + 2048;
  if (t == 0) { mbarrier_init(full, 1); fence_mbarrier_init(); }
  sync_threads();
  if (t == 0) {
    mbarrier_arrive_expect_tx(full, 1024);
    tma_load(base, map, full, 0, 0);
  }
"""

MMA = """
  for (int i = t; i < 1024; i += THREADS) tile[i] = 0;
  fence_proxy_async_shared();
  sync_threads();
  Fragment<float, 4> acc;
  for (int i = 0; i < 4; ++i) acc[i] = 0.0f;
  const uint64_t a = wgmma_descriptor(base, SWIZZLE_NONE, 128, 256), b = wgmma_descriptor(base + 2048, SWIZZLE_NONE, 128, 256);
""".replace("THREADS", "128")

PUBLISHED = """
uint32_t* flag = reinterpret_cast<uint32_t*>(Y + 512);
if (t == 0) {{ mbarrier_init(base, 1); fence_mbarrier_init(); }}
sync_threads();
if (blockIdx.x == 0) {{ {write} if (t == 0) store_release(flag, 1); }}
else {{ if (t == 0) while (!load_acquire(flag)) {{}}
sync_threads(); {read} }}"""
"""Block 0 writes, raises a flag, and block 1 reads."""

MISTAKES = [
    Mistake("race-shared", "tile[t] = t; @ Y[t] = tile[63 - t];", "sync_threads();", ""),
    Mistake("race-shared", "if (t < 32) { tile[lane] = lane; @ Y[lane] = tile[31 - lane]; }", "sync_warp();", ""),
    Mistake("race-global", "Y[@] = t;", "t", "0"),
    Mistake("race-global", "if (t == 0) Y[@] = 1 + blockIdx.x;", "blockIdx.x", "0", blocks=3),
    Mistake("race-shared", "if (t == 0) tile[0] = 0; sync_threads(); @;", "atomic_add(tile, 1)", "tile[0] += 1"),
    Mistake("unwritten-shared", "if (t < @) tile[t] = t; sync_threads(); Y[t] = tile[t];", "64", "63"),
    Mistake("unwritten-register", "Fragment<int, 4> f; for (int i = 0; i < @; ++i) f[i] = i; Y[t] = f[t % 4];", "4", "3"),
    Mistake("out-of-bounds", "if (t < @) Y[t * 17] = t;", "60", "64"),
    Mistake("out-of-bounds", "tile[t * 4] = X[@];", "0", "-1 - t"),
    Mistake("out-of-bounds", "tile[@ + t] = 1;", "960", "961"),
    Mistake("misaligned", "store(tile + 4 * t, load<4>(X + @));", "4 * t", "4 * t + 1"),
    Mistake("misaligned", RING.replace("tma_load(base,", "tma_load(base + @,") + "mbarrier_wait(full, 0);", "128", "64"),
    Mistake("misaligned", "for (int i = t; i < 512; i += 64) tile[i] = i; fence_proxy_async_shared(); sync_threads(); if (t == 0) { tma_store(map, base + @, 0, 0); bulk_commit(); bulk_wait_read<0>(); }", "128", "16"),
    Mistake("misaligned", "for (int i = t; i < 512; i += 64) tile[i] = i; sync_threads(); Fragment<uint32_t, 1> f; ldmatrix_x1(f, base + lane % 8 * 16 + @); Y[t] = int(f[0]);", "16", "8"),
    Mistake("partial-collective", "int s = t; if (t < @) s = redux_add(s); Y[t] = s;", "32", "20"),
    Mistake("divergent-collective", "@", "Y[t] = shuffle_xor(t, 1);", "if (lane < 16) Y[t] = shuffle_xor(t, 1); else Y[t] = redux_add(t);"),
    Mistake("skipped-barrier", "if (t < @) sync_threads(); Y[t] = t;", "64", "40"),
    Mistake("skipped-barrier", "if (t >= 40) @; sync_threads(); Y[t] = t;", "TW_RETURN", "return"),
    Mistake("different-barriers", "if (t < @) sync_threads();\n else sync_threads(); Y[t] = t;", "64", "32"),
    Mistake("divergent-collective", "@", "sync_threads();", "if (lane < 16) sync_threads();\n else sync_threads();"),
    Mistake("mask-without-caller", "sync_warp(@);", "ALL_LANES", "1"),
    Mistake("shuffle-from-nobody", "if (lane < 16) Y[t] = shuffle(t, @, 0xFFFFu);", "3", "20"),
    Mistake("deadlock", "const uint32_t bar = base; if (t == 0) mbarrier_init(bar, @); sync_threads(); if (t < 32) mbarrier_arrive(bar); mbarrier_wait(bar, 0);", "32", "33"),
    Mistake("deadlock", "const uint32_t bar = base; if (t == 0) mbarrier_init(bar, 64); sync_threads(); mbarrier_arrive(bar); mbarrier_wait(bar, @);  mbarrier_arrive(bar); mbarrier_wait(bar, 1);", "0", "0); mbarrier_wait(bar, 1"),
    Mistake("deadlock", "if (t < 32) named_barrier_sync(1, @); else named_barrier_arrive(1, @);", "64", "96"),
    Mistake("barrier-counts", "if (t < 32) named_barrier_sync(1, 64); else named_barrier_sync(1, @);", "64", "32"),
    Mistake("barrier-twice", "if (t < 32) { named_barrier_arrive(1, 64); @ } else named_barrier_sync(1, 64);", "", "named_barrier_arrive(1, 64);", schedules=("late",)),
    Mistake("barrier-arguments", "named_barrier_sync(@, 64);", "15", "16"),
    Mistake("too-many-arrivals", "if (t == 0) { mbarrier_init(base, @); fence_mbarrier_init(); } sync_threads(); if (t < 2) mbarrier_arrive_expect_tx(base, t ? 0 : 16); sync_threads(); if (t == 0) bulk_load(base + 64, X, 16, base); mbarrier_wait(base, 0);", "2", "1"),
    Mistake("barrier-count", "if (t == 0) mbarrier_init(base, @);", "1", "0"),
    Mistake("no-barrier", "if (t == 0) mbarrier_init(base, 1); sync_threads(); if (t == 0) mbarrier_arrive(base + @);", "0", "8"),
    Mistake("barrier-not-visible", "if (t == 0) mbarrier_init(base, 1); @ if (t == 1) mbarrier_arrive(base);", "sync_threads();", "", schedules=("late", "early")),
    Mistake("barrier-not-fenced", "if (t == 0) { mbarrier_init(base, 1); @ } sync_threads(); if (t == 0) { mbarrier_arrive_expect_tx(base, 16); bulk_load(base + 64, X, 16, base); } mbarrier_wait(base, 0);", "fence_mbarrier_init();", ""),
    Mistake("barrier-in-use", "if (t == 0) { mbarrier_init(base, 1); mbarrier_arrive(base); @ mbarrier_init(base, 2); }", "mbarrier_invalidate(base);", ""),
    Mistake("barrier-in-use", "if (t == 0) mbarrier_init(base, 1); sync_threads(); if (t == 0) mbarrier_wait(base, 0); if (t == 32) { @ mbarrier_arrive(base); }", "", "mbarrier_init(base, 1);"),
    Mistake("barrier-in-use", "if (t == 0) { mbarrier_init(base, 1); fence_mbarrier_init(); mbarrier_arrive_expect_tx(base, 256); bulk_load(base + 128, X, 256, base); @ }", "mbarrier_wait(base, 0);", "mbarrier_init(base, 1);", schedules=("late",)),
    Mistake("early-read", RING + "@ Y[t] = tile[t];", "mbarrier_wait(full, 0);", "if (t > 70) mbarrier_wait(full, 0);"),
    Mistake("early-read", "cp_async<4>(base + 4 * t, X + t); cp_async_commit(); cp_async_wait<@>(); sync_threads(); Y[t] = tile[63 - t];", "0", "1"),
    Mistake("early-read", "cp_async<4>(base + 4 * t, X + t); @ cp_async_wait<0>(); sync_threads(); Y[t] = tile[63 - t];", "cp_async_commit();", ""),
    Mistake("overwritten-copy", RING + "@ tile[t] = 0; mbarrier_wait(full, 0);", "mbarrier_wait(full, 0);", ""),
    Mistake("overwritten", RING.replace("sync_threads();", "tile[t] = t; sync_threads(); Y[t] = tile[63 - t]; fence_proxy_async_shared(); @", 1) + "mbarrier_wait(full, 0);", "sync_threads();", ""),
    Mistake("overwritten", "for (int i = t; i < 256; i += 64) tile[i] = i; fence_proxy_async_shared(); sync_threads(); if (t == 0) { bulk_store(Y, base, 256); bulk_commit(); @ } sync_threads(); tile[t] = 0; if (t == 0) bulk_wait_read<0>();", "bulk_wait_read<0>();", ""),
    Mistake("missing-proxy-fence", "tile[t] = t; @ sync_threads(); if (t == 0) { bulk_store(Y, base, 256); bulk_commit(); bulk_wait_read<0>(); }", "fence_proxy_async_shared();", ""),
    Mistake("store-not-awaited", "tile[t] = t; fence_proxy_async_shared(); sync_threads(); if (t == 0) { bulk_store(Y, base, 256); bulk_commit(); @ }", "bulk_wait_read<0>();", ""),
    Mistake("bytes-do-not-match", "if (t == 0) { mbarrier_init(base, 1); fence_mbarrier_init(); mbarrier_arrive_expect_tx(base, 16); bulk_load(base + 64, X, 16, base); mbarrier_wait(base, 0); @ }", "", "mbarrier_expect_tx(base, 32);"),
    Mistake("deadlock", RING.replace("1024", "@") + "mbarrier_wait(full, 0);", "1024", "1040"),
    Mistake("copy-in-flight-at-exit", RING + "@", "mbarrier_wait(full, 0);", "", schedules=("late",)),
    Mistake("bulk-arguments", "if (t == 0) { mbarrier_init(base, 1); fence_mbarrier_init(); mbarrier_arrive_expect_tx(base, @); bulk_load(base + 64, X, @, base); mbarrier_wait(base, 0); }", "16", "8"),
    Mistake("bytes-out-of-range", "if (t == 0) { mbarrier_init(base, 2); @; }", "", "mbarrier_expect_tx(base, 1 << 20)"),
    Mistake("race-global", "if (t == 0) mbarrier_init(base, 1); fence_mbarrier_init(); cluster_sync(); if (t == 0) { if (cluster_rank() == 0) { Y[0] = 5; @ } else { mbarrier_wait_cluster(base, 0);\nY[1] = Y[0] + 1; // MARK\n} } cluster_sync();", "mbarrier_arrive_cluster_release(base, 1);", "mbarrier_arrive_cluster(base, 1);", blocks=2, cluster=2),
    Mistake("before-grid-wait", "if (t == 0) griddepcontrol_wait(); @\nY[t] = X[t]; // MARK", "sync_threads();", "sync_warp();"),
    Mistake("exited-block", "if (cluster_rank() == 0) { if (t == 0) mbarrier_init(base, 64); fence_mbarrier_init(); } cluster_sync(); if (cluster_rank() == 1) { mbarrier_arrive_cluster(base, 0); } @", "cluster_sync();", "", blocks=2, cluster=2, schedules=("late",)),
    Mistake("exited-block", "tile[t] = t; cluster_sync(); @ cluster_wait();", "if (t == 0) Y[blockIdx.x] = load_cluster<1, int>(mapa(base, 1 - cluster_rank()))[0]; cluster_arrive();", "cluster_arrive(); if (t == 0) Y[blockIdx.x] = load_cluster<1, int>(mapa(base, 1 - cluster_rank()))[0];", blocks=2, cluster=2),
    Mistake("cluster-wait-alone", "@ cluster_wait();", "cluster_arrive();", "", blocks=2, cluster=2),
    Mistake("cluster-arrive-twice", "cluster_arrive(); @ cluster_arrive(); cluster_wait();", "cluster_wait();", "", blocks=2, cluster=2, schedules=("late",)),
    Mistake("no-such-block", "tile[t] = 0; cluster_sync(); if (t == 0) Y[blockIdx.x] = load_cluster<1, int>(mapa(base, @))[0]; cluster_sync();", "1", "2", blocks=2, cluster=2),
    Mistake("missing-matrix-fence", MMA + "@ wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); wgmma_wait<0>(); Y[t] = int(acc[0]);", "wgmma_fence();", "", threads=128),
    Mistake("accumulator-read", MMA + "wgmma_fence(); wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); wgmma_wait<@>(); Y[t] = int(acc[0]); wgmma_wait<0>();", "0", "1", threads=128),
    Mistake("accumulator-written", MMA + "wgmma_fence(); wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); @ acc[1] = 0.0f; wgmma_wait<0>();", "wgmma_wait<0>();", "", threads=128),
    Mistake("operand-written", MMA + "Fragment<half, 8> f; for (int i = 0; i < 8; ++i) f[i] = half{0}; wgmma_fence(); wgmma_rs<8, half>(acc, f, b, true); wgmma_commit(); @ f[0] = half{1}; wgmma_wait<0>();", "wgmma_wait<0>();", "", threads=128),
    Mistake("overwritten", MMA + "wgmma_fence(); wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); @ sync_threads(); tile[t] = 1; wgmma_wait<0>();", "wgmma_wait<0>();", "", threads=128),
    Mistake("missing-proxy-fence", MMA.replace("fence_proxy_async_shared();", "@") + "wgmma_fence(); wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); wgmma_wait<0>();", "fence_proxy_async_shared();", "", threads=128),
    Mistake("deadlock", MMA + "if (t < @) { wgmma_fence(); wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); wgmma_wait<0>(); }", "128", "96", threads=128),
    Mistake("group-disagrees", MMA + "wgmma_fence(); wgmma_ss<8, half, half>(acc, wgmma_advance(a, t / 32 * @), b, true); wgmma_commit(); wgmma_wait<0>();", "0", "16", threads=128),
    Mistake("register-count", "setmaxnreg_dec<@>();", "40", "36", threads=128, options={"registers": 168}),
    Mistake("register-direction", "setmaxnreg_@<160>();", "dec", "inc", threads=128, options={"registers": 168}),
    Mistake("deadlock", "if (t < 128) setmaxnreg_dec<@>(); else setmaxnreg_inc<208>();", "40", "128", threads=256, options={"registers": 128}),
    Mistake("unwritten-register", "int x@; if (t >= 32) x = t;\nY[t] = x; // MARK", " = 0", ""),
    Mistake("unwritten-register", "half x, y; x = half{1}; if (t != 3) y = x; @ Y[t] = int(x.bits + y.bits);", "y = x;", ""),
    # What is asynchronous reads its source, and writes its destination, until it is complete.
    Mistake("overwritten", "cp_async<4>(base + 4 * t, Y + t); cp_async_commit(); @\nY[t] = 5; // MARK\ncp_async_wait<0>();", "cp_async_wait<0>();", ""),
    Mistake("overwritten", RING.replace("tma_load(base, map, full, 0, 0)", "bulk_load(base, Y, 1024, full)") + "@ Y[t] = 5; mbarrier_wait(full, 0);", "mbarrier_wait(full, 0);", ""),
    Mistake("overwritten-copy", "cp_async<4>(base, X + @); cp_async_commit(); cp_async_wait<0>();", "7", "t"),
    Mistake("overwritten-copy", "cp_async<4>(base + 4 * t, X + t); cp_async<4>(base + 4 * t, X + @); cp_async_commit(); cp_async_wait<0>();", "t", "63 - t"),
    Mistake("overwritten-copy", "if (t == 0) { mbarrier_init(base, 1); fence_mbarrier_init(); mbarrier_arrive_expect_tx(base, 512); bulk_load(base + 64, X, 256, base); bulk_load(base + 64, X + @, 256, base); } sync_threads(); mbarrier_wait(base, 0);", "0", "4"),
    # What a fence covers, and who may rely on it.
    Mistake("missing-proxy-fence", RING + "mbarrier_wait(full, 0); Y[t] = tile[t]; @ sync_threads(); if (t == 0) { mbarrier_arrive_expect_tx(full, 1024); tma_load(base, map, full, 0, 0); } mbarrier_wait(full, 1);", "fence_proxy_async_shared();", "fence_proxy_async_global();"),
    Mistake("missing-proxy-fence", RING + "mbarrier_wait(full, 0); if (t == 1) mbarrier_init(full + 8, 64); sync_threads(); Y[t] = tile[t]; @ mbarrier_arrive(full + 8); if (t == 0) { mbarrier_wait(full + 8, 0); mbarrier_arrive_expect_tx(full, 1024); tma_load(base, map, full, 0, 0); } mbarrier_wait(full, 1);", "fence_proxy_async_shared();", ""),
    Mistake("missing-proxy-fence", "tile[t] = t; fence_proxy_async_@(); sync_threads(); if (t == 0) { bulk_store(Y, base, 256); bulk_commit(); bulk_wait_read<0>(); }", "shared", "global"),
    Mistake("missing-proxy-fence", MMA.replace("fence_proxy_async_shared", "fence_proxy_async@") + "wgmma_fence(); wgmma_ss<8, half, half>(acc, a, b, true); wgmma_commit(); wgmma_wait<0>();", "", "_global", threads=128),
    Mistake("race-shared", "tile[t] = t; cluster_arrive@(); cluster_wait();\nY[t] = load_cluster<1, int>(mapa(base + 4 * t, cluster_rank() ^ 1))[0]; // MARK\ncluster_sync();", "", "_relaxed", blocks=2, cluster=2),
    Mistake("race-shared", "if (t == 0) mbarrier_init(base, 1); fence_mbarrier_init(); cluster_sync(); if (cluster_rank() == 0) { if (t == 0) { tile[64] = 5; mbarrier_arrive_cluster_release(base, 1); } } else { mbarrier_wait@(base, 0);\nY[t] = load_cluster<1, int>(mapa(base + 256, 0))[0]; // MARK\n} cluster_sync();", "_cluster", "", blocks=2, cluster=2),
    # Blocks that talk by flags.
    Mistake("early-read", PUBLISHED.format(write="for (int i = t; i < 64; i += 64) tile[i] = i; fence_proxy_async_shared(); sync_threads(); if (t == 0) { bulk_store(Y, base, 256); bulk_commit(); bulk_wait@<0>(); } sync_threads();", read="Y[128 + t] = Y[t];"), "", "_read", blocks=2),
    Mistake("missing-proxy-fence", PUBLISHED.format(write="Y[t] = t; sync_threads();", read="if (t == 0) { @ mbarrier_arrive_expect_tx(base, 256); bulk_load(base + 64, Y, 256, base); } mbarrier_wait(base, 0);"), "fence_proxy_async_global();", "fence_proxy_async_shared();", blocks=2),
    Mistake("race-global", "uint32_t* flags = reinterpret_cast<uint32_t*>(Y + 512); if (blockIdx.x < 2) { Y[128 + 64 * blockIdx.x + t] = Y[t]; sync_threads(); if (t == 0) store_release(flags + blockIdx.x, 1); } else { if (t == 0) { while (!load_acquire(flags)) {} while (!load_acquire(flags + @)) {} } sync_threads(); Y[t] = 5; }", "1", "0", blocks=3),
    Mistake("race-global", "uint32_t* flags = reinterpret_cast<uint32_t*>(Y + 512); if (blockIdx.x == 0) { Y[t] = t + 1; sync_threads(); if (t == 0) store_release(flags, 1); } else { if (t == 0 && blockIdx.x <= @) while (!load_acquire(flags)) {} sync_threads(); Y[64 + 64 * blockIdx.x + t] = Y[t]; }", "2", "1", blocks=3),
    Mistake("constant-written", "const int* from = Y + t; const int x = load_global<1, @>(from)[0]; sync_warp(); Y[t] = x + 1;", "CACHED", "STREAMING"),
    Mistake("budget-of-part", "if (t < @) setmaxnreg_dec<40>();", "128", "96", threads=128, options={"registers": 168}),
    Mistake("budget-of-part", "if (t < 128 || t >= @) setmaxnreg_dec<40>();", "128", "224", threads=256, options={"registers": 168}),
    Mistake("not-shared", "Y[t] = int(shared_address(@));", "tile", "X"),
    Mistake("trap", "if (n != @) trap();", "64", "65"),
    Mistake("assertion", "if (n != @) assertion_failed(\"n is 64\", \"here\", 1, \"k\");", "64", "65"),
]  # fmt: skip


def kinds(found: Emulation) -> set[str]:
    return {report.kind for report in found.reports}


TEXT = text_of(MISTAKES)


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[f"{i}-{m.kind}" for i, m in enumerate(MISTAKES)])
def test_the_mistake_is_reported_and_only_the_mistake(number: int) -> None:
    mistake = MISTAKES[number]
    for schedule in mistake.schedules:
        right = run_body(number, 0, schedule)
        assert not right.reports, "\n".join(map(str, right.reports))
        wrong = run_body(number, 1, schedule)
        assert mistake.kind in kinds(wrong), f"{schedule}: {kinds(wrong)}"
        report = next(report for report in wrong.reports if report.kind == mistake.kind)
        assert report.span is not None and report.span.file == f"mistake_{number}.cu" and report.at is not None
        assert report.hint and "{" not in report.message


def first(text: str, arguments: list[Any], **launch: Any) -> Report:
    with pytest.raises(EmulationError) as caught:
        emulate(HEAD + text, "kernel", arguments, **launch)
    return caught.value.reports[0]


@pytest.mark.parametrize(
    ("parameters", "mistaken"),
    [
        ("const int* A, int* B", False),
        ("const int* TW_RESTRICT A, int* B", True),
        ("int* TW_RESTRICT A, int* B", True),
        ("const int* A, int* TW_RESTRICT B", True),
    ],
)
def test_restricted_memory_is_not_written_under_another_name(parameters: str, mistaken: bool) -> None:
    text = "TW_KERNEL(32, 1) kernel(@) { const int x = A[threadIdx.x]; B[threadIdx.x] = x + 1; }"
    x = np.zeros(32, np.int32)
    launch: dict[str, Any] = {"grid": 1, "block": 32}
    found = run(HEAD + text.replace("@", parameters), "kernel", [x, x], **launch)
    assert kinds(found) == ({"constant-written"} if mistaken else set())
    found = run(HEAD + text.replace("@", parameters), "kernel", [x, x.copy()], **launch)
    assert not found.reports


def test_variables_without_a_value_are_found_in_any_layout_of_a_text() -> None:
    text = """struct Pair { int a; float b; };
void f(int n) { // float c;
  float d; for (int i; i < n; ++i) { uint32_t e,
    g; if (n) { bool h = true; int k; } }
#define LOOKED 1
  double m;
  return; }
int outside;"""
    followed = re.findall(r"tw_unset_(\w+)\(", follow_unset(text))
    assert followed == ["d", "e", "g", "k", "m"] and follow_unset(text).count("\n") == text.count("\n")


def test_columns_first_and_small_floats_lie_as_they_are() -> None:
    x = np.asfortranarray(np.random.default_rng(1).standard_normal((16, 32)).astype(ml_dtypes.float8_e4m3fn))
    y, z = np.zeros(512, np.uint8), np.zeros((16, 32), ml_dtypes.float8_e4m3fn, order="F")[::2]
    text = "TW_KERNEL(512, 1) kernel(const uint8_t* X, uint8_t* Y, uint8_t* Z) { const int t = threadIdx.x; Y[t] = X[t]; if (t % 2 == 0) Z[t] = X[t]; }"
    emulate(HEAD + text, "kernel", [x, y, z], grid=1, block=512)
    assert y.tobytes() == x.tobytes(order="F") and z.tobytes() == x[::2].tobytes()


def test_a_deadlock_says_who_waits_for_what() -> None:
    text = """
TW_KERNEL(64, 1) kernel() {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t bar = shared_address(smem) + 16;
  if (threadIdx.x == 0) mbarrier_init(bar, 5);
  sync_threads();
  if (threadIdx.x < 3) mbarrier_arrive(bar);
  mbarrier_wait(bar, 0);
}"""
    report = first(text, [], grid=(1,), block=(64,), shared_bytes=64)
    assert report.kind == "deadlock" and report.span is not None and report.span.line == 10
    assert len(report.waits) == 2
    assert report.waits[0] == (
        "block 0, warp 0, 32 lanes, in mbarrier_wait at kernel.cu:10: waits for parity 0 of the mbarrier at byte 16 of shared memory "
        "of block 0, which is in phase 0; 2 of 5 arrivals are missing"
    )


def test_line_directives_lead_to_the_authors_file() -> None:
    text = """
TW_KERNEL(32, 1) kernel(int* Y) {
#line 41 "/home/author/attention.py"
  Y[int(threadIdx.x) - 1] = 0;
#line 57 "/home/author/attention.py"
  sync_warp(2);
}"""
    with pytest.raises(EmulationError) as caught:
        emulate(HEAD + text, "kernel", [np.zeros(32, np.int32)], grid=(1,), block=(32,))
    places = {(report.kind, str(report.span)) for report in caught.value.reports}
    assert places == {
        ("out-of-bounds", "/home/author/attention.py:41:1"),
        ("mask-without-caller", "/home/author/attention.py:57:1"),
    }
    assert "argument 0" in str(caught.value) and "help:" in str(caught.value)


def test_explore_finds_a_result_that_depends_on_the_order() -> None:
    text = """
TW_KERNEL(64, 1) kernel(uint32_t* order, uint32_t* ticket) { order[threadIdx.x] = atomic_add(ticket, 1u); }"""
    arrays = [np.zeros(64, np.uint32), np.zeros(1, np.uint32)]
    with pytest.raises(EmulationError) as caught:
        emulate(HEAD + text, "kernel", arrays, grid=(1,), block=(64,), schedule="explore", names=["order", "ticket"])
    assert caught.value.reports[0].kind == "schedule-dependent" and "order differs" in caught.value.reports[0].message
    fixed = text.replace(
        "order[threadIdx.x] = atomic_add(ticket, 1u)", "order[threadIdx.x] = threadIdx.x; atomic_add(ticket, 1u)"
    )
    emulate(HEAD + fixed, "kernel", arrays, grid=(1,), block=(64,), schedule="explore")
    assert np.array_equal(arrays[0], np.arange(64))


def test_a_loop_without_end_is_stopped() -> None:
    report = first("TW_KERNEL(32, 1) kernel() { for (;;) sync_warp(); }", [], grid=(1,), block=(32,), seconds=0.2)
    assert report.kind == "too-long"


def test_a_thread_that_no_interrupt_reaches_runs_kernels_too() -> None:
    found = np.zeros(32, np.int32)
    text = HEAD + "TW_KERNEL(32, 1) kernel(int* Y) { Y[threadIdx.x] = 7; }"
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as others:
        others.submit(emulate, text, "kernel", [found], grid=1, block=32).result()
    assert (found == 7).all() and signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("check", [True, False])
def test_an_interrupt_stops_a_run(check: bool) -> None:
    text = HEAD + "TW_KERNEL(32, 1) kernel(int* Y) { for (int i = 0; i < 2000000000; ++i) Y[threadIdx.x] ^= i; }"
    arguments = [np.zeros(32, np.int32)]
    with pytest.raises(EmulationError):  # which compiles it
        emulate(text, "kernel", arguments, grid=1, block=32, check=check, seconds=0.01)
    started = time.thread_time()
    # An interrupt in what somebody has done at each collection (hypothesis) would be lost.
    with no_collection(), pytest.raises(KeyboardInterrupt):
        threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        emulate(text, "kernel", arguments, grid=1, block=32, check=check)
    assert time.thread_time() - started < 5


def test_text_that_does_not_compile_says_why() -> None:
    with pytest.raises(EmulationFailed, match="refuses this kernel's text") as caught:
        emulate(HEAD + "TW_KERNEL(32, 1) kernel() { nonsense(); }", "kernel", [], grid=(1,), block=(32,))
    assert caught.value.hint is not None and "nonsense" in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "launch", "message"),
    [
        ([1], {"grid": (1,), "block": (32,)}, "has 2 parameters, and 1 arguments"),
        (
            [1.5, 2, 3][:2],
            {"grid": (1,), "block": (32,)},
            "argument 0 is 8 bytes of float, and the kernel's parameter is a pointer",
        ),
        ([np.zeros(3), 2], {"grid": (3,), "block": (32,), "cluster": (2,)}, "cannot be cut into clusters"),
        ([np.zeros(3), 2], {"grid": 3, "block": 2048}, "fits no machine"),
        ([np.zeros(3), 2], {"grid": (1, 0), "block": 32}, "grid=(1, 0) is not one to three extents of at least 1"),
        ([np.zeros(3), 2], {"grid": 1, "block": (1, 1, 1, 32)}, "block=(1, 1, 1, 32) is not one to three extents"),
        ([np.zeros(3), 2], {"grid": 1, "block": 32, "shared_bytes": -8}, "fits no machine"),
        ([np.zeros(3), 2], {"grid": (1,), "block": (32,), "schedule": "soon"}, "unknown schedule 'soon'"),
        ([np.zeros(3), "x"], {"grid": (1,), "block": (32,)}, "argument 1 is a str"),
    ],
)
def test_launches_that_do_not_fit(arguments: list[Any], launch: dict[str, Any], message: str) -> None:
    with pytest.raises(EmulationFailed) as caught:
        emulate(HEAD + "TW_KERNEL(32, 1) kernel(double* x, int n) {}", "kernel", arguments, **launch)
    assert message in str(caught.value)


def test_limits_of_tensor_maps() -> None:
    with pytest.raises(InvalidTensorMap, match="stride"):
        TensorMap(np.zeros((8, 7), np.float32), (8, 4)).descriptor(ENGINE, 4096)


def test_bytes_of_tensors_are_elements() -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 9, (7, 5, 12)).astype(np.float32)
    for part in (whole, whole[::2, 1:, 3:9], whole.transpose(2, 0, 1), whole[:, :, ::4]):
        called = Named("X", part.shape, part.strides)
        for place in zip(*(rng.integers(0, extent, 20) for extent in part.shape)):
            offset = sum(int(i) * stride for i, stride in zip(place, part.strides)) + int(rng.integers(0, 4))
            assert called.element(offset) == f"X[{', '.join(map(str, place))}]"
    assert Named("Q", (3, 8), (8, 1), per_byte=2).element(11) == "Q[1, 6]"
    assert Named("n", (), ()).element(0) == "n"
    assert Named("X", (4,), (4,)).element(16) == "byte 16 of X, whose shape is (4,)"
    assert Named("X", (4,), (4,)).element(-1) == "byte -1 of X, whose shape is (4,)"


def told_too_early(X, n: T.int32, waits=True):
    """Rows of several blocks meet in one row of Y; a tile is read when its copy may be under way."""
    X: T.Tensor((4, 128), "float32")
    W = T.alloc_global((4, 128), "float32")
    Y = T.empty((4, 128), "float32")
    with T.Kernel(4, threads=128) as block:
        for i in T.Parallel(128):
            W[block, i] = X[block, i]
    with T.Kernel(4, threads=128) as block:
        tile = T.alloc_shared((128,), "float32")
        T.async_copy(X[block, :], tile)
        if waits:
            T.ptx_wait_group(0)
        for i in T.Parallel(128):
            Y[block // n, i] = tile[i] + W[block, i]
    return Y


@pytest.mark.parametrize(
    ("waits", "kind", "message"),
    [
        (False, "early-read", r"byte \d+ of the shared memory of block \d \(tile\) is read before the copy"),
        (True, "race-global", r"this writes Y\[[01], \d+\] while cluster \d may still write it"),
    ],
)
def test_reports_of_compiled_kernels_name_what_the_author_named(waits: bool, kind: str, message: str) -> None:
    x = np.arange(512, dtype=np.float32).reshape(4, 128)
    kernel = tilewright.jit(target="cuda -arch=sm_80")(told_too_early).compile(x, 1, waits=waits)
    with pytest.raises(EmulationError) as caught:
        kernel.emulate(x, 2)
    said = next(report.message for report in caught.value.reports if report.kind == kind)
    assert re.match(message, said), said


def test_a_terminal_sees_how_far_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long shows the blocks that have ended, and leaves the line empty behind it."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("tilewright.progress.PATIENCE", 0.0)
    text = (
        HEAD
        + "TW_KERNEL(32, 1) kernel(int* Y) { for (int i = 0; i < 150000; ++i) Y[blockIdx.x * 32 + threadIdx.x] = i; }"
    )
    # On one worker, so that it takes several tenths of a second on a machine of many processors, too.
    emulate(text, "kernel", [np.zeros(128, np.int32)], grid=4, block=32, workers=1)
    assert (
        "/4" in screen.getvalue() and "blocks emulated" in screen.getvalue() and screen.getvalue().endswith("\r\033[K")
    )
