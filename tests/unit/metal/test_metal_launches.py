"""Launches through torch's MPS backend, against a stand-in for ``torch.mps.compile_shader`` that runs texts in the emulator.

The stand-in keeps what torch's own does (`torch/csrc/mps/Module.cpp`): arguments by place, ints as int64, floats as float32, other
kinds refused, ``threads`` in all, which ``group_size`` need not divide but has as many dimensions as.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as T
from tilewright.emulator import run
from tilewright.errors import MissingCapability
from tilewright.runtime.arguments import Binder
from tilewright.targets.metal.emulation import METAL
from tilewright.targets.metal.runtime import Launcher


class Library:
    """Kernels of one text."""

    def __init__(self, text: str) -> None:
        assert text.isascii()  # it is handed over so
        self.text, self.launches = text, []

    def __getattr__(self, name: str) -> Any:
        def launch(*given: Any, threads: tuple[int, ...], group_size: tuple[int, ...]) -> None:
            assert len(threads) == len(group_size) <= 3
            values, memory = [], []
            for value in given:
                if isinstance(value, torch.Tensor):
                    values.append(value.view(torch.uint8).numpy().reshape(-1))
                elif isinstance(value, (bool, int)):
                    values.append(np.array([value], np.int64))
                elif isinstance(value, float):
                    values.append(np.array([value], np.float32))
                else:
                    raise TypeError(f"unsupported argument {type(value).__name__}")
                memory.append(values[-1])
            grid = tuple(-(-all_of // group) for all_of, group in zip(threads, group_size, strict=True))
            self.launches.append((name, grid, group_size))
            run(
                self.text,
                name,
                values,
                grid=grid,
                block=group_size,
                shared_bytes=32768,
                memory=memory,
                vocabulary=METAL,
            )

        return launch


def launched(program: Any, *given: Any) -> Library:
    """A program run through the stand-in, tensors of the host's for Metal's."""
    kernel = tilewright.compile(program, target="metal -arch=apple7")
    library = Library(kernel.get_kernel_source())
    launcher = Launcher(library.text, kernel.program.final, kernel.program.source.entries, library)
    binder = Binder(kernel.function, "cpu")
    launcher(*binder.with_tensors(list(given), binder.bind(given, {})))
    return library


def test_tensors_scalars_and_sizes_arrive() -> None:
    N = T.dynamic("N")

    @T.prim_func
    def program(
        X: T.Tensor((N,), "float16"), scale: T.float32, shift: T.int8, big: T.uint64, Y: T.Tensor((N,), "float32")
    ):
        with T.Kernel(T.ceildiv(N, 64), threads=64) as block:
            for i in T.Parallel(64):
                more = T.if_then_else(big > T.cast(1 << 62, "uint64"), 1.0, 0.0)
                Y[block * 64 + i] = T.cast(X[block * 64 + i], "float32") * scale + T.cast(shift, "float32") + more

    x, y = torch.arange(150).to(torch.float16), torch.full((150,), torch.nan)
    library = launched(program, x, 0.5, -3, (1 << 63) + 5, y)
    assert library.launches == [("program_kernel", (3, 1, 1), (64, 1, 1))]
    torch.testing.assert_close(y, x.float() * 0.5 - 3 + 1, rtol=0, atol=0)


def test_a_grid_without_blocks_launches_nothing() -> None:
    N = T.dynamic("N")

    @T.prim_func
    def program(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 64), threads=64) as block:
            for i in T.Parallel(64):
                Y[block * 64 + i] = X[block * 64 + i]

    assert launched(program, torch.zeros(0), torch.zeros(0)).launches == []


def test_without_a_mac_a_launch_says_what_it_takes() -> None:
    @T.prim_func
    def program(X: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            X[0] = 1.0

    kernel = tilewright.compile(program, target="metal -arch=apple7")
    with pytest.raises(MissingCapability, match="takes a Mac and a torch"):
        kernel.launcher
