"""Packed operands lie where a processor reads them best."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from tilewright.kernels.matmul import linear
from tilewright.runtime.packing import ALIGNMENT, LARGE_PAGE


def test_packed_operands_begin_at_a_line() -> None:
    kernel = linear(48, 160)
    weight = np.random.default_rng(0).standard_normal((48, 160)).astype(np.float32)
    packed = kernel.pack(W=weight)
    assert packed.ctypes.data % ALIGNMENT == 0
    assert np.array_equal(kernel.unpack(W=packed), weight)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages to ask for")
def test_large_ones_begin_at_a_large_page() -> None:
    kernel = linear(1024, 1024 + 128)
    weight = np.arange(1024 * 1152, dtype=np.float32).reshape(1024, 1152)
    packed = kernel.pack(W=weight)
    assert packed.ctypes.data % LARGE_PAGE == 0
    assert np.array_equal(kernel.unpack(W=packed), weight)
    packed[:4] = 0  # the caller's own, as any array
