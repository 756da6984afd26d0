"""Rounding on a device gives the bits that rounding on the processor gives: the same torch operations run here on the processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.errors import CannotQuantize, TilewrightError
from tilewright.formats import FORMATS, SCHEMES, number_format
from tilewright.matmul import rounding
from tilewright.matmul.packed import PackedWeight
from tilewright.quant.quantize import to_nearest
from tilewright.quant.rounding import Rounding
from tilewright.runtime.tensors import as_numpy

WORDS = [*SCHEMES, *(name for name in FORMATS if not number_format(name).is_dense)]
SIZES = [1, 2, 7, 16, 31, 64, 130]


def assert_same(found: PackedWeight, expected: PackedWeight) -> None:
    assert (found.shape, found.block, found.tensor_scale) == (expected.shape, expected.block, expected.tensor_scale)
    assert found.held.keys() == expected.held.keys()
    for name, array in expected.held.items():
        one = as_numpy(found.held[name])
        assert one.dtype == array.dtype and one.shape == array.shape, name
        assert one.tobytes() == array.tobytes(), name


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(WORDS),
    st.sampled_from(SIZES),
    st.sampled_from(SIZES),
    st.sampled_from([None, (1, 0), (1, 16), (1, 10), (0, 0), (3, 5), (128, 128)]),
    st.sampled_from([None, "group", "none"]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int8]),
    st.sampled_from([0.0, 1e-30, 0.02, 40.0]),
    st.integers(0, 1 << 30),
)
def test_every_format_gets_the_same_bits(
    to: str,
    rows: int,
    columns: int,
    block: tuple[int, int] | None,
    zeros: str | None,
    of: torch.dtype,
    size: float,
    seed: int,
) -> None:
    weight = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size).to(of)
    weight[: rows // 3] = 0
    try:
        how = Rounding.of(to, 128, zeros, block, "float32" if to not in SCHEMES else None)
        expected = PackedWeight.pack(to_nearest(as_numpy(weight.double()), how))
    except TilewrightError as refused:
        with pytest.raises(type(refused)) as again:
            rounding.packed_there(
                weight, Rounding.of(to, 128, zeros, block, "float32" if to not in SCHEMES else None), "the weight"
            )
        assert str(again.value) == str(refused)
        return
    assert_same(rounding.packed_there(weight, how, "the weight"), expected)


@pytest.mark.parametrize("to", WORDS)
def test_ties_and_ends(to: str) -> None:
    """Numbers in the middle between two values, and those around them."""
    of = SCHEMES[to].format if to in SCHEMES else number_format(to)
    limits, codes = of.limits
    values = of.decode(codes)
    numbers = np.concatenate([values, (values[1:] + values[:-1]) / 2, limits, np.nextafter(limits, np.inf)])
    weight = torch.from_numpy(np.stack([numbers, -numbers, numbers * 0.75]))
    how = Rounding.of(to, None, None, None, None)
    assert_same(rounding.packed_there(weight, how, "the weight"), PackedWeight.pack(to_nearest(weight, how)))
    assert (of.encode(numbers) == codes[np.searchsorted(limits, numbers)]).all()


def test_slabs_and_turned_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "AT_ONCE", 1000)
    weight = torch.randn(230, 77).T
    for to, block in (("int4", (1, 32)), ("uint3", (5, 11)), ("ternary", (0, 0)), ("int1", (7, 16))):
        how = Rounding.of(to, None, None, block, None)
        assert_same(rounding.packed_there(weight, how, "w"), PackedWeight.pack(to_nearest(as_numpy(weight), how)))


def test_mistakes_are_those_of_the_processor() -> None:
    how = Rounding.of("int4", 32, None, None, None)
    for wrong in (
        torch.full((3, 40), torch.inf),
        torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]),
        torch.ones(3),
        torch.ones(0, 4),
    ):
        with pytest.raises(CannotQuantize) as here:
            PackedWeight.pack(to_nearest(as_numpy(wrong), how, name="w"))
        with pytest.raises(CannotQuantize) as there:
            rounding.packed_there(wrong, how, "w")
        assert str(here.value) == str(there.value)


def test_a_full_device_leaves_it_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(rounding, "packed_there", full)
    monkeypatch.setattr(rounding, "_device_for", lambda weight: weight.device)
    weight, how = torch.randn(8, 64), Rounding.of("int4", 32, None, None, None)
    assert_same(rounding.packed_to_nearest(weight, how), PackedWeight.pack(to_nearest(weight.numpy(), how)))


def test_a_model_is_rounded_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a model has, as if its device were a GPU: the same state as on the processor."""

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 7, bias=False, dtype=torch.bfloat16))

    expected = tilewright.quantize(model(), "w4a16-g16").state_dict()
    monkeypatch.setattr(rounding, "_device_for", lambda weight: weight.device)
    seen = []
    monkeypatch.setattr(rounding, "packed_there", lambda *given, of=rounding.packed_there: seen.append(1) or of(*given))
    found = tilewright.quantize(model(), "w4a16-g16").state_dict()
    assert len(seen) == 2 and found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
