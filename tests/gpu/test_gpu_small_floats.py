"""Conversions of every small float, and `fp8_scaled_matmul` of tensors, on the GPU that is here."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

UNIT = Path(__file__).parents[1] / "unit"
sys.path[:0] = [str(UNIT), str(UNIT / "matmul")]
from test_every_conversion import TYPES, bits, codes, converting, numbers  # noqa: E402
from test_fp8_function import CASES, E4M3, E5M2, FNUZ, operands, tensor  # noqa: E402

import tilewright  # noqa: E402
from tilewright.interpreter import interpret  # noqa: E402
from tilewright.ir.dtypes import pack  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no NVIDIA GPU here")]

ARCHITECTURES = ["sm_80", "sm_89", "sm_90a"]
"""Texts for older architectures, which convert in other ways, run on newer ones; sm_90a alone runs on Hopper only."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", TYPES)
def test_every_conversion(name, architecture):
    known, given = codes(name), numbers(name).astype(np.float64)
    given = np.concatenate([given, np.nextafter(given, np.inf), np.nextafter(given, -np.inf), [1e300, -1e300, 1e-300]])
    program, record = converting(name, len(known), len(given), "float64"), tilewright.dtype(name)
    packed = pack(known, record) if record.is_packed else known
    kernel = tilewright.compile(program, target=f"cuda -arch={architecture}")
    results = [
        [np.full(len(known), 7, tilewright.dtype(to).numpy) for to in ("float32", "float16", "bfloat16")] for _ in "12"
    ]
    results = [[*one, *(np.full(len(given), 7, np.float32) for _ in range(4))] for one in results]
    interpret(program.function, [packed.copy(), *results[0][:3], given.copy(), *results[0][3:]])
    words = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
    arguments = [packed.copy(), *results[1][:3], given.copy(), *results[1][3:]]
    tensors = [torch.from_numpy(one.view(words[one.itemsize]).copy()).cuda() for one in arguments]
    wide = [tensors[0] if name not in ("float16", "bfloat16") else tensors[0].view(getattr(torch, name))]
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64, *[torch.float32] * 4]
    small = getattr(torch, name, None) if record.bits == 8 else None
    if small is not None:
        wide = [tensors[0].view(small)]
    kernel(*wide, *(one.view(kind) for one, kind in zip(tensors[1:], kinds)))
    for place, exact in zip((1, 2, 3, 5, 6, 7, 8), results[0]):
        found = tensors[place].cpu().numpy().view(exact.dtype)
        wrong = np.flatnonzero(bits(found) != bits(exact))
        assert not wrong.size, (place, [(found[i], exact[i]) for i in wrong[:4]])


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"fast": True}], ids=str)
@pytest.mark.parametrize(("size", "kinds", "transpose_B", "form"), CASES, ids=str)
def test_products(size, kinds, transpose_B, form, options):
    arguments, exact = operands(*size, kinds, transpose_B, **form)
    given = [tensor(one).cuda() for one in arguments]
    found = tilewright.fp8_scaled_matmul(*given, transpose_B=transpose_B, block_N=form.get("each"), **options)
    again = tilewright.fp8_scaled_matmul(*given, transpose_B=transpose_B, block_N=form.get("each"), **options)
    assert torch.equal(found, again)
    error = np.abs(found.double().cpu().numpy() - exact).max(initial=0)
    assert error <= (2e-6 if "exact" in options else 1e-3) * np.abs(exact).max(initial=0)


@pytest.mark.parametrize(
    "size", [(1, 4096, 4096), (1, 28672, 1024), (64, 4096, 512), (300, 4096, 1024), (777, 2112, 7168)], ids=str
)
@pytest.mark.parametrize("kinds", ["ll", "tt"])
@pytest.mark.parametrize("transpose_B", [True, False])
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E5M2, E4M3), (FNUZ, FNUZ)], ids=" by ".join)
def test_large_products(size, kinds, transpose_B, types):
    arguments, exact = operands(*size, kinds, transpose_B, types)
    given = [tensor(one).cuda() for one in arguments]
    # Every instruction of 32 columns cuts the sum that it adds to down to 14 bits; promoted sums begin anew every four of them.
    for fast, instructions in ((False, 4), (True, size[2] / 32)):
        found = tilewright.fp8_scaled_matmul(*given, transpose_B=transpose_B, fast=fast).double().cpu().numpy()
        assert np.abs(found - exact).max() <= instructions * 2.0**-13 * np.abs(exact).max()
