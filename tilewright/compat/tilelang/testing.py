"""``tilelang.testing``: a test file that runs itself, seeds, and marks for tests that need a machine."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compat.testing import (
    is_present,
    main,
    requires_cuda,
    requires_package,
    requires_rocm,
    requires_version,
    skips,
    torch_assert_close,
)
from tilewright.specialization import InvalidUse

assert_allclose = np.testing.assert_allclose


@dataclass(frozen=True)
class PerfResult:
    """A measured latency, under a name; `case` is what its function was called with."""

    name: str
    latency: float
    case: str | None = None


_MEASURED: list[PerfResult] = []


def process_func(func: Callable[..., float], name: str | None = None, /, **kwargs: object) -> None:
    """Keep the latency that ``func(**kwargs)`` measures, for `regression`."""
    called, latency = name or str(getattr(func, "__name__", "function")), float(func(**kwargs))
    if latency <= 0:
        raise InvalidUse(f"{called} measured {latency}", hint="return a latency of more than 0")
    case = ", ".join(f"{key}={value}" for key, value in kwargs.items()) or None
    _MEASURED.append(PerfResult(called, latency, case))


def regression(prefixes: Sequence[str] = ("regression_",), verbose: bool = True) -> None:
    """Call every function of the calling file whose name begins so, and print a table of what they measured."""
    caller = sys._getframe(1).f_globals
    _MEASURED.clear()
    for name, function in list(caller.items()):
        if name.startswith(tuple(prefixes)) and callable(function):
            function()
    print("| File | Latency |", "|------|---------|", sep="\n")
    for one in _MEASURED:
        print(f"| {one.name}{f' ({one.case})' if one.case and verbose else ''} | {one.latency:.6g} |")


def set_random_seed(seed: int = 42) -> None:
    """Seed Python's, NumPy's and torch's numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


requires_gpu, requires_hip = requires_cuda, requires_rocm
requires_metal = skips(lambda: is_present("metal"), "needs a GPU of Apple's")
requires_cdna = requires_gfx950 = requires_rocm
requires_cuda_or_cdna = skips(lambda: is_present("cuda") or is_present("hip"), "needs an NVIDIA GPU or one of AMD's")
requires_ascend = skips(lambda: False, "needs an Ascend processor")
requires_cutedsl = skips(lambda: False, "needs CuTe DSL")
requires_llvm = skips(lambda: True, "needs a processor")


def requires_cuda_compute_version(major_version: int, minor_version: int = 0, mode: str = "ge") -> Any:
    """Mark of a test that needs a GPU whose compute capability compares so: ``ge``, ``gt``, ``le``, ``lt``, ``eq``."""
    wanted = (major_version, minor_version)
    return requires_version(
        lambda found: getattr(operator, mode)(found, wanted), f"{mode} {major_version}.{minor_version}"
    )


def _comparing(mode: str) -> Callable[..., Any]:
    def requires(major_version: int, minor_version: int = 0) -> Any:
        return requires_cuda_compute_version(major_version, minor_version, mode)

    requires.__doc__ = f"`requires_cuda_compute_version` with mode {mode!r}."
    return requires


requires_cuda_compute_version_ge, requires_cuda_compute_version_gt = _comparing("ge"), _comparing("gt")
requires_cuda_compute_version_le, requires_cuda_compute_version_lt = _comparing("le"), _comparing("lt")
requires_cuda_compute_version_eq = _comparing("eq")

__all__ = [
    "assert_allclose", "main", "requires_cuda", "requires_cuda_compute_version", "requires_cuda_compute_version_eq",
    "requires_cuda_compute_version_ge", "requires_cuda_compute_version_gt", "requires_cuda_compute_version_le",
    "requires_cuda_compute_version_lt", "requires_cutedsl", "requires_gpu", "requires_hip", "requires_llvm",
    "requires_metal", "requires_package", "requires_rocm", "set_random_seed", "torch_assert_close",
]  # fmt: skip
