"""transformers' own loading and saving with `tilewright.QuantizationConfig`, for small models of many architectures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import MODELS, logits_of, model_of

import tilewright
from tilewright.checkpoints import open_checkpoint
from tilewright.errors import CannotQuantize, UnknownFormat
from tilewright.quant.files import read_weight

INT8 = tilewright.QuantizationConfig("int8", group=32)


def saved(tmp_path: Path, kind: str) -> Path:
    model_of(kind).save_pretrained(tmp_path / kind)
    return tmp_path / kind


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def ours(model: object) -> int:
    return sum(type(module).__module__.startswith("tilewright.nn") for module in model.modules())


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_quantised_while_loading_is_one_quantised_afterwards(tmp_path: Path, kind: str) -> None:
    """And is near the dense one, is saved, and loads again to the same last bit, in both ways of quantising."""
    dense, path = logits_of(model_of(kind)), saved(tmp_path, kind)
    of = MODELS[kind]().__class__
    while_loading = of.from_pretrained(path, quantization_config=INT8)
    afterwards = tilewright.quantize(of.from_pretrained(path), "int8-g32")
    found = logits_of(while_loading)
    assert ours(while_loading) == ours(afterwards) > 5
    assert 0 < error(found, dense) < 0.03 and torch.equal(found, logits_of(afterwards))
    for number, model in enumerate((while_loading, afterwards)):
        model.save_pretrained(tmp_path / f"ours-{number}")
        again = of.from_pretrained(tmp_path / f"ours-{number}")
        assert ours(again) == ours(model) and torch.equal(logits_of(again), found)


@pytest.mark.parametrize("kind", MODELS)
def test_what_convert_wrote_loads(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind)
    done = tilewright.convert_checkpoint(path, tmp_path / "ours", "int8-g32")
    model = MODELS[kind]().__class__.from_pretrained(tmp_path / "ours")
    assert error(logits_of(model), logits_of(model_of(kind))) < 0.03 and done.weights and ours(model)
    again = tilewright.load_quantized(model_of(kind), tmp_path / "ours")
    # transformers chooses another way to multiply by dense experts for a model that it has loaded.
    assert error(logits_of(again), logits_of(model)) < 1e-5


def test_weights_are_rounded_as_quantize_rounds_them(tmp_path: Path) -> None:
    """Against the definition, in float64: every layer's numbers are those of its matrix, rounded."""
    path = saved(tmp_path, "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, quantization_config=INT8)
    numbers = open_checkpoint(path)
    for name, layer in model.named_modules():
        if isinstance(layer, tilewright.Linear):
            expected = tilewright.quantize(torch.tensor(numbers[f"{name}.weight"]), "int8-g32").to_dense()
            assert (layer.weight.to_dense() == expected).all()


@pytest.mark.parametrize("kind", MODELS)
def test_the_type_of_a_model_changes_no_choice(tmp_path: Path, kind: str) -> None:
    """Falcon's layers and experts are known by what they compute: in half precision, which is torch's default type while transformers
    loads, that was not seen."""
    path, of = saved(tmp_path, kind), MODELS[kind]().__class__
    count = ours(tilewright.quantize(model_of(kind), "int8-g32"))
    for dtype in (torch.float16, torch.bfloat16):
        assert ours(of.from_pretrained(path, quantization_config=INT8, dtype=dtype)) == count


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_words_are_generated_as_by_the_dequantised_model(tmp_path: Path, dtype: torch.dtype) -> None:
    path = saved(tmp_path, "qwen3")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, quantization_config=INT8, dtype=dtype)
    words = torch.arange(3, 9)[None]
    said = model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=12, do_sample=False)
    logits = model(words).logits.double()
    dense = model.dequantize()
    assert not ours(dense) and said.shape[1] > 6
    assert error(logits, dense(words).logits.double()) < {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)
    if dtype is torch.float32:
        assert torch.equal(
            said, dense.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=12, do_sample=False)
        )


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_a_dequantised_model_is_of_the_classes_of_a_dense_one(tmp_path: Path, kind: str, loaded: bool) -> None:
    """Experts and GPT-2's layers too, also after the model was saved; and its files are a dense model's. Quantised while it is
    loaded, or later."""
    path, of = saved(tmp_path, kind), MODELS[kind]().__class__
    model = of.from_pretrained(path, quantization_config=INT8 if loaded else None)
    if not loaded:
        tilewright.quantize(model, INT8.scheme)
    found = logits_of(model)
    model.save_pretrained(tmp_path / "ours")
    dense = model.dequantize() if loaded else tilewright.dequantize(model)
    dense.save_pretrained(tmp_path / "again")
    for one in (dense, of.from_pretrained(tmp_path / "again")):
        assert [type(part) for part in one.modules()] == [type(part) for part in of.from_pretrained(path).modules()]
        assert error(logits_of(one), found) < 1e-5


