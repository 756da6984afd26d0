"""`quantize` on small models of several kinds: what becomes a layer of ours, what stays, and what is said where nothing can be done."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.checkpoints import save_safetensors  # noqa: E402
from tilewright.conversion import load_quantized  # noqa: E402
from tilewright.errors import CannotQuantize, InvalidTensor, MissingTensor, WrongArgumentKind, WrongArgumentShape  # noqa: E402

K, N = 32, 24


class Conv1D(torch.nn.Module):
    """As GPT-2 has it: the weight the other way round."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = (
            nf,
            torch.nn.Parameter(torch.randn(nx, nf)),
            torch.nn.Parameter(torch.randn(nf)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def ours(module: Any) -> bool:
    return isinstance(module, tilewright.Linear)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@torch.no_grad()
def test_the_transposed_layer_of_gpt2() -> None:
    model = torch.nn.Sequential(Conv1D(N, K), torch.nn.Tanh(), Conv1D(K, N))
    x = torch.randn(5, K)
    before = model(x)
    tilewright.quantize(model, "w8a16")
    assert ours(model[0]) and model[0].weight.shape == (N, K) and error(model(x), before) < 0.02
    tilewright.quantize(torch.nn.Sequential(Conv1D(N, K)), "w4a16-g16", calibration=[x])


@torch.no_grad()
def test_torchs_encoder_takes_our_layers_on_its_fast_path_too() -> None:
    layer = torch.nn.TransformerEncoderLayer(K, 4, 2 * K, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 7, K)
    before = model(x)
    tilewright.quantize(model, "w8a16")
    assert ours(model.layers[0].linear1) and error(model(x), before) < 0.02


def test_a_layer_of_two_names_stays_one_and_hooks_stay() -> None:
    shared, seen = torch.nn.Linear(K, K), []
    model = torch.nn.ModuleDict({"a": shared, "b": torch.nn.ModuleDict({"c": shared})})
    shared.register_forward_hook(lambda module, given, result: seen.append(type(module)))
    tilewright.quantize(model, "w8a16")
    assert ours(model["a"]) and model["a"] is model["b"]["c"]
    model["a"](torch.randn(2, K))
    assert seen == [tilewright.Linear]


def test_a_head_that_is_an_embedding_stays() -> None:
    model = torch.nn.ModuleDict(
        {"tokens": torch.nn.Embedding(40, K), "up": torch.nn.Linear(K, N), "out": torch.nn.Linear(K, 40)}
    )
    model["out"].weight = model["tokens"].weight
    tilewright.quantize(model, "w8a16")
    assert ours(model["up"]) and model["out"].weight is model["tokens"].weight


def test_heads_stay_and_layers_called_output_do_not() -> None:
    names = [
        "layer.0.attention.output.dense",
        "layer.0.output.dense",
        "lm_head",
        "output",
        "embed_out",
        "llm.unembed",
        "mlp.gate",
        "mlp.gate_proj",
    ]
    model = torch.nn.Module()
    for name in names:
        parent: Any = model
        *path, last = name.split(".")
        for part in path:
            parent = parent._modules.setdefault(part, torch.nn.Module())
        parent.add_module(last, torch.nn.Linear(K, N))
    tilewright.quantize(model, "w8a16")
    assert [name for name in names if ours(model.get_submodule(name))] == [names[0], names[1], "mlp.gate_proj"]


def test_layers_to_skip_by_name() -> None:
    """Whole parts of names, as transformers has it: ``layers.1`` is not ``layers.10``."""
    names = ["layers.1.up", "layers.10.up", "layers.10.down", "head"]
    model = torch.nn.Module()
    for name in names:
        parent: Any = model
        *path, last = name.split(".")
        for part in path:
            parent = parent._modules.setdefault(part, torch.nn.Module())
        parent.add_module(last, torch.nn.Linear(K, N))
    with pytest.raises(CannotQuantize, match="skip names 'heads', which no layer is called"):
        tilewright.quantize(model, "w8a16", skip=["heads"])
    with pytest.raises(WrongArgumentKind, match="skip is 3"):
        tilewright.quantize(model, "w8a16", skip=3)
    tilewright.quantize(model, "w8a16", skip=["layers.1", "down", "head"])
    assert [name for name in names if ours(model.get_submodule(name))] == ["layers.10.up"]
    tilewright.quantize(model, "w8a16", skip=())
    assert all(ours(model.get_submodule(name)) for name in names)


def test_the_model_may_be_a_layer() -> None:
    made = tilewright.quantize(torch.nn.Linear(K, N), "w8a16")
    assert ours(made) and made.bias is not None


@torch.no_grad()
@pytest.mark.parametrize("size", [1e7, 1e-8])
def test_weights_beyond_float16s_scales(size: float) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False)), torch.randn(3, K)
    model[0].weight *= size
    before = model(x)
    tilewright.quantize(model, "w8a16-g16")
    assert model[0].scales.dtype == torch.float32 and error(model(x), before) < 0.02


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.dense = torch.nn.Parameter(torch.randn(4, K, N)), torch.nn.Linear(K, N)


