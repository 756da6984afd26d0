"""A small model of every architecture that the installed transformers has: made of a configuration's defaults, whose numbers
are replaced by small ones by what they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import transformers as tf
from tiny_models import logits_of
from transformers.models.auto import modeling_auto

WORDS = 96
LARGEST = 30_000_000
"""Parameters of a model that is still small: one with more has sizes that no rule here knows."""

KINDS = {
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "images": ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
}

RULES: list[tuple[str, int]] = [
    (r"vocab_size|^n_tokens$", WORDS),
    (r"n_routed_experts|num_(local_|routed_)?experts$|moe_num_experts|n_experts$|num_experts_all", 4),
    (r"experts_per_tok|top_?k_experts|moe_topk|moe_k$|num_selected_experts|experts_top_?k", 2),
    (r"^n_group|topk_group|n_shared_experts|num_shared_experts", 1),
    (r"moe.*(intermediate|ffn)|expert.*(intermediate|ffn|hidden)|shared.*intermediate", 64),
    (r"intermediate|ffn|inner_dim|d_ff|ff_dim|n_inner|mlp_dim|feed_?forward.*(dim|size)|filter_size", 128),
    (r"qk_head_dim", 32),
    (r"rotary_dim", 8),
    (r"key_value_heads|kv_heads|n_head_kv|num_key_value|kv_n_heads", 2),
    (r"head_dim|d_kv|qk_nope_head|qk_rope_head|v_head_dim|attention_head_size|kv_channels|head_size$", 16),
    (r"(attention_|n_)heads?$|num_heads|num_.*_heads$|n_heads?$|encoder_heads|decoder_heads", 4),
    (r"lora_rank|lora_r$|rank$", 16),
    (r"hidden_layers|num_layers|n_layers?$|(encoder|decoder)_layers|depth$|num_.*_layers$|num_blocks$", 2),
    (r"hidden_size|d_model|n_embd|embed_dim|embedding_size|model_dim|hidden_dim|^dim$|width$|emb_dim|hidden_channels", 64),
    (r"max_position|n_positions|max_seq|n_ctx|max_sequence|max_length|context_length|max_source|max_target", 64),
    (r"patch_size", 4),
    (r"image_size|input_size|img_size", 16),
    (r"state_size|d_state|ssm_state", 8),
    (r"(pad|bos|eos|sep|unk|cls|mask)_token_id", 0),
    (r"_token_(id|index)$|_(token|word)_id$", WORDS - 1),
]  # fmt: skip


GIVEN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "esm": {"vocab_size": WORDS, "pad_token_id": 1, "mask_token_id": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_local_experts": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {"layer_types": ["linear_attention", "full_attention"]},
    "reformer": {
        "is_decoder": True,
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [32, 32],
        "lsh_num_chunks_after": 0,
    },
    "xmod": {"default_language": "en_XX"},
}
"""What no rule says."""

VARIANTS: list[dict[str, Any]] = [
    {},
    {"sections": [1, 1, 2]},
    {"sections": [1, 1, 0]},
    {"kinds": 1},
    {"alike": True},
    {"alike": True, "kinds": 1},
    {"kinds": 2},
    {"layers": 4, "kinds": 3},
    {"layers": 8},
    {"layers": 8, "alike": True},
    {"turned": True},
    {"turned": True, "sections": [1, 1, 2]},
]
"""Ways to choose the numbers: as many heads for keys as for queries (`alike`), more `layers`, so many of each of the
kinds of layers that the architecture mixes, the `sections` of the places of images, also where a configuration leaves them out (`turned`)."""


def configuration(
    of: Any,
    alike: bool = False,
    layers: int = 2,
    kinds: int = 0,
    sections: Sequence[int] = (2, 3, 3),
    turned: bool = False,
    **given: Any,
) -> Any:
    """A configuration of a class with small numbers, its parts as well."""
    plain = of()
    changed: dict[str, Any] = {}
    parts = getattr(of, "sub_configs", {})
    mixed = [one for one in dict.fromkeys(getattr(plain, "layer_types", None) or ()) for _ in range(kinds)]
    if mixed:
        layers = len(mixed)
        changed["layer_types"] = mixed
    for name, value in vars(plain).items():
        if name in parts or name.startswith("_") or isinstance(value, bool):
            continue
        if name == "head_dim" and value is None:
            changed[name] = 16
        if isinstance(value, dict) and ("mrope_section" in value or (turned and "rope_type" in value)):
            changed[name] = {**value, "mrope_section": [*sections]}
        if isinstance(value, int):
            rule, small = next(((rule, number) for rule, number in RULES if re.search(rule, name)), ("", None))
            small = 4 if alike and "kv_heads" in rule else layers if "hidden_layers" in rule else small
            if small is not None and small < value:
                changed[name] = small
    for name in parts:
        inner = getattr(plain, name, None)
        if isinstance(inner, tf.PreTrainedConfig):
            changed[name] = configuration(type(inner), alike, layers, kinds, sections, turned).to_dict()
    return of(**{**changed, **given})


def architectures(which: str) -> list[str]:
    """Names of all architectures of a kind."""
    return list(getattr(modeling_auto, KINDS[which][1]))


def model_of(which: str, name: str) -> Any:
    """A small model with random weights, biases and norms among them, that says something to a few words.

    Raises
    ------
    ValueError : in no way that is known here; says what came of each.
    """
    said = []
    for variant in VARIANTS:
        try:
            model = _made(which, configuration(tf.CONFIG_MAPPING[name], **variant, **GIVEN.get(name, {})))
            if not logits_of(model).isfinite().all():
                raise ValueError("logits that are not finite")
            return model
        except Exception as error:  # of any kind, for sizes that do not fit
            said.append(f"{type(error).__name__}: {error}".replace("\n", " ")[:200])
    raise ValueError("; ".join(dict.fromkeys(said)))


def _made(which: str, config: Any) -> Any:
    auto = getattr(tf, KINDS[which][0])
    with torch.device("meta"):
        size = sum(one.numel() for one in auto.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.is_floating_point():
                tensor.add_(0.05 * torch.randn_like(tensor))
    return model
