"""How much memory quantising and loading a model takes: the quantised model, one shard and one weight, whatever the model's size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as tf

import tilewright

PROGRAM = """
import sys, threading, time
import torch, transformers as tf, tilewright.hf

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

def load(directory, how):
    if how == "quantising":
        config = tilewright.QuantizationConfig("int4", group=128)
        return tf.AutoModelForCausalLM.from_pretrained(directory, quantization_config=config)
    if how == "ours":
        return tf.AutoModelForCausalLM.from_pretrained(directory)
    with torch.device("meta"):
        model = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.from_pretrained(directory), dtype=torch.bfloat16)
    return tilewright.load_quantized(model, directory)

small, large, how = sys.argv[1:]
torch.set_num_threads(1)
load(small, how)  # what is imported and compiled once
before = most = anonymous()
done = False

def watch():
    global most
    while not done:
        most = max(most, anonymous())
        time.sleep(0.001)

watching = threading.Thread(target=watch)
watching.start()
model = load(large, how)
done = True
watching.join()
print(most - before, sum(one.nbytes for one in (*model.parameters(), *model.buffers())))
"""

SHARD = 30 << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of twelve shards, and one of one, dense and as `convert` writes them."""
    directory = tmp_path_factory.mktemp("models")
    for name, layers in (("small", 1), ("large", 12)):
        size = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "vocab_size": 512}
        model = tf.LlamaForCausalLM(tf.LlamaConfig(num_hidden_layers=layers, **size)).to(torch.bfloat16)
        model.save_pretrained(directory / name, max_shard_size="30MB")
        tilewright.convert_checkpoint(directory / name, directory / f"{name}-ours", "int4-g128")
    assert len(list((directory / "large").glob("*.safetensors"))) > 10
    return directory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux")
@pytest.mark.parametrize("how", ["quantising", "ours", "load_quantized"])
def test_the_most_memory_is_the_quantised_model_and_one_shard(models: Path, how: str) -> None:
    """The dense model has 296 MB, its codes 78; rounding held 206 of them until it was done, and glibc as much again."""
    ending = "" if how == "quantising" else "-ours"
    paths = [str(models / f"{name}{ending}") for name in ("small", "large")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *paths, how], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    most, size = map(int, done.stdout.split()[-2:])
    one_weight = 1024 * 2816 * 8  # as float64 beside its codes
    assert 70 << 20 < size < 90 << 20 and most <= size + SHARD + one_weight
