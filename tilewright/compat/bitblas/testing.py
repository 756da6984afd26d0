"""What BitBLAS's tests and those of its users ask of ``bitblas.testing``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Run the tests of the file that calls this."""
    import inspect

    import pytest

    sys.exit(pytest.main([inspect.stack()[1].filename]))


def torch_assert_close(
    tensor_a: Any,
    tensor_b: Any,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
) -> bool:
    """Two tensors agree but for a small part of their elements.

    Raises
    ------
    AssertionError : more than `max_mismatched_ratio` of them differ by over ``atol + rtol * |b|``, or a NaN is in one
        alone.
    """
    wide_a, wide_b = tensor_a.double(), tensor_b.double()
    apart = ~((wide_a - wide_b).abs() <= atol + rtol * wide_b.abs())
    apart &= ~(wide_a.isnan() & wide_b.isnan())
    mismatched, allowed = int(apart.sum()), int(max_mismatched_ratio * apart.numel())
    if verbose:
        print(f"{mismatched} of {apart.numel()} elements differ ({allowed} may)")
    if mismatched > allowed:
        worst = float((wide_a - wide_b).abs().nan_to_num(nan=float("inf")).max())
        raise AssertionError(
            f"{mismatched} of {apart.numel()} elements differ, {allowed} may; the largest difference is {worst}"
        )
    return True


def _needs(holds: bool, reason: str) -> Callable[[Any], Any]:
    import pytest

    return pytest.mark.skipif(not holds, reason=reason)


def requires_cuda_compute_version(major: int, minor: int = 0) -> Callable[[Any], Any]:
    """Skips a test without a GPU of that compute capability."""
    import torch

    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    return _needs(found >= (major, minor), f"needs a GPU of compute capability {major}.{minor}")


def requires_gpu(*marks: Any) -> Any:
    """Skips a test without a GPU."""
    import torch

    mark = _needs(torch.cuda.is_available(), "needs a GPU")
    return mark(marks[0]) if marks else mark


requires_cuda = requires_gpu


def requires_package(*names: str) -> Callable[[Any], Any]:
    """Skips a test without packages."""
    import importlib.util

    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return _needs(not missing, f"needs {', '.join(missing)}")


def requires_rocm(*marks: Any) -> Any:
    """Skips a test without an AMD GPU."""
    import torch

    mark = _needs(torch.version.hip is not None and torch.cuda.is_available(), "needs ROCm")
    return mark(marks[0]) if marks else mark
