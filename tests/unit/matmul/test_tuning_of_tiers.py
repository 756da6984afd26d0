"""Tuning: every tier's ways to compute a call give its result, the fastest is kept and used by whoever calls later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from products import close

from tilewright.ir.dtypes import ALL
from tilewright.kernels import hopper_quant
from tilewright.kernels.hopper_quant_skinny import InvalidShares, skinny_quant_matmul
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.matmul import Matmul, MatmulConfig, PackedExperts, PackedWeight, quant_matmul
from tilewright.matmul.grouped_calls import GroupedCall
from tilewright.matmul.product import Product
from tilewright.matmul.tiers.dispatch import candidates
from tilewright.matmul.tiers.panels import Panels
from tilewright.matmul.tuning import tune
from tilewright.quant import quantize
from tilewright.tuning import Database

RNG = np.random.default_rng(0)
HOPPER, AMPERE = "cuda -arch=sm_90a", "cuda -arch=sm_80"


def weight(name: str, N: int = 256, K: int = 512, **rest: Any) -> PackedWeight:
    return PackedWeight.pack(quantize(RNG.standard_normal((N, K)), name, **rest))


CASES = {
    "fragments few": (weight("int4", group=128, scale_dtype="float16"), "float16", 5, {}, HOPPER),
    "fragments many": (weight("int4", group=128, scale_dtype="float16"), "float16", 200, {}, HOPPER),
    "fragments of mma": (weight("int4", group=128, scale_dtype="float16"), "float16", 20, {}, AMPERE),
    "bytes": (weight("int4", group=128), "int8", 40, {}, HOPPER),
    "scaled": (weight("int8", group=None), "int8", 100, {}, HOPPER),
    "blocks": (weight("fp8_block"), "float8_e4m3fn", 100, {}, HOPPER),
    "general": (weight("int4", group=10), "float16", 20, {}, AMPERE),
    "panels": (weight("int4", group=128), "float32", 3, {"quantize": "int8"}, "cpu"),
}


def activations(name: str, rows: int, columns: int) -> np.ndarray:
    from tilewright.ir.dtypes import dtype

    if name == "int8":
        return RNG.integers(-128, 128, (rows, columns)).astype(np.int8)
    return RNG.standard_normal((rows, columns)).astype(dtype(name).numpy)


def made(case: str, chosen: Any = None) -> Product:
    held, name, rows, rest, target = CASES[case]
    x = activations(name, rows, held.shape[1])
    return Product.of(x, held, out_dtype="float32", target=target, chosen=chosen, **rest)


PROOF = ("fragments many", "fragments of mma", "general")
SOME = [pytest.param(case, marks=pytest.mark.proof if case in PROOF else ()) for case in CASES]


@pytest.mark.parametrize("case", SOME)
def test_candidates_are_many_and_the_models_choice_is_the_first(case: str) -> None:
    product = made(case)
    found = candidates(CASES[case][0], product.request, product.machine)
    assert len(found) >= 3
    assert found == json.loads(json.dumps(found)) or case in ("scaled", "blocks")  # tuples of clusters become lists
    first = made(case, json.loads(json.dumps(found[0])))
    of_first, of_model = ([k.get_kernel_source() for k in one.prepared.kernels] for one in (first, product))
    assert of_first == of_model


def test_candidates_leave_no_column_out() -> None:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    for K in (512, 1536, 2048):
        for sizes in hopper_quant.candidates(320, K, 1, form):
            skinny = sizes["kernel"] == "skinny"
            assert not skinny or (
                K // 128 % sizes["records"] == 0 and sizes["cluster"] * sizes["warps"] * sizes["records"] * 128 >= K
            )
    with pytest.raises(InvalidShares, match="1 workers of 8 records each cannot share a weight of 4 records"):
        skinny_quant_matmul(320, 512, form, warps=1, records=8)


@pytest.mark.parametrize("case", SOME)
def test_a_candidate_gives_the_products_result(case: str) -> None:
    held, name, rows, rest, target = CASES[case]
    product = made(case)
    chosen = json.loads(json.dumps(candidates(held, product.request, product.machine)[2]))
    x = activations(name, rows, held.shape[1])
    again = Product.of(x, held, out_dtype="float32", target=target, chosen=chosen, **rest)
    again.operands.out[...] = 77
    found = again.run() if target == "cpu" else again.emulate()
    if "quantize" in rest:
        np.testing.assert_array_equal(found, Product.of(x, held, out_dtype="float32", **rest).run())
    elif name == "float8_e4m3fn":
        exact = x.astype(np.float64) @ held.to_dense().T
        assert np.abs(found - exact).max() <= 2.0**-8 * np.abs(exact).max()
    else:
        operand = "float32" if name == "int8" else "float16"
        close(found, x, held.to_dense(), operand)


@pytest.fixture
def nothing_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of an empty tuning database."""
    monkeypatch.setattr(Database, "__init__", lambda self, directory=None: setattr(self, "directory", tmp_path))
    return tmp_path