def test_what_is_written_is_ours_and_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path, "mixtral")
    asked = tilewright.QuantizationConfig("w4a8", group=32)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, quantization_config=asked)
    model.save_pretrained(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())["quantization_config"]
    assert config["quantized_by"] == "tilewright" and config["activations"] == "int8"
    found = open_checkpoint(tmp_path / "ours")
    assert read_weight(found, "model.layers.0.self_attn.q_proj").format.name == "int4"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.model.layers[0].self_attn.q_proj.quantize == "int8"
    assert torch.equal(logits_of(again), logits_of(model))


def test_without_our_room_files_of_ours_are_refused_and_no_random_weights(tmp_path: Path) -> None:
    tilewright.convert_checkpoint(saved(tmp_path, "llama"), tmp_path / "ours", "w4a16-g32")
    program = f"import transformers; transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'ours')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "quant_method" in done.stderr
    taught = subprocess.run([sys.executable, "-c", f"import tilewright.hf; {program}"], capture_output=True, text=True)
    assert taught.returncode == 0, taught.stderr


def test_mistakes(tmp_path: Path) -> None:
    path = saved(tmp_path, "llama")
    tilewright.convert_checkpoint(path, tmp_path / "ours", "w4a16-g32")
    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(CannotQuantize, match=r"quantised already, by tilewright: int8 needs dense weights"):
        load(tmp_path / "ours", quantization_config=INT8)
    with pytest.raises(CannotQuantize, match="has no quantised weight"):
        load(path, quantization_config=tilewright.QuantizationConfig.as_stored())
    with pytest.raises(UnknownFormat, match="int9"):
        tilewright.QuantizationConfig("int9")
    with pytest.raises(CannotQuantize, match="no layer is called"):
        load(path, quantization_config=tilewright.QuantizationConfig("int8", skip=["nothing_of_the_kind"]))


def test_layers_that_stay(tmp_path: Path) -> None:
    path = saved(tmp_path, "llama")
    asked = tilewright.QuantizationConfig("int8", group=32, skip=["lm_head", "layers.0", "o_proj"])
    model = transformers.AutoModelForCausalLM.from_pretrained(path, quantization_config=asked)
    taken = {name for name, module in model.named_modules() if isinstance(module, tilewright.Linear)}
    assert len(taken) == 6 and all(name.startswith("model.layers.1.") and "o_proj" not in name for name in taken)


def test_a_model_that_transformers_quantised_is_not_rounded_again() -> None:
    """Its fp8 layers say that they are linear, and multiply as dense ones do where their weight is: their codes were taken for numbers."""
    from transformers.integrations.finegrained_fp8 import FP8Linear

    model, said = torch.nn.ModuleList([torch.nn.Linear(128, 128), FP8Linear(128, 128, (64, 64))]), list[str]()
    tilewright.quantize(model, "int8-g32", report=said.append)
    assert type(model[1]) is FP8Linear and "*: FP8Linear has weight_scale_inv beside its weight" in said[0]