def test_experts_that_stay_are_named() -> None:
    with pytest.warns(
        UserWarning, match=r"1 tensors of experts stay as they are, up_proj among them: their module computes in no way"
    ):
        tilewright.quantize(Experts(), "w8a16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilewright.quantize(torch.nn.Sequential(torch.nn.Linear(K, N)), "w8a16")


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        (
            lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1)),
            r"torch\.nn\.Linear can be quantised; its parameters belong to Conv2d",
        ),
        (lambda: torch.nn.ModuleDict({"lm_head": torch.nn.Linear(K, N)}), "skip= names all it has: lm_head"),
        (
            lambda: tilewright.quantize(
                torch.nn.ModuleDict({name: torch.nn.Linear(K, N) for name in ("up", "lm_head")}), "w8a16"
            ),
            "its layers are quantised already",
        ),
    ],
)
def test_a_model_without_layers_to_quantise(model: Any, hint: str) -> None:
    with pytest.raises(CannotQuantize, match=rf"the model has no linear layer to quantise\n  help: {hint}"):
        tilewright.quantize(model(), "w4a16")


def test_weights_that_are_not_there() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(K, N))
    with pytest.raises(CannotQuantize, match=r"0\.weight is on the meta device: it has no numbers"):
        tilewright.quantize(model, "w4a16")


def w8a8(directory: Path, more: dict[str, np.ndarray] | None = None) -> Path:
    rng = np.random.default_rng(0)
    tensors = {
        "up.weight": rng.integers(-127, 128, (N, K)).astype(np.int8), "up.weight_scale": np.full((N, 1), 0.01, np.float32),
        **(more or {}),
    }  # fmt: skip
    directory.mkdir()
    save_safetensors(directory / "model.safetensors", tensors)
    group = {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": {"num_bits": 8, "type": "int"}}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    (directory / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return directory


def test_activations_are_quantised_where_it_is_asked_for(tmp_path: Path) -> None:
    def model(**options: Any) -> Any:
        return load_quantized(torch.nn.ModuleDict({"up": torch.nn.Linear(K, N, bias=False)}), path, **options)[
            "up"
        ].quantize

    path = w8a8(tmp_path / "from")
    assert (model(), model(activations="declared"), model(activations="float8_e4m3fn")) == (
        None,
        "int8",
        "float8_e4m3fn",
    )
    tilewright.convert_checkpoint(path, tmp_path / "ours")
    path = tmp_path / "ours"
    assert (model(), model(activations="declared")) == (None, "int8")


def test_a_checkpoint_of_another_model_is_told(tmp_path: Path) -> None:
    path = w8a8(tmp_path / "from")
    with pytest.raises(WrongArgumentShape, match=r"up is \[24, 32\] in the checkpoint, \[24, 16\] in the model"):
        load_quantized(torch.nn.ModuleDict({"up": torch.nn.Linear(16, N)}), path)
    with pytest.raises(MissingTensor, match="the checkpoint has a quantised weight up, the model a LayerNorm there"):
        load_quantized(torch.nn.ModuleDict({"up": torch.nn.LayerNorm(K)}), path)
    normed = w8a8(tmp_path / "normed", {"up.rms_norm.weight": np.ones(K, np.float32)})
    with pytest.raises(
        InvalidTensor, match=r"up\.rms_norm\.weight belongs to a layer that normalises its input itself"
    ):
        load_quantized(torch.nn.ModuleDict({"up": torch.nn.Linear(K, N, bias=False)}), normed)


@torch.no_grad()
def test_dequantize_undoes_what_quantize_made() -> None:
    """In the types that layers had, under both names of one, with hooks; a layer alone, and what is no model."""
    shared = torch.nn.Linear(K, K, bias=False, dtype=torch.bfloat16)
    model = tilewright.quantize(
        torch.nn.Sequential(shared, torch.nn.Tanh(), shared, torch.nn.Linear(K, N, dtype=torch.bfloat16)), "int8-g16"
    )
    x, seen = torch.randn(3, K, dtype=torch.bfloat16), []
    model[3].register_forward_hook(lambda *given: seen.append(given))
    expected = [model[0].dequantize(), model[3].dequantize()]
    found = tilewright.dequantize(model)
    assert found is model and model[0] is model[2] and type(model[0]) is type(model[3]) is torch.nn.Linear
    assert (model[0].weight == expected[0].bfloat16()).all() and (model[3].weight == expected[1].bfloat16()).all()
    assert model[0].bias is None and model[3].bias is not None and model(x).shape == (3, N) and seen
    alone = tilewright.dequantize(tilewright.quantize(torch.nn.Linear(K, N), "int8-g16"), "float16")
    assert type(alone) is torch.nn.Linear and alone.weight.dtype == alone.bias.dtype == torch.float16
    with pytest.raises(WrongArgumentKind):
        tilewright.dequantize(torch.ones(3))
