"""QLoRA: an adapter on weights of 4 bits learns what it learns beside bitsandbytes' own layers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import tilewright

pytest.importorskip("bitsandbytes")
peft = pytest.importorskip("peft")

SIZE = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="module", params=[("nf4", True), ("nf4", False), ("fp4", True)], ids=str)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint of bitsandbytes, and its model."""
    kind, twice = request.param
    path = tmp_path_factory.mktemp("qlora")
    torch.manual_seed(0)
    tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)).save_pretrained(path / "dense")
    asked = tf.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=twice,
        bnb_4bit_compute_dtype=torch.float32,
    )
    load = tf.AutoModelForCausalLM.from_pretrained
    theirs = load(path / "dense", quantization_config=asked, device_map="cpu", dtype=torch.float32)
    theirs.save_pretrained(path / "stored")
    return path / "stored", theirs


def losses(model: Any, steps: int = 30) -> tuple[list[float], Any]:
    """What a model loses while an adapter learns to count, and the adapted model."""
    torch.manual_seed(1)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", lora_dropout=0.0)
    )
    optimizer = torch.optim.AdamW([one for one in adapted.parameters() if one.requires_grad], lr=5e-3)
    words = (torch.arange(24)[None] + torch.arange(0, 64, 8)[:, None]) % 90 + 3
    found = []
    for _ in range(steps):
        loss = adapted(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found, adapted


def test_an_adapter_learns_as_beside_bitsandbytes(stored: tuple[Path, Any]) -> None:
    """The same codes, the same beginning of the adapter: every step's loss within 1 %, and far below the first."""
    path, theirs = stored
    ours = tf.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=tilewright.QuantizationConfig.as_stored(), dtype=torch.float32
    )
    assert sum(isinstance(module, tilewright.Linear) for module in ours.modules()) == 14
    prepared = peft.prepare_model_for_kbit_training(copy.deepcopy(ours), use_gradient_checkpointing=False)
    expected, _ = losses(theirs)
    for model in (ours, prepared):
        found, adapted = losses(model)
        assert found[-1] < 0.7 * found[0]
        assert all(abs(one - other) <= 0.01 * other for one, other in zip(found, expected))
        codes = [module.qweight for module in adapted.modules() if isinstance(module, tilewright.Linear)]
        assert len(codes) == 14 and not any(one.requires_grad for one in codes)
