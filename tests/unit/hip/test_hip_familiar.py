"""Programs of many kinds as their authors write them, and words for threads, waves and the grid: as HIP text in the emulator, and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_gemm import matmul, operands
from familiar_kinds import PROGRAMS
from hip_programs import WAVES, on
from scaled_programs import CASES
from scaled_programs import program as scaled_product
from word_programs import PROGRAMS as WORDS

import tilewright
from tilewright.errors import SharedMemoryExceeded

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.errors.TilewrightWarning")

LARGE = {"attention backward", "attention backward in two", "blocks and columns", "latent pages"}
"""Programs whose tiles are made for 227 KB of shared memory."""

SPILLING = {
    "retention",
    "retention backward",
    "chosen blocks",
    "chosen blocks backward",
    "states of chunks",
    "latent pages",
}
"""Programs whose tiles are more than the 256 registers of a thread where a wave has 32 lanes."""

UNSET = {"groups with offsets"}
"""Programs that the emulator reports on every machine: a value is read, and not used, before it is set."""


@pytest.mark.parametrize("architecture", WAVES)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in UNSET])
def test_familiar_programs(name, architecture):
    program = PROGRAMS[name]()
    try:
        kernel = tilewright.compile(program.function, target=f"hip -arch={architecture}")
    except SharedMemoryExceeded:
        assert name in LARGE
        return
    arguments = program.fresh()
    kernel.emulate(*arguments)
    assert not program.mistakes(arguments)
    for resources in kernel.resources().values():
        assert resources["vector_spills"] == 0 or (name in SPILLING and architecture == "gfx1100")


@pytest.mark.parametrize("architecture", WAVES)
@pytest.mark.parametrize("program", WORDS, ids=lambda one: one.__name__)
def test_words(program, architecture):
    if program.__name__ == "dots_of_bytes" and architecture == "gfx942":
        pytest.skip("it counts 32 lanes to a warp")
    function, arguments, expected = program()
    kernel = tilewright.compile(function, target=f"hip -arch={architecture}")
    copies = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    kernel.emulate(*copies)
    assert np.array_equal(copies[-1].astype(np.float64), expected)
    assert kernel.resources()


@pytest.mark.parametrize("architecture", ["gfx942", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("case", CASES)
def test_scaled_products(case, architecture):
    function, arguments, expected = scaled_product(**CASES[case])
    kernel = tilewright.compile(function, target=f"hip -arch={architecture}")
    kernel.emulate(*arguments)
    assert np.abs(arguments[-1].astype(np.float64) - expected).max() / np.abs(expected).max() < 2e-6
    assert kernel.resources()


@pytest.mark.parametrize("threads", [16, 32, 48, 96, 192])
@pytest.mark.parametrize("architecture", WAVES)
def test_blocks_that_are_no_whole_waves(threads, architecture):
    a, b = operands(40, 24, 64, "float16")
    kernel = on(architecture, matmul).compile(a, b, block=(32, 32, 32), threads=threads)
    assert "mfma" in kernel.get_kernel_source() or "wmma" in kernel.get_kernel_source()
    assert np.abs(kernel.emulate(a, b) - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-3
