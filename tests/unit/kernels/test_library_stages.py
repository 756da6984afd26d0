"""The library's kernels at every stage on several machines: valid, and read back as the same text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.matmul import linear
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.kernels.rms_norm import rms_norm_of_long_rows
from tilewright.kernels.softmax import softmax_of_long_rows
from tilewright.language.trace import PrimFunc


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


PROGRAMS: dict[str, Callable[[], PrimFunc]] = {
    "softmax": lambda: softmax_of_long_rows.trace(zeros(10, 777)),
    "rms_norm": lambda: rms_norm_of_long_rows.trace(zeros(10, 96), zeros(96)),
    "linear": lambda: linear.trace(96, 160),
    "flash_attention": lambda: flash_attention.trace(zeros(1, 4, 77, 64), zeros(1, 2, 77, 64), zeros(1, 2, 77, 64), causal=True),
    "quant_matmul": lambda: quant_matmul.trace(96, 256, weights="uint4"),
}  # fmt: skip

MACHINES = ("cpu -arch=avx2", "cuda -arch=sm_80", "cuda -arch=sm_90a")


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "quant_matmul"])
def test_every_stage_is_valid_and_comes_back(name: str, target: str) -> None:
    check_stages(PROGRAMS[name](), target)


def test_quantised_products_on_processors() -> None:
    check_stages(PROGRAMS["quant_matmul"](), "cpu -arch=avx512-vnni")


def check_stages(program: PrimFunc, target: str) -> None:
    """Verify and read back the traced program and what each pass made of it."""
    kernel = tilewright.compile(program, target=target)
    for function in (program.function, *(trace.function for trace in kernel.program.traces if trace.changed)):
        verify(function)
        text = print_program(function)
        assert print_program(parse(text)) == text
