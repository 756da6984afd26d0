"""The thread pool: every block once, from many threads, nested, after a fork."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from busy import PATIENCE, awaited
from cpu_programs import compiled

from tilewright.runtime.kernel import Kernel
from tilewright.targets.cpu import launcher

DEVICE = Path(launcher.__file__).parent / "device"
COUNT_BLOCKS = """
def f(seen: int32[n], *, n: int32):
    with kernel(blocks={bx: n}, threads={tx: 1, ty: 1, tz: 1}):
        seen[bx] = seen[bx] + 1
"""

WITH_SCRATCH = """
def f(X: float32[m, 8192], Y: float32[m], *, m: int32) -> Y:
    with kernel(blocks={bx: m}, threads={tx: 1, ty: 1, tz: 1}):
        tile = shared(float32[8192])
        total = fragment(float32[1])
        copy(source=X[bx, :], destination=tile)
        reduce(source=tile, destination=total, kind="max", dim=0)
        for i in parallel(8192):
            tile[i] = tile[i] - total[0]
        reduce(source=tile, destination=total, kind="min", dim=0)
        for i in parallel(8192):
            tile[i] = tile[i] * total[0]
        reduce(source=tile, destination=total, kind="max", dim=0)
        Y[bx] = total[0]
"""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return compiled(COUNT_BLOCKS)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """More threads than blocks of some launches, and than cores."""
    before = launcher.get_threads()
    launcher.set_threads(5)
    yield
    launcher.set_threads(before)


@pytest.mark.parametrize("blocks", [0, 1, 2, 7, 1000])
def test_every_block_runs_once(kernel: Kernel, blocks: int) -> None:
    seen = np.zeros(blocks, np.int32)
    for _ in range(20):
        kernel(seen)
    np.testing.assert_array_equal(seen, 20)


def test_launches_from_many_threads(kernel: Kernel) -> None:
    arrays = [np.zeros(200 + i, np.int32) for i in range(6)]

    def work(array: np.ndarray) -> None:
        for _ in range(50):
            kernel(array)

    callers = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for array in arrays:
        np.testing.assert_array_equal(array, 50)


def test_scratch_memory_belongs_to_one_thread() -> None:
    x = np.random.default_rng(0).standard_normal((64, 8192)).astype(np.float32)
    kernel = compiled(WITH_SCRATCH)
    assert "scratch + 0" in kernel.get_kernel_source()
    for _ in range(5):
        np.testing.assert_array_equal(kernel(x), (x.min(axis=1) - x.max(axis=1)) ** 2)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the pool's text (`pool_stress.c`), whose every access is watched for order between threads."""
    program = tmp_path_factory.mktemp("pool") / "stress"
    command = [
        "gcc",
        "-O1",
        "-g",
        "-fsanitize=thread",
        "-pthread",
        f"-I{DEVICE}",
        Path(__file__).with_name("pool_stress.c"),
    ]
    if shutil.which("gcc") is None or subprocess.run([*command, "-o", program], capture_output=True).returncode != 0:
        pytest.skip("no gcc here that watches threads")
    return program


@pytest.mark.parametrize("threads", [2, 8, 16])
def test_launches_inside_and_beside_one_another_under_a_watch_for_races(watched: Path, threads: int) -> None:
    environment = {**os.environ, "TSAN_OPTIONS": "atexit_sleep_ms=0"}
    found = subprocess.run([watched, str(threads)], capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own(kernel: Kernel) -> None:
    seen = np.zeros(500, np.int32)
    kernel(seen)  # the parent has workers
    child = os.fork()
    if child == 0:
        mine = np.zeros(500, np.int32)
        for _ in range(10):
            kernel(mine)
        os._exit(0 if (mine == 10).all() else 1)
    statuses = []

    def ended() -> int:
        done, status = os.waitpid(child, os.WNOHANG)
        statuses.append(status)
        return done

    if not awaited(ended):
        os.kill(child, 9)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(statuses[-1]) == 0
    kernel(seen)
    np.testing.assert_array_equal(seen, 2)


def test_the_number_of_threads_can_be_set(kernel: Kernel) -> None:
    launcher.set_threads(1)
    assert launcher.get_threads() == 1
    seen = np.zeros(100, np.int32)
    kernel(seen)
    np.testing.assert_array_equal(seen, 1)
    launcher.set_threads(0)
    assert launcher.get_threads() >= 1


@pytest.mark.parametrize(("variable", "expected"), [("", [3, 1, 2, 3]), ("2", [2, 2, 2, 2])])
def test_no_more_threads_than_torch_is_told_to_use(variable: str, expected: list[int]) -> None:
    """In a process that loads torch when kernels have run already; TILEWRIGHT_NUM_THREADS is stronger."""
    pytest.importorskip("torch")
    program = """
import numpy as np
from tilewright.kernels.elementwise import elementwise
from tilewright.targets.cpu import arch, launcher
here = arch.host()
launcher.host = lambda: arch.make_arch("x86_64", here.features, cores=3, l1_bytes=here.l1_bytes, l2_bytes=here.l2_bytes)
elementwise(lambda a: a + 1.0, [(8,)], ["float32"], "float32")(np.zeros(8, np.float32))
import torch
found = []
for count in (8, 1, 2, 3):
    torch.set_num_threads(count)
    found.append(launcher.get_threads())
print(found)
"""
    environment = {**os.environ, "TILEWRIGHT_NUM_THREADS": variable or "0"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(expected), ran.stderr
