"""Every number type in tensors and tiles: right in memory of any width, or refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability
from tilewright.ir import dtypes, kernels
from tilewright.targets.cuda.compiler import compile_text
from tilewright.targets.gpu.emit import kernel_parameters
from tilewright.targets.gpu.host import code_of
from tilewright.targets.gpu.spellings import TYPES


def converted(dtype):
    @T.prim_func
    def main(A: T.Tensor((256,), dtype), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(256):
                C[i] = T.cast(A[i], "float32")

    return main


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_every_type(dtype):
    if dtype in TYPES:
        tilewright.compile(converted(dtype), target="cuda -arch=sm_90a")
        return
    with pytest.raises(MissingCapability, match=f"sm_90a has no numbers of type {dtype}") as caught:
        tilewright.compile(converted(dtype), target="cuda -arch=sm_90a")
    assert "for i in T.Parallel(256)" in str(caught.value)


def filled(dtype):
    @T.prim_func
    def main(value: getattr(T, dtype), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = T.cast(value, "float32")

    return main


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "bool"])
def test_numbers_of_every_type_as_arguments(dtype):
    """Floats that no host language has come as wide ones, rounded by the kernel."""
    kernel = tilewright.compile(filled(dtype), target="cuda -arch=sm_90a")
    found, expected = np.zeros((2, 64), np.float32)
    value = 1.1 if "float" in dtype else 1
    kernel.emulate(value, found)
    kernel.interpret(value, expected)
    assert np.array_equal(found, expected) and found.any()
    codes = {code_of(one) for one in kernel_parameters(kernels(kernel.program.final)[0])}
    assert codes == {"Q", "f" if "float" in dtype else {"int8": "b", "bool": "?"}[dtype]}


def staged(rows, columns):
    """Truths that come through a ring of shared tiles and go as they came."""

    @T.prim_func
    def main(A: T.Tensor((4 * rows, columns), "bool"), C: T.Tensor((4 * rows, columns), "float32"),
             D: T.Tensor((4 * rows, columns), "bool")):  # fmt: skip
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((rows, columns), "bool")
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k * rows, 0], tile)
                for i, j in T.Parallel(rows, columns):
                    C[k * rows + i, j] = T.if_then_else(tile[i, j], 1.0, 0.0)
                T.copy(tile, D[k * rows, 0])

    return main


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    "columns, piece", [(128, "cp_async of 16 bytes"), (20, "cp_async of 4 bytes"), (7, "loads and stores")]
)
def test_truths_are_bytes_in_memory(arch, columns, piece):
    kernel = tilewright.compile(staged(32, columns), target=f"cuda -arch={arch}")
    a = np.random.default_rng(0).integers(0, 2, (128, columns)).astype(bool)
    c, d = np.full(a.shape, np.nan, np.float32), ~a
    kernel.emulate(a, c, d)
    assert np.array_equal(c, a) and np.array_equal(d, a)
    assert piece in kernel.explain()
    kernel.ptx()


def test_views_of_truths():
    @T.prim_func
    def main(A: T.Tensor((64,), "uint32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            words = T.alloc_shared((64,), "uint32")
            truths = T.view(words, dtype="bool")
            T.copy(A, words)
            for i in T.Parallel(256):
                C[i] = T.if_then_else(truths[i], 1.0, 0.0)

    a = np.random.default_rng(0).integers(0, 2, 256).astype(np.uint8)
    c = np.full(256, np.nan, np.float32)
    kernel = tilewright.compile(main, target="cuda -arch=sm_80")
    for run in (kernel.interpret, kernel.emulate):
        run(a.view(np.uint32), c)
        assert np.array_equal(c, a)


def test_narrow_integers_beside_literals():
    """A literal of a narrow type is an int in the text; functions of two values are those of the narrow type."""
    n = 64

    @T.prim_func
    def program(
        A: T.Tensor((n,), "uint16"), B: T.Tensor((n,), "int8"), C: T.Tensor((n,), "uint16"), D: T.Tensor((4, n), "int8")
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                C[i] = T.min(A[i] + T.uint16(65000), T.uint16(254))
                D[0, i] = T.max(B[i], T.int8(3))
                D[1, i] = B[i] // T.int8(7)
                D[2, i] = B[i] % T.int8(-5)
                D[3, i] = T.int8(100) // T.max(B[i], T.int8(1))

    a, b = np.arange(500, 500 + n, dtype=np.uint16), np.arange(-32, 32).astype(np.int8)
    kernel = tilewright.compile(program, target="cuda -arch=sm_80")
    c, d = np.zeros(n, np.uint16), np.zeros((4, n), np.int8)
    kernel.emulate(a, b, c, d)
    assert np.array_equal(c, np.minimum(a + np.uint16(65000), np.uint16(254)))
    low = np.maximum(b, np.int8(1))
    assert np.array_equal(d, [np.maximum(b, 3), b // np.int8(7), b % np.int8(-5), np.int8(100) // low])
    assert compile_text(kernel.get_kernel_source(), kernel.arch).image


def test_fragments_in_names_that_neighbours_share():
    """A name for a row's number in registers leaves the body of the loop; the register is still found."""

    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), S: T.Tensor((64,), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            scale, tile = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64, 64), "float32")
            T.copy(S, scale)
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                factor = scale[i] + 1.0
                if scale[i] > 0:
                    C[i, j] = tile[i, j] * factor

    a, s = (
        np.random.default_rng(0).standard_normal((65, 64)).astype(np.float32)[:64],
        np.arange(-32, 32, dtype=np.float32),
    )
    kernel = tilewright.compile(program, target="cuda -arch=sm_80")
    c = np.full((64, 64), 7, np.float32)
    kernel.emulate(a, s, c)
    assert np.array_equal(c, np.where(s[:, None] > 0, a * (s[:, None] + 1), 7))
