"""PEFT's adapters on quantised layers, beside the same adapters on the numbers that codes stand for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tiny_models import logits_of, model_of

import tilewright
from tilewright.errors import CannotQuantize, TilewrightWarning

ADAPTERS = {
    "lora": lambda: peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False),
    "lora of two names": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    "rslora": lambda: peft.LoraConfig(r=4, target_modules="all-linear", use_rslora=True, init_lora_weights=False),
    "dora": lambda: peft.LoraConfig(r=4, target_modules="all-linear", use_dora=True, init_lora_weights=False),
    "ia3": lambda: peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False
    ),
    "oft": lambda: peft.OFTConfig(oft_block_size=16, target_modules="all-linear", init_weights=False),
    "vera": lambda: peft.VeraConfig(r=4, target_modules=["o_proj"], init_weights=False),
    "loha": lambda: peft.LoHaConfig(r=4, target_modules=["q_proj", "down_proj"], init_weights=False),
    "adalora": lambda: peft.AdaLoraConfig(target_modules=["q_proj", "v_proj"], total_step=10, init_lora_weights=False),
}  # fmt: skip


def pair(kind: str = "llama", scheme: str = "int4-g32") -> tuple[Any, Any]:
    """A quantised model, and a dense one with the numbers of its codes."""
    ours = tilewright.quantize(model_of(kind), scheme)
    dense = model_of(kind)
    for name, layer in ours.named_modules():
        if isinstance(layer, tilewright.Linear):
            dense.get_submodule(name).weight.data = layer.dequantize()
    return ours, dense


def both(adapter: str) -> tuple[Any, Any]:
    made = []
    for model in pair():
        torch.manual_seed(3)
        made.append(peft.get_peft_model(model, ADAPTERS[adapter]()))
    first, second = (dict(model.named_parameters()) for model in made)
    names = [name for name, tensor in first.items() if tensor.requires_grad]
    assert names and names == [name for name, tensor in second.items() if tensor.requires_grad]
    for name in names:
        assert torch.equal(first[name], second[name])
    return made[0], made[1]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_does_on_codes_what_it_does_on_their_numbers(adapter: str) -> None:
    ours, dense = both(adapter)
    found, expected = logits_of(ours), logits_of(dense)
    without = logits_of(pair()[1])
    assert (expected - without).abs().max() > 1e-3 * expected.abs().max()  # it does something
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("adapter", ["lora", "dora", "oft"])
def test_training_reaches_the_loss_of_the_dense_numbers(adapter: str) -> None:
    losses = []
    words = torch.arange(14).reshape(2, 7) * 11 % 95
    for model in both(adapter):
        steps = torch.optim.Adam([tensor for tensor in model.parameters() if tensor.requires_grad], lr=3e-3)
        model.train()
        for _ in range(12):
            loss = model(input_ids=words, labels=words).loss
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses.append(float(loss.detach()))
    ours, dense = losses[:12], losses[12:]
    assert dense[-1] < 0.9 * dense[0] and all(abs(a - b) < 2e-3 * b for a, b in zip(ours, dense))


def test_adapters_are_saved_and_loaded_without_the_model(tmp_path: Path) -> None:
    ours, _ = both("lora")
    ours.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(pair()[0], tmp_path)
    assert torch.equal(logits_of(again), logits_of(ours))


def test_merging_rounds_again_and_says_so() -> None:
    ours, dense = both("lora")
    expected = logits_of(dense.merge_and_unload())
    with pytest.warns(TilewrightWarning, match="rounded again"):
        merged = ours.merge_and_unload()
    layers = [module for module in merged.modules() if isinstance(module, tilewright.Linear)]
    assert len(layers) == 14 and all(layer.W_dtype == "int4" and layer.block == (1, 32) for layer in layers)
    rounded = copy.deepcopy(dense.base_model.model)
    for name, layer in merged.named_modules():
        if isinstance(layer, tilewright.Linear):
            exact = rounded.get_submodule(name).weight.data
            assert torch.equal(
                layer.dequantize(), torch.tensor(tilewright.quantize(exact, "int4-g32").to_dense()).float()
            ) or ((layer.dequantize() - exact).abs().max() <= 0.15 * exact.abs().max())
    assert (logits_of(merged) - expected).abs().max() < 0.5 * expected.abs().max()


def test_a_weight_with_an_order_of_its_own_is_not_rounded_again() -> None:
    numbers = torch.randn(32, 64)
    weight = tilewright.quantize(numbers, "uint4-g32-asym")
    import dataclasses

    import numpy as np

    ordered = dataclasses.replace(weight, g_idx=np.arange(64, dtype=np.int32)[::-1] // 32)
    layer = tilewright.Linear.from_quantized(ordered)
    with pytest.raises(CannotQuantize, match="g_idx of its own"):
        layer.weight.data += 1.0


def test_quantising_leaves_adapters_alone() -> None:
    model = peft.get_peft_model(model_of("llama"), ADAPTERS["lora"]())
    expected = {name: tensor.clone() for name, tensor in model.named_parameters() if tensor.requires_grad}
    dense = logits_of(model)
    tilewright.quantize(model, "int8-g32")
    held = dict(model.named_parameters())
    assert all(torch.equal(held[name], tensor) for name, tensor in expected.items())
    assert sum(isinstance(module, tilewright.Linear) for module in model.modules()) == 14
    assert (logits_of(model) - dense).abs().max() < 0.05 * dense.abs().max()
