"""Calls that C compares and launches: each argument that is not like the one of the record is noticed there."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tilewright import options
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.quant import quantize
from tilewright.runtime.call_keys import MISSED
from tilewright.runtime.calls import Known
from tilewright.targets.cpu import again
from tilewright.targets.registry import resolve_device

N, K = 40, 64
DRAW = np.random.default_rng(3)
WEIGHT = quantize(DRAW.standard_normal((N, K)).astype(np.float32), "int4", group=32)
X = DRAW.standard_normal((2, K)).astype(np.float32)
BIAS = DRAW.standard_normal(N).astype(np.float32)
EXPECTED = X.astype(np.float64) @ WEIGHT.to_dense().T + BIAS


def is_bound(known: Known) -> bool:
    return "again" in known.plan.__code__.co_names  # type: ignore[attr-defined]


def known(**call: Any) -> tuple[PackedWeight, Any]:
    """A weight that knows a call, and what runs it."""
    packed = PackedWeight.pack(WEIGHT)
    for _ in range(3):
        quant_matmul(X, packed, bias=BIAS, **call)
    [known] = packed.calls._known.values()
    assert is_bound(known), "the call is not bound"
    return packed, known.plan


def test_this_interpreter_and_numpy_are_read() -> None:
    assert again.reads_arrays()


@pytest.mark.parametrize(
    "exchanged",
    [("data", "base"), ("shape", "strides"), ("type", "base"), ("flags", "dimensions"), ("data", "dimensions")],
)
def test_another_structure_is_noticed(exchanged: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With two fields exchanged nothing is as NumPy says, and calls go through Python."""
    kinds = dict(again._Array._fields_)
    other = dict(zip(exchanged, exchanged[::-1], strict=True))
    fields = tuple((name, kinds[name]) for name in (other.get(name, name) for name in kinds))
    monkeypatch.setattr(again, "_Array", type("_Array", (again.ctypes.Structure,), {"_fields_": fields}))
    again.reads_arrays.cache_clear()
    try:
        assert not again.reads_arrays()
        packed = PackedWeight.pack(WEIGHT)
        for _ in range(4):
            np.testing.assert_allclose(quant_matmul(X, packed, bias=BIAS), EXPECTED, rtol=1e-4, atol=1e-4)
        assert not any(map(is_bound, packed.calls._known.values()))
    finally:
        again.reads_arrays.cache_clear()


def unlike() -> dict[str, np.ndarray]:
    """Activations that differ from the record's in one thing each."""
    wide, odd = np.zeros((2, K + 1), np.float32), np.zeros(4 * 2 * K + 1, np.uint8)
    wide[:, :K] = X
    odd[1:] = X.reshape(-1).view(np.uint8)
    return {
        "shape": X[:1], "rank": X.reshape(1, 2, K), "strides": wide[:, :K], "order": np.asfortranarray(X),
        "type": X.astype(np.float64), "bytes": X.astype(">f4"), "address": odd[1:].view(np.float32).reshape(2, K),
    }  # fmt: skip


@pytest.mark.parametrize("way", list(unlike()))
def test_what_is_not_alike_is_missed(way: str) -> None:
    """The bound call refuses it, and the whole call answers as if nothing were known: a result, or an error."""
    packed, plan = known()
    x = unlike()[way]
    assert plan(x, BIAS) is MISSED
    try:
        found = quant_matmul(x, packed, bias=BIAS)
    except Exception as error:
        with pytest.raises(type(error)):
            quant_matmul(x, PackedWeight.pack(WEIGHT), bias=BIAS)
        return
    np.testing.assert_allclose(found.reshape(-1, N), EXPECTED[: len(found.reshape(-1, N))], rtol=1e-4, atol=1e-4)


def test_a_subclass_and_no_array_are_missed() -> None:
    _, plan = known()
    for x in (np.recarray((2, K), np.float32), np.ma.masked_array(X), [1.0], None, "x", 3):
        assert plan(x, BIAS) is MISSED


def test_a_result_that_lies_over_what_is_read_is_missed() -> None:
    memory = np.zeros(4 * K + 2 * N, np.float32)
    out = np.full((2, N), np.nan, np.float32)
    _, plan = known(out=out)
    for at in (0, 1, 2 * K - 1, 2 * K):
        x, over = memory[: 2 * K].reshape(2, K), memory[at : at + 2 * N].reshape(2, N)
        assert (plan(x, BIAS, over) is MISSED) == (at < 2 * K)


def test_a_result_that_must_not_be_written_is_missed() -> None:
    _, plan = known(out=np.empty((2, N), np.float32))
    out = np.zeros((2, N), np.float32)
    out.flags.writeable = False
    assert plan(X, BIAS, out) is MISSED and not out.any()


def test_many_threads_at_once() -> None:
    """The lock of the interpreter is given back while a kernel runs, and each call has arguments of its own."""
    packed, _ = known()
    wrong: list[float] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(200):
            x = draw.standard_normal((2, K)).astype(np.float32)
            found = quant_matmul(x, packed, bias=BIAS)
            error = np.abs(found - (x.astype(np.float64) @ WEIGHT.to_dense().T + BIAS)).max()
            if not error < 1e-4:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_described_processor_is_the_one_that_kernels_are_made_for() -> None:
    """TILEWRIGHT_TARGET describes the machine of arrays on its kind of device, and of no other."""
    with options.override(target="cpu -arch=x86_64"):
        assert resolve_device("cpu")[1].name == "x86_64"
        packed = PackedWeight.pack(WEIGHT)
        found = quant_matmul(X, packed, bias=BIAS)
        assert {kernel.arch.name for one in packed.prepared.values() for kernel in one.kernels} == {"x86_64"}
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-4, atol=1e-4)
    with options.override(target="cuda -arch=sm_90a"):
        assert resolve_device("cpu")[0].name == "cpu" and resolve_device("cuda:1")[1].name == "sm_90a"


def test_calls_in_a_mode_of_inference_and_outside_of_it() -> None:
    """Torch remembers tensors for one mode: each mode has what runs its calls at once."""
    torch = pytest.importorskip("torch")
    packed, x = PackedWeight.pack(WEIGHT).to("cpu"), torch.from_numpy(X)
    for _ in range(4):
        with torch.inference_mode():
            quant_matmul(x, packed)
            inside = packed.calls.run
        found = quant_matmul(x, packed)
        outside = packed.calls.run
    np.testing.assert_allclose(found.numpy(), EXPECTED - BIAS, rtol=1e-4, atol=1e-4)
    assert inside is not outside
    with torch.inference_mode():
        assert inside(x, *[None] * 8) is not MISSED
    assert outside(x, *[None] * 8) is not MISSED
