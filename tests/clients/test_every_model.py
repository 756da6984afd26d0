"""Every architecture of the installed transformers that can be made small: quantised in each way, saved and loaded, beside the dense model with the
same numbers."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from every_model import KINDS, architectures, model_of
from test_generation import rounded
from test_transformers import INT8, error, ours
from tiny_models import logits_of

import tilewright

ALL = [(which, name) for which in KINDS for name in architectures(which)]

STAY = {"ibert": "its layers are of whole numbers already", "longcat_flash": "experts that hand tokens on as they are"}
"""Architectures that `convert` and `quantize` do not take alike, and why: that is said, and nothing is wrong."""

OTHERS = {"exaone", "marian", "nemo_speechlm", "sarvam_moe", "shieldgemma2"}
"""Architectures whose dense files transformers itself does not load to the same numbers: those of a model that it made, or
(classes of another architecture's) of one that it loaded."""


@functools.cache
def reason(which: str, name: str) -> str:
    """Why an architecture cannot be made small; nothing where it can."""
    try:
        model_of(which, name)
    except (ValueError, ImportError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("which", "name"), ALL, ids=[f"{which} {name}" for which, name in ALL])
def test_every_way_gives_the_rounded_numbers(tmp_path: Path, which: str, name: str) -> None:
    left_out = reason(which, name) or STAY.get(name) or ("transformers loads other numbers" if name in OTHERS else "")
    if left_out:
        pytest.skip(left_out)
    model = model_of(which, name)
    dense, of = logits_of(model), type(model)
    model.save_pretrained(tmp_path / "dense")
    expected = logits_of(rounded(of.from_pretrained(tmp_path / "dense"), "int8-g32"))
    quantised = tilewright.quantize(of.from_pretrained(tmp_path / "dense"), "int8-g32")
    count, found = ours(quantised), logits_of(quantised)
    assert count and error(found, expected) < 1e-4, "quantize"

    del quantised
    while_loading = of.from_pretrained(tmp_path / "dense", quantization_config=INT8)
    assert ours(while_loading) == count and error(logits_of(while_loading), found) < 1e-5, "while loading"
    while_loading.save_pretrained(tmp_path / "ours")
    again = of.from_pretrained(tmp_path / "ours")
    assert ours(again) == count and error(logits_of(again), found) < 1e-5, "saved and loaded"

    tilewright.convert_checkpoint(tmp_path / "dense", tmp_path / "converted", "int8-g32")
    converted = of.from_pretrained(tmp_path / "converted")
    near = max(2 * error(found, dense), 1e-3)
    assert ours(converted) and error(logits_of(converted), dense) < near, "converted"
    filled = tilewright.load_quantized(of.from_pretrained(tmp_path / "dense"), tmp_path / "converted")
    assert error(logits_of(filled), logits_of(converted)) < 1e-4, "load_quantized"


@pytest.mark.parametrize(("which", "share"), [("causal", 0.9), ("seq2seq", 0.85), ("masked", 0.85), ("images", 0.6)])
def test_most_architectures_can_be_made(which: str, share: float) -> None:
    """So that those above are not all left out."""
    names = architectures(which)
    assert sum(not reason(which, name) for name in names) >= share * len(names)


def test_rounded_numbers_are_others() -> None:
    """So the tests above can fail."""
    dense = logits_of(model_of("causal", "llama"))
    assert 1e-3 < error(logits_of(rounded(model_of("causal", "llama"), "int8-g32")), dense) < torch.inf
