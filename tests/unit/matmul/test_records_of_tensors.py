"""Records of weights that torch holds, against those of the same weight in NumPy's arrays, byte for byte."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.ir.dtypes import ALL  # noqa: E402
from tilewright.matmul import PackedWeight  # noqa: E402
from tilewright.matmul.tiers.records import coding_of, form_of, records_of, scales_and_zeros  # noqa: E402
from tilewright.quant import quantize  # noqa: E402


@pytest.mark.parametrize("size", [1.0, 1e-7, 1e4])
@pytest.mark.parametrize(
    "format, options",
    [
        ("int4", {"group": 64}),
        ("uint4", {"group": 32, "zeros": "group"}),
        ("int4", {"group": None}),
        ("int3", {"group": 256}),
        ("nf4", {"group": 48}),
        ("int4", {"block": (4, 64)}),
    ],
)
@pytest.mark.parametrize("activations", ["float16", "bfloat16"])
def test_scales_stay_where_they_are(format, options, size, activations):
    made = quantize(
        np.random.default_rng(0).standard_normal((20, 300)) * size, format, scale_dtype=activations, **options
    )
    held = PackedWeight.pack(made)
    form, coding = form_of(held.facts, activations), coding_of(made.format, ALL[activations])
    expected, found = records_of(held, form, coding, np.zeros(1)), records_of(held.to("cpu"), form, coding, np.zeros(1))
    assert np.array_equal(found.words, expected.words)
    assert found.factor == expected.factor


def test_usual_scales_are_not_brought_to_the_host():
    made = quantize(np.random.default_rng(0).standard_normal((20, 256)), "int4", group=128, scale_dtype="float16")
    held = PackedWeight.pack(made).to("cpu")
    parts, factor = scales_and_zeros(held, form_of(held.facts, "float16"))
    assert torch.is_tensor(parts["scales"])
    assert factor == 1.0