def test_the_fastest_is_used_by_later_calls(monkeypatch: pytest.MonkeyPatch, nothing_tuned: Path) -> None:
    held, x = weight("int4", 96, 256, group=128), RNG.standard_normal((3, 256)).astype(np.float32)
    expected = quant_matmul(x, held, quantize="int8")
    used: list[Any] = []
    prepare = Panels.prepare
    monkeypatch.setattr(Panels, "prepare", lambda *given: used.append(given[-1]) or prepare(*given))
    times = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr("tilewright.matmul.tuning.time_call", lambda *_: next(times))
    found = tune(x, held, topk=3, parallel=False, quantize="int8")
    assert [outcome.milliseconds for outcome in found] == [1.0, 2.0, 3.0] and found[0].options == {"block_N": 48}
    used.clear()
    for later in (held, PackedWeight.pack(held.unpack())):
        np.testing.assert_array_equal(quant_matmul(x, later, quantize="int8"), expected)
    quant_matmul(np.concatenate([x, x[:1]]), held, quantize="int8")
    assert used == [{"block_N": 48}, {"block_N": 48}]  # rows of one kind; another weight of the kind
    used.clear()
    quant_matmul(np.repeat(x, 30, 0), held, quantize="int8")
    assert used == [{}]  # more rows are another kind


def test_a_wrong_candidate_is_not_kept(monkeypatch: pytest.MonkeyPatch, nothing_tuned: Path) -> None:
    held, x = weight("int4", 96, 256, group=128), RNG.standard_normal((3, 256)).astype(np.float32)
    run, times = Product.run, iter([3.0, 2.0, 1.0])
    made: list[Product] = []

    def spoilt(self: Product) -> Any:
        made.append(self)
        result = run(self)
        if len(made) == 3:  # the model's choice runs first
            result[:, -1] = 0
        return result

    monkeypatch.setattr(Product, "run", spoilt)
    monkeypatch.setattr("tilewright.matmul.tuning.time_call", lambda *_: next(times))
    found = tune(x, held, topk=3, parallel=False, quantize="int8")
    assert [outcome.milliseconds for outcome in found] == [2.0, 3.0, None]
    assert "the result is another one" in found[-1].reason


def test_an_operator_is_tuned_for_every_m_that_it_names(nothing_tuned: Path) -> None:
    config = MatmulConfig(M=[3, 4, 40], N=48, K=128, A_dtype="int8", W_dtype="int4", with_scaling=True, a_scale="token")
    operator = Matmul(config, target="cpu")
    found = operator.hardware_aware_finetune(topk=2, parallel_build=False)
    assert len(found) == 2 and found[0].milliseconds <= found[1].milliseconds
    assert len(operator.tuned) == 2 and all("panels" in key for key in operator.tuned)
    assert len(list(nothing_tuned.iterdir())) == 2
    assert operator.profile_latency() > 0 and operator.profile_latency(3) > 0


def grouped(kind: str) -> GroupedCall:
    """Three rows of two experts, the same at every call."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((2, 128, 256))
    group = None if kind == "int8" else 128
    held = [PackedWeight.pack(quantize(one, kind, group=group, scale_dtype="float16")) for one in values]
    x = rng.standard_normal((3, 256))
    given = np.rint(40 * x).astype(np.int8) if kind == "int8" else x.astype(np.float16)
    call = GroupedCall.of(given, PackedExperts(held), np.array([2, 1], np.int32), target=HOPPER)
    assert isinstance(call, GroupedCall)
    return call


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_experts_are_tuned_as_well(kind: str, nothing_tuned: Path) -> None:
    call = grouped(kind)
    assert len(call.candidates) >= 4 and grouped(kind).launches[0][0] is call.launches[0][0]
    call.choose(call.candidates[2])
    assert grouped(kind).launches[0][0] is not call.launches[0][0]
    assert len(list(nothing_tuned.iterdir())) == 1


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_experts_otherwise_give_the_same(kind: str, nothing_tuned: Path) -> None:
    call = grouped(kind)
    expected = call.emulate().copy()
    call.choose(call.candidates[2])
    np.testing.assert_allclose(grouped(kind).emulate(), expected, rtol=2e-2, atol=0.3)
