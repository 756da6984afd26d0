"""The script that times products on a Mac: its kernels in the emulator, and what it says without one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "metal.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("benchmarks_metal", SCRIPT)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("part", ["whole", "load", "product", "store"])
def test_parts_of_the_work(part: str) -> None:
    module = script()
    M, N, K = 70, 65, 72
    kernel = tilewright.compile(module.product(M, N, K, "float16", part=part), target="metal -arch=m1")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((M, K), (N, K)))
    c = np.full((M, N), 77, np.float16)
    kernel.emulate(a, b, c)
    if part == "whole":
        assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)
    elif part == "store":
        assert not c.any()
    else:  # one element a block
        first = c[::64, ::64]
        assert (first != 77).all() and (c == 77).sum() == c.size - first.size
    text = kernel.get_kernel_source()
    body = text[text.index("kernel void") :]
    assert ("simdgroup_product" in body) == (part in ("whole", "product")), "only this part's work"
    assert ("&A[" in body) == (part in ("whole", "load"))


def test_without_a_mac_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "128", "--target", "metal -arch=m1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "no Mac with torch and MLX here" in done.stdout and "takes" in done.stdout, done
