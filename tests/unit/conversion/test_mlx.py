"""Checkpoints of MLX, written element by element as its `mx.quantize` lays them out: layers and embeddings of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.checkpoints import open_checkpoint, save_safetensors  # noqa: E402
from tilewright.conversion import convert_checkpoint, load_quantized  # noqa: E402
from tilewright.errors import InvalidTensor  # noqa: E402
from tilewright.quant.files import read_weight  # noqa: E402

K, GROUP = 128, 64


def written(
    rng: np.random.Generator, N: int, bits: int, group: int = GROUP
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Codes of a row as one long number, the first in its lowest bits, cut into words."""
    codes = rng.integers(0, 1 << bits, (N, K))
    scales, biases = (rng.uniform(-1, 1, (N, K // group)).astype(np.float16) for _ in range(2))
    longs = [sum(int(code) << bits * k for k, code in enumerate(row)) for row in codes]
    words = np.array([[long >> 32 * i & 0xFFFFFFFF for i in range(K * bits // 32)] for long in longs], np.uint32)
    weight = codes * np.repeat(scales.astype(float), group, 1) + np.repeat(biases.astype(float), group, 1)
    return {"weight": words, "scales": scales, "biases": biases}, weight


def checkpoint(directory: Path, bits: int = 4, **said: Any) -> tuple[Path, dict[str, np.ndarray]]:
    rng = np.random.default_rng(bits)
    directory.mkdir()
    made = {"up": written(rng, 24, bits), "embed": written(rng, 10, bits), "down.proj": written(rng, 16, 8, 32)}
    tensors = {f"{layer}.{part}": array for layer, (parts, _) in made.items() for part, array in parts.items()}
    settings = {"bits": bits, "group_size": GROUP, "down.proj": {"bits": 8, "group_size": 32}, "a.norm": False, **said}
    save_safetensors(directory / "model.safetensors", tensors, {"format": "mlx"})
    (directory / "config.json").write_text(json.dumps({"quantization": settings, "quantization_config": settings}))
    return directory, {layer: weight for layer, (_, weight) in made.items()}


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_every_number_of_bits(tmp_path: Path, bits: int) -> None:
    source, weights = checkpoint(tmp_path / "from", bits)
    convert_checkpoint(source, tmp_path / "ours")
    for layer, expected in weights.items():
        found = read_weight(open_checkpoint(tmp_path / "ours"), layer).to_dense()
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


def test_what_was_converted_is_loaded(tmp_path: Path) -> None:
    """The configuration of the result still has MLX's word, and says beside it that its tensors are ours."""
    source, weights = checkpoint(tmp_path / "from")
    convert_checkpoint(source, tmp_path / "ours")
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(K, 24, bias=False), "embed": torch.nn.Embedding(10, K)})
    model["down"] = torch.nn.ModuleDict({"proj": torch.nn.Linear(K, 16, bias=False)})
    load_quantized(model, tmp_path / "ours")
    np.testing.assert_allclose(model["up"].weight.to_dense(), weights["up"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("on_meta", [False, True])
def test_a_model_with_a_quantised_embedding(tmp_path: Path, on_meta: bool) -> None:
    source, weights = checkpoint(tmp_path / "from")
    with torch.device("meta" if on_meta else "cpu"):
        model = torch.nn.ModuleDict({"up": torch.nn.Linear(K, 24, bias=False), "embed": torch.nn.Embedding(10, K)})
        model["head"] = torch.nn.Linear(K, 10, bias=False)
        model["head"].weight = model["embed"].weight
        model["down"] = torch.nn.ModuleDict({"proj": torch.nn.Linear(K, 16, bias=False)})
    load_quantized(model, source)
    np.testing.assert_allclose(model["embed"].weight.detach().numpy(), weights["embed"], rtol=1e-6)
    assert model["head"].weight is model["embed"].weight
    np.testing.assert_allclose(model["up"].weight.to_dense(), weights["up"], rtol=1e-12, atol=1e-12)


def test_what_is_not_read_is_refused(tmp_path: Path) -> None:
    for number, (said, words) in enumerate([
        ({"mode": "mxfp4"}, "says mode: 'mxfp4', where one of affine is due"),
        ({"bits": 7}, "says bits: 7, where one of 2, 3"), ({"strange": 3}, "says strange: 3, which nothing here reads"),
        ({"up": {"bits": 4, "group_size": 64, "mode": "nvfp4"}}, "says quantization: up: mode: 'nvfp4', where"),
        ({"up": {"group_size": 32}}, r"up\.scales is float16 \[24, 2\], where"),
    ]):  # fmt: skip
        source, _ = checkpoint(tmp_path / str(number), **said)
        with pytest.raises(InvalidTensor, match=words):
            convert_checkpoint(source, tmp_path / "ours")
