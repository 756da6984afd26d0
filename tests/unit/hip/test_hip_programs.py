"""The repository's programs as HIP text in the emulator, with waves of 64 and of 32 lanes, against the interpreter."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hip_programs import EVERY, WAVES

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
from repository_programs import ALL, Program, differences, run

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability, NotAsynchronous
from tilewright.ir.dtypes import dtype as ir_dtype

ROUNDING = 2e-6
"""What sums in another order than the interpreter's may differ by, relative to the largest result."""

REFUSED = {
    "no asynchronous instruction": "products of warpgroups",
    "has no clusters": "clusters of blocks",
    "has no named barriers": "barriers of some warps",
    "has no ring buffers between warps": "warps that hand tiles to one another",
}
"""Why a program may be refused: what the message holds, and what that is."""

FORMS = [(program, architecture) for program in ALL for architecture in (*WAVES, "gfx950")]
"""On gfx950 tiles go to LDS directly."""


def check(program: Program, architecture: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel, arguments = program.make(architecture)
        except (MissingCapability, NotAsynchronous) as error:
            assert any(words in str(error) for words in REFUSED), error
            assert "sm_80" not in program.architectures, error
            return
    expected, found = run(kernel.interpret, arguments), run(kernel.emulate, arguments)
    assert not (problems := differences(found, expected, max(program.bound, ROUNDING))), problems


@pytest.mark.parametrize("program, architecture", FORMS, ids=lambda one: getattr(one, "name", one))
def test_programs_run_or_are_refused_with_a_sentence(program: Program, architecture: str) -> None:
    check(program, architecture)


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("program", ALL, ids=lambda one: one.name)
def test_programs_compile_for_every_architecture(program: Program, architecture: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel, _ = program.make(architecture)
        except (MissingCapability, NotAsynchronous) as error:
            assert any(words in str(error) for words in REFUSED), error
            return
    for resources in kernel.resources().values():
        assert resources["waves"] >= 1 and resources["shared_bytes"] <= kernel.arch.shared_bytes


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("target", (*(f"hip -arch={one}" for one in WAVES), "metal"))
def test_sums_into_an_odd_number_of_halves(target: str, dtype: str) -> None:
    """The last half is changed with the other one of its word, which is no other array's."""

    @tilewright.jit(target=target)
    def collect(X: Any, total: Any) -> None:
        N, half = T.const("N"), dtype
        X: T.Tensor((4, N), half)
        total: T.Tensor((N,), half)
        with T.Kernel(4, threads=64) as block:
            for i in T.Parallel(N):
                T.atomic_add(total[i], X[block, i])

    for count in (1, 3, 5):
        X = np.random.default_rng(count).integers(-8, 9, (4, count)).astype(ir_dtype(dtype).numpy)
        total = np.ones(count, X.dtype)
        collect.compile(X, total).emulate(X, total, schedule="random", seed=count)
        assert (total.astype("float64") == X.astype("float64").sum(0) + 1).all()
