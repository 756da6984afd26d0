"""Checkpoints of compressed-tensors, AutoRound and modelopt with options drawn at random, written by the libraries' own code: the
numbers that they say their codes are, or an error that names what is not read."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from modelopt_on_cpu import stand_in
from test_makers import Numbers, layers_of, llama
from tiny_models import WORDS, logits_of

import tilewright
from tilewright.errors import TilewrightError

SEEDS = range(24)
TEXT = torch.arange(48).reshape(2, 24) % WORDS


@contextlib.contextmanager
def asked_of_the_library() -> Iterator[None]:
    """Around what another library does with options that were drawn: where it refuses them, the test is skipped with its words."""
    try:
        yield
    except (Exception, SystemExit) as error:  # of any kind; some end the program
        pytest.skip(f"the library does not write it: {type(error).__name__}: {error}"[:300])


def read(
    path: Path, numbers: Numbers, most: float = 2**-8, of: Callable[[], Any] = llama, neighbours: float = 0.0
) -> bool:
    """Whether a checkpoint runs with the numbers that its library says; False where an error says what is not read.

    As large a part as `neighbours` may be the next number of the format: ties that the library's simulation breaks otherwise.
    """
    try:
        model = tf.AutoModelForCausalLM.from_pretrained(
            path, quantization_config=tilewright.QuantizationConfig.as_stored(), dtype=torch.float32
        )
    except TilewrightError as refused:
        assert re.search(r"configuration says|in the form|rotates|bits|blocks|groups", str(refused)), refused
        print("refused:", refused)
        return False
    exact = of()
    layers = {n: one for n, one in model.named_modules() if isinstance(one, tilewright.Linear)}
    given = {k: v for k, v in model.state_dict().items() if k in exact.state_dict() and k[:-7] not in layers}
    exact.load_state_dict(given, strict=False)
    assert layers.keys() == numbers.keys()
    for name, layer in layers.items():
        expected, found = numbers[name].detach().double(), torch.from_numpy(layer.weight.to_dense())
        apart = (found - expected).abs() / expected.abs().max()
        assert (apart > most).double().mean() <= neighbours and apart.max() <= max(most, 2**-4), name
        exact.get_submodule(name).weight.data = torch.from_numpy(layer.weight.to_dense()).float()
    expected = logits_of(exact)
    assert (logits_of(model) - expected).abs().max() <= 1e-4 * expected.abs().max()
    return True


def weights_of(rng: np.random.Generator) -> dict[str, Any]:
    """What compressed-tensors may be asked for of weights."""
    if rng.random() < 0.25:
        strategy = str(rng.choice(["tensor", "channel", "block"]))
        return {
            "num_bits": 8,
            "type": "float",
            "strategy": strategy,
            **({"block_structure": [32, 64]} if strategy == "block" else {}),
        }
    strategy = str(rng.choice(["tensor", "channel", "group", "group", "group"]))
    more = {"group_size": int(rng.choice([16, 32, 64, 128]))} if strategy == "group" else {}
    asked = {
        "num_bits": int(rng.choice([2, 3, 4, 5, 6, 7, 8])),
        "type": "int",
        "symmetric": bool(rng.integers(2)),
        "strategy": strategy,
    }
    order = "weight" if strategy == "group" and rng.random() < 0.3 else None
    return {**asked, **more, **({"actorder": order} if order else {})}


def targets_of(rng: np.random.Generator) -> list[list[str]]:
    return [
        [["Linear"]],
        [["re:.*self_attn.*"], ["re:.*mlp.*"]],
        [["re:.*down_proj"], ["Linear"]],
        [["model.layers.0.self_attn.q_proj"], ["Linear"]],
    ][rng.integers(4)]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_compressed_tensors(tmp_path: Path, seed: int) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    rng, model = np.random.default_rng(seed), llama()
    groups = {}
    for number, targets in enumerate(targets_of(rng)):
        acts = (
            {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
            if rng.random() < 0.2
            else None
        )
        groups[f"group_{number}"] = {
            "targets": targets,
            "weights": weights_of(rng),
            **({"input_activations": acts} if acts else {}),
        }
    ignored = ["lm_head", *(["re:.*k_proj"] if rng.random() < 0.3 else [])]
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True} if rng.random() < 0.3 else None
    print(groups, ignored, cache)
    with asked_of_the_library():
        asked = quantization.QuantizationConfig(
            config_groups=groups,
            ignore=ignored,
            quantization_status="initialized",
            **({"kv_cache_scheme": cache} if cache else {}),
        )
        quantization.apply_quantization_config(model, asked)
    numbers: Numbers = {}
    for name, layer in layers_of(model):
        if getattr(layer, "quantization_scheme", None) is None:
            continue
        args, weight = layer.quantization_scheme.weights, layer.weight.detach()
        parts = weight.reshape(len(weight), -1, args.group_size if args.strategy == "group" else weight.shape[1])
        low, high = parts.amin(-1), parts.amax(-1)
        if args.strategy == "tensor":
            low, high = weight.min().reshape(1), weight.max().reshape(1)
        elif args.strategy == "block":
            blocks = weight.reshape(len(weight) // 32, 32, -1, 64)
            low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        scale, zero = calculate_qparams(low, high, args)
        layer.weight_scale.data.copy_(scale.reshape(layer.weight_scale.shape))
        if hasattr(layer, "weight_zero_point"):
            layer.weight_zero_point.data.copy_(zero.reshape(layer.weight_zero_point.shape))
        kept = getattr(layer, "weight_zero_point", None)
        numbers[name] = fake_quantize(weight, layer.weight_scale, kept, args)
        layer.quantization_status = quantization.QuantizationStatus.FROZEN
    with asked_of_the_library():
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(tmp_path)
        compressor.update_config(str(tmp_path))
    read(tmp_path, numbers)


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    words = models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0")
    return tf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0", pad_token="w0")


@pytest.mark.parametrize("seed", SEEDS)
def test_auto_round(tmp_path: Path, seed: int) -> None:
    auto_round = pytest.importorskip("auto_round")
    rng = np.random.default_rng(seed)
    asked = {
        "bits": int(rng.choice([2, 3, 4, 8])),
        "group_size": int(rng.choice([-1, 32, 64, 128])),
        "sym": bool(rng.integers(2)),
    }
    # Its codes of 8 bits reach 256 without symmetry, which its packing makes 0: its own files are not what it rounded.
    asked["sym"] = asked["sym"] or asked["bits"] == 8
    layers = {}
    if rng.random() < 0.4:
        layers["model.layers.0.mlp.down_proj"] = {"bits": int(rng.choice([4, 8, 16])), "group_size": 32}
    written = str(
        rng.choice(
            ["auto_round", "auto_round:auto_gptq", "auto_gptq", "auto_round:auto_awq", "auto_awq", "llm_compressor"]
        )
    )
    print(asked, layers, written)
    data = [{"input_ids": torch.arange(start, start + 16)[None] % WORDS} for start in range(4)]
    with asked_of_the_library(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = auto_round.AutoRound(
            llama(), tokenizer(), iters=0, nsamples=4, seqlen=16, dataset=data, device_map="cpu", disable_opt_rtn=True,
            layer_config=layers, **asked,
        )  # fmt: skip
        model, _ = made.quantize()
        numbers = {n: one.weight.detach().clone() for n, one in layers_of(model)}
        made.save_quantized(str(tmp_path / "made"), format=written)
    path = next((tmp_path / "made").rglob("config.json")).parent
    if layers.get("model.layers.0.mlp.down_proj", {}).get("bits") == 16:
        del numbers["model.layers.0.mlp.down_proj"]
    read(path, numbers, 2**-7)


def presets() -> list[str]:
    """Of modelopt."""
    try:
        import modelopt.torch.quantization as mtq
    except ImportError:
        return []
    return sorted(name for name in dir(mtq) if name.endswith("_CFG"))


def wide() -> Any:
    """A Llama whose rows are a whole number of modelopt's blocks of 128."""
    torch.manual_seed(0)
    return tf.LlamaForCausalLM(
        tf.LlamaConfig(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=WORDS, max_position_embeddings=64, architectures=["LlamaForCausalLM"],
        )
    ).eval()  # fmt: skip


