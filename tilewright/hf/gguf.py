"""From a GGUF file to a running model of transformers, on our kernels, its codes as they are.

A file says the sizes of a model and some of what it computes, in words of llama.cpp. `_WORDS` has those that a
configuration of transformers says too; a configuration that the caller gives is compared with them, and one is made of
a file only where every word of it is among them and the architecture has no others (`_FAMILIES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from tilewright.checkpoints import Checkpoint, open_checkpoint
from tilewright.conversion import load_quantized
from tilewright.errors import CannotQuantize, InvalidTensor
from tilewright.progress import Progress

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}), "arcee": ("arcee", {}), "smollm3": ("smollm3", {}), "olmo2": ("olmo2", {}),
    "qwen2": ("qwen2", {}), "qwen3": ("qwen3", {}), "qwen2moe": ("qwen2_moe", {}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "granite": ("granite", {}), "granitemoe": ("granitemoe", {}),
}  # fmt: skip
"""What transformers calls architectures of which a file says all that its own configuration does, and what such files
leave unsaid."""

_WORDS: dict[str, tuple[str, ...]] = {
    "block_count": ("num_hidden_layers",), "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size",), "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",), "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",), "attention.layer_norm_epsilon": ("layer_norm_eps",
        "norm_eps", "layer_norm_epsilon"),
    "rope.freq_base": ("rope_theta",), "vocab_size": ("vocab_size",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",), "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",), "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "attn_logit_softcapping": ("attn_logit_softcapping",), "final_logit_softcapping": ("final_logit_softcapping",),
}  # fmt: skip
"""Words of a file, behind the name of its architecture, and what configurations call the same."""

_COMPARED = (
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "rope.freq_base", "expert_used_count",
    "attention.scale",
    "embedding_scale", "residual_scale", "logit_scale", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip
"""Words that a given configuration must agree with. Sizes are those of the tensors, and what llama.cpp fixes for an
architecture is its own."""

_LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def load_gguf(
    path: str | Path,
    config: PreTrainedConfig | str | Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: object = None,
    progress: Progress | None = None,
) -> Any:
    """A model of transformers from a GGUF file: its weights stay as the file has them and run on our kernels.

    Parameters
    ----------
    path : of the file.
    config : of the model, or a directory or a name on the hub that has it; by default made of what the file says, for
        architectures of which it says enough (Llama, Mistral, Mixtral, Qwen 2 and 3 with their mixtures of experts,
        Granite, OLMo 2, SmolLM 3, Arcee).
    dtype : of everything that is no codes, and so of activations; torch's default by default.
    device : where the model is to be; the processor by default.
    progress : as in `tilewright.load_quantized`.

    Raises
    ------
    CannotQuantize : no configuration can be made of the file, or what llama.cpp's conversion does to its architecture
        is not known.
    InvalidTensor : the file and the configuration say different things, or the file has a tensor that the model has
        not.
    MissingTensor : the model has one that the file has not.

    Examples
    --------
        model = tilewright.hf.load_gguf("Llama-3.2-1B-Instruct-Q4_K_M.gguf", dtype=torch.bfloat16)
        model = tilewright.hf.load_gguf("gemma-2-2b-it-Q4_K_M.gguf", "google/gemma-2-2b-it")
    """
    source = open_checkpoint(path)
    metadata = source.config.get("gguf", {})
    architecture = metadata.get("general.architecture")
    said = {
        key.removeprefix(f"{architecture}."): v for key, v in metadata.items() if key.startswith(f"{architecture}.")
    }
    if config is None:
        config = _config_of(source, str(architecture), said)
    elif not isinstance(config, PreTrainedConfig):
        config = AutoConfig.from_pretrained(config)
    _check(config, said, path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.get_default_dtype())
    load_quantized(model, path, progress=progress)
    return model.eval() if device is None else model.eval().to(device)


def _config_of(source: Checkpoint, architecture: str, said: Mapping[str, Any]) -> PreTrainedConfig:
    """The configuration that a file speaks of.  Raises CannotQuantize."""
    unread = [key for key, value in said.items() if key not in _WORDS and not _says_nothing(key, value, said)]
    if architecture not in _FAMILIES or unread:
        word = f" ({unread[0]}: {said[unread[0]]})" if unread else ""
        raise CannotQuantize(
            f"no configuration can be made of {source.directory}: a {architecture} is more than the file says{word}",
            hint="load_gguf(path, config) takes a directory, a name on the hub or a configuration",
        )
    kind, unsaid = _FAMILIES[architecture]
    kind = "mixtral" if kind == "llama" and "expert_count" in said else kind
    plain = AutoConfig.for_model(kind)
    values = {
        **unsaid,
        "vocab_size": len(_rows(source, "token_embd.weight")),
        "tie_word_embeddings": "output.weight" not in source,
    }
    for key, value in said.items():
        named = [name for name in _WORDS.get(key, ()) if hasattr(plain, name)] or [*_WORDS.get(key, ())][:1]
        values |= dict.fromkeys(named, _shortest(value))
    for word in ("bos", "eos", "padding"):
        values[f"{word.removesuffix('ding')}_token_id"] = source.config["gguf"].get(f"tokenizer.ggml.{word}_token_id")
    rotation = {"rope_type": "default", "rope_theta": values.pop("rope_theta", 10000.0)}
    if "rope_freqs.weight" in source:
        rotation |= {**_LLAMA_3, "factor": float(source["rope_freqs.weight"].max())}
    for attribute, tensor in (("attention_bias", "blk.0.attn_q.bias"), ("mlp_bias", "blk.0.ffn_up.bias")):
        if hasattr(plain, attribute):
            values[attribute] = tensor in source
    made: PreTrainedConfig = AutoConfig.for_model(kind, **values, rope_parameters=rotation)
    return made


def _says_nothing(key: str, value: object, said: Mapping[str, Any]) -> bool:
    """Whether a word only says again what others do, or what is so anyhow."""
    if isinstance(said.get("attention.head_count"), list):
        return False
    heads = said.get("attention.head_count") or 1
    width = said.get("attention.key_length") or said.get("embedding_length", 0) // heads
    return (key == "rope.dimension_count" and value == width) or (key == "rope.scaling.type" and value == "none")


def _rows(source: Checkpoint, name: str) -> Any:
    if name not in source:
        raise InvalidTensor(f"{source.directory} has no {name}")
    return range(source.blocks[name].shape[0]) if name in source.blocks else source[name]


def _shortest(value: object) -> Any:
    """A number as people wrote it: files have 1e-05 as the float32 nearest to it."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _check(config: PreTrainedConfig, said: Mapping[str, Any], path: str | Path) -> None:
    """Whether a configuration says what a file does.  Raises InvalidTensor."""
    rotation = getattr(config, "rope_parameters", None) or {}
    of: dict[str, Callable[[str], Any]] = {"rope_theta": lambda name: rotation.get(name)}
    for key in _COMPARED:
        names = _WORDS[key]
        found = [
            one
            for one in (of.get(name, lambda name: getattr(config, name, None))(name) for name in names)
            if one is not None
        ]
        if (
            key not in said
            or not found
            or isinstance(said[key], list)
            or any(isinstance(one, (list, dict)) for one in found)
        ):
            continue
        if not any(abs(one - said[key]) <= 1e-6 * abs(said[key]) for one in found):
            raise InvalidTensor(
                f"{path} says {key}: {said[key]}, the configuration {names[0]}: {found[0]}",
                hint="is the configuration this model's?",
            )
