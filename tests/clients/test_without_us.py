"""Our files in the hands of a transformers that knows nothing of us, or is told to forget what they say: an error, whatever class
loads them, and never a model of random numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as tf
from test_incomplete import load_file
from test_transformers import ours
from tiny_models import MODELS, logits_of, model_of

import tilewright
from tilewright.checkpoints import save_safetensors
from tilewright.conversion.checkpoint import SKIPPED
from tilewright.errors import InvalidTensor
from tilewright.quant.files import weight_tensors

EXPERTS_ALONE = r"attn|lm_head|embed|shared_expert|router|gate$|out_proj|in_proj"
"""Layers to leave: as in files of gpt-oss, nothing but experts is of codes."""

MIXTURES = ("mixtral", "gpt-oss", "qwen2-moe", "qwen3-moe", "granite-moe", "phimoe", "minimax")

PROGRAM = """
import json, sys
import transformers as tf
assert "tilewright" not in sys.modules
loaded, tried = [], 0
for path, name in json.loads(sys.argv[1]):
    config = tf.AutoConfig.from_pretrained(path)
    told = {"quantization_config": None}
    for of in (getattr(tf, name), tf.AutoModel, tf.AutoModelForCausalLM):
        for said in (told, {**told, "device_map": "cpu"}, {"config": config}, {}):
            if of is tf.AutoModelForCausalLM and type(config) not in of._model_mapping:
                continue
            tried += 1
            try:
                of.from_pretrained(path, **said)
                loaded.append((path, of.__name__, list(said)))
            except (RuntimeError, ValueError):
                pass
print(json.dumps([tried, loaded]))
"""


@pytest.mark.parametrize("way", ["saved", "converted"])
def test_files_of_ours_are_no_random_numbers(tmp_path: Path, way: str) -> None:
    """With the configuration as it is, with one that is told to be none, and with what is left when somebody deletes it."""
    paths = []
    for kind, skip in [*((kind, SKIPPED) for kind in MODELS), *((kind, EXPERTS_ALONE) for kind in MIXTURES)]:
        model, made = model_of(kind), tmp_path / f"{kind} {skip == EXPERTS_ALONE}"
        if way == "saved":
            tilewright.quantize(model, "int8-g32", skip=skip).save_pretrained(made)
        elif kind == "granite-moe" and skip == EXPERTS_ALONE:
            continue  # whose files have experts under names that `convert` does not round
        else:
            model.save_pretrained(tmp_path / "dense")
            tilewright.convert_checkpoint(tmp_path / "dense", made, "int8-g32", skip=skip)
        bare = made.with_name(f"{made.name} bare")
        shutil.copytree(made, bare)
        config = json.loads((bare / "config.json").read_text())
        del config["quantization_config"]
        (bare / "config.json").write_text(json.dumps(config))
        paths += [(str(one), type(model).__name__) for one in (made, bare)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tried, loaded = json.loads(done.stdout.splitlines()[-1])
    assert tried > 8 * len(paths) and not loaded


def test_none_is_what_the_files_say(tmp_path: Path) -> None:
    """With our room; transformers' automatic classes take None for the file's own word, and its other classes do not."""
    model = tilewright.quantize(model_of("llama"), "int8-g32")
    model.save_pretrained(tmp_path)
    for of in (tf.AutoModelForCausalLM, tf.LlamaForCausalLM):
        again = of.from_pretrained(tmp_path, quantization_config=None)
        assert ours(again) == ours(model) and torch.equal(logits_of(again), logits_of(model))


@pytest.mark.parametrize("kind", ["llama", "gpt-oss"])
def test_state_dicts_do_not_fit_dense_models(kind: str) -> None:
    """Nor the other way round, whether torch is strict or not."""
    quantised, dense = tilewright.quantize(model_of(kind), "int8-g32"), model_of(kind)
    with pytest.raises(RuntimeError, match="size mismatch"):
        dense.load_state_dict(quantised.state_dict(), strict=False)
    with pytest.raises(InvalidTensor, match="where the metadata of a quantised weight is due"):
        quantised.load_state_dict(dense.state_dict(), strict=False)
    again = tilewright.quantize(model_of(kind), "mxfp4")
    again.load_state_dict(quantised.state_dict())
    assert torch.equal(logits_of(again), logits_of(quantised))


@pytest.mark.parametrize("kind", ["llama", "qwen2, tied"])
def test_a_table_of_codes_gets_their_numbers(tmp_path: Path, kind: str) -> None:
    """What has the table's name in such a file is no table: transformers is not to load it."""
    model = tilewright.quantize(model_of(kind), "int8-g32")
    model.save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", "model.embed_tokens"
    tensors = load_file(file)
    codes = tilewright.quantize(tensors.pop(f"{name}.weight"), "int8-g32")
    save_safetensors(file, {**tensors, **weight_tensors(codes, name)}, {"format": "pt"})
    model.get_submodule(name).weight.data.copy_(torch.from_numpy(codes.to_dense()))
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits_of(again), logits_of(model))
    assert torch.equal(logits_of(tilewright.load_quantized(model_of(kind), tmp_path)), logits_of(model))
