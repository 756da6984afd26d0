"""Tensors of more elements than 32 bits count, on the GPU that is here."""

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
import tilewright.language as T  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]

LENGTH = (1 << 32) + 1234567


@tilewright.jit(target="cuda")
def added(A, length=LENGTH):
    """One row of a length known to the compiler, block by block with indices of 32 bits."""
    A: T.Tensor((length,), "int8")
    B = T.empty((length,), "int8")
    with T.Kernel(T.ceildiv(length, 65536), threads=256) as bx:
        first = bx * 65536
        for i in T.Parallel(65536):
            B[first + i] = A[first + i] + T.cast(1, "int8")
    return B


def test_a_row_beyond_32_bits():
    a = torch.randint(-100, 100, (LENGTH,), dtype=torch.int8, device="cuda")
    assert torch.equal(added(a), a + 1)
