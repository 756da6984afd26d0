"""What BitBLAS's tests and those of its users ask of ``bitblas.testing``."""

from __future__ import annotations

import functools
from typing import Any

from tilewright.compat import testing
from tilewright.compat.testing import main, requires_cuda, requires_package, requires_rocm, requires_version

__all__ = [
    "main", "requires_cuda", "requires_cuda_compute_version", "requires_gpu", "requires_package", "requires_rocm",
    "torch_assert_close",
]  # fmt: skip

requires_gpu = requires_cuda
torch_assert_close = functools.partial(
    testing.torch_assert_close, check_device=False, check_dtype=False, check_layout=False
)


def requires_cuda_compute_version(major: int, minor: int = 0) -> Any:
    """Skips a test without a GPU of that compute capability."""
    return requires_version(lambda found: found >= (major, minor), f"{major}.{minor}")
