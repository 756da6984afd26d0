"""Calls that are known by what their arguments are: as a call that is checked in full, whatever the next one brings."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import pytest

from tilewright.matmul import Matmul, MatmulConfig, PackedWeight, quant_matmul
from tilewright.matmul.product import Product
from tilewright.quant import QuantizedWeight, quantize
from tilewright.runtime.call_keys import missed

K = 224
DRAW = np.random.default_rng(11)
WEIGHT = quantize(DRAW.standard_normal((K, K)).astype(np.float32), "int4", group=32)
"""Square, so that x, residual and result may be one array."""

ROTATED = dataclasses.replace(WEIGHT, rotation=np.linalg.qr(DRAW.standard_normal((7, 32, 32)))[0].astype(np.float32))
"""The same behind a rotation of its activations."""


def random_array(shape: tuple[int, ...], draw: np.random.Generator) -> np.ndarray:
    """Numbers in memory that is laid out in one of the ways that NumPy has."""
    numbers = draw.standard_normal(shape).astype(np.float32)
    way = draw.integers(6)
    if way == 0:
        wide = np.full((*shape[:-1], shape[-1] + 3), np.nan, np.float32)
        wide[..., 1 : shape[-1] + 1] = numbers
        return wide[..., 1 : shape[-1] + 1]
    if way == 1:
        return np.asfortranarray(numbers)
    if way == 2:
        bytes_ = np.zeros(numbers.nbytes + 1, np.uint8)
        bytes_[1:] = numbers.reshape(-1).view(np.uint8)
        return bytes_[1:].view(np.float32).reshape(shape)
    if way == 3:
        numbers.flags.writeable = False
    return numbers


def random_call(draw: np.random.Generator) -> dict[str, Any]:
    """Arguments of a call: few kinds of each, so that kinds come again and few kernels are compiled."""
    rows = ((1,), (3,), (2, 2), ())[draw.integers(4)]
    call: dict[str, Any] = {"x": random_array((*rows, K), draw)}
    kind = draw.integers(4)
    if kind == 1:
        call |= {"quantize": "int8", "bias": random_array((K,), draw)}
    elif kind == 2:
        call |= {"residual": call["x"] if draw.integers(2) else random_array((*rows, K), draw), "function": "silu"}
    elif kind == 3:
        call["activation_scales"] = draw.uniform(0.5, 2, (*rows, 1)).astype(np.float32)
    way = draw.integers(4)
    if way == 1:
        out = random_array((*rows, K), draw)
        call["out"] = out if out.flags.writeable else out.copy()
    elif way == 2 and call["x"].flags.writeable:
        call["out"] = call["x"]
    return call


@pytest.mark.parametrize("weight", [WEIGHT, ROTATED], ids=["plain", "rotated"])
def test_known_calls_are_what_checked_ones_are(weight: QuantizedWeight) -> None:
    """Random calls one after another, each beside the same call of a weight that knows none; x, residual and out may be one array."""
    packed, fresh = PackedWeight.pack(weight), PackedWeight.pack(weight)
    draw = np.random.default_rng(5)
    calls = [random_call(draw) for _ in range(60)]
    for _ in range(8):
        for index in draw.permutation(len(calls)):
            call = calls[index]
            out = call.get("out")
            before = None if out is None else out.copy()
            found = quant_matmul(weight=packed, **call)
            assert out is None or found is out
            found = found.copy()
            if out is not None:
                out[...] = before
            fresh.calls.clear()
            expected = quant_matmul(weight=fresh, **call)
            assert found.dtype == expected.dtype and found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)
            if out is not None:
                out[...] = before
    assert sum(known.plan is not missed for known in packed.calls._known.values()) > 10


@pytest.mark.parametrize("torch_too", [False, True])
def test_calls_of_two_kinds_in_turn_are_found_without_a_look_up(
    torch_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = PackedWeight.pack(WEIGHT)
    given: list[Any] = [DRAW.standard_normal((rows, K)).astype(np.float32) for rows in (1, 3, 5)]
    if torch_too:
        torch = pytest.importorskip("torch")
        given, packed = [torch.from_numpy(x) for x in given], packed.to("cpu")
    expected = [quant_matmul(x, packed) for x in (*given, *given, *given)]
    looked: list[int] = []
    at = packed.calls.at
    monkeypatch.setattr(packed.calls, "at", lambda arguments: looked.append(len(arguments[0])) or at(arguments))
    for number in (0, 1, 0, 1, 1, 0, 0, 2, 0, 2, 1):
        np.testing.assert_array_equal(quant_matmul(given[number], packed), expected[number])
    assert looked == [1, 3, 5, 3]


def test_a_known_call_is_exact_enough() -> None:
    """The numbers themselves, against float64: a known call reads the arrays of its own call, not those of an earlier one."""
    packed = PackedWeight.pack(WEIGHT)
    for _ in range(5):
        x = DRAW.standard_normal((3, K)).astype(np.float32)
        bias, out = DRAW.standard_normal(K).astype(np.float32), np.full((3, K), np.nan, np.float32)
        assert quant_matmul(x, packed, bias=bias, out=out) is out
        expected = x.astype(np.float64) @ WEIGHT.to_dense().T + bias
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert packed.calls._known


@pytest.mark.parametrize("torch_too", [False, True])
def test_kernels_that_hand_something_on(torch_too: bool) -> None:
    """Groups of 8 are padded, and activations with them: by a kernel of its own, into memory that each call has for itself."""
    weight = quantize(DRAW.standard_normal((40, K)).astype(np.float32), "int4", group=8)
    packed, calls = PackedWeight.pack(weight), 4
    if torch_too:
        torch = pytest.importorskip("torch")
        packed = packed.to("cpu")
    for _ in range(calls):
        x = DRAW.standard_normal((3, K)).astype(np.float32)
        found = quant_matmul(torch.from_numpy(x), packed).numpy() if torch_too else quant_matmul(x, packed)
        np.testing.assert_allclose(found, x.astype(np.float64) @ weight.to_dense().T, rtol=1e-4, atol=1e-4)
    assert [known.plan.__name__ for known in packed.calls._known.values()] == ["plan"]


def test_operators_of_other_configs_on_one_weight() -> None:
    packed, fresh = PackedWeight.pack(WEIGHT), PackedWeight.pack(WEIGHT)
    config = MatmulConfig(
        N=K, K=K, A_dtype="float32", W_dtype="int4", with_scaling=True, group_size=32, out_dtype="float32"
    )
    operators = [
        Matmul(config),
        Matmul(dataclasses.replace(config, with_bias=True)),
        Matmul(dataclasses.replace(config, out_dtype="float16")),
    ]
    bias = DRAW.standard_normal(K).astype(np.float16)
    for _ in range(4):
        x = DRAW.standard_normal((2, K)).astype(np.float32)
        for operator in operators:
            given = (x, None, None, bias) if operator.with_bias else (x,)
            fresh.calls.clear()
            found = operator(given[0], packed, *given[1:])
            expected = operator(given[0], fresh, *given[1:])
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    assert [len(calls) for calls in packed.operator_calls.values()] == [1, 1, 1]


def test_a_residual_elsewhere_than_x_after_calls_with_one_array_for_both() -> None:
    packed = PackedWeight.pack(WEIGHT)
    x = DRAW.standard_normal((2, K)).astype(np.float32)
    for _ in range(4):
        quant_matmul(x, packed, residual=x)
    other = DRAW.standard_normal((2, K)).astype(np.float32)
    np.testing.assert_array_equal(
        quant_matmul(x, packed, residual=other), quant_matmul(x, PackedWeight.pack(WEIGHT), residual=other)
    )


def test_wrong_calls_are_refused_after_right_ones() -> None:
    packed = PackedWeight.pack(WEIGHT)
    x = np.zeros((1, K), np.float32)
    for _ in range(4):
        quant_matmul(x, packed)
    for wrong in (x[:, :-1], x.astype(np.float64)[:, :5], "x", None):
        with pytest.raises(Exception, match="activations"):
            quant_matmul(wrong, packed)
    read_only = np.empty((1, K), np.float32)
    for _ in range(4):
        quant_matmul(x, packed, out=read_only)
    read_only.flags.writeable = False
    with pytest.raises(Exception, match="read-only"):
        quant_matmul(x, packed, out=read_only)


@pytest.mark.parametrize("rows, kept", [(1, [0, 1, 1]), (0, [0, 0, 0])])
@pytest.mark.parametrize("weight", [WEIGHT, ROTATED], ids=["plain", "rotated"])
def test_what_comes_again_is_known_unless_it_has_no_rows(weight: QuantizedWeight, rows: int, kept: list[int]) -> None:
    packed, found = PackedWeight.pack(weight), []
    for _ in kept:
        assert quant_matmul(np.ones((rows, K), np.float32), packed).shape == (rows, K)
        found.append(len(packed.calls))
    assert found == kept


def test_a_weight_is_gone_with_its_last_name() -> None:
    """What is written for known calls mentions the weight's arrays; nothing of it holds itself, which only a search for cycles would free."""
    packed = PackedWeight.pack(WEIGHT)
    x = np.zeros((1, K), np.float32)
    for _ in range(4):
        quant_matmul(x, packed)
    assert packed.calls._known
    panels = weakref.ref(next(iter(packed._derived.values()))[0])
    del packed
    assert panels() is None


