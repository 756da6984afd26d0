"""A tile is read wherever its elements stand: as a value, a condition, a bound, an index, a first value.

Whoever asks which memory is used (who may take a tile's bytes, what a pipeline loads ahead, where barriers stand) must see each of them.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

STEPS, THREADS = 6, 64


READERS = (
    "value", "first value", "first value in a branch", "later value", "name", "condition", "bound", "start", "while", "index",
    "place of a copy", "filling", "selection", "atomic", "atomic place", "steps of a pipeline", "extent of a grid",
)  # fmt: skip


def program(reader: str, frame: str) -> T.PrimFunc:
    @T.prim_func
    def reads(X: T.Tensor((STEPS * 8,), "int32"), Y: T.Tensor((16,), "int32"), O: T.Tensor((STEPS * 8,), "int32")):
        with T.Kernel(1, threads=THREADS):
            s, u, f = T.alloc_shared((8,), "int32"), T.alloc_shared((16,), "int32"), T.alloc_shared((4,), "int32")
            for k in (
                T.Pipelined(STEPS, num_stages=3) if frame == "staged" else T.serial(STEPS if frame == "loop" else 1)
            ):
                T.copy(X[k * 8], s)
                v = T.alloc_var("int32", init=0)
                if reader == "value":
                    O[k * 8] = s[5]
                elif reader == "first value":
                    w = T.alloc_var("int32", init=s[5])
                    O[k * 8] = w
                elif reader == "first value in a branch":
                    if k % 2 == 0:
                        w = T.alloc_var("int32", init=s[5])
                        O[k * 8] = w
                elif reader == "later value":
                    v = s[5]
                    O[k * 8] = v
                elif reader == "name":
                    w = s[5]
                    O[k * 8] = w
                elif reader == "condition":
                    if s[5] > 3:
                        O[k * 8] = 1
                elif reader == "bound":
                    for i in T.serial(s[5]):
                        v += i + 1
                    O[k * 8] = v
                elif reader == "start":
                    for i in T.serial(s[5], 9):
                        v += i
                    O[k * 8] = v
                elif reader == "while":
                    while v < s[5]:
                        v += 1
                    O[k * 8] = v
                elif reader == "index":
                    O[k * 8 + s[5]] = 4
                elif reader == "place of a copy":
                    T.copy(Y[s[5] : s[5] + 4], O[k * 8 : k * 8 + 4])
                elif reader == "filling":
                    T.fill(f, s[5])
                    T.copy(f, O[k * 8 : k * 8 + 4])
                elif reader == "selection":
                    O[k * 8] = T.if_then_else(s[5] > 3, k, -k)
                elif reader == "atomic":
                    if T.get_thread_binding() == 7:
                        T.atomic_add(O[k * 8], s[5])
                elif reader == "atomic place":
                    if T.get_thread_binding() == 7:
                        T.atomic_add(O[k * 8 + s[5]], 3)
                elif reader == "steps of a pipeline":
                    for j in T.Pipelined(s[5], num_stages=2):
                        T.copy(Y[j : j + 4], f)
                        v += f[0]
                    O[k * 8] = v
                elif reader == "extent of a grid":
                    for i in T.Parallel(8):
                        if i < s[5]:
                            O[k * 8 + i] = i
            if frame == "then another tile":
                T.copy(Y, u)
                for i in T.Parallel(16):
                    O[8 + i] = u[15 - i]

    return reads


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "cuda -arch=sm_80", "cpu"])
@pytest.mark.parametrize("frame", ["staged", "loop", "then another tile"])
@pytest.mark.parametrize("reader", READERS)
def test_a_tile_is_read_wherever_it_stands(reader: str, frame: str, target: str) -> None:
    rng = np.random.default_rng(len(reader))
    x, y = rng.integers(0, 8, STEPS * 8).astype(np.int32), rng.integers(10, 99, 16).astype(np.int32)
    traced = program(reader, frame)
    expected, found = np.zeros_like(x), np.zeros_like(x)
    kernel = tilewright.compile(traced, target=target)
    kernel.interpret(x, y, expected)
    (kernel if target == "cpu" else kernel.emulate)(x, y, found)
    np.testing.assert_array_equal(found, expected)
    assert expected.any()


BESIDE = ("name", "first value", "condition", "bound", "while", "index", "filling", "place of a copy", "later value")


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "cuda -arch=sm_80"])
@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("reader", BESIDE)
def test_slots_that_products_read_are_read_by_lanes_too(reader: str, branch: bool, target: str) -> None:
    """Roles hand slots back when all have read them, not only the matrix instructions."""
    size, steps = 64, 5

    @T.prim_func
    def beside(
        A: T.Tensor((size, steps * size), "float16"), B: T.Tensor((steps * size, size), "float16"),
        O: T.Tensor((steps, 16), "float32"), C: T.Tensor((size, size), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b, f = (
                T.alloc_shared((size, size), "float16"),
                T.alloc_shared((size, size), "float16"),
                T.alloc_shared((4,), "float32"),
            )
            c = T.alloc_fragment((size, size), "float32")
            T.clear(c)
            for k in T.Pipelined(steps, num_stages=3):
                T.copy(A[0, k * size], a)
                T.copy(B[k * size, 0], b)
                T.gemm(a, b, c)
                v = T.alloc_var("float32", init=0.0)
                if k % 2 == 0 or not branch:
                    if reader == "name":
                        w = a[3, 5]
                        O[k, 0] = T.cast(w, "float32")
                    elif reader == "first value":
                        w = T.alloc_var("float16", init=a[3, 5])
                        O[k, 0] = T.cast(w, "float32")
                    elif reader == "condition":
                        if a[3, 5] > 2:
                            O[k, 0] = 1.0
                    elif reader == "bound":
                        for _i in T.serial(T.cast(a[3, 5], "int32")):
                            v += 1.0
                        O[k, 0] = v
                    elif reader == "while":
                        while v < T.cast(a[3, 5], "float32"):
                            v += 1.0
                        O[k, 0] = v
                    elif reader == "index":
                        O[k, T.cast(a[3, 5], "int32")] = 4.0
                    elif reader == "filling":
                        T.fill(f, T.cast(a[3, 5], "float32"))
                        T.copy(f, O[k, 0:4])
                    elif reader == "place of a copy":
                        at = T.cast(a[3, 5], "int32")
                        T.copy(C[0, at : at + 4], O[k, 0:4])
                    elif reader == "later value":
                        v = T.cast(a[3, 5], "float32")
                        O[k, 0] = v
            T.copy(c, C)

    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 5, shape).astype(np.float16) for shape in ((size, steps * size), (steps * size, size)))
    results = [(np.zeros((steps, 16), np.float32), np.ones((size, size), np.float32)) for _ in range(2)]
    kernel = tilewright.compile(beside, target=target)
    kernel.interpret(a, b, *results[0])
    kernel.emulate(a, b, *results[1])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


PLANS = {
    "order": {"order": [0, 1, 3, 2]},
    "stage": {"stage": [0, 0, 1, 1]},
    "both": {"order": [2, 3, 1, 0], "stage": [0, 0, 1, 1]},
}


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "cuda -arch=sm_80", "cpu"])
@pytest.mark.parametrize("plan", PLANS)
def test_plans_of_authors_give_no_numbers_to_names(plan: str, target: str) -> None:
    """Two loads, a product and a store, and between them a name and a first value, which read what the loads bring."""

    @T.prim_func
    def planned(
        A: T.Tensor((64, 256), "float16"), B: T.Tensor((256, 64), "float16"), O: T.Tensor((4,), "float32"),
        C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2, **PLANS[plan]):
                T.copy(A[0, k * 64], a)
                name = a[3, 5]
                T.copy(B[k * 64, 0], b)
                first = T.alloc_var("float16", init=b[7, 2])
                T.gemm(a, b, c)
                O[k] = T.cast(name, "float32") - T.cast(first, "float32")
            T.copy(c, C)

    rng = np.random.default_rng(2)
    a, b = rng.integers(-4, 5, (64, 256)).astype(np.float16), rng.integers(-4, 5, (256, 64)).astype(np.float16)
    few, whole = np.full(4, np.nan, np.float32), np.full((64, 64), np.nan, np.float32)
    kernel = tilewright.compile(planned, target=target)
    (kernel if target == "cpu" else kernel.emulate)(a, b, few, whole)
    np.testing.assert_array_equal(whole, a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(few, a[3, 5::64].astype(np.float32) - b[7::64, 2].astype(np.float32))
