"""Values that several threads hold reach memory once, and threads meet where one reads what another wrote."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright
import tilewright.language as T

SCHEDULES = (("late", 0), ("early", 1), ("random", 2), ("random", 5))


def check(function, array, expected, changes=False):
    """What the interpreter and the emulator make of one array: the result, or the array itself where it is changed."""
    for arch in ("sm_80", "sm_90a"):
        kernel = on(arch, function).compile(array)
        for run in (kernel.interpret, *(_emulated(kernel, *one) for one in SCHEDULES)):
            given = array.copy()
            result = run(given)
            assert np.array_equal(given if changes else result, expected)


def _emulated(kernel, schedule, seed):
    return lambda array: kernel.emulate(array, schedule=schedule, seed=seed)


def tile(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def one_element(A):
    A: T.Tensor((1, 1), "float32")
    C = T.empty((1, 1), "float32")
    with T.Kernel(1, threads=128):
        c = T.alloc_fragment((1, 1), "float32")
        T.copy(A, c)
        for i, j in T.Parallel(1, 1):
            c[i, j] = c[i, j] + 1.0
        T.copy(c, C)
    return C


def test_a_fragment_of_one_element():
    check(one_element, tile(1, 1) + 3, np.full((1, 1), 4, np.float32))


def in_place(A):
    A: T.Tensor((1, 1), "float32")
    with T.Kernel(1, threads=64):
        c = T.alloc_fragment((1, 1), "float32")
        T.copy(A, c)
        for i, j in T.Parallel(1, 1):
            c[i, j] = c[i, j] + 1.0
        T.copy(c, A)


def test_a_tensor_is_overwritten_after_all_have_read_it():
    check(in_place, tile(1, 1) + 3, np.full((1, 1), 4, np.float32), changes=True)


def row_totals(A):
    """Eight threads hold each total: it is added to the tensor once."""
    A: T.Tensor((8, 8), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((8, 8), "float32")
        s = T.alloc_fragment((8,), "float32")
        T.copy(A, a)
        T.reduce_sum(a, s, dim=1)
        for i in T.Parallel(8):
            A[i, 0] = A[i, 0] + s[i]


def test_a_total_is_added_to_memory_once():
    expected = tile(8, 8)
    expected[:, 0] += tile(8, 8).sum(1)
    check(row_totals, tile(8, 8), expected, changes=True)


def running_totals(A):
    """Totals in shared memory, added to from registers that several threads hold, and read back by all."""
    A: T.Tensor((4, 8, 8), "float32")
    C = T.empty((8,), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((8, 8), "float32")
        s = T.alloc_fragment((8,), "float32")
        total = T.alloc_shared((8,), "float32")
        T.clear(total)
        for k in T.serial(4):
            T.copy(A[k, 0, 0], a)
            T.reduce_sum(a, s, dim=1)
            for i in T.Parallel(8):
                total[i] = total[i] + s[i]
            for i in T.Parallel(8):
                s[i] = total[i] + s[i]
        for i in T.Parallel(8):
            C[i] = s[i]
    return C


def test_totals_in_shared_memory():
    a = tile(4, 8, 8)
    check(running_totals, a, a.sum((0, 2)) + a[3].sum(1))


def counted(A):
    A: T.Tensor((8, 16), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((8, 16), "float32")
        s = T.alloc_fragment((8,), "float32")
        T.copy(A, a)
        T.reduce_max(a, s, dim=1)
        for i in T.Parallel(8):
            T.atomic_add(A[i, 0], s[i])
            s[i] = s[i] * 2.0
        for i in T.Parallel(8):
            A[i, 1] = s[i]


def test_atomics_of_values_that_several_threads_hold():
    expected = tile(8, 16)
    expected[:, 0] += tile(8, 16).max(1)
    expected[:, 1] = 2 * tile(8, 16).max(1)
    check(counted, tile(8, 16), expected, changes=True)


@pytest.mark.parametrize("threads", [32, 128])
def test_a_tensor_through_which_threads_exchange_values(threads):
    def reversed_twice(A):
        A: T.Tensor((4, 64), "float32")
        with T.Kernel(1, threads=threads):
            for k in T.serial(1, 4):
                for i in T.Parallel(64):
                    A[k, i] = A[k, i] + A[k - 1, 63 - i]

    expected = tile(4, 64)
    for k in range(1, 4):
        expected[k] += expected[k - 1, ::-1]
    check(reversed_twice, tile(4, 64), expected, changes=True)


def overwritten(A):
    """Zeros first, by one share of the threads; then values, by another."""
    A: T.Tensor((2, 64), "float32")
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(2, 64):
            A[i, j] = 0.0
        for j in T.Parallel(64):
            A[1, 63 - j] = T.cast(j, "float32")


def test_a_tensor_is_overwritten_by_other_threads():
    expected = np.zeros((2, 64), np.float32)
    expected[1] = np.arange(64)[::-1]
    check(overwritten, tile(2, 64) + 1, expected, changes=True)


def totals_of_one_loop(A):
    """Eight threads hold each total; one loop reads it from memory, changes it there, and leaves it to all of them."""
    A: T.Tensor((4, 8, 8), "float32")
    C = T.empty((8, 8), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((8, 8), "float32")
        s = T.alloc_fragment((8,), "float32")
        total = T.alloc_shared((8,), "float32")
        T.clear(total)
        for k in T.serial(4):
            T.copy(A[k, 0, 0], a)
            T.reduce_sum(a, s, dim=1)
            for i in T.Parallel(8):
                if k != 2:
                    s[i] = total[i] + s[i]
                    total[i] = s[i]
            for i, j in T.Parallel(8, 8):
                a[i, j] = a[i, j] + s[i]
        T.copy(a, C)
    return C


def test_totals_read_and_written_in_one_loop():
    a = tile(4, 8, 8)
    check(totals_of_one_loop, a, a[3] + a[[0, 1, 3]].sum((0, 2))[:, None])


def test_a_loop_whose_work_happens_once_says_so():
    assert (
        "loop: s through shared memory (what it does to memory happens once)"
        in on("sm_80", totals_of_one_loop).compile(tile(4, 8, 8)).explain()
    )


def tickets(A):
    """What an atomic gives back, in every thread that holds the element."""
    A: T.Tensor((8, 8), "int32")
    C = T.empty((8, 8), "int32")
    with T.Kernel(1, threads=64):
        a = T.alloc_fragment((8, 8), "int32")
        s = T.alloc_fragment((8,), "int32")
        T.copy(A, a)
        T.reduce_sum(a, s, dim=1)
        for i in T.Parallel(8):
            s[i] = T.atomic_add(A[i, 7], s[i], return_prev=True)
        for i, j in T.Parallel(8, 8):
            C[i, j] = s[i] + j
    return C


def test_an_atomic_of_a_value_that_several_threads_hold_happens_once():
    a = tile(8, 8).astype(np.int32)
    for arch in ("sm_80", "sm_90a"):
        kernel = on(arch, tickets).compile(a)
        for run in (kernel.interpret, *(_emulated(kernel, *one) for one in SCHEDULES)):
            given = a.copy()
            assert np.array_equal(run(given), a[:, 7:] + np.arange(8))
            assert np.array_equal(given[:, 7], a[:, 7] + a.sum(1))


@T.prim_func
def scanned_in_place(A: T.Tensor((40,), "int32"), B: T.Tensor((40,), "int32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((40,), "int32")
        T.copy(A, s)
        T.cumsum(s)
        T.copy(s, B)


def test_a_running_sum_in_place_is_one_threads_work():
    a, b = np.arange(40, dtype=np.int32), np.zeros(40, np.int32)
    tilewright.compile(scanned_in_place, target="cuda -arch=sm_80").emulate(a, b)
    assert np.array_equal(b, np.cumsum(a))


@T.prim_func
def rows_up_to(A: T.Tensor((64, 64), "float16"), rows: T.int32, B: T.Tensor((64, 64), "float16")):
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(A, tile)
        for i, j in T.Parallel(64, 64):
            if i < rows:
                B[i, j] = tile[i, j]


def test_a_condition_on_rows_leaves_vectors_whole():
    kernel = tilewright.compile(rows_up_to, target="cuda -arch=sm_80")
    assert "store_fragment<8>(&B" in kernel.get_kernel_source()
    a, b = np.arange(4096, dtype=np.float16).reshape(64, 64), np.zeros((64, 64), np.float16)
    kernel.emulate(a, 37, b)
    assert np.array_equal(b[:37], a[:37])
    assert not b[37:].any()
