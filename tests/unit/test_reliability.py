"""Caches that somebody or something has damaged, many processes at once, killed ones, full disks and Ctrl-C: right results, nothing left.

The table in docs/reliability.md says how often each of these was tried.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy import PATIENCE, awaited

from tilewright.cache import MANIFEST

WORKLOAD = str(Path(__file__).parent / "poisoned_workload.py")
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of Unix")


def started(cache: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "TILEWRIGHT_CACHE_DIR": str(cache),
        "TILEWRIGHT_VERIFY": "0",
        "PYTHONWARNINGS": "error",
        **more,
    }
    return subprocess.Popen(
        [sys.executable, WORKLOAD, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and not complaint, complaint[-3000:]
    return output


def entries(cache: Path) -> list[Path]:
    return sorted(path.parent for path in cache.rglob(MANIFEST))


def leftovers(cache: Path) -> list[Path]:
    return [path for place in cache.glob("v*/building") for path in place.iterdir()]


def poison(rng: random.Random, cache: Path) -> list[str]:
    """Damage every entry, each in a way of its own; what was done."""
    done = []
    all_of_them = entries(cache)
    for entry in all_of_them:
        files = [path for path in sorted(entry.iterdir()) if path.is_file()]
        path = rng.choice(files)
        content = bytearray(path.read_bytes())
        way = rng.choice(
            [
                "flip",
                "cut",
                "empty",
                "gone",
                "exchange file",
                "exchange entry",
                "manifest",
                "deep",
                "more",
                "link",
                "pipe",
                "zeros",
            ]
        )
        done.append(f"{way} {path.name}")
        if way == "exchange entry":
            other, aside = rng.choice(all_of_them), cache / "aside"
            if other != entry:
                os.rename(entry, aside)
                os.rename(other, entry)
                os.rename(aside, other)
        elif way == "exchange file":
            others = [other / path.name for other in all_of_them if (other / path.name).is_file()]
            path.write_bytes(rng.choice(others).read_bytes())
        elif way == "manifest":
            (entry / MANIFEST).write_text(
                rng.choice(
                    ["{}", "[]", "null", "", '{"key": "x", "files": {}}', f'{{"key": "{entry.name}", "files": {{}}}}']
                )
            )
        elif way == "deep":
            (entry / MANIFEST).write_text("[" * 100_000)
        elif way == "more":
            (entry / "kernel.extra").write_text("what nobody put there")
        elif way == "gone":
            path.unlink()
        elif way in ("link", "pipe"):
            path.unlink()
            path.symlink_to("/dev/zero") if way == "link" else os.mkfifo(path)
        else:
            if way == "flip" and content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(
                {"cut": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content))}.get(way, content)
            )
    for path in cache.glob("v*/tuning/*.json"):
        path.write_text(rng.choice(["", "{", "[]", "{}", '{"key": "a"}', '{"key": "a", "options": 3}', "[" * 100_000]))
    return done


def poisoned_rounds(cache: Path, rounds: range, *words: str) -> None:
    expected = finished(started(cache, *words))
    kept = len(entries(cache))
    for seed in rounds:
        done = poison(random.Random(seed), cache)
        assert finished(started(cache, *words)) == expected, done
        assert len(entries(cache)) == kept and not leftovers(cache), done


def test_a_poisoned_cache_gives_right_results(tmp_path: Path) -> None:
    poisoned_rounds(tmp_path / "cache", range(1))


@pytest.mark.proof
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_poisoned_caches_give_right_results(tmp_path: Path, first: int) -> None:
    """The emulator's texts and core among them."""
    poisoned_rounds(tmp_path / "cache", range(100 + first, 103 + first), "emulate")
    poisoned_rounds(tmp_path / "other", range(200 + first, 210 + first))


def race(cache: Path, processes: int, killed: int, seed: int) -> None:
    """Processes on a cold cache, some of which are killed at any time; the others' results are right and nothing is left."""
    rng = random.Random(seed)
    running = [started(cache) for _ in range(processes)]
    for process in running[:killed]:
        time.sleep(rng.uniform(0, 1.5))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert len({finished(process) for process in running[killed:]}) == 1
    shutil.rmtree(entries(cache)[0])  # something to build, and so to clear up before it
    finished(started(cache))
    assert not leftovers(cache)


def test_processes_race_on_a_cold_cache(tmp_path: Path) -> None:
    race(tmp_path / "cache", 3, 1, 0)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(4))
def test_many_processes_race_on_a_cold_cache(tmp_path: Path, seed: int) -> None:
    race(tmp_path / "cache", 32, 16, seed)


THREADS = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import numpy as np, tilewright
from poisoned_workload import scaled
from tilewright.options import override
x = np.ones((8, 32), np.float32)
found, failures = [], []
def work(factor):
    try:
        with override(num_threads=1 + factor % 3):
            found.append((factor, float(tilewright.compile(scaled(float(factor)), out_idx=-1, target="cpu")(x).sum())))
    except BaseException as error:
        failures.append(repr(error))
count = int(sys.argv[2])
threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
children = []
for factor in (7.0, 7.0):
    child = os.fork()
    if child == 0:
        y = tilewright.compile(scaled(factor), out_idx=-1, target="cpu")(x)
        os._exit(0 if float(y.sum()) == factor * 256 else 1)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
assert not failures, failures
assert sorted(found) == sorted((i % 2, 256.0 * (i % 2)) for i in range(count)), found
"""


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.proof)])
def test_threads_and_forks_share_a_cold_cache(tmp_path: Path, count: int) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path), "TILEWRIGHT_VERIFY": "0"}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, os.path.dirname(__file__), str(count)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not leftovers(tmp_path)


def runs(process: int) -> bool:
    """Whether a process is there, and not only its number, which nobody may have asked for yet."""
    try:
        os.kill(process, 0)
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_an_interrupted_compiler_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    """Its children end with it, and nothing is left in the cache."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f"#!/bin/sh\ncase $1 in --version) echo slow 1;; *) sleep 3000 & echo $! > {tmp_path}/child; wait;; esac\n"
    )
    compiler.chmod(0o755)
    process = started(tmp_path / "cache", TILEWRIGHT_CC=str(compiler))
    child = tmp_path / "child"
    assert awaited(lambda: child.exists() and child.read_text().endswith("\n"))
    process.send_signal(signal.SIGINT)
    complaint = process.communicate(timeout=PATIENCE)[1]
    assert complaint.rstrip().endswith("KeyboardInterrupt"), complaint[-2000:]
    assert awaited(lambda: not runs(int(child.read_text())))
    assert not leftovers(tmp_path / "cache")


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of a few hundred kilobytes, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "none", str(place)], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("room", [20, *(pytest.param(room, marks=pytest.mark.proof) for room in (0, 8, 60))])
def test_on_a_full_disk_kernels_run_uncached(small_disk: Path, room: int) -> None:
    """Told once; wherever the disk gets full."""
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(max(0, free - room * 1024)))
    process = started(small_disk / "cache", PYTHONWARNINGS="always")
    output, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and output.startswith("["), complaint[-2000:]
    assert complaint.count("cannot use the cache directory") == 1 and "No space left on device" in complaint
    assert "what is compiled lasts as long as this process" in complaint
