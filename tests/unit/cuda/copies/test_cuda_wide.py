"""Accesses of 32 bytes to global memory, where the architecture has them: chosen, right at tails and other addresses, in machine code."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_gemm import on

import tilewright
import tilewright.language as T
from tilewright.emulator import emulate
from tilewright.errors import EmulationError
from tilewright.kernels.softmax import softmax_of_short_rows


def array(shape, dtype, offset=0):
    """Zeros that begin so many bytes behind a multiple of 32."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 32 + offset
    return raw[first : first + size].view(dtype).reshape(shape)


def filled(shape, dtype, offset=0, high=9):
    made = array(shape, dtype, offset)
    made[:] = np.random.default_rng(0).integers(0, high, shape)
    return made


def added(columns):
    @T.prim_func
    def main(
        A: T.Tensor((3, columns), "float16"), B: T.Tensor((3, columns), "float32"), C: T.Tensor((3, columns), "float32")
    ):
        with T.Kernel(3, threads=64) as row:
            for j in T.Parallel(1024):
                C[row, j] = T.cast(A[row, j], "float32") * 2.0 + B[row, j]

    return main


WIDE = r"(?:LDG|STG)\.E\.ENL2\.256"


@pytest.mark.parametrize("arch, wide", [("sm_90a", 0), ("sm_100a", 5), ("sm_120a", 5)])
def test_one_access_moves_32_bytes(arch, wide):
    kernel = tilewright.compile(added(1024), target=f"cuda -arch={arch}")
    a, b, c = filled((3, 1024), np.float16), filled((3, 1024), np.float32), array((3, 1024), np.float32)
    for schedule in ("late", "random"):
        c[:] = np.nan
        kernel.emulate(a, b, c, schedule=schedule)
        assert np.array_equal(c, a.astype(np.float32) * 2 + b)
    assert len(re.findall(WIDE, kernel.sass())) == wide
    assert kernel.resources()["main_kernel"]["spill_store_bytes"] == 0


@pytest.mark.parametrize("columns", [1000, 1008, 999, 16])
def test_tails(columns):
    """Rows of 16-byte pieces, of 32-byte ones, of neither."""
    kernel = tilewright.compile(added(columns), target="cuda -arch=sm_100a")
    a, b = filled((3, columns), np.float16), filled((3, columns), np.float32)
    c = array((3, columns), np.float32)
    kernel.emulate(a, b, c)
    assert np.array_equal(c, a.astype(np.float32) * 2 + b)
    assert ("fragment<8>" in kernel.get_kernel_source()) == (columns % 8 == 0)


@pytest.mark.parametrize("offset, pieces", [(0, "load_fragment<8>"), (16, "load_fragment<4>"), (8, "load_fragment<2>")])
def test_a_tensor_elsewhere_takes_the_next_best(offset, pieces):
    kernel = tilewright.compile(added(1024), target="cuda -arch=sm_100a")
    a, b, c = filled((3, 1024), np.float16), filled((3, 1024), np.float32, offset), array((3, 1024), np.float32)
    kernel.emulate(a, b, c)
    assert np.array_equal(c, a.astype(np.float32) * 2 + b)
    assert pieces in kernel.variant(a, b, c).get_kernel_source()
    if offset:
        assert f"addresses and rows at multiples of bytes: A 32, B {offset}, C 32" in kernel.explain()


def test_codes_of_four_bits():
    """64 of them in an access."""

    @T.prim_func
    def main(A: T.Tensor((4096,), "uint4"), C: T.Tensor((4096,), "float16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4096):
                C[i] = T.cast(A[i], "float16") + 1.0

    kernel = tilewright.compile(main, target="cuda -arch=sm_100a")
    a, c = filled((2048,), np.uint8, high=256), array((4096,), np.float16)
    kernel.emulate(a, c)
    assert np.array_equal(c, np.stack([a & 15, a >> 4], 1).reshape(-1) + 1)
    assert re.search(WIDE, kernel.sass())


def test_shared_tiles_keep_to_16_bytes():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile, prefer_instruction="sync")
            T.copy(tile, C)

    kernel = tilewright.compile(main, target="cuda -arch=sm_100a")
    assert "fragment<4>" in kernel.get_kernel_source() and "fragment<8>" not in kernel.get_kernel_source()


def test_a_kernel_of_the_library():
    a = array((5, 4096), np.float16)
    a[:] = np.random.default_rng(1).standard_normal(a.shape)
    kernel = on("sm_100a", softmax_of_short_rows).compile(a, dtype="float16")
    exact = np.exp(a.astype(np.float64))
    exact /= exact.sum(1, keepdims=True)
    assert np.abs(kernel.emulate(a) - exact).max() < 2e-5
    assert re.search(WIDE, kernel.variant(a).sass())


TEXT = """
#include "tilewright_cuda.cuh"
TW_KERNEL(32, 1) k(const float* A, float* C) {
  tw::Fragment<float, 8> part;
  tw::load_fragment<8>(part, 0, &A[threadIdx.x * 8]);
  tw::store_fragment<8>(&C[threadIdx.x * 8], part, 0);
}
"""


@pytest.mark.parametrize("offset", [0, 16])
def test_the_emulator_wants_all_of_its_alignment(offset):
    a, c = filled((256,), np.float32, offset), array((256,), np.float32)
    if offset == 0:
        emulate(TEXT, "k", [a, c], grid=(1,), block=(32,))
        assert np.array_equal(a, c)
        return
    with pytest.raises(EmulationError, match=r"misaligned|multiple of 32"):
        emulate(TEXT, "k", [a, c], grid=(1,), block=(32,))
