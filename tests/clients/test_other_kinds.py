"""Models that see and hear, and that sort: quantised in each way, saved, loaded and given adapters, beside the dense ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from every_model import WORDS, configuration
from test_transformers import error, ours

import tilewright

NAMES = [
    "ViTForImageClassification", "BeitForImageClassification", "DeiTForImageClassification", "Dinov2ForImageClassification",
    "CLIPModel", "SiglipModel", "Wav2Vec2ForCTC", "HubertForCTC", "WavLMForCTC", "UniSpeechForCTC", "Data2VecAudioForCTC",
    "WhisperForConditionalGeneration", "Speech2TextForConditionalGeneration", "MoonshineForConditionalGeneration",
    "BertForSequenceClassification", "XLMRobertaForSequenceClassification", "ModernBertForTokenClassification",
    "FocalNetModel", "ImageGPTModel", "CanineModel", "ParakeetForCTC",
]  # fmt: skip
INT8 = tilewright.QuantizationConfig("int8", group=16)


def inputs_of(model: Any) -> dict[str, torch.Tensor]:
    """What a model is asked, by what it calls its main input."""
    config, name = model.config, model.main_input_name
    generator = torch.Generator().manual_seed(1)
    words = torch.arange(14).reshape(2, 7) * 11 % (WORDS - 1)
    seen = getattr(config, "vision_config", config)
    given = {"input_ids": words}
    if name == "input_values":
        given = {name: torch.randn(2, 4000, generator=generator)}
    elif name == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        whole = type(model).__name__.startswith("Whisper")
        sound = torch.randn(2, bins, 2 * getattr(config, "max_source_positions", 50), generator=generator)
        given = {name: sound if whole else sound[..., :100].transpose(1, 2).contiguous()}
    if name == "pixel_values" or seen is not config:
        image = torch.randn(2, seen.num_channels, seen.image_size, seen.image_size, generator=generator)
        given = {"pixel_values": image} if seen is config else {**given, "pixel_values": image}
    return {**given, "decoder_input_ids": words} if config.is_encoder_decoder else given


def tensors(answer: Any) -> list[torch.Tensor]:
    """All floats of an answer."""
    if isinstance(answer, torch.Tensor):
        return [answer] if answer.is_floating_point() else []
    parts = answer.values() if hasattr(answer, "values") else answer if isinstance(answer, (list, tuple)) else ()
    return [one for part in parts for one in tensors(part)]


def asked(model: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return [one.double() for one in tensors(model(**inputs_of(model)))]


def far(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    assert len(found) == len(expected) > 0
    return max(map(error, found, expected))


def model_of(name: str) -> Any:
    of, said = getattr(tf, name), "nothing"
    for variant in ({}, {"layers": 4}, {"alike": True}, {"layers": 8}):
        torch.manual_seed(0)
        try:
            model = of(configuration(of.config_class, **variant)).eval()
            asked(model)
        except Exception as refused:  # of any kind, for sizes that do not fit
            said = str(refused)
            continue
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(0.02 * torch.randn_like(tensor))
        return model
    pytest.skip(said)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_none_of_language_alone(tmp_path: Path, name: str) -> None:
    peft = pytest.importorskip("peft")
    model = model_of(name)
    dense, of = asked(model), type(model)
    model.save_pretrained(tmp_path / "dense")
    quantised = tilewright.quantize(model, "int8-g16")
    found, count = asked(quantised), ours(quantised)
    assert count > 5 and 0 < far(found, dense) < 0.05
    while_loading = of.from_pretrained(tmp_path / "dense", quantization_config=INT8)
    assert ours(while_loading) == count and far(asked(while_loading), found) < 1e-5
    while_loading.save_pretrained(tmp_path / "ours")
    again = of.from_pretrained(tmp_path / "ours")
    assert ours(again) == count and far(asked(again), found) < 1e-5
    tilewright.convert_checkpoint(tmp_path / "dense", tmp_path / "converted", "int8-g16")
    converted = of.from_pretrained(tmp_path / "converted")
    assert ours(converted) and far(asked(converted), dense) < 0.05
    filled = tilewright.load_quantized(of.from_pretrained(tmp_path / "dense"), tmp_path / "converted")
    assert far(asked(filled), asked(converted)) < 1e-5
    adapted = peft.get_peft_model(again, peft.LoraConfig(target_modules="all-linear", r=2))
    sum(one.square().mean() for one in tensors(adapted(**inputs_of(again)))).backward()
    trained = [one for name, one in adapted.named_parameters() if "lora_B" in name]
    assert len(trained) >= count - 1 and any(one.grad is not None and one.grad.any() for one in trained)
