"""What kernels say on the GPU: the interpreter's lines, and the driver's words about an assertion."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from device_arrays import to_device

import tilewright
from tilewright.interpreter import interpret
from tilewright.targets.cuda.arch import detect

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))
from printing_programs import PRINTING

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None, reason="no GPU here")]


@pytest.mark.parametrize("program", PRINTING, ids=lambda one: one.__name__)
def test_lines_of_the_gpu_are_the_interpreters(program, capfd):
    function, arguments, _ = program()
    kernel = tilewright.compile(function, target="cuda")
    given = [to_device(value) if isinstance(value, np.ndarray) else value for value in arguments]
    torch.cuda.synchronize()
    capfd.readouterr()
    for _ in range(2):
        kernel(*given)
    torch.cuda.synchronize()
    ctypes.CDLL(None).fflush(None)
    said = capfd.readouterr().out
    lines = []
    interpret(function.function, list(arguments), report=lines.append)
    assert sorted(said.splitlines()) == sorted("\n".join(2 * lines).splitlines())


MANY = """
import torch
import tilewright
import tilewright.language as T

@T.prim_func
def many(A: T.Tensor((512, 128), "int32")):
    with T.Kernel(512, threads=128) as bx:
        tx = T.get_thread_binding()
        A[bx, tx] = bx
        print(tx, bx)

tilewright.compile(many, target="cuda")(torch.zeros((512, 128), dtype=torch.int32, device="cuda"))
torch.cuda.synchronize()
"""


def test_many_lines_between_two_waits(tmp_path):
    """More than the megabyte that the driver keeps where nobody asks for more; in a process in which nothing has printed before."""
    lines = said_by(tmp_path, MANY).stdout.splitlines()
    assert len(set(lines)) == len(lines) == 512 * 128


ASSERTING = """
import torch
import tilewright
import tilewright.language as T

@T.prim_func
def asserting(A: T.Tensor((64,), "int32"), n: T.int32):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        T.device_assert(A[tx] < n, "every element is small")
        A[tx] = 0

A = torch.arange(64, dtype=torch.int32, device="cuda")
kernel = tilewright.compile(asserting, target="cuda")
kernel(A, 64)
torch.cuda.synchronize()
print("held", int(A.sum()))
kernel(A + 50, 40)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("refused", "assert" in str(error))
try:
    kernel(A, 64)
except tilewright.TilewrightError as error:
    print("then", error)
"""


def said_by(tmp_path, text):
    """What a program says that runs in a process of its own, with the tree that is tested."""
    program = tmp_path / "program.py"
    program.write_text(text)
    paths = {**os.environ, "PYTHONPATH": str(Path(tilewright.__file__).parents[1])}
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, env=paths)


def test_an_assertion_names_itself_its_line_and_its_thread(tmp_path):
    done = said_by(tmp_path, ASSERTING)
    assert "held 0\nrefused True\n" in done.stdout, done.stdout + done.stderr
    assert f"{tmp_path / 'program.py'}:10: " in done.stderr
    assert "Assertion `every element is small` failed" in done.stderr
    assert "block: [0,0,0], thread: [0,0,0]" in done.stderr
