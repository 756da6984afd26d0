"""One kernel for several machines: ``on``, ``compile(target=)`` and ``jit(kernel, target=)``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import DriverError, TilewrightError, WrongArgumentDevice
from tilewright.specialization import JITFunction
from tilewright.targets.base import TARGETS
from tilewright.targets.cuda import arch as cuda
from tilewright.targets.cuda import driver
from tilewright.targets.registry import resolve

HOPPER = "cuda -arch=sm_90a"


@tilewright.jit
def double(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 256)) as block:
        for i in T.Parallel(256):
            Y[block * 256 + i] = X[block * 256 + i] * 2
    return Y


@tilewright.jit(out_idx=-1)
def tripled(N, factor=3):
    @T.prim_func
    def triple(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 64)) as block:
            for i in T.Parallel(64):
                Y[block * 64 + i] = X[block * 64 + i] * factor

    return triple


@tilewright.jit
def takes_a_target(X, target: int = 2):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(1):
        for i in T.Parallel(N):
            Y[i] = X[i] * target
    return Y


X = np.arange(300, dtype=np.float32)


def names(kernel: tilewright.Kernel) -> tuple[str, str]:
    return kernel.target.name, kernel.arch.name


def test_direct_functions_for_another_machine() -> None:
    there = double.on(HOPPER)
    assert there is double.on({"kind": "cuda", "arch": "sm_90a"}) and there.target == HOPPER
    kernels = [there.compile(X), double.compile(N=300, target=HOPPER), tilewright.jit(double, target=HOPPER).compile(X)]
    assert {names(kernel) for kernel in kernels} == {("cuda", "sm_90a")}
    assert names(double.compile(X)) != ("cuda", "sm_90a"), "the function itself stays as it was"
    np.testing.assert_array_equal(double.on("cpu")(X), 2 * X)
    np.testing.assert_array_equal(there.on("cpu")(X), 2 * X)
    np.testing.assert_array_equal(there.emulate(X, seed=3), 2 * X)


def test_factories_for_another_machine() -> None:
    kernels = [
        tripled.on(HOPPER)(300),
        tripled.compile(300, target=HOPPER),
        tilewright.jit(tripled, target=HOPPER)(300),
    ]
    assert {names(kernel) for kernel in kernels} == {("cuda", "sm_90a")}
    assert kernels[0] is kernels[1], "made once"
    np.testing.assert_array_equal(tripled.on("cpu")(300, factor=5)(X), 5 * X)


def test_kernels_for_another_machine() -> None:
    kernel = double.on("cpu").compile(X)
    assert kernel.on("cpu") is kernel
    assert names(kernel.on(HOPPER)) == ("cuda", "sm_90a") == names(tilewright.compile(kernel, target=HOPPER))
    np.testing.assert_array_equal(kernel.on(HOPPER).on("cpu")(X), 2 * X)


def test_a_parameter_of_that_name_stays_the_authors() -> None:
    np.testing.assert_array_equal(takes_a_target.on("cpu").compile(X, target=4)(X), 4 * X)


def test_options_stay() -> None:
    made = tilewright.jit(tilewright.jit(double.__wrapped__, target=HOPPER))
    assert isinstance(made, JITFunction) and made.target == HOPPER
    with pytest.raises(TilewrightError, match="out_idx has no meaning"):
        tilewright.jit(double, out_idx=0)


def test_machines_that_are_none() -> None:
    for make in (double.on, tripled.on, lambda target: double.compile(X, target=target)):
        with pytest.raises(TilewrightError):
            make("cuda -arch=sm_9000")


def test_a_call_without_the_device_speaks_of_the_emulator() -> None:
    with pytest.raises(WrongArgumentDevice, match=r"kernel\.emulate\("):
        double.on(HOPPER)(X)


@pytest.mark.parametrize("present", [("cuda", "metal"), ("metal",), ("hip", "metal"), ("cuda", "hip"), ()])
def test_auto_prefers_gpus(monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...]) -> None:
    """CUDA first, then Metal (no machine has both it and AMD's), the processor last."""
    archs = {"cuda": "cuda -arch=sm_90a", "hip": "hip -arch=gfx942", "metal": "metal -arch=m2"}
    for name, text in archs.items():
        arch = resolve(text)[1] if name in present else None
        monkeypatch.setitem(TARGETS, name, replace(TARGETS[name], detect=lambda arch=arch: arch))
    monkeypatch.delenv("TILEWRIGHT_TARGET", raising=False)
    assert resolve("auto")[0].name == next((name for name in ("cuda", "hip", "metal") if name in present), "cpu")


def test_only_a_cuda_that_does_not_begin_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = "cuInit"

    class Library:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: 999 if name == failing else 0

    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: Library())
    driver.find_driver.cache_clear()
    try:
        assert cuda.detect() is None
        failing = "cuDeviceGetCount"
        driver.find_driver.cache_clear()
        with pytest.raises(DriverError, match="cuDeviceGetCount"):  # it has begun: no other machine takes its place
            resolve("auto")
    finally:
        driver.find_driver.cache_clear()
