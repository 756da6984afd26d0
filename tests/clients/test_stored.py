"""Checkpoints as other libraries write them, run by transformers on our kernels: logits beside those of the dequantised weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import every_model
import numpy as np
import pytest
import torch
import transformers as tf
from checkpoint_writers import Written, write_float8, write_gptq, write_int8
from more_writers import write_eetq, write_marlin_24, write_sparse
from test_end_to_end import FORMS
from tiny_models import WORDS, logits_of, model_of

import tilewright
from tilewright.checkpoints import open_checkpoint, save_safetensors
from tilewright.errors import MissingTensor, WrongArgumentShape

SIZE = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": WORDS, "max_position_embeddings": 64,
}  # fmt: skip
STORED = {form: what for form, what in FORMS.items() if form not in ("Q4_0", "Q8_0")}
AS_STORED = tilewright.QuantizationConfig.as_stored


def written(
    directory: Path, model: Any, write: Callable[[], Written], said: dict[str, Any], dot: str, called: Callable[[str], str]
) -> Any:  # fmt: skip
    """A checkpoint of a model with every layer but the head quantised; the model with the numbers that codes stand for."""
    tensors = {called(name): tensor.numpy() for name, tensor in model.state_dict().items()}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            made = write()
            layer.weight.data = torch.from_numpy(made.weight).float()
            del tensors[called(f"{name}.weight")]
            tensors |= {
                called(f"{name}.weight").removesuffix(".weight") + dot + end: t for end, t in made.tensors.items()
            }
    model.config.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    save_safetensors(directory / "model.safetensors", tensors, {"format": "pt"})
    return model


def floats(rng: np.random.Generator) -> Written:
    numbers = rng.standard_normal((64, 64)).astype(np.float32) / 8
    return Written({"weight": numbers}, numbers.astype(float))


LATER: dict[str, tuple[dict[str, Any], Callable[[np.random.Generator], Written]]] = {
    "eetq": ({"quant_method": "eetq"}, lambda r: write_eetq(r, 64, 64)),
    "gptq marlin_24": (
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "marlin_24"},
        lambda r: write_marlin_24(r, 64, 64, 64, 4, ("B_24", "s", "B_meta")),
    ),
    "floats and fp8 stored sparse": (
        {"quant_method": "compressed-tensors", "format": "float-quantized", "sparsity_config": {"format": "sparse-24-bitmask"}},
        lambda r: write_sparse(r, floats(r) if r.integers(2) else write_float8(r, 64, 64, (1, 64)), True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", LATER)
def test_a_checkpoint_in_the_order_of_a_kernel_runs_as_its_weights_say(tmp_path: Path, form: str) -> None:
    """Tensors that are made of others as they are read too: transformers finds no file that has them."""
    said, write = LATER[form]
    rng = np.random.default_rng(0)
    exact = written(
        tmp_path, tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)).eval(), lambda: write(rng), said, ".", str
    ).double()
    for model in (
        tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED()),
        tilewright.load_quantized(tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)).eval(), tmp_path),
    ):
        assert any(isinstance(module, tilewright.Linear) for module in model.modules())
        found, expected = logits_of(model), logits_of(exact)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("form", STORED)
def test_a_foreign_checkpoint_runs_as_its_weights_say(tmp_path: Path, form: str) -> None:
    said, dot, write = STORED[form]
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    dense = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)).eval()
    exact = written(tmp_path, dense, lambda: write(rng), said, dot, str).double()
    model = tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED())
    assert sum(isinstance(module, tilewright.Linear) for module in model.modules()) == 14
    found, expected = logits_of(model), logits_of(exact)
    # Float32 throughout; large weights saturate the softmax, so errors grow with what they are errors of.
    assert (found - expected).abs().max() <= 5e-4 * expected.abs().max()
    model.save_pretrained(tmp_path / "ours")
    again = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert torch.equal(logits_of(again), found)


def test_the_files_that_transformers_takes_are_read(tmp_path: Path) -> None:
    """A variant's, where others lie beside them."""
    said, dot, write = STORED["pack-quantized"]
    logits = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        rng, dense = np.random.default_rng(seed), tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)).eval()
        written(tmp_path / str(seed), dense, lambda rng=rng: write(rng), said, dot, str)
        logits.append(logits_of(dense))
    (tmp_path / "1" / "model.safetensors").rename(tmp_path / "0" / "model.fp16.safetensors")
    for variant, expected in zip((None, "fp16"), logits):
        model = tf.LlamaForCausalLM.from_pretrained(tmp_path / "0", quantization_config=AS_STORED(), variant=variant)
        assert (logits_of(model) - expected).abs().max() <= 5e-4 * expected.abs().max()


