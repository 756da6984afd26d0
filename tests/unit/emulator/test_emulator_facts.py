"""The facts of the vocabulary that the GPU confirms (tests/gpu), by the same texts on the emulator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
from cuda_facts import all_facts
from cuda_runner import Map, Scalar

from tilewright.emulator import emulate
from tilewright.machine.arch import Arch
from tilewright.targets.cuda import arch as cuda_arch


@dataclass
class EmulatorRunner:
    """Kernels on the emulator, with the method of the GPU's runner."""

    arch: Arch

    def run(
        self, source: str, kernel: str, grid: int, threads: int, arguments: Sequence[Any], *,
        shared: int = 0, cluster: int = 1, cooperative: bool = False,
    ) -> None:  # fmt: skip
        import struct

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
            source, kernel, values, grid=(grid,), block=(threads,), cluster=(cluster,), shared_bytes=shared,
            memory=arrays, registers=0,
        )  # fmt: skip


ARCH = cuda_arch.arch({"arch": "sm_90a"})
FACTS = list(all_facts(ARCH))


@pytest.mark.parametrize("check", [check for _, check in FACTS], ids=[name for name, _ in FACTS])
def test_fact(check: Any) -> None:
    check(EmulatorRunner(ARCH))
