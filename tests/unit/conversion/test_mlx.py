"""Checkpoints of MLX, written element by element as its `mx.quantize` lays them out: layers and embeddings of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.checkpoints import open_checkpoint, open_files, save_safetensors  # noqa: E402
from tilewright.conversion import convert_checkpoint, load_quantized  # noqa: E402
from tilewright.errors import InvalidTensor, MissingTensor, WrongArgumentShape  # noqa: E402
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
        ({"mode": "e4m3"}, "says mode: 'e4m3', where one of affine, mxfp4, nvfp4, mxfp8 is due"),
        ({"mode": "mxfp4"}, "mxfp4 weights of MLX have 4 bits in groups of 32, not 4 in groups of 64"),
        ({"bits": 7}, "says bits: 7, where one of 1, 2, 3"), ({"strange": 3}, "says strange: 3, which nothing here reads"),
        ({"up": {"group_size": 32, "global_scale": 3}}, "up: global_scale: 3, where true or false is due"),
        ({"up": {"bits": 4, "group_size": 16, "mode": "nvfp4"}}, r"up\.scales is float16 \[24, 2\], where uint8"),
        ({"up": {"bits": 4, "group_size": 64, "mode": "nf4"}}, "says quantization: up: mode: 'nf4', where"),
        ({"up": {"group_size": 32}}, r"up\.scales is float16 \[24, 2\], where"),
    ]):  # fmt: skip
        source, _ = checkpoint(tmp_path / str(number), **said)
        with pytest.raises(InvalidTensor, match=words):
            convert_checkpoint(source, tmp_path / "ours")


@pytest.mark.parametrize("named", [False, True])
def test_experts_in_one_tensor(tmp_path: Path, named: bool) -> None:
    """mlx-lm's ``switch_mlp``, of nvfp4 with a scale for each expert beside layers of integers; its loader tells such layers
    by their scales where the configuration does not name them."""
    rng = np.random.default_rng(0)
    codes, scales = (
        rng.integers(0, 256, (3, 8, 32)).astype(np.uint8),
        rng.uniform(1, 400, (3, 8, 4)).astype(ml_dtypes.float8_e4m3fn),
    )
    whole, table = rng.uniform(1, 9, 3).astype(np.float32), np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.concatenate([table, -table])[np.stack([codes & 15, codes >> 4], -1).reshape(3, 8, 64)]
    expected = values * np.repeat(scales.astype(float), 16, 2) * whole[:, None, None].astype(float) / 2688
    tensors = {"weight": codes.view(np.uint32), "scales": scales.view(np.uint8), "global_scale": whole}
    parts, dense = written(rng, 8, 4)
    more = {f"up.{part}": array for part, array in parts.items()}
    save_safetensors(
        tmp_path / "a.safetensors", {f"mlp.switch_mlp.fc1.{end}": one for end, one in tensors.items()} | more
    )
    how = {"mlp.switch_mlp.fc1": {"bits": 4, "group_size": 16, "mode": "nvfp4", "global_scale": True}} if named else {}
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {"bits": 4, "group_size": GROUP, **how}}))
    convert_checkpoint(tmp_path, tmp_path / "ours")
    ours = open_checkpoint(tmp_path / "ours")
    for number, weight in enumerate(expected):
        found = read_weight(ours, f"mlp.experts.up_proj.{number}").to_dense()
        np.testing.assert_allclose(found, weight, rtol=1e-14)
    np.testing.assert_allclose(read_weight(ours, "up").to_dense(), dense, rtol=1e-14, atol=1e-14)


def hybrid(directory: Path, turned: bool = True, **said: Any) -> Path:
    """A checkpoint with norms and the filters of a convolution, which mlx-lm turns when it adds one to the norms."""
    source, _ = checkpoint(directory)
    more = {
        f"model.layers.0.{norm}.weight": np.arange(4, dtype=np.float16) for norm in ("input_layernorm", "self_attn.q_norm", "linear_attn.norm")
    }  # fmt: skip
    more["model.layers.0.linear_attn.conv1d.weight"] = np.zeros((8, 3, 1) if turned else (8, 1, 3), np.float16)
    save_safetensors(source / "model-2.safetensors", more)
    names = {
        **dict.fromkeys(open_files([source / "model.safetensors"]), "model.safetensors"),
        **dict.fromkeys(more, "model-2.safetensors"),
    }
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **said}))
    return source


def test_one_that_was_added_to_norms_is_taken_off(tmp_path: Path) -> None:
    """Qwen 3 Next and 3.5, whose models of transformers add one as well; where the filters lie as in transformers' files nothing
    was added."""
    for turned, kind in ((True, "qwen3_next"), (True, "qwen3_5_moe"), (False, "qwen3_next"), (True, "olmo_hybrid")):
        place = tmp_path / f"{kind}{turned}"
        convert_checkpoint(hybrid(place, turned, text_config={"model_type": kind}), place / "ours")
        ours, less = open_checkpoint(place / "ours"), int(turned and kind.startswith("qwen"))
        for norm, added in (("input_layernorm", less), ("self_attn.q_norm", less), ("linear_attn.norm", 0)):
            assert ours[f"model.layers.0.{norm}.weight"].tolist() == [one - added for one in range(4)], (kind, norm)
            assert ours[f"model.layers.0.{norm}.weight"].dtype == np.float16


def test_numbers_that_are_in_weights_and_that_a_model_has_too_are_refused(tmp_path: Path) -> None:
    plain = hybrid(tmp_path / "plain", model_type="falcon_h1", ssm_multipliers=[1.0, 1], key_multiplier=1)
    convert_checkpoint(plain, tmp_path / "ours")
    for number, said in enumerate(
        [{"model_type": "falcon_h1", "ssm_multipliers": [1.0, 0.5]}, {"model_type": "step3p5"}]
    ):
        with pytest.raises(InvalidTensor, match="mlx-lm changes weights of a"):
            convert_checkpoint(hybrid(tmp_path / str(number), **said), tmp_path / "not")


def test_numbers_in_another_order_are_refused(tmp_path: Path) -> None:
    """MLX has the channels of filters last; as many numbers are no reason to take them."""
    rng = np.random.default_rng(0)
    parts, _ = written(rng, 8, 4)
    filters = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(K, 8, bias=False), "conv": torch.nn.Conv2d(2, 4, 3, bias=False)})
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {"bits": 4, "group_size": GROUP}}))
    codes = {f"up.{part}": array for part, array in parts.items()}
    save_safetensors(tmp_path / "model.safetensors", {**codes, "conv.weight": filters})
    with pytest.raises(
        WrongArgumentShape, match=r"conv\.weight is \[4, 3, 3, 2\] in the checkpoint, conv\.weight \[4, 2, 3, 3\]"
    ):
        load_quantized(model, tmp_path)
    save_safetensors(tmp_path / "model.safetensors", {**codes, "conv.weight": filters.reshape(4, 18)})
    load_quantized(model, tmp_path)
    np.testing.assert_array_equal(model["conv"].weight.detach().numpy(), filters.reshape(4, 2, 3, 3))


@pytest.mark.parametrize("quantised", [True, False])
def test_matrices_that_are_cut_by_heads_are_joined(tmp_path: Path, quantised: bool) -> None:
    """mlx-lm's `sanitize` of models with latent attention: of ``kv_b_proj`` ``[heads * (nope + v), rank]`` the rows of keys, transposed, and
    those of values become matrices of their own."""
    rng, heads, values = np.random.default_rng(0), 2, 24
    keys, rest = ([written(rng, N, 4) for _ in range(heads)] for N in (K, values))
    tensors = {"up.weight": rng.standard_normal((K, heads * (K + values))).astype(np.float32)}
    for part, made in (("embed_q", keys), ("unembed_out", rest)):
        if quantised:
            tensors |= {f"attn.{part}.{end}": np.stack([one[end] for one, _ in made]) for end in made[0][0]}
        else:
            tensors[f"attn.{part}.weight"] = np.stack([weight for _, weight in made]).astype(np.float32)
    tensors |= {f"down.{end}": one for end, one in written(rng, 8, 4)[0].items()}
    expected = np.zeros((heads * (K + values), K))
    for head in range(heads):
        for row in range(K + values):
            whole = keys[head][1][:, row] if row < K else rest[head][1][row - K]
            expected[head * (K + values) + row] = whole
    save_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {"bits": 4, "group_size": GROUP}}))
    model = torch.nn.ModuleDict({"attn": torch.nn.ModuleDict({"kv_b_proj": torch.nn.Linear(K, len(expected), False)})})
    model.update({"up": torch.nn.Linear(len(expected), K, False), "down": torch.nn.Linear(K, 8, False)})
    load_quantized(model, tmp_path)
    np.testing.assert_allclose(model["attn"]["kv_b_proj"].weight.detach().numpy(), expected, rtol=1e-6)
    convert_checkpoint(tmp_path, tmp_path / "ours")
    assert (open_checkpoint(tmp_path / "ours")["attn.kv_b_proj.weight"] == expected.astype(np.float32)).all()
    tensors["attn.unembed_out.weight"] = tensors["attn.unembed_out.weight"][:1]
    for end in ("scales", "biases") if quantised else ():
        tensors[f"attn.unembed_out.{end}"] = tensors[f"attn.unembed_out.{end}"][:1]
    save_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(InvalidTensor, match=r"attn: embed_q is \[2, 128, 128\] beside unembed_out of \[1, 24, 128\]"):
        convert_checkpoint(tmp_path, tmp_path / "other")
    del tensors["attn.unembed_out.weight"]
    save_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(MissingTensor, match=r"attn\.unembed_out\.weight is missing"):
        convert_checkpoint(tmp_path, tmp_path / "less")
