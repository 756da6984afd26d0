"""Checkpoints with all that other libraries put beside the weights, loaded into models and layers as a user does it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
from checkpoint_writers import write_gptq  # noqa: E402
from test_safetensors import gguf_of  # noqa: E402

from tilewright.checkpoints import open_checkpoint, save_safetensors  # noqa: E402
from tilewright.conversion import convert_checkpoint, load_quantized  # noqa: E402
from tilewright.errors import InvalidTensor, MissingTensor  # noqa: E402
from tilewright.matmul.arrays import as_torch  # noqa: E402
from tilewright.nn import Linear  # noqa: E402
from tilewright.quant.files import read_weight  # noqa: E402

N, K = 24, 64
RNG = np.random.default_rng(0)


def written(
    directory: Path, tensors: dict[str, np.ndarray], config: dict[str, Any], beside: str = "config.json"
) -> Path:
    directory.mkdir()
    save_safetensors(directory / "model.safetensors", tensors)
    (directory / beside).write_text(json.dumps(config))
    return directory


def nvfp4(directory: Path, config: dict[str, Any], beside: str = "config.json") -> Path:
    tensors = {
        "up.weight": RNG.integers(0, 256, (N, K // 2), dtype=np.uint8),
        "up.weight_scale": RNG.uniform(1, 400, (N, K // 16)).astype(ml_dtypes.float8_e4m3fn),
        "up.weight_scale_2": np.array(0.01, np.float32),
        "up.input_scale": np.array(0.5, np.float32),
        "norm.weight": np.ones(K, np.float32),
    }
    return written(directory, tensors, config, beside)


@pytest.mark.parametrize("beside", ["config.json", "hf_quant_config.json"])
def test_modelopt_says_what_it_is_in_either_file(tmp_path: Path, beside: str) -> None:
    new = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}}
    old = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    source = nvfp4(tmp_path / "source", new if beside == "config.json" else old, beside)
    done = convert_checkpoint(source, tmp_path / "ours")
    found = open_checkpoint(tmp_path / "ours")
    assert done.weights == 1 and "up.input_scale" not in found and "norm.weight" in found
    assert not (tmp_path / "ours" / "hf_quant_config.json").exists()


def state_of(directory: Path, layer: str) -> dict[str, Any]:
    found = open_checkpoint(directory)
    return {n.removeprefix(layer): as_torch(np.array(found[n]), "cpu") for n in found if n.startswith(layer)}


@pytest.mark.parametrize("act_order", [False, True])
def test_a_layer_takes_a_converted_layer_as_its_state_dict(tmp_path: Path, act_order: bool) -> None:
    """The codes of act-order too: a file has its columns as they were, a layer group by group."""
    made = write_gptq(RNG, N, K, 4, 16, 1, act_order)
    settings = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": act_order}}
    written(tmp_path / "source", {f"up.{name}": array for name, array in made.tensors.items()}, settings)
    convert_checkpoint(tmp_path / "source", tmp_path / "ours")
    state = state_of(tmp_path / "ours", "up.")
    layer = Linear(K, N, W_dtype="uint4")
    layer.load_state_dict(state)
    np.testing.assert_allclose(layer.weight.to_dense(), made.weight, rtol=1e-12)
    x = torch.randn(3, K, dtype=torch.float64)
    np.testing.assert_allclose(layer(x).numpy(), x.numpy() @ made.weight.T, rtol=1e-6, atol=1e-6)
    again = layer.state_dict()
    assert set(again) == set(state) and all(torch.equal(again[name], state[name]) for name in state)


class Tied(torch.nn.Module):
    """A model whose head is its embedding, which files hold once."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = torch.nn.Embedding(10, K), torch.nn.Linear(K, N, bias=False)
        self.head = torch.nn.Linear(K, 10, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_in_files_once(tmp_path: Path) -> None:
    made = write_gptq(RNG, N, K, 4, 16, 1, False)
    tensors = {f"up.{name}": array for name, array in made.tensors.items()}
    embedding = RNG.standard_normal((10, K)).astype(np.float32)
    settings = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 16}}
    written(tmp_path / "source", {**tensors, "embed.weight": embedding}, settings)
    model = load_quantized(Tied(), tmp_path / "source")
    assert model.head.weight is model.embed.weight and np.array_equal(model.embed.weight.detach().numpy(), embedding)
    written(tmp_path / "without", tensors, settings)
    with pytest.raises(MissingTensor, match=r"embed\.weight is missing: the model has such a tensor"):
        load_quantized(Tied(), tmp_path / "without")


def test_a_gguf_file_fills_a_model(tmp_path: Path) -> None:
    blocks = np.zeros((N, K // 32, 34), np.uint8)
    blocks[:, :, :2] = RNG.uniform(0.01, 0.1, (N, K // 32)).astype("<f2").view(np.uint8).reshape(N, -1, 2)
    blocks[:, :, 2:] = RNG.integers(0, 256, (N, K // 32, 32))
    exact = blocks[:, :, 2:].view(np.int8).reshape(N, K) * np.repeat(
        np.ascontiguousarray(blocks[:, :, :2]).view("<f2")[:, :, 0].astype(np.float64), 32, 1
    )
    gguf_of(tmp_path / "m.gguf", {"up.weight": (8, [N, K], blocks.tobytes())})
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(K, N, bias=False)})
    load_quantized(model, tmp_path / "m.gguf")
    np.testing.assert_allclose(model["up"].weight.to_dense(), exact, rtol=1e-12)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"packing_format": "auto_round:auto_gptq"}, 1), ({"packing_format": "auto_round:gptq"}, 1), ({}, 1), ({"backend": "auto"}, 1),
        ({"packing_format": "auto_round"}, 2), ({"packing_format": "auto_round:gptqmodel"}, 2), ({"backend": "auto_round:exllamav2"}, 2),
        ({"packing_format": "auto_round", "backend": "auto_round:gptq:exllamav2"}, 2), ({"backend": "auto_round:gptq:exllamav2"}, 1),
    ],
    ids=str,
)  # fmt: skip
def test_zero_points_are_those_of_the_packing(tmp_path: Path, said: dict[str, str], version: int) -> None:
    """Its own packing keeps them as they are, that of AutoGPTQ one less; its first versions said so as ``backend``."""
    made = write_gptq(np.random.default_rng(0), 32, 64, 4, 32, version, False, borrowed=version == 1)
    config = {
        "quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "autoround_version": "0.9", **said
    }  # fmt: skip
    tensors = {f"up.{name}": one for name, one in made.tensors.items()}
    convert_checkpoint(written(tmp_path / "from", tensors, {"quantization_config": config}), tmp_path / "ours")
    found = read_weight(open_checkpoint(tmp_path / "ours"), "up").to_dense()
    np.testing.assert_allclose(found, made.weight, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "packing", ["auto_round:fake", "auto_round:qbits", "gptq:awq", "auto_round:fp8", "mlx", "auto_round:auto_round_x"]
)
def test_another_packing_is_refused(tmp_path: Path, packing: str) -> None:
    config = {"quantization_config": {"quant_method": "auto-round", "bits": 4, "packing_format": packing}}
    source = written(tmp_path / "from", {"up.bias": np.zeros(3, np.float32)}, config)
    with pytest.raises(InvalidTensor, match=f"quantised by AutoRound in the packing '{packing}'"):
        convert_checkpoint(source, tmp_path / "ours")
