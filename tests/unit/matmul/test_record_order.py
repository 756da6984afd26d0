"""Codes that are held as records alone come back row by row, bit for bit, on the host and by the kernel for GPUs."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
from products import random_weight

from tilewright.formats import number_format, pack_plain
from tilewright.ir.dtypes import ALL
from tilewright.kernels.record_packing import places_of, unpack_codes
from tilewright.matmul import PackedWeight
from tilewright.matmul.packed import plain_words
from tilewright.matmul.record_order import RecordOrder
from tilewright.matmul.tiers import bytes as byte_tier
from tilewright.matmul.tiers.records import coding_of, form_of, recoded, records_of
from tilewright.specialization import compile

torch = pytest.importorskip("torch")

from tilewright.matmul.arrays import as_torch  # noqa: E402
from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import quantize  # noqa: E402
from tilewright.runtime.tensors import as_numpy  # noqa: E402

N, K = 37, 200
FORMATS = [
    "int4",
    "uint4",
    "int1",
    "int2",
    "ternary",
    "uint3",
    "int5",
    "uint6",
    "int7",
    "int8",
    "nf4",
    "e2m1",
    "e3m2",
    "e4m3",
]


def as_records(name: str) -> tuple[PackedWeight, RecordOrder, np.ndarray]:
    """A weight, and its codes as records for float16 activations."""
    held = PackedWeight.pack(random_weight(np.random.default_rng(0), name, (N, K)))
    form, coding = form_of(held.facts, "float16"), coding_of(held.format, ALL["float16"])
    assert form is not None and coding is not None
    table = recoded(np.arange(1 << held.format.bits).astype(np.uint8), held.format)
    return held, RecordOrder(form, table.tobytes()), records_of(held, form, coding, np.zeros(1)).words


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_that_became_records_unpacks_as_before(name: str) -> None:
    held, order, words = as_records(name)
    before, plain = held.unpack(), held.codes.copy()
    assert held.layout == "plain/1"
    held.become(order, words)
    assert held.layout.startswith("fragments1[") and held.held["codes"] is words
    np.testing.assert_array_equal(held.codes, plain)
    np.testing.assert_array_equal(held.unpack().codes, before.codes)
    moved = held.to("cpu")
    assert moved.layout == held.layout and torch.equal(moved.codes, torch.from_numpy(plain))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("int4", "uint3") else pytest.mark.proof) for n in FORMATS]
)
def test_the_kernel_gives_the_same(name: str) -> None:
    held, order, words = as_records(name)
    plain, bits = held.codes, held.format.bits
    kernel = compile(unpack_codes.trace(order.form, bits), target="cuda -arch=sm_90a")
    found = np.full_like(plain, 0x55)
    kernel.emulate(words, K, order._inverse(held.format), places_of(order.form), found)
    np.testing.assert_array_equal(found, plain)


BYTES = [
    (name, activations)
    for name in ("int4", "uint2", "ternary", "int8", "e2m1", "e4m3")
    for activations in ("int8", "float8_e4m3fn")
]
ELSEWHERE = [("int8", "float8_e4m3fn"), ("e2m1", "int8"), ("e4m3", "int8")]
"""Formats that do not become operands of that type: other tiers serve them."""


def test_the_pairs_that_are_decoded_elsewhere() -> None:
    codings = {pair: byte_tier.byte_coding_of(number_format(pair[0]), pair[1]) for pair in BYTES}
    assert [pair for pair, coding in codings.items() if coding is None] == ELSEWHERE


@pytest.mark.parametrize(("name", "activations"), [pair for pair in BYTES if pair not in ELSEWHERE])
def test_records_of_8_bit_operands_too(name: str, activations: str) -> None:
    held = PackedWeight.pack(random_weight(np.random.default_rng(0), name, (N, K)))
    coding = byte_tier.byte_coding_of(held.format, activations)
    assert coding is not None
    plan = byte_tier.plan_of(held, coding)
    words = byte_tier.words(held, plan, coding, np.zeros(1))
    found = RecordOrder(plan.form, coding.table(held.format).tobytes()).plain(words, held.format, (N, K))
    np.testing.assert_array_equal(found, pack_plain(held.unpack().codes, held.format.bits))


@torch.no_grad()
def test_a_layer_follows_its_weight() -> None:
    """What a GPU's first call does to a layer: the buffer holds records, everything else is as it was."""
    layer = Linear.from_quantized(quantize(np.random.default_rng(1).standard_normal((N, K)), "int4", group=32))
    x = torch.randn(3, K)
    expected, before = layer(x), {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    held = layer.weight
    form, coding = form_of(held.facts, "float16"), coding_of(held.format, ALL["float16"])
    assert form is not None and coding is not None
    table = recoded(np.arange(16).astype(np.uint8), held.format)
    words = as_torch(as_numpy(records_of(held, form, coding, np.zeros(1)).words), "cpu")
    held.become(RecordOrder(form, table.tobytes()), words)

    def unchanged(one: Linear) -> None:
        assert torch.equal(one(x), expected) and one.qweight.dtype == torch.uint32
        state = one.state_dict()
        assert set(state) == set(before) and all(torch.equal(state[name], before[name]) for name in before)

    unchanged(layer)
    assert layer.weight is held and layer.qweight is words
    unchanged(copy.deepcopy(layer))
    unchanged(pickle.loads(pickle.dumps(layer)))
    assert plain_words(words).dtype == torch.int32 == layer.__getstate__()["_buffers"]["qweight"].dtype
    assert torch.equal(pickle.loads(pickle.dumps(held)).codes, held.codes)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    unchanged(torch.load(file, weights_only=False))
    unchanged(layer.to("cpu").float())
    other = Linear(K, N, W_dtype="int4")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), expected)
    layer.load_state_dict(other.state_dict())  # over records
    assert layer.qweight.dtype == torch.uint8 and torch.equal(layer(x), expected)
    layer.qweight = torch.zeros_like(layer.qweight)  # assigned by the user: plain codes again
    assert not layer(x).any()
