"""The facts of the vocabulary that the GPU confirms (tests/gpu), by the same texts on the emulator."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
from cuda_facts import all_facts
from cuda_runner import Launch, Map, Scalar, text

from tilewright.emulator import emulate
from tilewright.errors import EmulationError
from tilewright.machine.arch import Arch
from tilewright.machine.types import F16
from tilewright.targets.cuda import arch as cuda_arch


@dataclass
class EmulatorRunner:
    """Kernels on the emulator, with the method of the GPU's runner."""

    arch: Arch

    def run(
        self, source: str, kernel: str, grid: int, threads: int, arguments: Sequence[Any], *,
        shared: int = 0, cluster: int = 1, cooperative: bool = False,
    ) -> None:  # fmt: skip
        self._emulate(source, Launch(kernel, grid, threads, arguments), cluster=(cluster,), shared_bytes=shared)

    pairs = 3
    """How many launches in a row show what dependent ones see."""

    def run_dependent(self, source: str, launches: Sequence[Launch]) -> None:
        """Launches one after the other; none may touch what earlier ones use before it has waited for them."""
        for launch in launches:
            self._emulate(source, launch, unsettled=[a for a in launch.arguments if not isinstance(a, Scalar)])

    @staticmethod
    def _emulate(source: str, launch: Launch, **options: Any) -> None:
        arguments = launch.arguments
        arrays = [a.array if isinstance(a, Map) else a for a in arguments if not isinstance(a, Scalar)]
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, Scalar):
                values.append(struct.pack(argument.code, argument.value))
            elif isinstance(argument, Map):
                values.append(argument.descriptor(argument.array.ctypes.data))
            else:
                values.append(argument)
        emulate(
            source,
            launch.kernel,
            values,
            grid=(launch.grid,),
            block=(launch.threads,),
            memory=arrays,
            registers=0,
            **options,
        )


ARCH = cuda_arch.arch({"arch": "sm_90a"})
FACTS = list(all_facts(ARCH))


@pytest.mark.parametrize("check", [check for _, check in FACTS], ids=[name for name, _ in FACTS])
def test_fact(check: Any) -> None:
    check(EmulatorRunner(ARCH))


@pytest.mark.parametrize("column", [-3, 1, 4, 7])
@pytest.mark.parametrize("kernel", ["tma_load_2d", "tma_store_2d"])
def test_boxes_begin_at_multiples_of_16_bytes(kernel: str, column: int) -> None:
    """The machine answers any other innermost coordinate with an illegal instruction."""
    array, out = np.ones((16, 64), np.float16), np.zeros(4096, np.uint8)
    tensor_map = Map(array, F16, (64, 16), (128,), (32, 16))
    first, size = np.array([column, 0], np.int32), Scalar("i", 1024)
    loads = [tensor_map, first, size, Scalar("i", 0), out, Scalar("i", 4096)]
    arguments = loads if "load" in kernel else [tensor_map, first, np.zeros(1024, np.uint8), size]
    with pytest.raises(EmulationError, match="which is not a multiple of 16 bytes: an illegal instruction"):
        EmulatorRunner(ARCH).run(text("facts_copy"), kernel, 1, 128, arguments, shared=8192)
