"""`T.fp8_scaled_matmul` in the interpreter, on a processor and as CUDA text, and what is said where operands do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from scaled_programs import CASES, E4M3, E5M2, program

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret

pytestmark = pytest.mark.sampled(2)

TARGETS = ["interpreter", "cpu", "cuda -arch=sm_80", "cuda -arch=sm_89", "cuda -arch=sm_90a", "metal -arch=apple7"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_products_are_exact_but_for_their_sums(case: str, target: str) -> None:
    function, arguments, expected = program(**CASES[case])
    if target == "interpreter":
        interpret(function.function, arguments)
    else:
        kernel = tilewright.compile(function, target=target)
        (kernel if target == "cpu" else kernel.emulate)(*arguments)
    error = np.abs(arguments[-1].astype(np.float64) - expected).max() / np.abs(expected).max()
    # Hopper's matrix unit keeps 14 bits of a run of 128 columns, as the emulator does.
    assert error < (1.5e-4 if target.endswith("sm_90a") and not CASES[case].get("exact") else 2e-6)


def test_text_of_hopper_keeps_copies_and_matrix_instructions() -> None:
    function, _, _ = program(size=(256, 256, 512), tile=(128, 128, 128), transpose_B=True, stages=3)
    kernel = tilewright.compile(function, target="cuda -arch=sm_90a")
    assert "wgmma_ss<128" in kernel.get_kernel_source() and "tma_load" in kernel.explain()


SHAPES = {"A_fp8": (32, 64), "A_scale": (32,), "B_fp8": (64, 48), "B_scale": (48,), "C_out": (32, 48)}
TYPES = {"A_fp8": E4M3, "A_scale": "float32", "B_fp8": E5M2, "B_scale": "float32", "C_out": "float32"}


@pytest.mark.parametrize(
    ("shapes", "types", "options", "kind", "message"),
    [
        ({}, {"A_fp8": "float16"}, {}, TypeError, "A_fp8 must be FP8"),
        ({}, {"B_fp8": "float8_e8m0fnu"}, {}, TypeError, "B_fp8 must be FP8"),
        ({}, {"A_scale": "int32"}, {}, TypeError, "A_scale must be a floating-point"),
        ({}, {"B_scale": "int8"}, {}, TypeError, "B_scale must be a floating-point"),
        ({}, {"C_out": "int32"}, {}, TypeError, "C output must be float32"),
        ({"A_fp8": (64,)}, {}, {}, ValueError, "at least 2D"),
        ({"B_fp8": (32, 48)}, {}, {}, ValueError, "K mismatch: 64 in A, 32 in B"),
        ({"C_out": (16, 48)}, {}, {}, ValueError, "M mismatch: 32 in A, 16 in C"),
        ({"C_out": (32, 64)}, {}, {}, ValueError, "N mismatch: 48 in B, 64 in C"),
        ({"A_scale": (7,)}, {}, {}, ValueError, "A_scale must be per-tensor, per-row"),
        ({"B_scale": (7,)}, {}, {}, ValueError, "B_scale must be per-tensor, per-column"),
        ({}, {}, {"accum_dtype": "float16"}, ValueError, "accum_dtype must be float32"),
    ],
)
def test_mistakes_are_told_while_tracing(shapes: dict, types: dict, options: dict, kind: type, message: str) -> None:
    of, size = {**TYPES, **types}, {**SHAPES, **shapes}
    with pytest.raises(kind, match=message) as caught:

        @T.prim_func
        def wrong(X: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                tiles = {name: T.alloc_shared(size[name], of[name]) for name in list(SHAPES)}
                T.fp8_scaled_matmul(*tiles.values(), **options)

    assert isinstance(caught.value, tilewright.TilewrightError) and "T.fp8_scaled_matmul(" in str(caught.value)
