"""README's examples pasted into an interactive Python, which reads lines from a terminal and keeps no text of functions."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy import PATIENCE

from tilewright.options import options

pty = pytest.importorskip("pty")
pytest.importorskip("readline")

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def pasted(text: str, home: Path, until: str, seconds: float = PATIENCE) -> str:
    """What an interactive Python shows when lines are pasted into its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        environment = {
            **os.environ,
            "HOME": str(home),  # whose history nobody's lines are to stand in
            "TILEWRIGHT_CACHE_DIR": str(options().cache_dir),
            "PYTHONPATH": str(ROOT),
            "TERM": "dumb",
            "PYTHON_BASIC_REPL": "1",
        }
        os.execve(sys.executable, [sys.executable, "-q"], environment)
    shown, end = "", time.monotonic() + seconds
    try:
        for line in text.splitlines():
            os.write(terminal, line.encode() + b"\n")
            shown += _read(terminal, 0.02)
        while not re.search(until, left(shown)) and time.monotonic() < end:
            shown += _read(terminal, 0.5)
        os.write(terminal, b"exit()\n")
        while time.monotonic() < end and (more := _read(terminal, 2.0)):
            shown += more
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return left(shown)


def left(shown: str) -> str:
    """What stays on a terminal: a bar that shows on a slow machine that something goes on is wiped out."""
    return re.sub(r"[^\n]*\r\033\[K", "", shown)


def _read(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    try:
        return os.read(terminal, 65536).decode(errors="replace") if ready else ""
    except OSError:  # the other side is gone
        return ""


RESULTS = [r"^777\.0", r"^0\.0[23]\d+"]
"""What each example of README prints."""

CONSOLE = """
import code, sys
console = code.InteractiveConsole()
for line in [*sys.stdin.read().splitlines(), ""]:
    console.push(line)
"""


def test_examples_are_those_whose_results_are_known() -> None:
    assert len(BLOCKS) == len(RESULTS)


def test_what_is_wiped_out_does_not_stay() -> None:
    assert left("one\r\n\r\033[K.. 0/1\r\033[K.. 1/1\r\033[K777.0\r\n>>> ") == "one\r\n777.0\r\n>>> "


@pytest.mark.parametrize("number", range(len(RESULTS)))
def test_an_example_works_when_it_is_pasted(number: int, tmp_path: Path) -> None:
    shown = pasted(BLOCKS[number], tmp_path, f"(?m){RESULTS[number]}|Error")
    assert re.search(RESULTS[number], shown, re.MULTILINE) and "Error" not in shown, shown[-2000:]


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.proof) for n in range(1, len(RESULTS)))])
def test_an_example_works_in_a_console_written_in_python(number: int) -> None:
    """IDLE's, `python -m asyncio`'s and others' are `code.InteractiveConsole`."""
    command = [sys.executable, "-c", CONSOLE]
    ran = subprocess.run(command, input=BLOCKS[number], capture_output=True, text=True, cwd=ROOT, check=False)
    assert re.search(RESULTS[number], ran.stdout, re.MULTILINE) and "Error" not in ran.stderr, ran.stderr[-2000:]


def test_a_function_that_is_typed_again_is_the_last_one(tmp_path: Path) -> None:
    """Two of a name, the second beside other lines: the text that is read is that of the code that is run."""
    text = """
import numpy as np, tilewright, tilewright.language as T

@tilewright.jit
def add(A):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B = T.empty((N,), "float32")
    with T.Kernel(1, threads=32) as block:
        for i in T.Parallel(N):
            B[i] = A[i] + 1.0
    return B

first = add

@tilewright.jit
def add(A):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B = T.empty((N,), "float32")
    with T.Kernel(1, threads=32) as block:
        for i in T.Parallel(N):
            B[i] = A[i] * 100.0
    return B

print("found", first(np.ones(3, "float32")), add(np.ones(3, "float32")), "end")
"""
    shown = pasted(text, tmp_path, r"\] end|Error")
    assert "[2. 2. 2.] [100. 100. 100.] end" in shown, shown[-2000:]
