"""Tiles that a pipelined loop loads under conditions of every kind, in loops of any number of steps: the emulator against the interpreter."""

import random
import warnings
from typing import Any

import numpy as np
import pytest
from hip_programs import on

import tilewright.language as T

KINDS = (
    "everything", "tiles alone", "one of two", "each its own", "of names", "nested", "another way", "written in the loop",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100"])
def test_loads_under_conditions(arch: str, kind: str, stages: int, seed: int) -> None:
    pick = random.Random(f"{arch} {kind} {stages} {seed}")
    rows, columns, depth, threads = pick.choice([16, 32]), pick.choice([32, 64]), 32, pick.choice([64, 128, 256])
    steps, across, counted = pick.choice([0, 1, 2, 5]), pick.random() < 0.5, pick.random() < 0.5
    size = max(steps, 1) * depth

    def function(A: Any, B: Any, at: Any, wanted: Any, C: Any, count: T.int32) -> None:
        A: T.Tensor((rows, size), "float16")
        B: T.Tensor((size, columns) if across else (columns, size), "float16")
        at: T.Tensor((size // depth,), "int32")
        wanted: T.Tensor((size // depth,), "int32")
        C: T.Tensor((rows, columns), "float32")
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((rows, depth), "float16")
            b = T.alloc_shared((depth, columns) if across else (columns, depth), "float16")
            flag, c = T.alloc_shared((1,), "int32"), T.alloc_fragment((rows, columns), "float32")
            T.clear(a)
            T.clear(b)
            T.clear(c)
            T.clear(flag)

            def load_a(step: Any) -> None:
                T.copy(A[0, step * depth], a)

            def load_b(step: Any) -> None:
                if across:
                    T.copy(B[step * depth, 0], b)
                else:
                    T.copy(B[0, step * depth], b)

            def multiply() -> None:
                T.gemm(a, b, c, transpose_B=not across)

            for k in T.Pipelined(count if counted else steps, num_stages=stages):
                if kind == "everything":
                    if wanted[k] != 0:
                        load_a(k)
                        load_b(k)
                        multiply()
                elif kind == "tiles alone":  # what a step leaves out it has from the one before
                    if wanted[k] != 0:
                        load_a(k)
                        load_b(k)
                    multiply()
                elif kind == "one of two":
                    load_a(k)
                    if wanted[k] != 0:
                        load_b(k)
                        multiply()
                elif kind == "each its own":
                    if wanted[k] != 0:
                        load_a(k)
                    if at[k] != 1:
                        load_b(k)
                    multiply()
                elif kind == "of names":
                    place = at[k]
                    ok = (wanted[k] != 0) & (place >= 0)
                    if ok:
                        load_a(place)
                        load_b(place)
                        multiply()
                elif kind == "nested":
                    if wanted[k] != 0:
                        place = at[k]
                        load_a(place)
                        if place != 1:
                            load_b(place)
                            multiply()
                elif kind == "another way":
                    if wanted[k] != 0:
                        load_a(k)
                        load_b(k)
                    else:
                        load_b(k)
                    multiply()
                else:
                    if flag[0] == 0:
                        load_a(k)
                        load_b(k)
                        multiply()
                    for i in T.Parallel(1):
                        flag[i] = wanted[k]
            T.copy(c, C)

    rng = np.random.default_rng(pick.randrange(1 << 30))
    A = rng.standard_normal((rows, size)).astype(np.float16)
    B = rng.standard_normal((size, columns) if across else (columns, size)).astype(np.float16)
    at, wanted = (rng.integers(0, most, size // depth).astype(np.int32) for most in (size // depth, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some conditions cannot be ahead, and say so
        kernel = on(arch, function).compile(A, B, at, wanted, np.zeros((rows, columns), np.float32), steps)
    expected, found = np.full((rows, columns), 7.0, np.float32), np.full((rows, columns), 9.0, np.float32)
    kernel.interpret(A, B, at, wanted, expected, steps)
    kernel.emulate(A, B, at, wanted, found, steps, schedule="random", seed=seed)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
