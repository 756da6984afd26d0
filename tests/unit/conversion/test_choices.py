"""What `quantize` and `convert` say of the layers that they took and of those that they did not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tilewright
from tilewright.checkpoints import open_checkpoint
from tilewright.cli import main
from tilewright.conversion.choices import Choices
from tilewright.conversion.layers import is_looked_up
from tilewright.progress import Progress
from tilewright.quant.files import read_weight

K = 32


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(K, 2 * K), torch.nn.Linear(2 * K, K, bias=False)
        self.norm, self.bias_table = torch.nn.LayerNorm(K), torch.nn.Embedding(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Language(torch.nn.Module):
    """A plain model, whose tables no library named."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = torch.nn.Embedding(50, K), torch.nn.Embedding(16, K)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.smooth, self.shift = torch.nn.Conv1d(K, K, 3, padding=1), torch.nn.Parameter(torch.zeros(1, K))
        self.head, self.tied = torch.nn.Linear(K, 50), torch.nn.Linear(K, 50, bias=False)
        self.tied.weight = self.emb.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.emb(words) + self.pos(torch.arange(words.shape[1])) + self.shift
        for block in self.blocks:
            x = block(x)
        x = self.smooth(x.mT).mT
        return self.head(x) + self.tied(x)


@pytest.fixture
def model() -> Language:
    torch.manual_seed(0)
    return Language().eval()


WORDS = torch.arange(12).reshape(2, 6)


@torch.no_grad()
def test_quantize_names_every_matrix_once(model: Language) -> None:
    """What it says is what the model is then: layers that were taken are ours, every other matrix has a reason."""
    before, said, matrices = model(WORDS), list[str](), {name for name, one in model.named_parameters() if one.ndim > 1}
    tilewright.quantize(model, "int8-g32", report=said.append)
    assert said == [
        "taken  2 x blocks.*.up\n"
        "taken  2 x blocks.*.down\n"
        "taken  1 x head\n"
        "left   1 x shift: a parameter of Language\n"
        "left   1 x emb: its rows are looked up\n"
        "left   1 x pos: its rows are looked up\n"
        "left   2 x blocks.*.bias_table: its rows are looked up\n"
        "left   1 x smooth: Conv1d is no linear layer\n"
        "left   1 x tied: its weight is that of an embedding"
    ]
    ours = {name for name, module in model.named_modules() if isinstance(module, tilewright.Linear)}
    assert ours == {"blocks.0.up", "blocks.1.up", "blocks.0.down", "blocks.1.down", "head"}
    assert {name for name, one in model.named_parameters() if one.ndim > 1} == matrices - {
        f"{name}.weight" for name in ours
    }
    assert 0 < (model(WORDS) - before).abs().max() < 0.05 * before.abs().max()


def test_the_terminal_is_told_and_no_file(model: Language, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    tilewright.quantize(Language(), "int8-g32", progress=Progress(5, shown))
    assert "taken  2 x blocks.*.up\n" in shown.getvalue()
    tilewright.quantize(model, "int8-g32")
    assert capsys.readouterr() == ("", "")


def test_layers_that_skip_names_are_told(model: Language) -> None:
    said: list[str] = []
    tilewright.quantize(model, "int8-g32", skip=["blocks.1", "head"], report=said.append)
    assert "taken  1 x blocks.*.up\n" in said[0] and "left   1 x blocks.*.up: skip= has its name\n" in said[0]


@torch.no_grad()
@pytest.mark.parametrize("skip", [(), ["blocks.1"]])
def test_convert_leaves_tables(model: Language, tmp_path: Path, skip: Any) -> None:
    """They were rounded where `skip` was given, and names as plain as ``emb`` and ``pos`` always."""
    model.tied = torch.nn.Linear(K, 50, bias=False)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    done = tilewright.convert_checkpoint(tmp_path / "model.safetensors", tmp_path / "ours", "int8-g32", skip=skip)
    assert {"emb", "pos"} <= done.choices.left.keys() and done.weights == len(done.choices.taken)
    found, before = open_checkpoint(tmp_path / "ours"), model.state_dict()
    for name in done.choices.taken:
        assert read_weight(found, name).shape == tuple(before[f"{name}.weight"].shape)
    for name in done.choices.left:
        key = f"{name}.weight" if f"{name}.weight" in before else name
        assert np.array_equal(found[key], before[key].numpy()), name
    # Files do not tell that `bias_table` is a table; the model does, when it is loaded.
    again = tilewright.load_quantized(Language(), tmp_path / "ours")
    assert isinstance(again.blocks[0].bias_table, torch.nn.Embedding) and isinstance(again.head, tilewright.Linear)
    assert (again(WORDS) - model(WORDS)).abs().max() < 0.05 * model(WORDS).abs().max()


def test_the_command_says_what_it_did(model: Language, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({name: one.clone() for name, one in model.state_dict().items()}, tmp_path / "model.safetensors")
    assert (
        main(["convert", str(tmp_path / "model.safetensors"), "--scheme", "int8-g32", "-o", str(tmp_path / "ours")])
        == 0
    )
    said = capsys.readouterr().out
    assert "taken  2 x blocks.*.up\n" in said and "left   1 x emb: its rows are looked up\n" in said
    assert "left   1 x smooth: it has 3 dimensions\n" in said and "left   1 x shift: it is not called weight\n" in said


@pytest.mark.parametrize(
    ("name", "table"),
    [
        *((name, True) for name in (
            "emb", "pos", "tok", "model.embed_tokens", "transformer.wte", "transformer.wpe", "tok_embeddings", "shared", "model.shared",
            "bert.embeddings.word_embeddings", "bert.embeddings.token_type_embeddings", "decoder.embed_positions", "wordEmbedding",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "gpt_neox.embed_in", "table", "model.words",
        )),
        *((name, False) for name in (
            "lm_head", "embed_out", "mlp.shared_expert.up_proj", "self_attn.linear_pos", "layers.0.pos_proj", "post_proj", "model.layers.0.mlp",
            "time_embedding.linear_1", "unembed", "cls.predictions.decoder", "blocks.0.shared", "x_embedder.proj", "embed_projection",
        )),
    ],
)  # fmt: skip
def test_names_of_tables(name: str, table: bool) -> None:
    """By the name, or as many rows as a configuration says that there are words."""
    assert is_looked_up(name, (50, 8), {"text_config": {"vocab_size": 50}}) is table


def test_lines_are_one_for_all_blocks() -> None:
    names = [*(f"model.layers.{number}.up" for number in range(12)), "conv1d", "h.0"]
    assert str(Choices(dict.fromkeys(names))) == "taken  12 x model.layers.*.up\ntaken   1 x conv1d\ntaken   1 x h.*"
