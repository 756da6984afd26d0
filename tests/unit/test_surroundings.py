"""What a process may find around it: locales and paths that are no UTF-8, caches that are cleared under it, forks that
end before it, limits of the system, signals at any moment.  Results are right, or a sentence says what is missing."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy import PATIENCE, awaited
from test_reliability import finished, leftovers, started

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of Unix")
ROOT = str(Path(__file__).resolve().parents[2])

LETTERS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, tilewright
import tilewright.language as T

@tilewright.jit
def doubled(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(1, threads=32):
        for ä in T.Parallel(N):
            if X[ä] > 0:  # 大 → Ω
                Y[ä] = X[ä] * 2.0  # ≥ é
            else:
                Y[ä] = 0
    return Y

x = np.ones(8, np.float32)
assert (doubled.on("cpu")(x) == 2).all()
for target in ("cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple9"):
    kernel = doubled.on(target).compile(X=x)
    kernel.get_kernel_source()
    if "emulate" in sys.argv:
        assert (kernel.emulate(x) == 2).all()
        if "cuda" in target:
            kernel.path
print("right")
"""

ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
NAMES = [b"plain", "ünï 大".encode(), b"\xff\xfe", b"sp ace", b"qu'o\"te", b"new\nline", b"-dash", b"$HOME;x,%d\\"]


