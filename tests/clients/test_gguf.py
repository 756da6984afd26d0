"""GGUF files loaded into transformers' models: names, the order of rows, experts, ties, for each architecture that is known."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from gguf_files import ARCHITECTURES, FROM_FILE, MORE, converted, gguf_model, write_gguf
from tiny_models import MODELS, logits_of

import tilewright
from tilewright.checkpoints import open_checkpoint
from tilewright.checkpoints.gguf import GGUFFile
from tilewright.conversion.gguf_models import ARCHITECTURES as KNOWN
from tilewright.errors import CannotQuantize, InvalidTensor, MissingTensor
from tilewright.hf import load_gguf

TURNED = ("GptOssExperts", "Llama4TextExperts")
"""Modules whose tensors of experts are ``[experts, K, N]``."""

LLAMA_CPP = os.environ.get("TILEWRIGHT_LLAMA_CPP")


def blank(kind: str) -> Any:
    """A model of that kind with other numbers."""
    torch.manual_seed(1)
    return {**MODELS, **MORE}[kind]().eval()


def with_numbers_of(model: Any, loaded: Any) -> Any:
    """A dense model with the numbers that the codes of a loaded one stand for."""
    made = copy.deepcopy(model)
    there = made.state_dict()
    given = loaded.state_dict().items()
    made.load_state_dict({n: one for n, one in given if n in there and one.shape == there[n].shape}, strict=False)
    for name, module in loaded.named_modules():
        if isinstance(module, tilewright.Linear):
            dense = made.get_submodule(name)
            numbers = module.dequantize()
            dense.weight.data = numbers.T.contiguous() if type(dense).__name__ == "Conv1D" else numbers
        elif type(module).__name__ == "ExpertWeights":
            owner, _, last = name.rpartition(".")
            into = made.get_submodule(owner)
            numbers = torch.stack([torch.from_numpy(one.to_dense()).float() for one in module])
            getattr(into, last).data = numbers.mT if type(into).__name__ in TURNED else numbers
            if module.bias is not None:
                getattr(into, f"{last}_bias").data = module.bias.clone()
    return made


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_floats_of_a_file_are_the_models(tmp_path: Path, kind: str) -> None:
    """The same last bit: rows back in place, one taken off of norms, experts joined."""
    model = gguf_model(kind)
    path = write_gguf(tmp_path / "model.gguf", model, ARCHITECTURES[kind])
    found = tilewright.load_quantized(blank(kind), path)
    if "mamba" in kind:  # a file has the logarithm's exponential
        torch.testing.assert_close(logits_of(found), logits_of(model), rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(logits_of(found), logits_of(model))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_codes_of_a_file_run_as_their_numbers_say(tmp_path: Path, kind: str) -> None:
    """Two types in one file, as llama.cpp mixes them; then the same through `convert`."""
    model = gguf_model(kind)
    path = write_gguf(tmp_path / "model.gguf", model, ARCHITECTURES[kind], "Q8_0", "Q5_1")
    found = tilewright.load_quantized(blank(kind), path)
    exact = with_numbers_of(blank(kind), found)
    expected, near = logits_of(exact), logits_of(model)
    assert (logits_of(found) - expected).abs().max() <= 2e-5 * expected.abs().max()
    if kind != "gpt-oss":  # another expert is chosen for one token
        assert (expected - near).abs().max() <= 0.3 * near.abs().max()
    tilewright.convert_checkpoint(path, tmp_path / "ours")
    again = tilewright.load_quantized(blank(kind), tmp_path / "ours")
    assert torch.equal(logits_of(again), logits_of(found))


@pytest.mark.parametrize("kind", FROM_FILE)
def test_one_call_from_a_file_to_words(tmp_path: Path, kind: str) -> None:
    model = gguf_model(kind)
    path = write_gguf(tmp_path / "model.gguf", model, ARCHITECTURES[kind], "Q8_0")
    found = load_gguf(path)
    assert torch.equal(logits_of(found), logits_of(tilewright.load_quantized(blank(kind), path)))
    words = torch.arange(3, 9)[None]
    said = found.generate(
        words, attention_mask=torch.ones_like(words), max_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert said.shape == (1, 10)
    found.save_pretrained(tmp_path / "ours")
    assert torch.equal(logits_of(tf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")), logits_of(found))


def test_a_configuration_is_compared_with_the_file(tmp_path: Path) -> None:
    model = gguf_model("gemma2")
    path = write_gguf(tmp_path / "model.gguf", model, "gemma2")
    with pytest.raises(CannotQuantize, match=r"a gemma2 is more than the file says"):
        load_gguf(path)
    model.config.save_pretrained(tmp_path)
    assert torch.equal(logits_of(load_gguf(path, tmp_path)), logits_of(model))
    other = copy.deepcopy(model.config)
    other.num_attention_heads, other.head_dim = 2, 32
    with pytest.raises(InvalidTensor, match=r"says attention.head_count: 4, the configuration num_attention_heads: 2"):
        load_gguf(path, other)


def test_the_rotation_of_a_file_is_the_models(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf_model("llama 3"), "llama")
    with pytest.raises(InvalidTensor, match=r"rotates by other frequencies \(rope_freqs.weight, divisors up to 8"):
        tilewright.load_quantized(blank("llama"), path)


def test_an_architecture_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf_model("llama"), "llama")
    data = path.read_bytes()
    (tmp_path / "other.gguf").write_bytes(data.replace(b"llama", b"dream"))
    with pytest.raises(CannotQuantize, match=r"is a dream: what llama.cpp's conversion changes"):
        tilewright.load_quantized(blank("llama"), tmp_path / "other.gguf")
    with pytest.raises(
        InvalidTensor, match=r"the file has blk.0.attn_q_norm.weight, for which the model has no such tensor"
    ):
        tilewright.load_quantized(blank("llama"), write_gguf(tmp_path / "qwen.gguf", gguf_model("qwen3"), "qwen3"))
    with pytest.raises(MissingTensor, match=r"q_norm.weight is missing"):
        tilewright.load_quantized(blank("qwen3"), _without(tmp_path, "q_norm"))


def _without(directory: Path, part: str) -> Path:
    model = gguf_model("qwen3")
    for layer in model.model.layers:
        layer.self_attn.q_norm = torch.nn.Identity()
    return write_gguf(directory / "less.gguf", model, "qwen3")


def test_every_architecture_that_is_known_is_tried() -> None:
    """But those that differ from one of them in its name alone, and those whose converter wants a tokenizer."""
    assert KNOWN.keys() - set(ARCHITECTURES.values()) == {"gemma3", "bert", "chatglm", "command-r", "glm4moe"}


@pytest.mark.skipif(LLAMA_CPP is None, reason="TILEWRIGHT_LLAMA_CPP names no directory of llama.cpp")
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_real_converter_writes_the_same_tensors(tmp_path: Path, kind: str) -> None:
    gguf_model(kind).save_pretrained(tmp_path)
    program = f"""
import json, sys
from pathlib import Path
sys.path[:0] = [{str(Path(LLAMA_CPP or "") / "gguf-py")!r}, {LLAMA_CPP!r}]
import gguf
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
at = Path({str(tmp_path)!r})
said = json.loads((at / "config.json").read_text())
(at / "config.json").write_text(json.dumps({{"n_ctx": 64, "rotary_pct": 0.25, **said}}))
kind = get_model_class(get_model_architecture(ModelBase.load_hparams(at, False), ModelType.TEXT), mmproj=False)
kind.set_vocab = lambda self: None
kind(at, gguf.LlamaFileType.ALL_F32, at / "real.gguf", eager=True).write()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    real, ours = GGUFFile(tmp_path / "real.gguf"), converted(gguf_model(kind), ARCHITECTURES[kind])
    assert {name for name in real if name != "rope_freqs.weight"} == ours.keys()
    for name, values in ours.items():
        closely = 1e-6 if name.endswith("ssm_a") else 0.0  # torch's exponential and NumPy's
        np.testing.assert_allclose(real[name].data, values, rtol=closely, err_msg=name)
    assert open_checkpoint(tmp_path / "real.gguf").config["gguf"]["general.architecture"] == ARCHITECTURES[kind]
