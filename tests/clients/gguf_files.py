"""GGUF files of small models, written as llama.cpp's converter writes them: its names, its order of rows, its numbers.

What the converter does is written down here a second time, as what it does and not as what undoes it, so that the tests do not ask the
code about itself.  ``TILEWRIGHT_LLAMA_CPP=DIRECTORY`` (llama.cpp, as in the source package of ``llama-cpp-python``) runs the real one
beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as tf
from tiny_models import _BASE, _EXPERTS, _GROUPED, MODELS, WORDS

MORE: dict[str, Callable[[], Any]] = {
    "granite": lambda: tf.GraniteForCausalLM(
        tf.GraniteConfig(**_GROUPED, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.2)
    ),
    "olmo": lambda: tf.OlmoForCausalLM(tf.OlmoConfig(**_GROUPED)),
    "olmo2": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**_GROUPED)),
    "olmoe": lambda: tf.OlmoeForCausalLM(tf.OlmoeConfig(**_GROUPED, num_experts=4, num_experts_per_tok=2)),
    "arcee": lambda: tf.ArceeForCausalLM(tf.ArceeConfig(**_GROUPED)),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**_GROUPED)),
    "starcoder2": lambda: tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**_GROUPED)),
    "stablelm": lambda: tf.StableLmForCausalLM(tf.StableLmConfig(**_GROUPED)),
    "gemma": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**_GROUPED, head_dim=16)),
    "cohere2": lambda: tf.Cohere2ForCausalLM(tf.Cohere2Config(**_GROUPED)),
    "exaone4": lambda: tf.Exaone4ForCausalLM(tf.Exaone4Config(**_GROUPED)),
    "glm4": lambda: tf.Glm4ForCausalLM(tf.Glm4Config(**_GROUPED, head_dim=16)),
    "nemotron": lambda: tf.NemotronForCausalLM(tf.NemotronConfig(**_GROUPED)),
    "llama4": lambda: tf.Llama4ForCausalLM(
        tf.Llama4TextConfig(**_GROUPED, head_dim=16, num_local_experts=4, interleave_moe_layer_step=1, intermediate_size_mlp=128)
    ),
    "seed_oss": lambda: tf.SeedOssForCausalLM(tf.SeedOssConfig(**_GROUPED, head_dim=16)),
    "ernie4_5": lambda: tf.Ernie4_5ForCausalLM(tf.Ernie4_5Config(**_GROUPED, head_dim=16)),
    "hunyuan": lambda: tf.HunYuanDenseV1ForCausalLM(tf.HunYuanDenseV1Config(**_GROUPED, head_dim=16)),
    "lfm2": lambda: tf.Lfm2ForCausalLM(tf.Lfm2Config(**_GROUPED, full_attn_idxs=[1])),
    "falcon, groups": lambda: tf.FalconForCausalLM(
        tf.FalconConfig(**_BASE, num_kv_heads=2, new_decoder_architecture=True)
    ),
    "mamba2": lambda: tf.Mamba2ForCausalLM(
        tf.Mamba2Config(hidden_size=64, num_hidden_layers=2, vocab_size=WORDS, state_size=8, num_heads=8, head_dim=16, n_groups=1)
    ),
    "qwen3-moe, normed": lambda: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(**_GROUPED, **_EXPERTS, head_dim=16, norm_topk_prob=True)
    ),
    "qwen2, biases": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**_GROUPED, rope_theta=50000.0, rms_norm_eps=1e-5)),
    "llama 3": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_GROUPED, rope_parameters=LLAMA_3)),
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

ARCHITECTURES = {
    "llama": "llama", "llama 3": "llama", "mistral": "llama", "mixtral": "llama", "qwen2, tied": "qwen2", "qwen2, biases": "qwen2", "qwen3": "qwen3",
    "qwen2-moe": "qwen2moe", "qwen3-moe, normed": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "phi": "phi2", "phi3": "phi3",
    "bloom": "bloom", "gpt2": "gpt2", "gpt-neox": "gptneox", "mamba": "mamba", "mamba2": "mamba2", "gpt-oss": "gpt-oss", "granite": "granite",
    "granite-moe": "granitemoe", "olmo": "olmo", "olmo2": "olmo2", "olmoe": "olmoe", "arcee": "arcee", "smollm3": "smollm3",
    "starcoder2": "starcoder2", "stablelm": "stablelm", "cohere2": "cohere2", "exaone4": "exaone4", "glm4": "glm4", "nemotron": "nemotron",
    "llama4": "llama4", "seed_oss": "seed_oss", "ernie4_5": "ernie4_5", "hunyuan": "hunyuan-dense", "lfm2": "lfm2", "falcon, groups": "falcon",
}  # fmt: skip
"""What llama.cpp calls the models."""

FROM_FILE = (
    "llama", "llama 3", "mistral", "mixtral", "qwen2, tied", "qwen2, biases", "qwen3", "qwen2-moe", "qwen3-moe, normed", "granite", "granite-moe", "olmo2",
    "arcee", "smollm3",
)  # fmt: skip
"""Those of which a file says all."""

PAIRED = ("llama", "arcee", "granite", "granitemoe", "olmo", "smollm3")
ONE_MORE = ("gemma", "gemma2", "nemotron")
BY_HEADS = ("bloom", "gptneox", "falcon")
_ON_DISK = {"block_sparse_moe.router": "block_sparse_moe.router.layer", "mixer.dt_bias": "mixer.dt.bias"}


def gguf_model(kind: str) -> Any:
    torch.manual_seed(0)
    model = {**MODELS, **MORE}[kind]().eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.05 * torch.randn_like(tensor))
    return model


def converted(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """A model's tensors as a file of an architecture has them."""
    config = model.config
    number = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    made: dict[str, np.ndarray] = {}
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if ".experts." in name:
            made |= _experts(name, values, names, model)
            continue
        if model.config.tie_word_embeddings and name in ("lm_head.weight", "embed_out.weight"):
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        for in_memory, on_disk in _ON_DISK.items():
            name = name.replace(in_memory, on_disk)
        layer, _, ending = name.rpartition(".")
        if ending not in ("weight", "bias"):
            layer, ending = name, "weight" if name.endswith(".sinks") else ""
        found = next(
            (
                one
                for one in (names.get_name(layer.removeprefix(base)) for base in ("", "transformer.", "model."))
                if one
            ),
            None,
        )
        assert found is not None, name
        if ending == "weight" and type(owner).__name__ == "Conv1D":
            values = values.T
        made[f"{found}.{ending}".rstrip(".")] = _changed(values, found.rpartition(".")[2], ending, architecture, config)
    return made


