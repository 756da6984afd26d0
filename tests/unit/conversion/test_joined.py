"""Weights of rows of others: the same numbers, for random forms and random rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.conversion.joined import JoinedLayers, in_one_form, of_rows
from tilewright.conversion.names import Names
from tilewright.errors import MissingTensor, WrongArgumentShape
from tilewright.matmul import PackedExperts, PackedWeight, grouped_matmul
from tilewright.quant import QuantizedWeight, quantize


def weight(rng: np.random.Generator, rows: int, form: str) -> QuantizedWeight:
    codes = rng.integers(0, 16, (rows, 32)).astype(np.uint8)
    blocks = {"a row": (1, 8), "a tensor": (0, 0), "blocks": (4, 16), "columns": (0, 8)}[form]
    groups = [-(-extent // (part or extent)) for extent, part in zip((rows, 32), blocks)]
    return QuantizedWeight(
        codes,
        "uint4",
        rng.uniform(0.1, 1, groups).astype(np.float32),
        rng.integers(0, 16, groups).astype(np.float32),
        block=blocks,
    )


@pytest.mark.parametrize("form", ["a row", "a tensor", "blocks", "columns"])
@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_those_of_the_rows(form: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [weight(rng, rows, form) for rows in rng.integers(1, 14, 1 + seed % 3)]
    dense = np.concatenate([one.to_dense() for one in parts])
    count = len(dense)
    for rows in (
        np.arange(count),
        rng.permutation(count),
        rng.integers(0, count, 5),
        np.arange(count)[-1:],
        np.arange(count // 2),
    ):
        if len(rows):
            assert np.array_equal(of_rows(parts, rows, "w").to_dense(), dense[rows])


def test_blocks_stay_blocks_where_rows_of_a_block_stay_together() -> None:
    """128 x 128 blocks of fp8, cut into queries, keys and values."""
    rng = np.random.default_rng(0)
    one = weight(rng, 24, "blocks")
    assert of_rows([one], np.arange(8, 16), "w").block == (4, 16)
    assert of_rows([one], np.arange(2, 10), "w").block == (1, 16)
    assert of_rows([weight(rng, 24, "a tensor")], np.arange(5), "w").scales.shape == (1, 1)


def test_weights_of_two_forms_are_refused() -> None:
    ones = np.ones((8, 32))
    for other in (
        quantize(ones, "int8", group=16),
        quantize(ones, "int4", group=8),
        quantize(np.ones((8, 16)), "int4", group=16),
    ):
        with pytest.raises(WrongArgumentShape, match=r"model\.qkv is made of weights of two forms"):
            of_rows([quantize(ones, "int4", group=16), other], np.arange(4), "model.qkv")


class Pairs(Names):
    """A model that has ``a`` and ``b`` of a checkpoint as the rows of ``both``, in turn."""

    def made_of(self, layer: str) -> list[str]:
        return ["both"] if layer in ("a", "b") else []

    def rows(self, target: str, sources: Any) -> dict[str, np.ndarray]:
        assert [*sources] == ["b", "a"]
        return {"both": np.arange(sum(sources.values())).reshape(2, -1).T.reshape(-1)}


def test_a_layer_is_there_when_all_its_parts_are() -> None:
    rng = np.random.default_rng(0)
    a, b = weight(rng, 6, "a row"), weight(rng, 6, "a row")
    joined = JoinedLayers(Pairs(), ["b", "other", "a"])
    assert [joined.places(name) for name in ("a", "other")] == [["both"], ["other"]]
    assert joined.take("a", a) == {} and [*joined.take("other", a)] == ["other"]
    with pytest.raises(MissingTensor, match=r"both is made of b, a: b is missing"):
        joined.check()
    made = joined.take("b", b)["both"]
    assert np.array_equal(made.to_dense()[::2], b.to_dense()) and np.array_equal(made.to_dense()[1::2], a.to_dense())
    joined.check()


def drawn(rng: np.random.Generator, shape: tuple[int, int]) -> QuantizedWeight:
    """A weight of groups of 16 that lacks some of what such a weight may have, or has one for all groups."""
    rows, columns = shape
    groups = (rows, columns // 16)

    def sizes() -> tuple[int, int]:
        return groups if rng.random() < 0.5 else (int(rng.choice([1, rows])), 1)

    rest: dict[str, Any] = {}
    if rng.random() < 0.8:
        rest["scales"] = rng.uniform(0.1, 1, sizes()).astype(str(rng.choice(["float16", "float32"])))
    if rng.random() < 0.6:
        rest["zeros"] = rng.integers(0, 16, sizes()).astype(np.uint8)
    if rng.random() < 0.3:
        rest["multipliers"] = rng.integers(1, 9, groups).astype(np.int8)
    if rng.random() < 0.3:
        rest["tensor_scale"] = float(np.float32(rng.uniform(0.1, 1)))
    return QuantizedWeight(rng.integers(0, 16, shape).astype(np.uint8), "uint4", block=(1, 16), **rest)


@pytest.mark.parametrize("seed", range(12))
def test_what_readers_leave_out_does_not_part_weights(seed: int) -> None:
    """Readers drop zero points of 0, orders that are none, and hold one number where all are the same: of gate and up, and of
    experts, one may have what the other lacks."""
    rng = np.random.default_rng(seed)
    parts = [drawn(rng, (int(rng.integers(2, 9)), 64)) for _ in range(3)]
    dense = np.concatenate([one.to_dense() for one in parts])
    rows = rng.permutation(len(dense))
    assert np.array_equal(of_rows(parts, rows, "w").to_dense(), dense[rows])

    experts = [drawn(rng, (8, 64)) for _ in range(4)]
    order = rng.permutation(np.arange(64) // 16).astype(np.int32)
    experts[0] = replace(experts[0], g_idx=order, divisors=rng.uniform(0.5, 2, 64).astype(np.float32))
    experts[1] = QuantizedWeight(experts[1].codes, "uint4", np.full((1, 1), 0.5, np.float32), block=(8, 16))
    stacked = PackedExperts([PackedWeight.pack(one) for one in in_one_form(experts)])
    x = rng.standard_normal((12, 64)).astype(np.float32)
    found = grouped_matmul(x, stacked, np.array([3, 4, 0, 5]))
    begun = 0
    for number, count in enumerate((3, 4, 0, 5)):
        assert np.array_equal(stacked[number].to_dense(), experts[number].to_dense())
        expected = x[begun : begun + count].astype(float) @ experts[number].to_dense().T
        np.testing.assert_allclose(found[begun : begun + count], expected, rtol=1e-4, atol=1e-3)
        begun += count
