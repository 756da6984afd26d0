"""Any architecture in any form: both drawn, each layer's own numbers rounded by the form's description, beside transformers' model of
the dense file with the same numbers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drawn_forms
import every_model
import numpy as np
import pytest
import torch
import transformers as tf
from test_every_model import OTHERS, STAY
from test_transformers import error
from tiny_models import logits_of

import tilewright
from tilewright.checkpoints import open_checkpoint, save_safetensors

ALL = [
    (which, name)
    for which in every_model.KINDS
    for name in every_model.architectures(which)
    if name not in {*OTHERS, *STAY}
]
LAYER = re.compile(
    r"(^|[._])(q|k|v|o|w[io123]|wi_\d|up|down|gate|fc\d?|lin\d|c_attn|c_fc|query|key|value|\w*dense\w*|linear\w*|Wqkv|W[io]|\w*proj\w*)\.weight$"
)
TABLE = re.compile(
    r"embed|norm|conv|head|router|(^|\.)gate\.weight|pos|score|rel_|_bias|shared\.weight|wte|wpe|classifier|relative|word"
)
Tensors = dict[str, np.ndarray]


def layers_of(model: Any, state: Tensors, rng: np.random.Generator) -> dict[str, bool]:
    """Names of layers in files that are quantised, and whether their weights lie by columns; some stay dense by chance."""
    turned = {name for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}
    share = 0.2 if rng.random() < 0.3 else 0.0
    return {
        name.removesuffix(".weight"): any(name.removesuffix(".weight").endswith(one) for one in turned)
        for name, tensor in state.items()
        if tensor.ndim == 2 and LAYER.search(name) and not TABLE.search(name) and ("experts" in name or rng.random() >= share)
    }  # fmt: skip


def written(path: Path, config: dict[str, Any], tensors: Tensors, shards: int) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
        return path
    where = {
        name: f"model-{place % shards + 1:05d}-of-{shards:05d}.safetensors"
        for place, name in enumerate(sorted(tensors))
    }
    for file in set(where.values()):
        save_safetensors(
            path / file, {name: one for name, one in tensors.items() if where[name] == file}, {"format": "pt"}
        )
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return path


def drawn(tmp_path: Path, seed: int) -> tuple[type, torch.Tensor, Path]:
    """What loads a drawn checkpoint, the logits of its numbers, and where it is."""
    rng = np.random.default_rng(seed)
    which, name = ALL[rng.integers(len(ALL))]
    said, layer = drawn_forms.FORMS[form := str(rng.choice([*drawn_forms.FORMS]))](rng)
    print(which, name, form, said)
    try:
        model = every_model.model_of(which, name)
    except (ValueError, ImportError) as left_out:
        pytest.skip(str(left_out))
    model.save_pretrained(tmp_path / "dense")
    opened = open_checkpoint(tmp_path / "dense")
    state = {one: np.array(opened[one]) for one in opened}
    tensors, numbers = dict(state), dict(state)
    dead = rng.random() < 0.3  # an expert of zeros, as rarely used ones are
    for one, turned in layers_of(model, state, rng).items():
        weight = state[f"{one}.weight"].astype(np.float64) * (not dead or "experts.1." not in one)
        made = layer(np.ascontiguousarray(weight.T if turned else weight), one, rng)
        if made is not None:
            numbers[f"{one}.weight"] = np.ascontiguousarray(made[1].T if turned else made[1], np.float32)
            del tensors[f"{one}.weight"]
            tensors |= {one + ending: part for ending, part in made[0].items()}
    if len(tensors) == len(state):
        pytest.skip("no layer that the form can have")
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    keys = ("quantization_config", "quantization")[: 1 + (form == "mlx")]  # which mlx-lm writes twice
    path = written(
        tmp_path / "quantised", {**config, **dict.fromkeys(keys, said())}, tensors, int(rng.choice([1, 1, 3]))
    )
    exact = written(tmp_path / "exact", config, numbers, 1)
    for file in (tmp_path / "dense").glob("generation_config.json"):
        shutil.copy(file, path)
    return type(model), logits_of(type(model).from_pretrained(exact, dtype=torch.float32).eval()), path


@pytest.mark.parametrize("seed", range(48))
def test_numbers_are_those_of_the_form(tmp_path: Path, seed: int) -> None:
    of, expected, path = drawn(tmp_path, seed)
    empty = of(tf.AutoConfig.from_pretrained(tmp_path / "exact")).float().eval()
    stored = tilewright.QuantizationConfig.as_stored()
    ways: dict[str, Callable[[], Any]] = {
        "as stored": lambda: of.from_pretrained(path, quantization_config=stored, dtype=torch.float32),
        "load_quantized": lambda: tilewright.load_quantized(empty, path),
    }
    for way, load in ways.items():
        assert error(logits_of(load().eval()), expected) < 3e-4, way
    tilewright.convert_checkpoint(path, tmp_path / "ours")
    again = of.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    assert error(logits_of(again), expected) < 3e-4, "converted"


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("GPTJ", {"transformer": "model"}),
        ("GPTNeoX", {"gpt_neox.layers": "model.h", "gpt_neox": "model", "embed_out": "model.embed_out"}),
    ],
)
def test_mlx_calls_every_base_model_by_one_name(tmp_path: Path, name: str, renamed: dict[str, str]) -> None:
    """And GPT-NeoX's layers h, as its head a part of that."""
    rng = np.random.default_rng(0)
    said, layer = drawn_forms.mlx(np.random.default_rng(4))
    config = getattr(tf, f"{name}Config")(vocab_size=96, n_embd=64, hidden_size=64, n_layer=2, num_hidden_layers=2, n_head=4,
        num_attention_heads=4, rotary_dim=8, intermediate_size=256, n_positions=64)  # fmt: skip
    model = getattr(tf, f"{name}ForCausalLM")(config).eval()
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items() if not key.endswith("embed_positions")}
    tensors: Tensors = {}
    for key, tensor in state.items():
        called = next((to + key.removeprefix(of) for of, to in renamed.items() if key.startswith(f"{of}.")), key)
        if tensor.ndim != 2 or TABLE.search(key):
            tensors[called] = tensor
            continue
        made, numbers = layer(tensor.astype(np.float64), key.removesuffix(".weight"), rng)
        model.get_parameter(key).data = torch.from_numpy(numbers).float()
        tensors |= {called.removesuffix(".weight") + ending: part for ending, part in made.items()}
    path = written(tmp_path / "mlx", {**config.to_dict(), "quantization": said()}, tensors, 1)
    ours = tilewright.load_quantized(type(model)(config).eval(), path)
    assert sum(isinstance(one, tilewright.Linear) for one in ours.modules()) >= 8
    assert error(logits_of(ours), logits_of(model)) < 3e-4
