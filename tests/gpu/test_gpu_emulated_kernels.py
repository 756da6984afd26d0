"""The emulator's test kernels on the GPU of this machine: what runs clean there must be right here, integers bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_runner import DeviceRunner, Memory

from tilewright.targets.cuda.arch import detect
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.cuda.launcher import TENSOR_MAP, CudaKernel, LaunchShape
from tilewright.targets.cuda.tma import encoded
from tilewright.targets.gpu.host import POINTER

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "emulator"))
import emulator_kernels
from emulator_kernels import KERNELS, Problem, correct, fresh

pytestmark = pytest.mark.gpu
ARCH = detect()


@pytest.fixture(scope="module")
def runner() -> DeviceRunner:
    return DeviceRunner(ARCH)


def launch(runner: DeviceRunner, kernel: emulator_kernels.Kernel, problem: Problem) -> None:
    """Run a problem on the device."""
    with runner.driver.on(0):
        memory = Memory(runner.driver)
        try:
            codes, values = [], []
            for argument in problem.arguments:
                code, value = _value(memory, argument)
                codes.append(code)
                values.append(value)
            options = problem.launch
            cluster = (*options.get("cluster", (1,)), 1, 1)[:3]
            shape = LaunchShape(options["block"][0], options["shared_bytes"], cluster)
            prepared = CudaKernel(runner.compile(kernel.text).image, kernel.name, tuple(codes)).prepare(shape)
            prepared((*options["grid"], 1, 1)[:3], values)
            runner.driver.check(runner.driver.library.cuCtxSynchronize(), "cuCtxSynchronize", f"running {kernel.name}")
            memory.copy_back()
        finally:
            memory.free()


def _value(memory: Memory, argument: Any) -> tuple[str, Any]:
    if isinstance(argument, np.ndarray):
        return POINTER, memory.address(argument)
    if isinstance(argument, emulator_kernels.TensorMap):
        return TENSOR_MAP, encoded(argument.descriptor(ENGINE, memory.address(argument.array)))
    return "i", argument


@pytest.mark.skipif(ARCH is None, reason="no NVIDIA GPU here")
@pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
def test_the_device_agrees(runner: DeviceRunner, kernel: emulator_kernels.Kernel) -> None:
    for seed in range(5):
        problem = kernel.make(np.random.default_rng(seed))
        emulated = fresh(problem)
        launch(runner, kernel, problem)
        assert correct(problem), seed
        assert not kernel.run(emulated).reports
        for here, there in zip(problem.outputs, emulated.outputs):
            if here.dtype.kind in "iu":
                assert here.tobytes() == there.tobytes()
