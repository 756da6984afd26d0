"""What all lanes of a vector read although some would not: only what is there for each of them."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.language as T

SIZE = mmap.PAGESIZE // 4


def chosen(ahead: int, tile: bool = False):
    """Elements of a tensor further on, where another one is positive: beyond the end nothing is there to be read."""

    @T.prim_func
    def program(
        A: T.Tensor((SIZE,), "float32"), B: T.Tensor((SIZE,), "float32"), O: T.Tensor((SIZE,), "float32")
    ):  # fmt: skip
        with T.Kernel(1):
            if tile:
                O_ = T.alloc_fragment((SIZE,), "float32")
                for i in T.Parallel(SIZE):
                    O_[i] = A[i]
                    if A[i] > 0:
                        O_[i] = B[i + ahead]
                T.copy(O_, O)
            else:
                for i in T.Parallel(SIZE):
                    O[i] = T.if_then_else(A[i] > 0, B[i + ahead], A[i])

    return program


def run(ahead: int, tile: bool, machine: str) -> None:
    """The program on a tensor with pages around it that nobody may read."""
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    b = np.frombuffer(memory, np.float32)[SIZE : 2 * SIZE]
    rng = np.random.default_rng(ahead + 8)
    a, out = rng.standard_normal(SIZE).astype(np.float32), np.zeros(SIZE, np.float32)
    b[:] = rng.random(SIZE) + 1
    for page in (0, 2):
        assert libc.mprotect(start + page * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    tilewright.compile(chosen(ahead, tile), target=f"cpu -arch={machine}")(a, b, out)
    there = np.pad(b, (8, 8))[8 + ahead : 8 + ahead + SIZE]
    assert np.array_equal(out, np.where(a > 0, there, a))


@pytest.mark.parametrize("tile", [False, True])
@pytest.mark.parametrize("ahead", [-1, 1, 7])
def test_nothing_is_read_beyond_a_tensor(ahead: int, tile: bool) -> None:
    """A vector's first lane was asked for, and the others were read with it: a tensor at the end of a page ended the process."""
    said = f"from test_cpu_speculation import run; run({ahead}, {tile}, 'avx2')"
    here, package = Path(__file__).parent, Path(tilewright.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, package)))}
    done = subprocess.run([sys.executable, "-c", said], env=environment, check=False)
    assert done.returncode == 0


def test_what_is_there_for_all_lanes_is_read_at_once() -> None:
    text = tilewright.compile(chosen(0), target="cpu -arch=avx2").get_kernel_source()
    assert "tw_load_f32x8(B + i)" in text
    assert "tw_load_f32x8(B" not in tilewright.compile(chosen(1), target="cpu -arch=avx2").get_kernel_source()
