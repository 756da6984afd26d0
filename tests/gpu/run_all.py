"""Everything that this room wants to know of a GPU, in one command without pytest:

    PYTHONPATH=. python3 tests/gpu/run_all.py [--originals DIRECTORY] [--only facts,gemm,w4a16,launch]

Facts of the vocabulary first; then the Hopper models beside their hand-written originals and cuBLAS; then the
host's cost of a launch beside ``torch.add``.  The last line is ``OK`` or names what failed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cuda_facts import confirm
from cuda_runner import DeviceRunner, host_seconds
from models import TILES, W4A16, Gemm, original, original_gemm, original_w4a16, pack_w4

from tilewright.targets.cuda.compiler import find_nvrtc
from tilewright.targets.cuda.driver import find_driver
from tilewright.targets.cuda.launcher import CudaKernel, LaunchShape
from tilewright.targets.gpu.host import POINTER

FLUSH_BYTES = 256 << 20


def timed(runs: dict[str, Callable[[], None]], rounds: int, pause: float = 0.0) -> dict[str, float]:
    """Median seconds of each run, in turn, L2 flushed before each launch; `pause` seconds between launches."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for index in range(rounds):
        names = list(runs)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            flush.zero_()
            if pause:
                torch.cuda.synchronize()
                time.sleep(pause)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            runs[name]()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e-3)
    return {name: statistics.median(found) for name, found in times.items()}


def check_gemm(directory: Path) -> list[str]:
    """Correctness of both tiles, odd sizes too, then speed beside the original and cuBLAS."""
    failed = []
    gemms = {number: Gemm(tile) for number, tile in TILES.items()}
    library = original(directory, "hopper_gemm")
    torch.manual_seed(0)
    for m, n, k in ((512, 768, 256), (1000, 1192, 520), (129, 264, 72)):
        a, b = (torch.randint(-3, 4, (rows, k), device="cuda").bfloat16() for rows in (m, n))
        expected = (a.double() @ b.double().T).float()
        for number, gemm in gemms.items():
            c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            gemm(a, b, c)
            if not torch.equal(c, expected.bfloat16()):
                failed.append(f"gemm tile {number} at {m} x {n} x {k}")
    for m, n, k, number in ((8192, 8192, 8192, 1), (4096, 28672, 8192, 2), (4096, 4096, 4096, 1)):
        a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        c, d = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        runs: dict[str, Callable[[], None]] = {
            "ours": lambda g=gemms[number], x=(a, b, c): g(*x),
            "cublas": lambda x=(a, b, d): torch.mm(x[0], x[1].T, out=x[2]),
        }
        if library is not None:
            by_hand = original_gemm(library, number)
            runs["original"] = lambda run=by_hand, x=(a, b, d): run(*x)
        work = 2e-12 * m * n * k
        paced, sustained = timed(runs, 12, 0.015), timed(runs, 60)
        for label, found in (("paced", paced), ("sustained", sustained)):
            print(
                f"gemm {m} x {n} x {k} {label}: "
                + ", ".join(f"{name} {work / t:.1f}" for name, t in found.items())
                + " TFLOP/s",
                flush=True,
            )
        if library is not None:
            runs["ours"]()
            runs["original"]()
            if not torch.equal(c, d):
                failed.append(f"gemm {m} x {n} x {k} differs from the original")
        del a, b, c, d, runs
    return failed


