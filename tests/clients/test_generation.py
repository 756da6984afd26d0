"""Words that quantised models generate: those of a dense model with the same numbers."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import MODELS, WORDS, model_of

import tilewright
from tilewright.conversion.checkpoint import SKIPPED, skipping
from tilewright.conversion.experts import stacks_to_quantize
from tilewright.conversion.modules import why_layers_stay

WRITERS = [kind for kind in MODELS if kind not in ("bert", "mobilebert", "deberta", "llava", "qwen2-vl")]


def dense_twin(kind: str, scheme: str) -> Any:
    """A model whose weights are dense and rounded, each by itself, without our layers."""
    return rounded(model_of(kind), scheme)


def rounded(model: Any, scheme: str) -> Any:
    """A dense model, all of whose matrices that `quantize` would take are rounded in place."""
    stays = skipping("skip", SKIPPED, ())
    with torch.no_grad():
        for name, reason in why_layers_stay(model, stays).items():
            if reason is None:
                weight = model.get_submodule(name).weight
                turned = type(model.get_submodule(name)).__name__ == "Conv1D"
                round_(weight.T if turned else weight, scheme)
        for stack in stacks_to_quantize(model, stays).values():
            for one in stack.names:
                for expert in getattr(stack.module, one):
                    round_(expert.T if stack.columns else expert, scheme)
    return model


def round_(weight: torch.Tensor, scheme: str) -> None:
    weight.copy_(torch.from_numpy(tilewright.quantize(weight.detach(), scheme).to_dense()))


def written(model: Any, **options: Any) -> torch.Tensor:
    """What a model writes after a batch of beginnings of different lengths, filled up on the left."""
    words = torch.arange(14).reshape(2, 7) * 13 % (WORDS - 4) + 3
    mask = torch.ones_like(words)
    if model.config.is_encoder_decoder:
        options["decoder_start_token_id"] = 0
    elif "mamba" not in model.config.model_type:
        mask[1, :3] = 0
    return model.generate(words, attention_mask=mask, max_new_tokens=10, do_sample=False, pad_token_id=0, **options)


@pytest.mark.parametrize(
    ("kind", "scheme"), [*((kind, "int4-g32") for kind in WRITERS), ("llama", "w8a16-channel"), ("gpt2", "nf4-g64")]
)
def test_greedy_words_are_those_of_the_dense_model(kind: str, scheme: str) -> None:
    model = tilewright.quantize(model_of(kind), scheme)
    assert sum(isinstance(module, tilewright.Linear) for module in model.modules()) >= 2
    assert torch.equal(written(model), written(dense_twin(kind, scheme)))


def test_the_dense_model_writes_other_words() -> None:
    """So the test above can fail: four bits are enough to change what is written."""
    assert not torch.equal(written(model_of("llama")), written(dense_twin("llama", "uint2-g32-asym")))


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"cache_implementation": "static", "disable_compile": True}, {"use_cache": False}]
)
def test_other_ways_to_write(options: dict[str, Any]) -> None:
    model = tilewright.quantize(model_of("llama"), "int4-g32")
    assert torch.equal(written(model, **options), written(dense_twin("llama", "int4-g32"), **options))


def test_words_of_what_was_saved(tmp_path: Path) -> None:
    import tilewright.hf

    model = tilewright.quantize(model_of("qwen3"), "int4-g32")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(written(again), written(model))


@pytest.mark.parametrize("kind", MODELS)
def test_parameters_are_counted_as_those_of_the_dense_model(kind: str) -> None:
    dense = model_of(kind)
    counts = [dense.num_parameters(exclude_embeddings=one) for one in (False, True)]
    model = tilewright.quantize(model_of(kind), "int4-g32")
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [one.num_parameters(exclude_embeddings=without) for without in (False, True)] == counts
    assert model.num_parameters(only_trainable=True) < counts[0]
    assert dense.num_parameters() == counts[0]


@pytest.mark.parametrize("kind", MODELS)
def test_files_take_the_layers_that_the_model_takes(kind: str, tmp_path: Path) -> None:
    """No table is rounded, whatever `skip` says: of those that a model looks rows up in, files tell the name alone."""
    model = model_of(kind)
    model.save_pretrained(tmp_path / "dense")
    done = tilewright.convert_checkpoint(tmp_path / "dense", tmp_path / "ours", "int8-g32", skip=())
    tables = {name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, torch.nn.Embedding)}
    assert not tables & {name.rpartition(".")[2] for name in done.choices.taken}
