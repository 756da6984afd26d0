"""A model of transformers from files of SINQ, QQQ, ExLlamaV2, FP-Quant and ParoQuant, in every way that it can be loaded."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from test_transformers import error
from tiny_models import logits_of

import tilewright
from tilewright.checkpoints import save_safetensors

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "conversion"))
import test_rarer_libraries as rarer

Made = tuple[dict[str, np.ndarray], np.ndarray]
PARTS = {128: [(6, 32), (5, 32), (4, 64)], 256: [(8, 64), (4, 64), (3, 64), (2, 64)]}


def sinq(rng: np.random.Generator, N: int, K: int) -> Made:
    tensors, beside, weight = rarer.write_sinq(rng, N, K, 4, 32, "sinq_quantAux", np.float32)
    about = {f"up.meta.{key}": value for key, value in beside["up"]["meta"].items() if value is not None}
    arrays = {
        key: np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.asarray(value)
        for key, value in about.items()
    }
    return tensors | arrays, weight


FORMS: dict[str, tuple[dict[str, Any], Callable[[np.random.Generator, int, int], Made]]] = {
    "sinq": (rarer.SINQ, sinq),
    "qqq": (rarer.QQQ, lambda rng, N, K: rarer.write_qqq(rng, N, K, 64)),
    "exl2": (rarer.EXL2, lambda rng, N, K: rarer.write_exl2(rng, N, PARTS[K])),
    "fp_quant": (rarer.FP_QUANT, lambda rng, N, K: rarer.write_fp_quant(rng, N, K, "mxfp4", 32)),
    "paroquant": (rarer.PAROQUANT, lambda rng, N, K: rarer.write_paroquant(rng, N, K, 32, 3)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_computes_with_the_numbers_of_the_files(tmp_path: Path, form: str) -> None:
    said, write = FORMS[form]
    rng = np.random.default_rng(1)
    torch.manual_seed(0)
    config = tf.LlamaConfig(vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False)  # fmt: skip
    model = tf.LlamaForCausalLM(config).eval()
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim < 2 or "layers" not in name:
            tensors[name] = tensor.numpy()
            continue
        made, weight = write(rng, *tensor.shape)
        model.get_parameter(name).data = torch.from_numpy(weight).float()
        tensors |= {name.removesuffix(".weight") + part.removeprefix("up"): values for part, values in made.items()}
    expected, path = logits_of(copy.deepcopy(model).double()).float(), tmp_path / "theirs"
    path.mkdir()
    save_safetensors(
        path / "model.safetensors", {name: np.ascontiguousarray(one) for name, one in tensors.items()}, {"format": "pt"}
    )
    (path / "config.json").write_text(
        json.dumps({**config.to_dict(), "architectures": ["LlamaForCausalLM"], "quantization_config": said})
    )
    of, stored = tf.LlamaForCausalLM, tilewright.QuantizationConfig.as_stored()
    filled = tilewright.load_quantized(of(config).eval(), path)
    assert sum(isinstance(module, tilewright.Linear) for module in filled.modules()) == 14
    for _ in range(3):
        assert error(logits_of(filled), expected) < 3e-5
    assert error(logits_of(of.from_pretrained(path, quantization_config=stored, dtype=torch.float32)), expected) < 3e-5
    tilewright.convert_checkpoint(path, tmp_path / "ours")
    ours = of.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    assert error(logits_of(ours), expected) < 3e-5
    ours.save_pretrained(tmp_path / "saved")
    assert error(logits_of(of.from_pretrained(tmp_path / "saved", dtype=torch.float32)), expected) < 3e-5
