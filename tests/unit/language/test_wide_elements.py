"""Arrays and variables whose elements are vectors (bfloat16x2), and views of threads' own arrays that live beyond a barrier."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"]


@pytest.mark.parametrize("target", TARGETS)
def test_elements_of_two_lanes(target: str) -> None:
    """They ended in an error from inside: a vector has no place in a traced program."""

    @T.prim_func
    def program(A: T.Tensor((64, 8), "bfloat16"), B: T.Tensor((64, 4), "float32"), C: T.Tensor((64, 2), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            largest = T.alloc_local((2,), T.bfloat16x2)
            for j in T.unroll(2):
                largest[j] = T.abs2(T.bfloat16x2(A[tx, 2 * j], A[tx, 2 * j + 1]))
                before = largest[j]
                largest[j] = T.max2(before, T.abs2(A[tx, 4 + 2 * j : 6 + 2 * j]))
                C[tx, j] = T.extract_lane(before, 1)
            numbers = T.view(largest, (4,), "bfloat16")
            for j in T.unroll(4):
                B[tx, j] = numbers[j]

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal((64, 8)).astype(ml_dtypes.bfloat16)
    magnitude = np.abs(a.astype(np.float32))
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        b, c = np.full((64, 4), np.nan, np.float32), np.full((64, 2), np.nan, np.float32)
        run(a, b, c)
        assert np.array_equal(b, np.maximum(magnitude[:, :4], magnitude[:, 4:]))
        assert np.array_equal(c, magnitude[:, 1:4:2])


@pytest.mark.parametrize("written", ["array", "view"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_view_of_a_threads_own_array_lives_beyond_a_barrier(target: str, written: str) -> None:
    """Processors keep such an array for all threads, and its views were left with the array of one: an error from
    inside."""

    @T.prim_func
    def program(A: T.Tensor((64, 2), "float32"), B: T.Tensor((64, 2), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((64,), "float32")
            own = T.alloc_local((2,), "float32")
            seen = T.view(own, (2, 1), "float32")
            for j in T.unroll(2):
                if written == "array":
                    own[j] = A[tx, j]
                else:
                    seen[j, 0] = A[tx, j]
            shared[tx] = A[tx, 0]
            T.sync_threads()
            if written == "array":
                own[1] = own[1] + shared[63 - tx]
            else:
                seen[1, 0] = seen[1, 0] + shared[63 - tx]
            for j in T.unroll(2):
                B[tx, j] = seen[j, 0] if written == "array" else own[j]

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        b = np.full((64, 2), np.nan, np.float32)
        run(a, b)
        assert np.array_equal(b, np.stack([a[:, 0], a[:, 1] + a[::-1, 0]], 1))


@pytest.mark.parametrize("target", TARGETS)
def test_a_variable_of_several_lanes(target: str) -> None:
    """It could be declared, and no value was one for it."""

    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((16, 4), "float32")):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            four, first = T.alloc_var("float32x4"), T.alloc_var(T.float32x4, A[0:4])
            T.fill(four, 5.0)
            T.clear(four)
            for k in T.serial(3):
                four = four + A[T.Ramp(tx * 4, 1, 4)] * k
            before = four
            four += first
            if tx > 3:
                four = T.float32x4(1.0, 2.0, 3.0, tx)
            B[tx * 4 : tx * 4 + 4] = four
            C[tx, 0:4] = before
            C[tx, 3] = T.extract_lane(four, 3)

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    rows = a.reshape(16, 4)
    four = rows * 3 + rows[0]
    four[4:] = [1.0, 2.0, 3.0, 0.0]
    four[4:, 3] = np.arange(4, 16)
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        b, c = np.full(64, np.nan, np.float32), np.full((16, 4), np.nan, np.float32)
        run(a, b, c)
        assert np.allclose(b.reshape(16, 4), four, atol=1e-6)
        assert np.allclose(c, np.concatenate([rows[:, :3] * 3, four[:, 3:]], axis=1), atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_vectors_are_converted_lane_by_lane(target: str) -> None:
    @T.prim_func
    def program(A: T.Tensor((64, 2), "float32"), B: T.Tensor((64, 2), "float16"), C: T.Tensor((64, 2), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            pair = A[tx, T.Ramp(0, 1, 2)]
            B[tx, T.Ramp(0, 1, 2)] = T.mul2(T.cast(pair * 3.0, "float16x2"), T.float16x2(1.0, 2.0))
            C[tx, T.Ramp(0, 1, 2)] = T.Cast("int32", pair * 10.0)

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        b, c = np.zeros((64, 2), np.float16), np.zeros((64, 2), np.int32)
        run(a, b, c)
        assert np.array_equal(b, (a * 3).astype(np.float16) * np.array([1, 2], np.float16))
        assert np.array_equal(c, (a * np.float32(10)).astype(np.int32))
