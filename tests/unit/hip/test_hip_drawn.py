"""Kernels drawn at random: what they compute, and what their machine code does."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from drawn_kernels import Drawn, conversion, drawn
from hip_programs import EVERY, on
from machine_loops import waits_before_products

from tilewright.errors import SharedMemoryExceeded
from tilewright.runtime.kernel import Kernel
from tilewright.targets.hip.machine_code import hottest_loop


def made(one: Drawn, architecture: str) -> Kernel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return on(architecture, one.function).compile(*one.arguments)
        except SharedMemoryExceeded:
            pytest.skip("its tiles are too large for this machine")


@pytest.mark.parametrize("seed", range(48))
@pytest.mark.parametrize("architecture", ["gfx942", "gfx950", "gfx1100"])
def test_values(architecture: str, seed: int) -> None:
    one = drawn(seed, architecture)
    kernel = made(one, architecture)
    expected, found = ([each.copy() for each in one.arguments] for _ in range(2))
    kernel.interpret(*expected)
    kernel.emulate(*found, schedule="random", seed=seed)
    for wanted, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("seed", range(80))
@pytest.mark.parametrize("architecture", EVERY)
def test_machine_code(architecture: str, seed: int) -> None:
    """On models' sizes: no scratch where registers may suffice, and what overlaps waits for nothing of the next step."""
    one = drawn(seed, architecture, large=True)
    code = made(one, architecture).ptx()
    assert not re.search(r"^\s+flat_", code, re.M), "an address of which the machine does not know what it is in"
    scratch = max(map(int, re.findall(r"\.private_segment_fixed_size:\s+(\d+)", code)))
    assert scratch == 0 or one.registers > 128 or one.is_wide, f"{scratch} bytes of scratch"
    loop = hottest_loop(code)
    if one.overlaps and loop is not None and one.reads_between and not scratch:
        assert not waits_before_products(loop), one.name


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32"])
@pytest.mark.parametrize("source", ["float32", "bfloat16", "int32", "float8_e5m2"])
@pytest.mark.parametrize("architecture", EVERY)
def test_conversions_take_no_branch(architecture: str, source: str, to: str) -> None:
    """A choice between a value and one that is worked out on its side alone is a branch of the wave, for each element."""
    code = made(conversion(source, to), architecture).ptx()
    assert not re.search(r"saveexec|s_cbranch_exec", code)