def test_experts_apart_in_files_and_together_in_memory(tmp_path: Path) -> None:
    """Mixtral of GPTQModel: ``block_sparse_moe.experts.3.w1`` in files, one tensor for all experts in transformers 5."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = tf.MixtralForCausalLM(tf.MixtralConfig(**SIZE, num_local_experts=4)).eval()
    tensors: dict[str, np.ndarray] = {}
    state = model.state_dict()

    def put(name: str) -> torch.Tensor:
        made = write_gptq(rng, 64, 64, 4, 32, 1, False)
        tensors.update({f"{name}.{ending}": tensor for ending, tensor in made.tensors.items()})
        return torch.from_numpy(made.weight).float()

    for name, tensor in state.items():
        if "_proj.weight" in name and "experts" not in name:
            tensor.copy_(put(name.removesuffix(".weight")))
        elif ".mlp.experts." not in name:
            tensors[name.replace(".mlp.", ".block_sparse_moe.")] = tensor.numpy().copy()
    for layer in range(2):
        head, memory = f"model.layers.{layer}.block_sparse_moe.experts", f"model.layers.{layer}.mlp.experts"
        for expert in range(4):
            gate, down, up = (put(f"{head}.{expert}.{one}") for one in ("w1", "w2", "w3"))
            state[f"{memory}.gate_up_proj"][expert].copy_(torch.cat([gate, up]))
            state[f"{memory}.down_proj"][expert].copy_(down)
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    save_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    exact = logits_of(model)  # transformers' experts have no products of float64
    for found in (
        tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED()),
        tilewright.load_quantized(
            tf.MixtralForCausalLM(model.config.__class__(**SIZE, num_local_experts=4)).eval(), tmp_path
        ),
    ):
        assert sum(type(module).__name__ == "Experts" for module in found.modules()) == 2
        assert (logits_of(found) - exact).abs().max() <= 5e-4 * exact.abs().max()


DEALT = {
    "gptq act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}, lambda r, n, k: write_gptq(r, n, k, 4, 16, 1, True)
    ),
    "fp8 blocks": ({"quant_method": "compressed-tensors", "config_groups": {"all": {"targets": ["Linear"], "weights": {
        "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]}}}}, lambda r, n, k: write_float8(r, n, k, (16, 16))),
    "int8 of a tensor": ({"quant_method": "compressed-tensors"}, lambda r, n, k: write_int8(r, n, k, 0)),
}  # fmt: skip
PIECES = [("masked", "gte"), ("masked", "nomic_bert"), ("masked", "jina_embeddings_v3"), ("images", "kimi_k25")]


@pytest.mark.parametrize("form", DEALT)
@pytest.mark.parametrize(("which", "name"), PIECES)
def test_layers_that_files_have_in_one_piece(tmp_path: Path, which: str, name: str, form: str) -> None:
    """Queries, keys and values as one layer, in GPTQ's order of columns, in blocks and with one scale: beside the dense file with
    the same numbers, as transformers deals it out."""
    said, write = DEALT[form]
    try:
        model = every_model.model_of(which, name)
    except (ValueError, ImportError) as error:
        pytest.skip(str(error))
    model.save_pretrained(tmp_path / "dense")
    tilewright.convert_checkpoint(tmp_path / "dense", tmp_path / "ours", "int8-g16")
    dense = open_checkpoint(tmp_path / "dense")
    taken = {one.removesuffix(".qweight") for one in open_checkpoint(tmp_path / "ours") if one.endswith(".qweight")}
    rng, tensors, numbers = (
        np.random.default_rng(0),
        {n: np.array(dense[n]) for n in dense},
        {n: np.array(dense[n]) for n in dense},
    )
    for layer in sorted(taken):
        made = write(rng, *tensors.pop(f"{layer}.weight").shape)
        tensors |= {f"{layer}.{end}": one for end, one in made.tensors.items()}
        numbers[f"{layer}.weight"] = made.weight.astype(np.float32)
    save_safetensors(tmp_path / "dense" / "model.safetensors", numbers, {"format": "pt"})
    expected = logits_of(type(model).from_pretrained(tmp_path / "dense"))
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    (tmp_path / "ours" / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    save_safetensors(tmp_path / "ours" / "model.safetensors", tensors, {"format": "pt"})
    found = type(model).from_pretrained(tmp_path / "ours", quantization_config=AS_STORED())
    assert sum(isinstance(module, tilewright.Linear) for module in found.modules()) > len(taken)
    assert (logits_of(found) - expected).abs().max() <= 5e-4 * expected.abs().max()
    filled = tilewright.load_quantized(type(model)(model.config).eval(), tmp_path / "ours")
    assert torch.equal(logits_of(filled), logits_of(found))


@pytest.mark.parametrize("form", DEALT)
def test_gates_apart_in_files_and_joined_in_the_model(tmp_path: Path, form: str) -> None:
    """As GPTQModel writes Phi 3: beside the model with the numbers of the two in one layer; one of the two alone is an error."""
    said, write = DEALT[form]
    model, rng, tensors = model_of("phi3"), np.random.default_rng(0), dict[str, np.ndarray]()
    for name, tensor in model.state_dict().items():
        if name.endswith("gate_up_proj.weight"):
            parts = [write(rng, len(tensor) // 2, tensor.shape[1]) for _ in range(2)]
            tensor.copy_(torch.from_numpy(np.concatenate([one.weight for one in parts])).float())
            for part, made in zip(("gate_proj", "up_proj"), parts):
                layer = name.replace("gate_up_proj.weight", part)
                tensors |= {f"{layer}.{end}": one for end, one in made.tensors.items()}
        else:
            tensors[name] = tensor.numpy().copy()
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    save_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    if form == "gptq act-order":  # each has an order of columns of its own, which one matrix cannot
        with pytest.raises(WrongArgumentShape, match="is made of weights of two forms"):
            tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED())
        return
    expected = logits_of(model)
    found = tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED(), dtype=torch.float32)
    assert isinstance(found.model.layers[0].mlp.gate_up_proj, tilewright.Linear)
    assert (logits_of(found) - expected).abs().max() <= 5e-4 * expected.abs().max()
    assert torch.equal(logits_of(tilewright.load_quantized(model_of("phi3"), tmp_path)), logits_of(found))
    left = {name: one for name, one in tensors.items() if "layers.1.mlp.up_proj" not in name}
    save_safetensors(tmp_path / "model.safetensors", left, {"format": "pt"})
    with pytest.raises(MissingTensor, match="gate_up_proj is made of gate_proj and up_proj"):
        tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED())


@pytest.mark.parametrize("form", DEALT)
def test_a_weight_that_a_model_multiplies_by_itself(tmp_path: Path, form: str) -> None:
    """Mamba takes `dt_proj.weight`: it gets the numbers, in the model's type, and not the codes that have the name in files."""
    said, write = DEALT[form]
    torch.manual_seed(0)
    model, rng = (
        tf.MambaForCausalLM(
            tf.MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=WORDS, state_size=8, time_step_rank=16)
        ).eval(),
        np.random.default_rng(0),
    )
    tensors = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name.endswith(("in_proj", "dt_proj")):
            made = write(rng, *layer.weight.shape)
            layer.weight.data = torch.from_numpy(made.weight).float()
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{end}": one for end, one in made.tensors.items()}
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    save_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    for dtype, most in ((torch.float32, 5e-4), (torch.bfloat16, 0.1)):
        found = tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=AS_STORED(), dtype=dtype)
        own = found.backbone.layers[0].mixer.dt_proj
        assert type(own) is torch.nn.Linear and own.weight.dtype is dtype
        expected = logits_of(model)
        assert (logits_of(found) - expected).abs().max() <= most * expected.abs().max()


def test_the_page_on_transformers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    from gguf_files import gguf_model, write_gguf

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    size = {**SIZE, "hidden_size": 128, "intermediate_size": 128}
    tf.LlamaForCausalLM(tf.LlamaConfig(**size)).save_pretrained("Qwen3-8B")
    said, dot, write = STORED["gptq act-order"]
    rng = np.random.default_rng(0)
    written(Path("Llama-3.1-8B-GPTQ"), tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)), lambda: write(rng), said, dot, str)
    write_gguf(Path("Llama-3.2-1B-Instruct-Q8_0.gguf"), gguf_model("llama"), "llama", "Q8_0")
    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text()
    names: dict[str, Any] = {}
    for block in page.split("```python\n")[1:]:
        exec(block.partition("```")[0], names)
        assert sum(isinstance(module, tilewright.Linear) for module in names["model"].modules()) in (14, 15)
