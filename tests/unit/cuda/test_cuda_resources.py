"""What a kernel tells of its machine code, on a machine without a GPU."""

import numpy as np
import pytest
from cuda_gemm import matmul, on, operands

from tilewright.errors import DriverError, NoDeviceCode
from tilewright.kernels.softmax import softmax_of_short_rows
from tilewright.targets.cuda.arch import detect


@pytest.fixture(scope="module")
def kernel():
    a, b = operands(256, 256, 128, "float16")
    return on("sm_90a", matmul).compile(a, b, block=(128, 128, 64), threads=256)


def test_assembly_and_machine_code(kernel):
    assert ".target sm_90a" in kernel.ptx()
    assert "HGMMA" in kernel.sass() and "UTMALDG" in kernel.sass()


def test_resources(kernel):
    (facts,) = kernel.resources().values()
    assert facts["spill_store_bytes"] == 0 and 0 < facts["registers"] <= 255
    assert facts["shared_bytes"] > 2 * 128 * 64 * 2 and facts["occupancy"] >= 1


def test_a_kernel_for_the_cpu_has_none():
    x = np.ones((2, 128), np.float32)
    with pytest.raises(NoDeviceCode, match="a kernel for cpu has no ptx"):
        softmax_of_short_rows.compile(x).ptx()


@pytest.mark.skipif(detect() is not None, reason="a GPU is here")
def test_launching_without_a_gpu_says_so(kernel):
    with pytest.raises(DriverError, match="GPU"):
        kernel.launcher(0, 0, 0)
