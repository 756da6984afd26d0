"""Checkpoints of a model for one task in a model for another of the same architecture: what it has more is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers as tf
from every_model import configuration
from test_transformers import ours

import tilewright

BLOCKS = r"^(?!.*\.\d+\.)"
"""Layers to leave, as most libraries do: all that are in no list of blocks."""


@pytest.mark.parametrize(("kind", "source", "target"), [
    ("bert", "BertForPreTraining", "BertForMaskedLM"), ("bert", "BertForPreTraining", "BertModel"),
    ("albert", "AlbertForPreTraining", "AlbertForMaskedLM"), ("big_bird", "BigBirdForPreTraining", "BigBirdForMaskedLM"),
    ("deepseek_v2", "DeepseekV2ForCausalLM", "DeepseekV2Model"), ("cohere2_moe", "Cohere2MoeModel", "Cohere2MoeForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel"),
])  # fmt: skip
def test_what_another_task_needs_is_left_out(tmp_path: Path, kind: str, source: str, target: str) -> None:
    config = configuration(tf.CONFIG_MAPPING[kind])
    getattr(tf, source)(config).save_pretrained(tmp_path / "dense")
    of = getattr(tf, target)
    tilewright.convert_checkpoint(tmp_path / "dense", tmp_path / "ours", "int8-g32", skip=f"{BLOCKS}|gate$")
    assert ours(tilewright.load_quantized(of.from_pretrained(tmp_path / "dense"), tmp_path / "ours"))
