"""``tilelang.testing``: a test file that runs itself, seeds, and marks for tests that need a machine."""

from __future__ import annotations

import importlib.util
import inspect
import operator
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compat.tilelang.targets import (
    check_cuda_availability,
    check_hip_availability,
    check_metal_availability,
    compute_version,
)
from tilewright.compat.tilelang.tensors import torch_assert_close
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


def main() -> None:
    """Run the tests of the file that calls this."""
    import pytest

    sys.exit(pytest.main([str(inspect.getsourcefile(sys._getframe(1))), *sys.argv[1:]]))


def set_random_seed(seed: int = 42) -> None:
    """Seed Python's, NumPy's and torch's numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _skips(unless: Callable[[], bool], reason: str) -> Callable[..., Any]:
    def mark(func: Any = None) -> Any:
        import pytest

        found = pytest.mark.skipif(not unless(), reason=reason)
        return found if func is None else found(func)

    mark.__doc__ = f"Mark of a test: {reason}."
    return mark


requires_cuda = requires_gpu = _skips(check_cuda_availability, "needs an NVIDIA GPU")
requires_rocm = requires_hip = _skips(check_hip_availability, "needs a GPU of AMD's")
requires_metal = _skips(check_metal_availability, "needs a GPU of Apple's")
requires_cdna = requires_gfx950 = requires_rocm
requires_cuda_or_cdna = _skips(
    lambda: check_cuda_availability() or check_hip_availability(), "needs an NVIDIA GPU or one of AMD's"
)
requires_ascend = _skips(lambda: False, "needs an Ascend processor")
requires_cutedsl = _skips(lambda: False, "needs CuTe DSL")
requires_llvm = _skips(lambda: True, "needs a processor")


def requires_package(*names: str) -> Callable[..., Any]:
    """Mark of a test that needs other packages."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return _skips(lambda: not missing, f"needs {', '.join(missing)}")


def requires_cuda_compute_version(major_version: int, minor_version: int = 0, mode: str = "ge") -> Callable[..., Any]:
    """Mark of a test that needs a GPU whose compute capability compares so: ``ge``, ``gt``, ``le``, ``lt``, ``eq``."""
    wanted = (major_version, minor_version)

    def suits() -> bool:
        return check_cuda_availability() and bool(getattr(operator, mode)(compute_version("cuda"), wanted))

    return _skips(suits, f"needs a GPU of compute capability {mode} {major_version}.{minor_version}")


def _comparing(mode: str) -> Callable[..., Any]:
    def requires(major_version: int, minor_version: int = 0) -> Callable[..., Any]:
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
    "requires_metal",
    "requires_package", "requires_rocm", "set_random_seed", "torch_assert_close",
]  # fmt: skip
