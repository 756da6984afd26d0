"""Runs of rows with a weight each, batches, and weights in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from products import close

from tilewright.checkpoints.safetensors import SafetensorsFile, save_safetensors
from tilewright.errors import InvalidCheckpoint, Unsupported, WrongArgumentShape
from tilewright.matmul import PackedExperts, PackedWeight, grouped_matmul, quant_bmm, quant_matmul
from tilewright.quant import QuantizedWeight, quantize

RNG = np.random.default_rng(0)
N, K = 20, 64


@pytest.fixture(scope="module")
def experts() -> list[PackedWeight]:
    return [PackedWeight.pack(quantize(RNG.standard_normal((N, K)), "int4", group=32)) for _ in range(3)]


def test_runs_of_rows(experts: list[PackedWeight]) -> None:
    x = RNG.standard_normal((9, K)).astype(np.float32)
    found = grouped_matmul(x, experts, [4, 0, 5])
    for rows, expert in ((slice(0, 4), experts[0]), (slice(4, 9), experts[2])):
        close(found[rows], x[rows], expert.to_dense())
    assert grouped_matmul(x[:0], experts, [0, 0, 0]).shape == (0, N)
    np.testing.assert_array_equal(grouped_matmul(x, experts, [0, 9, 0]), quant_matmul(x, experts[1]))


def test_batches(experts: list[PackedWeight]) -> None:
    x = RNG.standard_normal((3, 2, K)).astype(np.float32)
    found = quant_bmm(x, experts)
    for one, given, expert in zip(found, x, experts):
        close(one, given, expert.to_dense())


@pytest.mark.parametrize("function", ["relu", "clamped_swiglu"])
def test_each_run_has_its_bias_and_then_a_function(experts: list[PackedWeight], function: str) -> None:
    x = RNG.standard_normal((9, K)).astype(np.float32)
    bias = (10 * RNG.standard_normal((3, N))).astype(np.float32)
    found = grouped_matmul(x, experts, [4, 0, 5], bias=bias, function=function)
    rows = [(slice(0, 4), 0), (slice(4, 9), 2)]
    exact = np.concatenate([x[own] @ experts[e].to_dense().T + bias[e] for own, e in rows])
    gate, up = np.minimum(exact[:, ::2], 7), np.clip(exact[:, 1::2], -7, 7)
    exact = np.maximum(exact, 0) if function == "relu" else gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
    assert grouped_matmul(x[:0], experts, [0, 0, 0], function=function).shape == (0, exact.shape[1])


def test_what_does_not_fit_is_named(experts: list[PackedWeight]) -> None:
    x = np.zeros((9, K), np.float32)
    with pytest.raises(WrongArgumentShape, match="3 runs of 8 rows were given for 3 weights and 9 rows"):
        grouped_matmul(x, experts, [4, 0, 4])
    with pytest.raises(WrongArgumentShape, match=r"bias has shape \[20\], expected \[3, 20\]"):
        grouped_matmul(x, experts, [4, 0, 5], bias=np.zeros(20, np.float32))
    with pytest.raises(Unsupported, match="the activation function 'glu' is not supported") as caught:
        grouped_matmul(x, experts, [4, 0, 5], function="glu")
    assert "swiglu, clamped_swiglu" in str(caught.value)
    with pytest.raises(WrongArgumentShape, match=r"x has shape \[9, 64\], expected \[3, M, K\]"):
        quant_bmm(x, experts)


def weights() -> dict[str, QuantizedWeight]:
    made = quantize(RNG.standard_normal((6, 40)), "uint4", group=20, zeros="group")
    order = RNG.permutation(np.arange(40) // 20).astype(np.int32)
    return {
        "nvfp4": quantize(RNG.standard_normal((6, 40)), "nvfp4"),
        "act-order": QuantizedWeight(made.codes, made.format, made.scales, made.zeros, block=made.block, g_idx=order),
        "divisors": quantize(RNG.standard_normal((6, 40)), "int3", group=None, divisors=RNG.uniform(1, 2, 40)),
    }


@pytest.mark.parametrize("kind", weights())
def test_files_give_back_what_was_saved(kind: str, tmp_path: Path) -> None:
    weight = weights()[kind]
    PackedWeight.pack(weight).save(tmp_path / "weight.safetensors")
    back = PackedWeight.load(tmp_path / "weight.safetensors").unpack()
    np.testing.assert_array_equal(back.codes, weight.codes)
    np.testing.assert_array_equal(back.to_dense(), weight.to_dense())


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "other", {"codes": np.zeros(4, np.uint8)}, {"tilewright.layout": "plain/9"})
    with pytest.raises(InvalidCheckpoint) as caught:
        PackedWeight.load(tmp_path / "other")
    assert "holds a weight of layout 'plain/9'\n  help: this version reads 'plain/1'" in str(caught.value)
    save_safetensors(tmp_path / "another", {"a": np.zeros(4, np.uint8)})
    with pytest.raises(InvalidCheckpoint, match="another holds no packed weight"):
        PackedWeight.load(tmp_path / "another")


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("shape", "[24", "holds no weight that can be read"),
        ("shape", "[7, 64]", r"the scales have shape \[6, 2\], expected \[7, 2\]"),
        ("shape", "[6, 97]", r"the scales have shape \[6, 2\], expected \[6, 4\]"),
        ("block", "[0, -1]", "groups of 0 x -1 elements"),
        ("block", "[20]", "groups of 20 elements"),
        ("format", "int44", "unknown format 'int44'"),
        ("format", "uint8", r"codes are uint8 \[6, 32\], where uint8 \[6, 64\] is due"),
        ("tensor_scale", "nan", "the scale of the whole weight is nan"),
        ("zeros_mode", "middle", "no zeros_mode 'middle'"),
        ("arrays", '["codes", "scales"]', "it has the arrays codes, scales, zeros, where codes, scales are due"),
    ],
)
def test_damaged_files_are_told(key: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "weight.safetensors"
    PackedWeight.pack(quantize(RNG.standard_normal((6, 64)), "uint4", group=32, zeros="group")).save(path)
    file = SafetensorsFile(path)
    arrays, metadata = {name: np.array(array) for name, array in file.items()}, dict(file.metadata)
    save_safetensors(path, arrays, metadata | {f"tilewright.{key}": text})
    with pytest.raises(InvalidCheckpoint, match=message):
        PackedWeight.load(path)
    del metadata[f"tilewright.{key}"]
    save_safetensors(path, arrays, metadata)
    if key != "arrays":  # which files of before do not say
        with pytest.raises(InvalidCheckpoint, match="holds no weight that can be read"):
            PackedWeight.load(path)


@pytest.mark.parametrize("function", [None, "silu", "swiglu"])
def test_one_row_for_each_of_some_experts(function: str | None) -> None:
    """Calls again and again, with other runs, arrays and libraries: each beside float64, results never one array."""
    draw = np.random.default_rng(4)
    sources = [quantize(draw.standard_normal((36, 64)).astype(np.float32), "uint4", group=32) for _ in range(4)]
    experts = PackedExperts([PackedWeight.pack(source) for source in sources])
    seen: list[np.ndarray] = []
    for turn in range(12):
        sizes = [1, 1, 1, 1] if turn % 3 else [int(size) for size in draw.integers(0, 3, 4)]
        x = draw.standard_normal((sum(sizes), 64)).astype(np.float32)
        bias = draw.standard_normal((4, 36)).astype(np.float32)
        found = grouped_matmul(x, experts, sizes, bias=bias, function=function, out_dtype=["float16", None][turn % 2])
        assert found.dtype == (np.float32 if turn % 2 else np.float16) and not any(found is one for one in seen)
        seen.append(found)
        numbers = np.repeat(np.arange(4), sizes)
        sums = np.array([x[i].astype(np.float64) @ sources[e].to_dense().T + bias[e] for i, e in enumerate(numbers)])
        sums = sums.reshape(-1, 36)
        if function == "silu":
            sums = sums / (1 + np.exp(-sums))
        elif function == "swiglu":
            sums = sums[:, ::2] / (1 + np.exp(-sums[:, ::2])) * sums[:, 1::2]
        np.testing.assert_allclose(found, sums, rtol=2e-3, atol=2e-2 if turn % 2 == 0 else 2e-4)


def test_no_rows_are_of_the_right_shape_and_checked() -> None:
    source = quantize(np.ones((36, 64), np.float32), "uint4", group=32)
    experts = PackedExperts([PackedWeight.pack(source)] * 2)
    assert grouped_matmul(np.zeros((0, 64), np.float32), experts, [0, 0], function="swiglu").shape == (0, 18)
    with pytest.raises(WrongArgumentShape):
        grouped_matmul(np.zeros((0, 63), np.float32), experts, [0, 0])
    with pytest.raises(WrongArgumentShape):
        grouped_matmul(np.zeros((2, 63), np.float32), experts, [1, 1])