@pytest.mark.parametrize("name", [NAMES[2], *(pytest.param(one, marks=pytest.mark.proof) for one in NAMES)], ids=repr)
@pytest.mark.parametrize("locale", [ASCII, {}], ids=["ascii", "utf-8"])
def test_any_path_and_locale(
    tmp_path: Path, name: bytes, locale: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """Authors' letters stand in texts, and so do paths: both ended in UnicodeEncodeError where a locale lacks them."""
    place = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(place)
    script = os.path.join(place, b"script.py")
    Path(os.fsdecode(script)).write_bytes(LETTERS.encode())
    proof = ["emulate"] if request.node.get_closest_marker("proof") else []
    done = subprocess.run(
        [sys.executable, script, ROOT, *proof], capture_output=True, check=False,
        env={**os.environ, "TILEWRIGHT_CACHE_DIR": os.fsdecode(os.path.join(place, b"cache")), **locale},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == b"right", done.stderr[-2000:].decode("utf-8", "replace")


CLEARED = """
import os, shutil, sys
sys.path[:0] = sys.argv[1:3]
import numpy as np, tilewright
from poisoned_workload import scaled
x, cache = np.ones((8, 32), np.float32), os.environ["TILEWRIGHT_CACHE_DIR"]

def cleared(factor, target, use):
    kernel = tilewright.compile(scaled(factor), out_idx=-1, target=target)
    kernel.path
    shutil.rmtree(cache)
    assert use(kernel), (factor, target)

for factor, target in ((2.0, "cpu"), (3.0, "cpu")):
    cleared(factor, target, lambda kernel: (kernel(x) == factor).all() and kernel.get_kernel_source())
cleared(4.0, "cuda -arch=sm_90a", lambda kernel: kernel.resources() and kernel.ptx())
if "emulate" in sys.argv:
    for factor in (5.0, 6.0):  # the second text is made when the core's file is gone
        cleared(factor, "cuda -arch=sm_80", lambda kernel: (kernel.emulate(x) == factor).all())
print("right")
"""


@pytest.mark.parametrize("words", [[], pytest.param(["emulate"], marks=pytest.mark.proof)], ids=str)
def test_a_cache_that_is_cleared_meanwhile(tmp_path: Path, words: list[str]) -> None:
    """Somebody deletes the directory while a process lives: what it needs then is built again."""
    done = subprocess.run(
        [sys.executable, "-c", CLEARED, ROOT, os.path.dirname(__file__), *words], capture_output=True, text=True,
        check=False, env={**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "right\n", done.stderr[-2000:]


FORKED = """
import os, sys, tempfile, time
sys.path[:0] = sys.argv[1:3]
import numpy as np, tilewright
from poisoned_workload import scaled
x = np.ones((8, 32), np.float32)

def right(factor):
    return bool((tilewright.compile(scaled(factor), out_idx=-1, target="cpu")(x) == factor).all())

early = tilewright.compile(scaled(9.0), out_idx=-1, target="cpu")
early.path
assert right(2.0)
parent, child = os.getpid(), os.fork()
if child == 0:
    while sys.argv[3] == "parent first" and os.getppid() == parent:
        time.sleep(0.02)
    if right(3.0) and (early(x) == 9).all():
        open(sys.argv[4], "w").write("right")
    sys.exit()
if sys.argv[3] == "child first":
    os.waitpid(child, 0)
    assert right(4.0) and (early(x) == 9).all()
"""


@pytest.mark.parametrize("order", ["child first", "parent first"])
def test_forked_processes_end_in_any_order(tmp_path: Path, order: str) -> None:
    """Without a cache on disk: the child's end deleted what its parent was about to load."""
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TILEWRIGHT_CACHE": "0", "TMPDIR": str(tmp_path / "tmp")}
    words = [ROOT, os.path.dirname(__file__), order, str(tmp_path / "said")]
    done = subprocess.run(
        [sys.executable, "-c", FORKED, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = tmp_path / "said"
    assert awaited(lambda: said.exists() and said.read_text() and not list((tmp_path / "tmp").iterdir()))
    assert said.read_text() == "right"


def test_what_killed_processes_left_among_temporary_files_goes(tmp_path: Path) -> None:
    script = "import os, signal; from tilewright.cache import cached\n" \
             "cached('ab12', lambda place: (place / 'x').write_text('x'))\nif MUST: os.kill(os.getpid(), signal.SIGKILL)"  # fmt: skip
    environment = {**os.environ, "TILEWRIGHT_CACHE": "0", "TMPDIR": str(tmp_path), "PYTHONPATH": ROOT}
    for kill, status, left in (("1", -9, 1), ("0", 0, 0)):
        done = subprocess.run([sys.executable, "-c", script.replace("MUST", kill)], env=environment, check=False)
        assert done.returncode == status and len(list(tmp_path.iterdir())) == left


LIMITED = """
import os, resource, sys, tempfile
sys.path[:0] = sys.argv[1:3]
import numpy as np, tilewright
from poisoned_workload import scaled
x, what, number = np.ones((8, 32), np.float32), sys.argv[3], int(sys.argv[4])
kernel = tilewright.compile(scaled(2.0), out_idx=-1, target="cpu")
if what == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for one in held[:number]:
            os.close(one)
elif what == "length":
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
try:
    assert (kernel(x) == 2).all()
    print("right")
except tilewright.TilewrightError as error:
    print("told", str(error).splitlines()[0])
"""


@pytest.mark.parametrize(
    "limit", ["files 0", "length 0", "length 5000", *(pytest.param(f"files {n}", marks=pytest.mark.proof) for n in (1, 2, 3, 4, 6, 9, 14))]
)  # fmt: skip
def test_limits_of_the_system_are_told(tmp_path: Path, limit: str) -> None:
    """Files that may be open, and how long they may be: no place at all to write to was a FileNotFoundError."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, ROOT, os.path.dirname(__file__), *limit.split()],
        capture_output=True, text=True, check=False, env={**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.split()[0] in ("right", "told"), (done.stdout, done.stderr[-2000:])


ENDING = "Exception ignored in atexit callback"
"""What Python says of an interruption when the program has ended."""


def interrupted(cache: Path, rounds: int, seed: int) -> None:
    """Signals at any moment, several at once: a process ends by them or as if there were none, and the next is right."""
    rng = random.Random(seed)
    began = time.monotonic()
    expected = finished(started(cache))
    span = time.monotonic() - began
    for _ in range(rounds):
        if rng.random() < 0.6:
            shutil.rmtree(cache, ignore_errors=True)  # one that was interrupted early has made none
        begun = cache.with_name("begun")
        begun.unlink(missing_ok=True)
        process = started(cache, BEGUN=str(begun))
        number = rng.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        assert awaited(begun.exists)
        time.sleep(rng.uniform(0, span))
        for _ in range(rng.choice([1, 1, 2, 3])):
            process.send_signal(number)
            time.sleep(rng.uniform(0, 0.03))
        output, complaint = process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            assert output == expected and ("KeyboardInterrupt" not in complaint or ENDING in complaint)
        else:
            assert process.returncode in (-number, 128 + number), complaint[-2000:]
            assert number == signal.SIGTERM or "KeyboardInterrupt" in complaint, complaint[-2000:]
    shutil.rmtree(cache, ignore_errors=True) if rng.random() < 0.5 else None
    assert finished(started(cache)) == expected
    assert not leftovers(cache)


def test_signals_at_any_moment(tmp_path: Path) -> None:
    interrupted(tmp_path / "cache", 1, 1)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2, 5))
def test_many_signals_at_any_moment(tmp_path: Path, seed: int) -> None:
    interrupted(tmp_path / "cache", 20, seed)


def test_texts_are_read_and_written_in_one_encoding() -> None:
    """Whoever asks pathlib for a text gets it in the locale's."""
    sources = sorted((Path(ROOT) / "tilewright").rglob("*.py"))
    strays = [path for path in sources if re.search(r"\.(read|write)_text\(", path.read_text(encoding="utf-8"))]
    assert not strays, "tilewright.texts reads and writes them"
