"""Binaries that are built ahead, in a thread of their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.options import override
from tilewright.runtime.kernel import Kernel


def doubled(target: str) -> Kernel:
    @T.prim_func
    def double(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = X[i] * 2

    return tilewright.compile(double, out_idx=-1, target=target)


def joined() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("build "):
            thread.join()


def test_a_kernel_begun_is_built_once(tmp_path, monkeypatch):
    with override(cache_dir=tmp_path):
        kernel = doubled("cpu")
        built = []
        original = kernel._build
        monkeypatch.setattr(kernel, "_build", lambda: built.append(1) or original())
        kernel.begin()
        kernel.begin()
        x = np.arange(64, dtype=np.float32)
        assert np.array_equal(kernel(x), 2 * x)
        joined()
        assert len(built) == 2  # in the thread, and from the cache where it was needed
        kernel(x)
        assert len(built) == 2


def test_what_goes_wrong_ahead_is_told_to_who_needs_it(tmp_path, monkeypatch):
    with override(cache_dir=tmp_path):
        kernel = doubled("cpu")

        def refuse():
            raise TilewrightError("no compiler today")

        monkeypatch.setattr(kernel, "_build", refuse)
        kernel.begin()
        joined()
        with pytest.raises(TilewrightError, match="no compiler today"):
            kernel(np.zeros(64, np.float32))
