"""Models of diffusers: quantised, saved in diffusers' way and ours, loaded, and trained through, beside dense ones with the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from test_generation import rounded
from test_transformers import error, ours

import tilewright


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


STEPS = torch.tensor([3, 7])
PLACES = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(5, 3)}
MODELS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "UNet2DConditionModel": (
        {"sample_size": 8, "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32, "norm_num_groups": 8,
         "attention_head_dim": 8, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        lambda model: model(numbers(2, 4, 8, 8), STEPS, encoder_hidden_states=numbers(2, 5, 32)),
    ),
    "FluxTransformer2DModel": (
        {"patch_size": 1, "in_channels": 8, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
         "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        lambda model: model(
            numbers(2, 16, 8), encoder_hidden_states=numbers(2, 5, 32), pooled_projections=numbers(2, 32), timestep=STEPS / 10, **PLACES
        ),
    ),
    "SD3Transformer2DModel": (
        {"sample_size": 8, "patch_size": 1, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4,
         "joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 64, "out_channels": 4},
        lambda model: model(
            numbers(2, 4, 8, 8), encoder_hidden_states=numbers(2, 5, 32), pooled_projections=numbers(2, 64), timestep=STEPS
        ),
    ),
    "AutoencoderKL": (
        {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
         "norm_num_groups": 8, "latent_channels": 4},
        lambda model: model(numbers(2, 3, 16, 16)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_diffusers(tmp_path: Path, name: str) -> None:
    options, call = MODELS[name]
    of = getattr(diffusers, name)
    torch.manual_seed(0)
    model = of(**options).eval()

    def said(one: Any) -> torch.Tensor:
        with torch.no_grad():
            return call(one).sample.double()

    dense, expected = said(model), said(rounded(copy.deepcopy(model), "int8-g16"))
    quantised = tilewright.quantize(copy.deepcopy(model), "int8-g16")
    found, count = said(quantised), ours(quantised)
    assert count > 5 and error(found, expected) < 1e-5 < error(expected, dense)
    quantised.save_pretrained(tmp_path / "ours")
    filled = tilewright.load_quantized(of(**options).eval(), tmp_path / "ours")
    assert ours(filled) == count and error(said(filled), found) < 1e-6
    with pytest.raises(ValueError, match="expected shape"):  # never random weights
        of.from_pretrained(tmp_path / "ours")
    model.save_pretrained(tmp_path / "dense")
    tilewright.convert_checkpoint(tmp_path / "dense", tmp_path / "converted", "int8-g16")
    filled = tilewright.load_quantized(of(**options).eval(), tmp_path / "converted")
    assert ours(filled) == count and error(said(filled), dense) < 2 * error(expected, dense)
    call(quantised).sample.square().mean().backward()
    assert all(
        one.grad is not None for name, one in quantised.named_parameters() if "norm" in name and one.requires_grad
    )