def test_tensors_of_torch_whose_gradients_are_wanted_or_that_are_cast() -> None:
    torch = pytest.importorskip("torch")
    packed = PackedWeight.pack(WEIGHT)
    x = torch.randn(2, K)
    for _ in range(4):
        expected = quant_matmul(x, packed)
    assert packed.calls._known
    wanted = x.clone().requires_grad_()
    found = quant_matmul(wanted, packed)
    assert found.requires_grad and torch.equal(found, expected)
    with torch.no_grad():
        assert not quant_matmul(wanted, packed).requires_grad
    compiled = torch.compile(lambda x: quant_matmul(x, packed) * 2, backend="eager")
    assert torch.equal(compiled(x), expected * 2)
    conjugate = torch.complex(torch.zeros(2, K), x).conj().imag  # a view with the sign turned
    assert conjugate.is_neg() and torch.equal(quant_matmul(conjugate, packed), quant_matmul(-x, packed))


def test_gradients_that_are_wanted_behind_calls_without() -> None:
    """Torch remembers that a tensor requires gradients, not whether they were taken."""
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("tilewright.nn")
    layer = nn.Linear.from_float(torch.nn.Linear(K, K, bias=False), "int4", group=32)
    packed = PackedWeight.pack(WEIGHT).to("cpu")
    for call in (layer, lambda x: quant_matmul(x, packed)):
        x = torch.randn(2, K, requires_grad=True)
        for _ in range(4):
            with torch.no_grad():
                expected = call(x)
        found = call(x)
        assert found.requires_grad and torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
        found.sum().backward()
        assert x.grad is not None and bool(x.grad.any())