def check_w4a16(directory: Path) -> list[str]:
    """The small-M kernel against float64, and beside its original."""
    failed = []
    library = original(directory, "hopper_w4a16")
    n, k = 28672, 8192
    torch.manual_seed(1)
    codes = torch.randint(0, 16, (n, k), device="cuda", dtype=torch.uint8)
    scales = (torch.rand(n, k // 128, device="cuda") * 0.01 + 0.001).half()
    packed = pack_w4(codes, scales)
    weights = (codes.double() - 8) * scales.double().repeat_interleave(128, dim=1)
    ours = W4A16()
    for m in (1, 3, 8):
        x = torch.randn(m, k, device="cuda", dtype=torch.float16)
        y, z = (
            torch.full((8, n), 7.0, device="cuda", dtype=torch.float16),
            torch.empty(8, n, device="cuda", dtype=torch.float16),
        )
        ours(packed, x, y)
        expected = x.double() @ weights.T
        error = ((y[:m].double() - expected).norm() / expected.norm()).item()
        if not error < 4e-4 or not (y[m:] == 7).all():
            failed.append(f"w4a16 at M = {m}: error {error:.2e}")
        runs: dict[str, Callable[[], None]] = {"ours": lambda x=x, y=y: ours(packed, x, y)}
        if library is not None:
            by_hand = original_w4a16(library)
            runs["original"] = lambda run=by_hand, x=x, z=z: run(packed, x, z)
        found = timed(runs, 60)
        print(
            f"w4a16 {n} x {k}, M = {m}: "
            + ", ".join(f"{name} {t * 1e6:.1f} us" for name, t in found.items())
            + f", error {error:.2e}",
            flush=True,
        )
        if library is not None and not torch.equal(y[:m], z[:m]):
            failed.append(f"w4a16 at M = {m} differs from the original")
    return failed


def check_launch(runner: DeviceRunner) -> list[str]:
    """Host seconds of a launch of four arguments, of one with tensor maps, and of torch.add, in the same run; graph capture."""
    failed = []
    source = """#include "tilewright_cuda.cuh"
TW_KERNEL(32, 1) tiny(float* a, const float* b, int n, float x) {
  tw::griddepcontrol_launch_dependents();
  tw::griddepcontrol_wait();
  if (threadIdx.x < n) a[threadIdx.x] += b[threadIdx.x] * x;
}
"""
    binary = runner.compile(source)
    tiny = CudaKernel(binary.image, "tiny", (POINTER, POINTER, "i", "f")).prepare(LaunchShape(32))
    a, b = torch.zeros(32, device="cuda"), torch.ones(32, device="cuda")
    values = (a.data_ptr(), b.data_ptr(), 32, 2.0)
    torch.cuda.synchronize()
    ours = host_seconds(tiny, (1, 1, 1), values)
    torch.cuda.synchronize()
    add = host_seconds(lambda grid, values: torch.add(*values), (1, 1, 1), (a, b))  # type: ignore[arg-type]
    torch.cuda.synchronize()
    print(f"launch: ours {ours * 1e6:.2f} us, torch.add {add * 1e6:.2f} us", flush=True)
    if ours >= add:
        failed.append("a launch costs more than torch.add")
    a.zero_()
    tiny((1, 1, 1), values)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    fresh = CudaKernel(binary.image, "tiny", (POINTER, POINTER, "i", "f")).prepare(LaunchShape(32, dependent=True))
    with torch.cuda.graph(graph, stream=stream):
        tiny((1, 1, 1), values)
        fresh((1, 1, 1), values)  # loads its module while the stream is being captured
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    if not (a == 42).all():
        failed.append(f"a captured graph gave {a[0].item()}, not 42")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--originals", type=Path, default=Path(".models"), help="directory with hopper_gemm.cu and hopper_w4a16.cu"
    )
    parser.add_argument("--only", default="facts,launch,gemm,w4a16")
    arguments = parser.parse_args()
    driver, nvrtc = find_driver(), find_nvrtc()
    assert driver is not None, "no GPU here"
    torch.cuda.init()
    start = time.time()
    print(
        f"{driver.name(0)}, driver for CUDA {driver.version}, NVRTC {nvrtc.version} at {nvrtc.path}, torch {torch.__version__}"
    )
    runner = DeviceRunner()
    checks: dict[str, Callable[[], Any]] = {
        "facts": lambda: confirm(runner),
        "launch": lambda: check_launch(runner),
        "gemm": lambda: check_gemm(arguments.originals),
        "w4a16": lambda: check_w4a16(arguments.originals),
    }
    failed: list[str] = []
    for name in arguments.only.split(","):
        try:
            failed += checks[name]()
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
        print(f"-- {name} done at {time.time() - start:.0f} s", flush=True)
    print("FAILED: " + "; ".join(failed[:40]) if failed else "OK")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
