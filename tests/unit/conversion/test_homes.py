"""Tensors of a checkpoint that a model has no place for: those of its own modules are named, those of parts that it leaves out are not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
from checkpoint_writers import write_gptq

from tilewright.checkpoints import save_safetensors
from tilewright.conversion import convert_checkpoint, load_quantized
from tilewright.errors import InvalidTensor
from tilewright.nn import Linear

torch = pytest.importorskip("torch")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(128, 32, bias=False)
        self.norm = torch.nn.LayerNorm(32, bias=False)
        self.register_buffer("mask", torch.ones(4), persistent=False)


class Encoder(torch.nn.Module):
    """As BERT's: a list of blocks is in what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = torch.nn.Module()
        self.body = torch.nn.Module()
        self.body.blocks = torch.nn.ModuleList()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block()])
        self.encoder = Encoder()
        self.head = torch.nn.Linear(32, 8, bias=False)
        self.body = torch.nn.Sequential(torch.nn.Identity())


def load(place: Path, more: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    written = write_gptq(rng, 32, 128, 4, 32, 1, False)
    tensors = {f"layers.0.up.{name}": tensor for name, tensor in written.tensors.items()}
    tensors |= {"layers.0.norm.weight": np.ones(32, np.float32), "head.weight": np.ones((8, 32), np.float32), **more}
    save_safetensors(place / "model.safetensors", tensors)
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (place / "config.json").write_text(json.dumps({"quantization_config": said}))
    load_quantized(Model(), place)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("head.bias", "head (Linear)"),
        ("head.scale", "head (Linear)"),
        ("layers.0.norm.bias", "layers.0.norm (LayerNorm)"),
        ("layers.0.rotation", "layers.0 (Block)"),
        ("layers.0.q_norm.weight", "layers.0 (Block)"),
        ("layers.0.up_bias", "layers.0 (Block)"),
        ("encoder.factor", "encoder (Encoder)"),
        ("encoder.embeddings.norm.weight", "encoder.embeddings (Module)"),
        ("body.norm.weight", "body (Sequential)"),
    ],
)
def test_a_tensor_of_a_module_that_has_none_such_is_named(tmp_path: Path, name: str, owner: str) -> None:
    with pytest.raises(InvalidTensor) as raised:
        load(tmp_path, {name: np.ones(8, np.float32)})
    assert raised.value.message == f"{name} is in the checkpoint, and the model's {owner} has no such tensor"


@pytest.mark.parametrize("name", [
    "layers.1.up.weight", "mtp.proj.weight", "vision.head.weight", "layers.0.mask", "layers.0.k_scale", "layers.0.rotary_emb.inv_freq",
    "head.input_scale", "positions", "encoder.pooler.dense.weight", "encoder.body.norm.weight",
    "layers.0.rotary_pos_emb.inv_freq", "layers.0.rotary_emb.cos_cached", "head.mask_token",
])  # fmt: skip
def test_other_parts_buffers_and_static_scales_are_left_out(tmp_path: Path, name: str) -> None:
    load(tmp_path, {name: np.ones(8, np.float32)})


def test_parts_for_other_tasks_are_left_out(tmp_path: Path) -> None:
    """The pooler and the heads of BERT's own training, in a model of another head; none that is in a block."""
    dense = {
        "dense.weight": np.ones((8, 8), np.float32),
        "dense.bias": np.ones(8, np.float32),
        "norm.weight": np.ones(8, np.float32),
    }
    load(tmp_path, {f"body.pooler.{name}": values for name, values in dense.items()})
    with pytest.raises(InvalidTensor, match=r"layers.0 \(Block\) has no such tensor"):
        load(tmp_path, {f"layers.0.pooler.{name}": values for name, values in dense.items()})


def test_zeros_and_integers_change_nothing(tmp_path: Path) -> None:
    load(tmp_path, {"head.bias": np.zeros(8, np.float32), "head.steps": np.ones(8, np.int64)})


class Router(torch.nn.Module):
    """DeepSeek V4's: a table says of words which experts they go to, beside the weight that says it of others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 32))
        self.register_buffer("table", torch.arange(64).reshape(32, 2))
        self.register_buffer("offsets", torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T + self.offsets


class Shared(torch.nn.Module):
    """Of modules that have two names each, as detectors of objects have the heads of their decoders."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.heads = Router(), torch.nn.ModuleList([torch.nn.Linear(32, 8)])
        self.decoder = torch.nn.ModuleDict({"heads": self.heads})


def test_files_of_ours_hold_what_their_models_hold(tmp_path: Path) -> None:
    """Tensors beside a router's codes, and layers that files have by one of their names alone."""
    model = Shared()
    tensors = {name: one.numpy() for name, one in model.state_dict().items() if not name.startswith("decoder")}
    (tmp_path / "dense").mkdir()
    save_safetensors(tmp_path / "dense" / "model.safetensors", tensors)
    (tmp_path / "dense" / "config.json").write_text("{}")
    convert_checkpoint(tmp_path / "dense", tmp_path / "ours", "int8-g32", skip="nothing")
    loaded = load_quantized(Shared(), tmp_path / "ours")
    assert loaded.decoder["heads"][0] is loaded.heads[0] and isinstance(loaded.heads[0], Linear)
    assert (loaded.router.table == model.router.table).all() and (loaded.router.offsets == model.router.offsets).all()
    x = torch.randn(4, 32)
    assert (loaded.router(x) - model.router(x)).abs().max() < 0.2
