"""Checkpoints that lack a tensor, have one under another name, or one too many: an error names it, or nothing changes.

Every tensor of every form is taken away once. transformers fills what is missing with random numbers, and goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from test_stored import AS_STORED, SIZE, STORED, written
from test_transformers import INT8
from tiny_models import MODELS, logits_of, model_of

import tilewright
from tilewright.checkpoints import open_checkpoint, save_safetensors
from tilewright.errors import InvalidTensor, MissingTensor, TilewrightError

LLAMA = {**SIZE, "num_hidden_layers": 1, "attention_bias": True, "mlp_bias": True}
OWN = {
    "llama": ("int8-g32", "uint4-g32-asym", "mxfp4", "nvfp4", "w4a8-g32"),
    "qwen2, tied": ("w4a16-g32",),
    "gpt2": ("int8-g32",),
    "mixtral": ("w4a16-g32",),
    "gpt-oss": ("mxfp4",),
    "t5": ("int8-g32",),
}
SAID = {
    "pack-quantized": {
        "config_groups": {
            "one": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "symmetric": False}},
            "others": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": False}},
        }
    }
}
"""What a configuration says by which a zero point is seen to be missing."""

CASES = [*STORED, *(f"{kind} of {scheme}" for kind, schemes in OWN.items() for scheme in schemes)]


def stored(path: Path, case: str, **config: Any) -> type:
    """A checkpoint in a form, ours or another's; what loads it."""
    if case in STORED:
        said, dot, write = STORED[case]
        said = {**said, **SAID.get(case, {})}
        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        written(
            path, tf.LlamaForCausalLM(tf.LlamaConfig(**{**LLAMA, **config})).eval(), lambda: write(rng), said, dot, str
        )
        return tf.LlamaForCausalLM
    kind, scheme = case.split(" of ")
    model = tilewright.quantize(model_of(kind), scheme)
    model.save_pretrained(path)
    return type(model)


def loaded(of: Any, path: Path, case: str) -> torch.Tensor:
    asked = {"quantization_config": AS_STORED()} if case in STORED else {}
    return logits_of(of.from_pretrained(path, **asked))


def filled(of: Any, path: Path, case: str) -> torch.Tensor:
    """The same by our own loader, into a model without numbers."""
    config = tf.AutoConfig.from_pretrained(path)
    del config.quantization_config
    return logits_of(tilewright.load_quantized(of(config).eval(), path))


def load_file(path: Path) -> dict[str, np.ndarray]:
    source = open_checkpoint(path)
    return {name: np.array(source[name]) for name in source}


def changed(tensors: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Files with one difference each, in one layer of each shape and in all that is in no layer."""
    tried = [
        name
        for name in tensors
        if not re.search(r"(gate|up|k|v|o)_proj|experts\.[1-9]|w[13]|layers\.1|\.h\.1|block\.1", name)
    ]
    for name in tried:
        values = tensors[name]
        others = {one: tensor for one, tensor in tensors.items() if one != name}
        yield f"without {name}", others
        yield f"{name} called otherwise", {**others, f"{name}_": values}
    for layer in sorted({name.rpartition(".")[0] for name in tried}):
        yield f"without all of {layer}", {n: one for n, one in tensors.items() if not n.startswith(f"{layer}.")}


@pytest.mark.parametrize("way", [loaded, filled])
@pytest.mark.parametrize("case", CASES)
def test_a_missing_tensor_is_an_error_or_changes_nothing(
    tmp_path: Path, case: str, way: Callable[[Any, Path, str], torch.Tensor]
) -> None:
    of = stored(tmp_path, case)
    whole, file = way(of, tmp_path, case), tmp_path / "model.safetensors"
    tensors, refused = load_file(file), 0
    for what, others in changed(tensors):
        save_safetensors(file, others, {"format": "pt"})
        torch.manual_seed(len(what))
        try:
            found = way(of, tmp_path, case)
        except TilewrightError:
            refused += 1
        else:
            assert torch.equal(found, whole), what
    assert refused > 20


@pytest.mark.parametrize("asked", [{}, {"quantization_config": INT8}], ids=["stored", "dense"])
def test_the_error_names_what_is_missing(tmp_path: Path, asked: dict[str, Any]) -> None:
    model = model_of("llama")
    (model if asked else tilewright.quantize(model, "int8-g32")).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: one for name, one in load_file(file).items() if ".1.mlp.up_proj" not in name}
    save_safetensors(file, kept, {"format": "pt"})
    with pytest.raises(MissingTensor, match=r"^model.layers.1.mlp.up_proj.weight: the model has such tensors"):
        tf.AutoModelForCausalLM.from_pretrained(tmp_path, **asked)


def test_a_new_head_is_none_of_the_files(tmp_path: Path) -> None:
    """But a layer of the base model is, under whatever head."""
    tilewright.quantize(model_of("llama"), "int8-g32").save_pretrained(tmp_path)
    of = tf.AutoModelForSequenceClassification
    model = of.from_pretrained(tmp_path, num_labels=3)
    assert model.score.weight.shape == (3, 64) and type(model.model.layers[0].mlp.up_proj) is tilewright.Linear
    file = tmp_path / "model.safetensors"
    save_safetensors(file, {n: one for n, one in load_file(file).items() if "embed_tokens" not in n}, {"format": "pt"})
    with pytest.raises(MissingTensor, match=r"^model.embed_tokens.weight: "):
        of.from_pretrained(tmp_path, num_labels=3)


@pytest.mark.parametrize("way", [loaded, filled])
def test_a_bias_that_the_model_does_not_add(tmp_path: Path, way: Callable[[Any, Path, str], torch.Tensor]) -> None:
    """Is an error, but for one of zeros, which GPTQ's writers give to all layers."""
    case = "gptq act-order"
    of = stored(tmp_path, case, attention_bias=False)
    whole, file = way(of, tmp_path, case), tmp_path / "model.safetensors"
    tensors, extra = load_file(file), "model.layers.0.self_attn.q_proj.bias"
    save_safetensors(file, {**tensors, extra: np.zeros(64, np.float16)}, {"format": "pt"})
    assert torch.equal(way(of, tmp_path, case), whole)
    save_safetensors(file, {**tensors, extra: np.ones(64, np.float16)}, {"format": "pt"})
    with pytest.raises(InvalidTensor, match=rf"^{extra} is in the checkpoint"):
        way(of, tmp_path, case)


def test_shards(tmp_path: Path) -> None:
    """One that is not there, an index that names a tensor that is not in its file, and one that names too few."""
    model = tilewright.quantize(MODELS["llama"]().eval(), "int8-g32")
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    index = tmp_path / "model.safetensors.index.json"
    said, whole = json.loads(index.read_text()), logits_of(tf.AutoModelForCausalLM.from_pretrained(tmp_path))
    shards = sorted(set(said["weight_map"].values()))
    assert len(shards) > 2
    for shard in shards:
        (tmp_path / shard).rename(tmp_path / "away")
        with pytest.raises((TilewrightError, OSError), match=shard):
            tf.AutoModelForCausalLM.from_pretrained(tmp_path)
        (tmp_path / "away").rename(tmp_path / shard)
    for name in said["weight_map"]:
        for other in (shards[said["weight_map"][name] == shards[0]], None):
            where = {**said["weight_map"], name: other}
            index.write_text(json.dumps({**said, "weight_map": {n: one for n, one in where.items() if one}}))
            try:
                found = logits_of(tf.AutoModelForCausalLM.from_pretrained(tmp_path))
            except TilewrightError:
                continue
            assert torch.equal(found, whole), (name, other)
