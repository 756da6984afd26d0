"""Mistakes planted in Metal texts, by hand and of every kind that matters there: the front end refuses each, or the emulator
reports it or gives other numbers than NumPy."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "matmul"))
from front_end import complaints
from products import product as multiplied
from products import random_weight

import tilewright
import tilewright.language as T
from tilewright.errors import EmulationError, EmulationFailed
from tilewright.runtime.arguments import Binder
from tilewright.runtime.emulation import emulate_program
from tilewright.runtime.kernel import Kernel

METAL = "metal -arch=apple7"


@dataclass
class Case:
    """A kernel with arguments, the last of which is the result, and what NumPy says of it."""

    kernel: Kernel
    arguments: list[Any]
    expected: np.ndarray
    bound: float


def product() -> Case:
    """Tiles of half precision in a loop, rows that end within a tile, an epilogue with reductions of rows."""
    M, N, K = 50, 64, 72

    @T.prim_func
    def tiles(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(1, 1, threads=128):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
            c, most = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[0, k * 32], a)
                T.copy(B[0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.reduce_max(c, most, dim=1)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] - most[i]
            T.copy(c, C[0, 0])

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((M, K), (N, K)))
    whole = a.astype(np.float64) @ b.astype(np.float64).T
    expected = whole - np.maximum(whole.max(1, keepdims=True), -np.inf)
    return Case(tilewright.compile(tiles, target=METAL), [a, b, np.zeros((M, N), np.float32)], expected, 0.0)


def small_floats() -> Case:
    """Every code of e4m3 to float32, and halves of every exponent, subnormal ones among them, to e5m2 and back."""

    @T.prim_func
    def converted(X: T.Tensor((256,), "float8_e4m3fn"), H: T.Tensor((256,), "float16"), Y: T.Tensor((512,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(256):
                Y[i] = T.cast(X[i], "float32")
                Y[256 + i] = T.cast(T.cast(H[i], "float8_e5m2"), "float32")

    import ml_dtypes

    codes = np.arange(256, dtype=np.uint8)
    codes[[0x7F, 0xFF]] = 0
    x = codes.view(ml_dtypes.float8_e4m3fn)
    h = (np.arange(256, dtype=np.uint16) * 123).view(np.float16)
    h = np.where(np.isfinite(h), h, np.float16(0))
    narrow = h.astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(np.float64)
    narrow = np.where(np.isfinite(narrow), narrow, np.sign(h) * 57344)
    expected = np.concatenate([x.astype(np.float64), narrow])
    return Case(tilewright.compile(converted, target=METAL), [x, h, np.zeros(512, np.float32)], expected, 0.0)


def quantised() -> Case:
    """One row by codes of four bits, a scale for every 32."""
    rng = np.random.default_rng(1)
    scales = (rng.integers(1, 9, (16, 16)) / 4).astype(np.float16)
    weight = random_weight(rng, "int4", (16, 512), scales=scales, block=(1, 32))
    x = rng.integers(-4, 5, (1, 512)).astype(np.float16)
    seen: list[Any] = []

    def remembered(self: Kernel, *given: Any, **options: Any) -> Any:
        seen[:] = [self, [one.copy() if isinstance(one, np.ndarray) else one for one in given]]
        return emulate(self, *given, **options)

    emulate = Kernel.emulate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "emulate", remembered)
        multiplied(x, weight, METAL)
    kernel, given = seen
    return Case(kernel, given, x.astype(np.float64) @ weight.to_dense().T, 1e-6)


def counted() -> Case:
    """Atomics on halves and words, a scan over threads, a reduction over the block."""

    @T.prim_func
    def totals(X: T.Tensor((256,), "float32"), H: T.Tensor((6,), "float16"), Y: T.Tensor((258,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            row, running = T.alloc_fragment((1, 256), "float32"), T.alloc_fragment((1, 256), "float32")
            total = T.alloc_fragment((1,), "float32")
            halves = T.alloc_shared((6,), "float16")
            T.fill(halves, 0.0)
            T.copy(X, row[0, :])
            T.cumsum(row, running, dim=1)
            T.reduce_sum(row, total, dim=1)
            T.copy(running[0, :], Y[0:256])
            T.atomic_add(halves[tx % 6], T.cast(tx % 6 + 1, "float16"))
            T.sync_threads()
            for i in T.Parallel(6):
                H[i] = halves[i]
            if tx == 0:
                Y[256] = total[0]
                Y[257] = T.cast(halves[5], "float32")

    x = np.random.default_rng(2).integers(-4, 5, 256).astype(np.float32)
    expected = np.concatenate([np.cumsum(x), [x.sum(), 126.0]]).astype(np.float64)
    return Case(
        tilewright.compile(totals, target=METAL), [x, np.zeros(6, np.float16), np.zeros(258, np.float32)], expected, 0.0
    )


CASES: dict[str, Callable[[], Case]] = {
    "product": product, "small floats": small_floats, "quantised": quantised, "counted": counted,
}  # fmt: skip


@functools.cache
def case(name: str) -> Case:
    return CASES[name]()


MISTAKES: dict[str, tuple[str, str, str]] = {
    # address spaces
    "a device pointer to threadgroup memory": ("product", r"threadgroup half\* const a = reinterpret_cast<threadgroup", "device half* const a = reinterpret_cast<device"),
    "a plain pointer to threadgroup memory": ("product", r"threadgroup half\* const a = reinterpret_cast<threadgroup half\*>", "half* const a = reinterpret_cast<half*>"),
    "a scalar read from device memory": ("quantised", r"constant int64_t\* (\w+) \[\[buffer", r"device float* \1 [[buffer"),
    "a store through an input": ("product", r"\n}\n\Z", "\n  A[0] = half(1.0f);\n}\n"),
    "threadgroup memory in constant": ("counted", r"alignas\(16\) threadgroup uint8_t", "alignas(16) constant uint8_t"),
    # lanes of fragments
    "a row of a matrix from another lane": ("product", r"tx / 16 % 2 \* 4 \+ tx / 2 % 4", "tx / 16 % 2 * 4 + tx / 4 % 4"),
    "a column of a result from another lane": ("product", r"tx / 8 % 2 \* 4 \+ tx % 2 \* 2;", "tx / 8 % 2 * 4 + tx % 2;"),
    "the two elements of a lane exchanged": ("product", r"d\[i\] = d_elements\[i\]", "d[i] = d_elements[1 - i]"),
    "an operand's matrix of the next tile": ("product", r"m_tile \* 2\), tw::slice<2>\(a_b", "(m_tile ^ 1) * 2), tw::slice<2>(a_b"),
    "a sum's matrix of the next tile": ("product", r"m_tile \* 8 \+ n_tile \* 2\)", "n_tile * 8 + m_tile * 2)"),
    "a reduction over the wrong lanes": ("product", r"shuffle_xor\((\w+\[line\]), 8\)", r"shuffle_xor(\1, 4)"),
    "a reduction that leaves lanes out": ("product", r"shuffle_xor\((\w+\[line\]), 1\)", r"shuffle_xor(\1, 0)"),
    "a half of an exchange": ("counted", r"shuffle_xor\((total_total\[0\]), 16\)", r"shuffle_xor(\1, 8)"),
    # stages and steps
    "the stage of the step before": ("product", r"k_step % 2 \* 8 \+ m_tile", "(k_step + 1) % 2 * 8 + m_tile"),
    "a step of k left out": ("product", r"k_step < 4; k_step\+\+", "k_step < 3; k_step++"),
    "a turn of the loop left out": ("product", r"k < 3; k\+\+", "k < 2; k++"),
    "the first tile in every turn": ("product", r"i \* 72 \+ k \* 32 \+ j\]", "i * 72 + j]"),
    # edges
    "no mask for rows": ("product", r"if \(i < 50 && ", "if ("),
    "a mask one row too wide": ("product", r"i < 50", "i < 51"),
    # barriers
    "no barrier behind the copies": ("product", r"(tw::store_fragment<8>\(&a_1.*\n *}\n) *tw::sync_shared\(\);", r"\1"),
    "no barrier before the next copies": ("product", r"k\+\+\) \{\n *tw::sync_shared\(\);", "k++) {"),
    "no barrier before counts are read": ("counted", r"tw::sync_threads\(\);(?![\s\S]*tw::sync_threads)", ""),
    "a barrier in a branch": ("product", r"tw::sync_shared\(\);", "if (tx < 64) tw::sync_shared();"),
    "a barrier of a simdgroup for the block": ("product", r"tw::sync_shared\(\);", "tw::sync_warp();"),
    "a barrier that orders device memory alone": ("product", r"threadgroup_barrier\(mem_flags::mem_threadgroup\)", "threadgroup_barrier(mem_flags::mem_device)"),
    "a barrier that orders nothing": ("counted", r"threadgroup_barrier\(mem_flags::mem_device \| mem_flags::mem_threadgroup\)", "threadgroup_barrier(mem_flags::mem_none)"),
    # matrices stored as a whole
    "rows of a stored matrix too far apart": ("product", r"(simdgroup_store\(&C\[[^,]*), 64,", r"\1, 65,"),
    "a matrix stored at each lane's own place": ("product", r"&C\[i / 8 \* 512 \+", "&C[i * 64 +"),
    "a matrix stored over the edge": ("product", r"i / 8 \* 8 \+ 7 < 50", "i / 8 * 8 < 50"),
    "a matrix stored by some of its lanes": ("product", r"i / 8 \* 8 \+ 7 < 50", "i + 7 < 50"),
    "a matrix turned as it is stored": ("product", r"elements\[i\] = part\[i\]", "elements[i] = part[1 - i]"),
    "a matrix of halves from floats": ("product", r"simdgroup_matrix<T, 8, 8> matrix;", "simdgroup_matrix<half, 8, 8> matrix;"),
    # scales and codes
    "the scale of the next group": ("quantised", r"scales\[bn", "scales[1 ^ bn"),
    "a mask of three bits": ("quantised", r"& 15u", "& 7u"),
    "codes of the next word": ("quantised", r"&W\[", "&W[2 + "),
    # numbers
    "a subnormal code for zero": ("small floats", r"(static float decode\(uint32_t \w+\) \{)", r"\1 if ((code & 0x78u) == 0u) return 0.0f;"),
    "another bias": ("small floats", r"X\(float8_e4m3, 4, 3, 7", "X(float8_e4m3, 4, 3, 8"),
    "a conversion that rounds down": ("small floats", r"\(\(1u << \(22 - MANTISSA\)\) - 1u\) \+", "0u * "),
    "a half's atomic sum in the wrong half": ("counted", r"uint32_t\(address & 2u\) \* 8", "16u - uint32_t(address & 2u) * 8"),
    "an atomic that is none": ("counted", r"tw::atomic_add\(&(\w+\[[^\]]*\]), ([^;]*)\);", r"\1 = \1 + \2;"),
    "a sum of bfloats for halves": ("counted", r"TW_DEVICE half atomic_add\(SPACE half\* p, half x\)", "TW_DEVICE half atomic_add(SPACE bfloat* p, bfloat x)"),
    "threadgroup memory that ends early": ("product", r"shared_memory \+ 4096", "shared_memory + 8192"),
}  # fmt: skip


def outcome(of: Case, text: str) -> str | None:
    """How a text is found out; None where it is not."""
    said = complaints(text)
    if said:
        return said[0]
    program = replace(of.kernel.program, source=replace(of.kernel.program.source, text=text))
    given = [one.copy() if isinstance(one, np.ndarray) else one for one in of.arguments]
    bound = Binder(of.kernel.function, "cpu").bind(given, {})
    try:
        outputs = emulate_program(program, given, bound, seconds=30)
    except (EmulationError, EmulationFailed) as error:
        return str(error)
    found = np.asarray(outputs[0] if outputs else given[-1], np.float64).reshape(of.expected.shape)
    wrong = np.abs(found - of.expected).max() > of.bound * max(np.abs(of.expected).max(), 1)
    return "other numbers" if wrong or not np.isfinite(found).all() else None


@pytest.mark.parametrize("name", CASES)
def test_right_texts_give_numpys_numbers(name: str) -> None:
    of = case(name)
    assert outcome(of, of.kernel.get_kernel_source()) is None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str) -> None:
    name, words, others = MISTAKES[mistake]
    of = case(name)
    text = of.kernel.get_kernel_source()
    changed = re.sub(words, others, text)
    assert changed != text, f"the text of {name} has no {words}"
    assert outcome(of, changed) is not None
