"""Files and state dicts that were written while the text about a weight was called ``layer._extra_state``: they load as today's do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_incomplete import load_file
from test_transformers import ours
from tiny_models import logits_of, model_of

import tilewright
from tilewright.checkpoints import save_safetensors
from tilewright.quant.files import CODES, METADATA, METADATA_BEFORE

KINDS = ("llama", "gpt2", "mixtral", "gpt-oss", "granite-moe", "qwen2, tied", "t5", "mamba")
SCHEMES = ("w4a16-g32", "mxfp4", "uint4-g32-asym")


def before(tensors: Any) -> dict[str, Any]:
    """Tensors under the names that they had then, when stacks of experts had no note."""
    made = {}
    for name, tensor in tensors.items():
        layer, _, last = name.rpartition(".")
        if f"{name}.0.{CODES}" in tensors:
            continue
        of_codes = last == METADATA and f"{layer}.{CODES}" in tensors
        made[f"{layer}.{METADATA_BEFORE}" if of_codes else name] = tensor
    assert made.keys() != tensors.keys()
    return made


def write_as_before(directory: Path) -> None:
    for file in directory.glob("*.safetensors"):
        save_safetensors(file, before(load_file(file)), {"format": "pt"})
    index = directory / "model.safetensors.index.json"
    assert not index.exists()


def each(kinds: Iterable[str]) -> list[tuple[str, str]]:
    return [(kind, SCHEMES[number % len(SCHEMES)]) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize("way", ["saved", "converted"])
@pytest.mark.parametrize(("kind", "scheme"), each(KINDS))
def test_files_of_before(tmp_path: Path, kind: str, scheme: str, way: str) -> None:
    model, files = model_of(kind), tmp_path / "files"
    if way == "saved":
        tilewright.quantize(model, scheme).save_pretrained(files)
    else:
        model.save_pretrained(tmp_path / "dense")
        tilewright.convert_checkpoint(tmp_path / "dense", files, scheme)
    of = type(model)
    expected = of.from_pretrained(files)
    write_as_before(files)
    found = of.from_pretrained(files)
    assert ours(found) == ours(expected) and torch.equal(logits_of(found), logits_of(expected))
    filled = tilewright.load_quantized(model_of(kind), files)
    assert torch.allclose(logits_of(filled), logits_of(expected), rtol=1e-4, atol=1e-5)
    tilewright.convert_checkpoint(files, tmp_path / "of today")
    assert not any(
        name.endswith(METADATA_BEFORE)
        for file in (tmp_path / "of today").glob("*.safetensors")
        for name in load_file(file)
    )
    assert torch.equal(logits_of(of.from_pretrained(tmp_path / "of today")), logits_of(expected))


@pytest.mark.parametrize(("kind", "scheme"), each(KINDS))
def test_state_dicts_of_before(kind: str, scheme: str) -> None:
    model, other = (tilewright.quantize(model_of(kind), scheme) for _ in range(2))
    with torch.no_grad():
        for name, tensor in other.named_buffers():
            if name.endswith("scales"):
                tensor.copy_(torch.ones_like(tensor))
    other.load_state_dict(before(model.state_dict()))
    assert torch.equal(logits_of(other), logits_of(model))
    state = before(model.state_dict())
    gone = next(name for name in state if name.endswith(METADATA_BEFORE))
    del state[gone]
    with pytest.raises(RuntimeError, match=gone.replace(METADATA_BEFORE, METADATA)):
        other.load_state_dict(state)
