"""Models that are on the meta device until a checkpoint fills them: whole afterwards, or told what is not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
from checkpoint_writers import write_gptq  # noqa: E402

from tilewright.checkpoints import save_safetensors  # noqa: E402
from tilewright.conversion import convert_checkpoint, load_quantized, quantize  # noqa: E402
from tilewright.errors import MissingTensor  # noqa: E402

N, K = 24, 64


class Model(torch.nn.Module):
    """A quantised layer with a bias, a norm, a buffer, and a head that is the embedding."""

    def __init__(self, rotary: bool = False) -> None:
        super().__init__()
        self.embed, self.up = torch.nn.Embedding(10, K), torch.nn.Linear(K, N)
        self.norm, self.head = torch.nn.BatchNorm1d(N), torch.nn.Linear(K, 10, bias=False)
        self.head.weight = self.embed.weight
        if rotary:
            self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        return self.norm(self.up(x)), self.head(x)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    made = write_gptq(rng, N, K, 4, 16, 1, False)
    tensors = {f"up.{name}": array for name, array in made.tensors.items()}
    tensors |= {
        "up.bias": rng.standard_normal(N).astype(np.float32),
        "embed.weight": rng.standard_normal((10, K)).astype(np.float32),
    }
    tensors |= {
        f"norm.{name}": rng.uniform(0.5, 2, N).astype(np.float32)
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    tensors["norm.num_batches_tracked"] = np.array(7, np.int64)
    (tmp_path / "from").mkdir()
    save_safetensors(tmp_path / "from" / "model.safetensors", tensors)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 16}
    (tmp_path / "from" / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return tmp_path / "from"  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("converted", [False, True])
def test_a_model_on_meta_is_whole_afterwards(checkpoint: Path, tmp_path: Path, converted: bool) -> None:
    if converted:
        convert_checkpoint(checkpoint, tmp_path / "ours")
    path = tmp_path / "ours" if converted else checkpoint
    with torch.device("meta"):
        model = Model()
    model.embed.weight.requires_grad_(False)
    expected = load_quantized(Model(), path).eval()
    found = load_quantized(model, path).eval()
    assert not [name for name, tensor in (*found.named_parameters(), *found.named_buffers()) if tensor.is_meta]
    assert found.head.weight is found.embed.weight and not found.embed.weight.requires_grad
    tokens = torch.tensor([1, 5, 9])
    for one, other in zip(found(tokens), expected(tokens)):
        assert torch.equal(one, other)
    assert int(found.norm.num_batches_tracked) == 7


def test_a_tensor_that_is_in_no_file_is_told_on_meta_too(checkpoint: Path) -> None:
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"up": torch.nn.Linear(K, N), "down": torch.nn.Linear(N, K)})
    with pytest.raises(MissingTensor, match=r"down\.weight is missing: the model has such a tensor"):
        load_quantized(model, checkpoint)


def test_a_buffer_that_nobody_fills_is_told(checkpoint: Path) -> None:
    with torch.device("meta"):
        model = Model(rotary=True)
    with pytest.raises(MissingTensor, match="angles is on the meta device, and files hold no such buffer"):
        load_quantized(model, checkpoint)
    model.angles = torch.arange(4.0)
    assert not load_quantized(model, checkpoint).embed.weight.is_meta


class Initialised(Model):
    """As transformers' models work out again what no file holds."""

    def _init_weights(self, module: Any) -> None:
        if module is self:
            self.angles.copy_(torch.arange(4.0))


def test_a_buffer_that_the_model_works_out_is_there(checkpoint: Path) -> None:
    with torch.device("meta"):
        model = Initialised(rotary=True)
    assert load_quantized(model, checkpoint).angles.tolist() == [0.0, 1.0, 2.0, 3.0]


class Configuration:
    """As transformers' is, for what is asked of it here."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def test_a_models_configuration_says_whose_its_weights_are(checkpoint: Path) -> None:
    model: Any = Model()
    model.config = Configuration()
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}  # of the checkpoint that it was made for
    load_quantized(model, checkpoint)
    assert model.config.quantization_config == {"quantized_by": "tilewright", "version": 1}
    other: Any = torch.nn.Sequential(torch.nn.Linear(K, K))
    other.config = Configuration()
    quantize(other, "w8a8")
    assert other.config.quantization_config == {"quantized_by": "tilewright", "version": 1, "activations": "int8"}
