"""A seeded transformer written in every form, converted, loaded and run, beside a float64 model of the same weights;
and models quantised here, to nearest and with calibration."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
from checkpoint_writers import (
    Written,
    write_awq_gemm,
    write_bitnet,
    write_bitsandbytes,
    write_float8,
    write_gguf_blocks,
    write_gptq,
    write_int8,
    write_mxfp4,
    write_pack_quantized,
)
from test_safetensors import gguf_of

import tilewright
from tilewright.checkpoints import save_safetensors
from tilewright.errors import CannotQuantize, MissingTensor
from tilewright.quant import quantize as round_to_nearest

torch = pytest.importorskip("torch")

WIDTH, WORDS, HEADS = 64, 32, 4


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, torch.nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Any) -> Any:
        q, k, v = (getattr(self, f"{n}_proj")(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for n in "qkv")
        weights = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(-2))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = torch.nn.LayerNorm(WIDTH), Attention()
        self.up_proj, self.down_proj = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.down_proj(torch.nn.functional.gelu(self.up_proj(self.norm(x))))


class Transformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.lm_head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Any) -> Any:
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


def transformer() -> Any:
    torch.manual_seed(0)
    return Transformer().eval()


TEXT = torch.arange(10).reshape(2, 5) * 3 % WORDS

FORMS: dict[str, tuple[dict[str, Any], str, Callable[[np.random.Generator], Written]]] = {
    "gptq act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}, ".",
        lambda r: write_gptq(r, WIDTH, WIDTH, 4, 16, 1, True),
    ),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, ".weight", lambda r: write_bitsandbytes(r, WIDTH, WIDTH, 64, True)),
    "bitnet": ({"quant_method": "bitnet"}, ".", lambda r: write_bitnet(r, WIDTH, WIDTH, True)),
    "gptq 3 bits": ({"quant_method": "gptq", "bits": 3, "group_size": 32}, ".", lambda r: write_gptq(r, WIDTH, WIDTH, 3, 32, 1, False)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, ".", lambda r: write_awq_gemm(r, WIDTH, WIDTH, 32)),
    "pack-quantized": (
        {"quant_method": "compressed-tensors"}, ".", lambda r: write_pack_quantized(r, WIDTH, WIDTH, 4, 32, True, False)
    ),
    "int8": ({"quant_method": "compressed-tensors"}, ".", lambda r: write_int8(r, WIDTH, WIDTH, 1)),
    "fp8": ({"quant_method": "compressed-tensors"}, ".", lambda r: write_float8(r, WIDTH, WIDTH, (1, WIDTH))),
    "mxfp4": ({"quant_method": "mxfp4"}, "", lambda r: write_mxfp4(r, WIDTH, WIDTH)),
    "Q4_0": ({}, ".weight", lambda r: write_gguf_blocks(r, WIDTH, WIDTH, "Q4_0")),
    "Q8_0": ({}, ".weight", lambda r: write_gguf_blocks(r, WIDTH, WIDTH, "Q8_0")),
}  # fmt: skip
QUICK = ["gptq act-order", "bitsandbytes"]


def written(directory: Path, form: str) -> tuple[Path, Any]:
    """A checkpoint of the transformer in a form, and the float64 model of its weights."""
    model, rng = transformer(), np.random.default_rng(0)
    exact = copy.deepcopy(model).double()
    settings, dot, write = FORMS[form]
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    blocks: dict[str, Written] = {}
    for name, linear in exact.named_modules():
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            made = write(rng)
            del tensors[f"{name}.weight"]
            linear.weight.data = torch.from_numpy(made.weight)
            blocks[name] = made
    directory.mkdir()
    if form in ("Q4_0", "Q8_0"):
        numbers = {"Q4_0": 2, "Q8_0": 8}
        entries = {n: (0, list(t.shape), t.astype(np.float32).tobytes()) for n, t in tensors.items()}
        entries |= {f"{n}.weight": (numbers[form], [WIDTH, WIDTH], w.tensors[""].tobytes()) for n, w in blocks.items()}
        return gguf_of(directory / "model.gguf", entries), exact
    tensors |= {f"{n}{dot}{ending}": t for n, w in blocks.items() for ending, t in w.tensors.items()}
    (directory / "config.json").write_text(json.dumps({"quantization_config": settings}))
    names = sorted(tensors)
    index = {name: f"shard-{place % 2}.safetensors" for place, name in enumerate(names)}
    for shard in range(2):
        save_safetensors(directory / f"shard-{shard}.safetensors", {n: tensors[n] for n in names[shard::2]})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return directory, exact


def runs_as_its_weights_say(tmp_path: Path, form: str) -> None:
    path, exact = written(tmp_path / "from", form)
    tilewright.convert_checkpoint(path, tmp_path / "to")
    model = tilewright.load_quantized(transformer(), tmp_path / "to")
    assert sum(isinstance(m, tilewright.Linear) for m in model.modules()) == 12
    with torch.no_grad():
        made, expected = model(TEXT).double(), exact(TEXT)
    # Float32 throughout; large weights saturate the softmax, so errors grow with what they are errors of.
    assert (made - expected).abs().max() <= 2e-4 * expected.abs().max()


@pytest.mark.parametrize("form", QUICK)
def test_a_converted_transformer_computes_what_its_weights_say(tmp_path: Path, form: str) -> None:
    runs_as_its_weights_say(tmp_path, form)


@pytest.mark.proof
@pytest.mark.parametrize("form", [form for form in FORMS if form not in QUICK])
def test_every_converted_transformer_computes_what_its_weights_say(tmp_path: Path, form: str) -> None:
    runs_as_its_weights_say(tmp_path, form)


def test_a_foreign_checkpoint_is_loaded_without_converting(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "from", "bitnet")
    direct = tilewright.load_quantized(transformer(), path)
    tilewright.convert_checkpoint(path, tmp_path / "to")
    again = tilewright.load_quantized(transformer(), tmp_path / "to")
    state, other = direct.state_dict(), again.state_dict()
    assert set(state) == set(other) and all((state[name] == other[name]).all() for name in state)
    # And a state dict is tensors only, which a model of such layers takes back.
    again.load_state_dict(state)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())


def test_what_does_not_fit_the_model_is_told(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "from", "bitnet")
    model = transformer()
    del model.layers[1].up_proj
    with pytest.raises(
        MissingTensor, match=r"the checkpoint has a quantised weight layers\.1\.up_proj, the model no such"
    ):
        tilewright.load_quantized(model, path)
    model = transformer()
    model.extra = torch.nn.Linear(3, 3)
    with pytest.raises(MissingTensor, match=r"extra\.weight is missing: the model has such a tensor"):
        tilewright.load_quantized(model, path)


def test_a_model_is_quantised_to_nearest() -> None:
    model = transformer()
    expected = {n: round_to_nearest(m.weight.detach().numpy(), "uint4", group=32, scale_dtype="float16").dequantize()
                for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}  # fmt: skip
    made = tilewright.quantize(model, "w4a16-g32")
    assert made is model and type(model.lm_head) is torch.nn.Linear
    for name, weight in expected.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, tilewright.Linear)
        assert (layer.dequantize().double().numpy() == weight.astype(np.float32)).all()
    assert model.layers[0].up_proj.bias is not None and model.layers[0].attention.q_proj.bias is None


def test_calibration_beats_rounding_to_nearest() -> None:
    torch.manual_seed(1)
    batches = [torch.randint(0, WORDS, (4, 8)) for _ in range(8)]
    exact = transformer()
    with torch.no_grad():
        targets = [exact(batch) for batch in batches]

        def error(model: Any) -> float:
            for module in list(model.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(
                        child, tilewright.Linear
                    ):  # the same weights in float32: what is judged is the rounding
                        dense = torch.nn.Linear(WIDTH, WIDTH, bias=child.bias is not None)
                        dense.weight.data = child.dequantize()
                        dense.bias = None if child.bias is None else torch.nn.Parameter(child.bias)
                        setattr(module, name, dense)
            return sum(float(((model(b) - t) ** 2).sum()) for b, t in zip(batches, targets))

        nearest = error(tilewright.quantize(transformer(), "uint3-g32-asym"))
        model = tilewright.quantize(transformer(), "uint3-g32-asym", calibration=batches)
        ordered = tilewright.quantize(
            transformer(), "uint3-g32-asym", calibration=[{"words": b} for b in batches], act_order=True
        )
        assert ordered.layers[0].up_proj.g_idx is not None
        assert error(model) < 0.8 * nearest and error(ordered) < 0.8 * nearest


def test_weights_alone() -> None:
    weight = torch.randn(6, 64, dtype=torch.bfloat16)
    made = tilewright.quantize(weight, "w8a16")
    assert made.shape == (6, 64) and np.abs(made.dequantize() - weight.double().numpy()).max() < 0.03
    assert (tilewright.quantize(weight.float().numpy(), "w8a16").codes == made.codes).all()


def test_mistakes() -> None:
    with pytest.raises(CannotQuantize, match="the model has no linear layer to quantise"):
        tilewright.quantize(transformer(), skip=".")
    with pytest.raises(CannotQuantize, match="the method 'gptq' takes calibration batches"):
        tilewright.quantize(transformer(), method="gptq")
    with pytest.raises(CannotQuantize, match="the method 'nearest' takes no calibration"):
        tilewright.quantize(transformer(), method="nearest", calibration=[TEXT])
    with pytest.raises(CannotQuantize, match=r"no calibration input reaches layers\.0\.attention\.q_proj"):
        tilewright.quantize(transformer(), calibration=[])
    with pytest.raises(CannotQuantize, match="mxfp4 has scales that GPTQ does not choose"):
        tilewright.quantize(transformer(), "mxfp4", calibration=[TEXT])
    model = transformer()
    model.layers[1].up_proj.weight.data[2, 3] = math.nan
    with pytest.raises(CannotQuantize, match=r"layers\.1\.up_proj\.weight is nan at \[2, 3\]"):
        tilewright.quantize(model)
