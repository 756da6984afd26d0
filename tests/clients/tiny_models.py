"""Small models of transformers' architectures, with random weights: what people quantise, in a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

WORDS = 96
_BASE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_BASE, "num_key_value_heads": 2}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}

_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS}

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_GROUPED)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**_GROUPED)),
    "qwen2, tied": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**_GROUPED, tie_word_embeddings=True)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**_GROUPED, head_dim=16)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**_GROUPED, head_dim=16)),
    "phi": lambda: tf.PhiForCausalLM(tf.PhiConfig(**_GROUPED)),
    "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**_GROUPED)),
    "falcon": lambda: tf.FalconForCausalLM(tf.FalconConfig(**_BASE)),
    "bloom": lambda: tf.BloomForCausalLM(tf.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=WORDS)),
    "opt": lambda: tf.OPTForCausalLM(tf.OPTConfig(**_BASE, ffn_dim=128, word_embed_proj_dim=64)),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=64, bos_token_id=1, eos_token_id=2)
    ),
    "gpt-neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**_BASE)),
    "mamba": lambda: tf.MambaForCausalLM(
        tf.MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=WORDS, state_size=8)
    ),
    "bert": lambda: tf.BertForMaskedLM(tf.BertConfig(**_BASE)),
    "mobilebert": lambda: tf.MobileBertForMaskedLM(
        tf.MobileBertConfig(**_BASE, embedding_size=32, intra_bottleneck_size=32)
    ),
    "deberta": lambda: tf.DebertaForMaskedLM(
        tf.DebertaConfig(**_BASE, relative_attention=True, pos_att_type=["c2p", "p2c"])
    ),
    "t5": lambda: tf.T5ForConditionalGeneration(tf.T5Config(**_T5)),
    "t5, gated": lambda: tf.T5ForConditionalGeneration(tf.T5Config(**_T5, feed_forward_proj="gated-gelu")),
    "mixtral": lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**_GROUPED, num_local_experts=4)),
    "qwen2-moe": lambda: tf.Qwen2MoeForCausalLM(
        tf.Qwen2MoeConfig(**_GROUPED, **_EXPERTS, shared_expert_intermediate_size=64)
    ),
    "qwen3-moe": lambda: tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**_GROUPED, **_EXPERTS, head_dim=16)),
    "gpt-oss": lambda: tf.GptOssForCausalLM(
        tf.GptOssConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2, head_dim=16)
    ),
    "granite-moe": lambda: tf.GraniteMoeForCausalLM(
        tf.GraniteMoeConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)
    ),
    "phimoe": lambda: tf.PhimoeForCausalLM(tf.PhimoeConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "minimax": lambda: tf.MiniMaxForCausalLM(
        tf.MiniMaxConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2, head_dim=16)
    ),
    "llava": lambda: tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(
            text_config=tf.LlamaConfig(**_GROUPED).to_dict(),
            vision_config=tf.CLIPVisionConfig(
                hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
            ).to_dict(),
            image_token_index=WORDS - 1,
        )
    ),
    "qwen2-vl": lambda: tf.Qwen2VLForConditionalGeneration(
        tf.Qwen2VLConfig(
            text_config={**_GROUPED, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
            vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4},
        )
    ),
}  # fmt: skip


def model_of(kind: str) -> Any:
    """A model with random weights, biases and norms among them."""
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.05 * torch.randn_like(tensor))
    return model


def logits_of(model: Any) -> torch.Tensor:
    """What a model says to a few words."""
    words = torch.arange(14).reshape(2, 7) * 11 % (WORDS - 1)
    more = {"decoder_input_ids": words} if getattr(model.config, "is_encoder_decoder", False) else {}
    with torch.no_grad():
        return model(input_ids=words, **more).logits.double()