@pytest.mark.parametrize("name", presets())
def test_modelopt(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every preset; the numbers are those of the library's own simulation after it has made smoothing of joined layers one."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    stand_in(monkeypatch)
    model = wide()
    with asked_of_the_library():
        mtq.quantize(model, copy.deepcopy(getattr(mtq, name)), lambda one: one(TEXT))
        requantize_resmooth_fused_llm_layers(model)
        numbers: Numbers = {}
        for layer_name, layer in layers_of(model):
            quantizer = getattr(layer, "weight_quantizer", None)
            if isinstance(quantizer, torch.nn.Sequential):
                quantizer = quantizer[0]  # the second is of how a kernel computes
            if quantizer is None or not quantizer.is_enabled:
                continue
            values = quantizer(layer.weight).detach().float()
            if name.startswith("W4A8_NVFP4"):  # the export's scales reach 448 / 6, those of the simulation 448
                whole = quantizer._amax.float() / 448
                codes, scales, _ = NVFP4QTensor.quantize(layer.weight.detach(), 32, None, whole)
                values = codes.dequantize(torch.float32, scale=scales, double_scale=whole, block_sizes={-1: 32})
            smooth = getattr(layer.input_quantizer, "pre_quant_scale", None)
            numbers[layer_name] = values if smooth is None else values * smooth.float()[None]
        export_hf_checkpoint(model, export_dir=str(tmp_path))
    if numbers:
        assert read(tmp_path, numbers, 2**-7, wide, 0.002) == (name not in NOT_READ)


NOT_READ = ("NVFP4_SVDQUANT_DEFAULT_CFG",)
"""Whose layers have a part of low rank beside the codes."""
