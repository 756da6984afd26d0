"""Loops that never run: whatever stands in them compiles as in loops that do, and changes nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from syntax import program_of
from test_found_programs import AMPERE, NVIDIA

import tilewright
from tilewright.errors import TilewrightWarning

LOOPS = {
    "range": "for k in range(0):",
    "upwards": "for k in range(5, 3):",
    "downwards": "for k in range(2, 4, -1):",
    "steps": "for k in range(9, 3, 2):",
    "below zero": "for k in range(-2, -5):",
    "serial": "for k in T.serial(0):",
    "unrolled": "for k in T.unroll(0):",
    "pipelined": "for k in T.Pipelined(0, num_stages=2):",
    "pipelined alone": "for k in T.Pipelined(0):",
    "of the caller": "for k in range(n):",
    "between the caller's": "for k in range(n + 1, n):",
}
BODIES = {
    "slices": "T.copy(A[k * 8 : k * 8 + 64, bx : bx + 16], s)",
    "from the end": "T.copy(A[-64:, 0:16], s[0:64, :])",
    "corner": "T.copy(A[k * 64, bx * 16], s)",
    "out": "T.copy(s, O[k * 64 : (k + 1) * 64, :])",
    "element": "O[k, 0] = A[k * 8 - 3, k]",
    "negative": "O[k, 0] = A[-1, k - 1]",
    "parallel": "for i, j in T.Parallel(64, 16):\n    s[i, j] = A[i + k, j] + k",
    "within": "for i, j in T.Parallel(k + 1, 16):\n    O[i, j] = A[i, j] + 1",
    "nested": "for q in range(k):\n    T.copy(A[q * 8 : q * 8 + 64, q : q + 16], s)",
    "product": "T.copy(A[k * 16 : k * 16 + 16, 0:16], a)\nT.gemm(a, a, f)",
    "accumulated": "T.copy(A[0:16, k * 16 : k * 16 + 16], a)\nT.gemm(a, a, f)\nT.copy(f, O[0:16, :])",
    "branch": "if k > 0:\n    T.copy(A[k - 1 : k + 63, 0:16], s)",
    "atomic": "T.atomic_add(O[k, 0], T.cast(1, 'float16'))",
    "variable": "v = v + k",
    "sum": "T.reduce_sum(f, g, dim=1)",
}
BODY = """
def program(A, n: T.int32):
    A: T.Tensor((127, 24), "float16")
    O = T.empty((64, 16), "float16")
    with T.Kernel(1, threads=128) as bx:
        s, a = T.alloc_shared((64, 16), "float16"), T.alloc_shared((16, 16), "float16")
        f, g = T.alloc_fragment((16, 16), "float32"), T.alloc_fragment((16,), "float32")
        v = T.alloc_var("int32", init=3)
        T.clear(f)
        T.clear(g)
        T.copy(A[0:64, 0:16], s)
        {loop}
            {body}
        for i, j in T.Parallel(64, 16):
            O[i, j] = s[i, j] + T.cast(v, "float16")
        for i in T.Parallel(16):
            O[i, 0] = O[i, 0] + f[i, 0] + g[i]
    return O
"""


def program(loop: str, body: str) -> object:
    """The program of a loop and of what stands in it."""
    text = BODY.format(loop=LOOPS[loop], body=BODIES[body].replace("\n", "\n            "))
    name = f"<{loop}: {body}>"
    return program_of(text, name)


@pytest.mark.parametrize("target", [NVIDIA, AMPERE, "cpu", "metal -arch=apple8", "hip -arch=gfx942"])
@pytest.mark.parametrize("loop", LOOPS)
def test_what_never_runs_compiles(loop: str, target: str) -> None:
    """Seed 10002583: ``A[k * 8 : k * 8 + 64]`` began at the end under ``range(0)``, whose last `k` was held to be -1."""
    given = np.arange(127 * 24, dtype=np.float16).reshape(127, 24) % 13, 0
    for body in BODIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TilewrightWarning)  # loops that are not pipelined
            kernel = tilewright.jit(target=target)(program(loop, body)).compile(*given)
        if target == NVIDIA:
            np.testing.assert_array_equal(kernel.emulate(*given, seconds=10), given[0][:64, :16] + 3, err_msg=body)