def _changed(values: np.ndarray, last: str, ending: str, architecture: str, config: Any) -> np.ndarray:
    heads = config.num_attention_heads if hasattr(config, "num_attention_heads") else 1
    shared = getattr(config, "num_key_value_heads", None) or heads
    if architecture in PAIRED and last in ("attn_q", "attn_k"):
        count = heads if last == "attn_q" else shared
        halves = values.reshape(count, 2, len(values) // count // 2, -1)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    if architecture in BY_HEADS and last == "attn_qkv":
        groups = getattr(config, "num_kv_heads", None) or heads
        each = values.reshape(groups, heads // groups + 2, -1, *values.shape[1:])
        parts = each[:, :-2], each[:, -2:-1], each[:, -1:]
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    if architecture in ONE_MORE and last.endswith("norm") and ending == "weight":
        return values + np.float32(1)
    if last == "ssm_a":
        values = -np.exp(values)
        return values[:, None] if architecture == "mamba2" else values
    if architecture == "mamba2" and last in ("ssm_d", "ssm_norm"):
        return values[:, None] if last == "ssm_d" else values[None]
    if last in ("ssm_conv1d", "conv") and values.ndim == 3:
        return values[:, 0]
    return values


def _experts(name: str, values: np.ndarray, names: Any, model: Any) -> dict[str, np.ndarray]:
    """A layer's experts: gate and up apart, each ``[experts, N, K]``."""
    block = re.search(r"layers\.(\d+)\.", name)
    assert block is not None
    ending = "bias" if name.endswith("_bias") else "weight"
    of = model.get_submodule(name.rpartition(".")[0])
    turned = ending == "weight" and getattr(of, "is_transposed", None)
    if turned is None or type(of).__name__ in ("GptOssExperts", "Llama4TextExperts"):
        turned = ending == "weight"
    values = values.swapaxes(1, 2) if turned else values
    if "down" in name:
        parts = {"down": values}
    elif type(of).__name__ == "GptOssExperts":
        parts = {"gate": values[:, ::2], "up": values[:, 1::2]}
    else:
        parts = dict(zip(("gate", "up"), np.split(values, 2, 1)))
    return {f"blk.{block[1]}.ffn_{part}_exps.{ending}": np.ascontiguousarray(found) for part, found in parts.items()}


def metadata_of(model: Any) -> dict[str, Any]:
    """What a file says of a model beside its tensors."""
    config = model.config
    rotation = getattr(config, "rope_parameters", None) or {}
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    said = {
        "block_count": config.num_hidden_layers, "embedding_length": config.hidden_size, "vocab_size": config.vocab_size,
        "context_length": getattr(config, "max_position_embeddings", 64), "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": getattr(config, "num_attention_heads", None),
        "attention.head_count_kv": getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", None),
        "attention.key_length": getattr(config, "head_dim", None), "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "rope.freq_base": rotation.get("rope_theta"), "expert_count": experts,
        "expert_used_count": config.num_experts_per_tok if experts else None,
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "expert_shared_feed_forward_length": getattr(config, "shared_expert_intermediate_size", None),
        "attention.scale": getattr(config, "attention_multiplier", None), "embedding_scale": getattr(config, "embedding_multiplier", None),
        "residual_scale": getattr(config, "residual_multiplier", None),
        "logit_scale": getattr(config, "logits_scaling", None) if hasattr(config, "residual_multiplier") else None,
    }  # fmt: skip
    return {key: value for key, value in said.items() if isinstance(value, (int, float))}


def write_gguf(path: Path, model: Any, architecture: str, type_name: str = "F32", other: str | None = None) -> Path:
    """A file of a model; matrices of the type where blocks divide their rows, every other one of another type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata_of(model).items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{architecture}.{key}", value)
    tensors = converted(model, architecture)
    rotation = getattr(model.config, "rope_parameters", None) or {}
    if rotation.get("rope_type") == "llama3":
        plain = 1 / rotation["rope_theta"] ** (np.arange(0, 16, 2) / 16)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    matrices = 0
    for name, values in tensors.items():
        plain_one = (
            values.ndim < 2
            or name.endswith(".bias")
            or "norm" in name
            or "ssm_" in name
            or "conv" in name
            or name.startswith(("position", "token_types"))
        )
        matrices += not plain_one
        kind = gguf.GGMLQuantizationType[
            "F32" if plain_one else (other if other and matrices % 2 and values.ndim == 2 else type_name)
        ]
        data = (
            values.astype(np.float32) if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(values, kind)
        )
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