def test_arrays_beside_tensors() -> None:
    """What NumPy's activations and torch's bias give at first they give at all later calls."""
    torch = pytest.importorskip("torch")
    packed, x, bias = PackedWeight.pack(WEIGHT), np.ones((2, K), np.float32), np.arange(K, dtype=np.float32)
    expected = quant_matmul(x, packed, bias=bias)
    for _ in range(4):
        np.testing.assert_array_equal(quant_matmul(x, packed, bias=torch.from_numpy(bias)), expected)


@pytest.mark.parametrize("torch_too", [False, True])
def test_calls_behind_a_rotation_are_not_checked_again(torch_too: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rows and the bias: other numbers, and the rotation as it is at the time of the call."""
    packed, given = PackedWeight.pack(ROTATED), {"bias": DRAW.standard_normal(K).astype(np.float32)}
    draws = [DRAW.standard_normal((2, 3, K)).astype(np.float32) for _ in range(4)]
    expected = [x.astype(np.float64) @ ROTATED.to_dense().T + given["bias"] for x in draws]
    as_given: Any = np.ascontiguousarray
    if torch_too:
        torch = pytest.importorskip("torch")
        packed, as_given = packed.to("cpu"), torch.from_numpy
    options = {name: as_given(array) for name, array in given.items()}
    for _ in range(2):
        quant_matmul(as_given(draws[0]), packed, **options)
    monkeypatch.setattr(Product, "of", None)
    for x, wanted in zip(draws, expected):
        found = np.asarray(quant_matmul(as_given(x), packed, **options))
        assert found.shape == (2, 3, K)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    packed.held["rotation"][...] = 0.0
    np.testing.assert_allclose(np.asarray(quant_matmul(as_given(draws[0]), packed, **options))[1, 2], given["bias"])
