"""GEMMs on the GPU by roles, made by hand and by the compiler: exact on small integers, the same bits every time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))
from hopper_matmul import hopper_matmul

from tilewright.kernels.matmul import matmul
from tilewright.targets.cuda.arch import detect

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

SIZES = [(512, 768, 256), (1000, 1192, 520), (129, 264, 72), (1, 8, 8), (2048, 2048, 2048)]
REPEATS = 100


def operands(m, n, k):
    torch.manual_seed(0)
    return (torch.randint(-3, 4, (rows, k), device="cuda").bfloat16() for rows in (m, n))


def check(run, a, b):
    expected = (a.double() @ b.double().T).float().bfloat16()
    first = run(a, b)
    assert torch.equal(first, expected)
    assert all(torch.equal(run(a, b), first) for _ in range(REPEATS))


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("block, stages", [((128, 256), 4), ((256, 128), 4), ((256, 192), 3)])
def test_roles_by_hand(m, n, k, block, stages):
    def run(a, b):
        return hopper_matmul(a, b, block_M=block[0], block_N=block[1], stages=stages)

    check(run, *operands(m, n, k))


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("block, threads, stages", [((128, 256), 256, 4), ((64, 96), 128, 3), ((128, 128), 256, 1)])
def test_roles_by_the_compiler(m, n, k, block, threads, stages):
    def run(a, b):
        return matmul(
            a, b, dtype="bfloat16", out="bfloat16", transpose_B=True, block_M=block[0], block_N=block[1], block_K=64,
            threads=threads, num_stages=stages,
        )  # fmt: skip

    check(run, *operands(m, n, k))


def test_another_address_is_described_anew():
    """The tensor maps of a cached launch follow the tensors."""
    a, b = operands(256, 256, 128)
    for shift in range(4):
        moved = a.roll(shift, 0).contiguous()
        expected = (moved.double() @ b.double().T).float().bfloat16()
        assert torch.equal(hopper_matmul(moved, b), expected)
