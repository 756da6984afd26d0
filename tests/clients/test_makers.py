"""Checkpoints made by other libraries' own code, on the spot: our numbers beside those that the library itself makes of its codes.

Each library is asked where it is installed; none is needed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tiny_models import WORDS, logits_of

import tilewright
from tilewright.checkpoints import save_safetensors
from tilewright.errors import TilewrightError
from tilewright.runtime.tensors import as_numpy

SIZE = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": WORDS, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
Numbers = dict[str, torch.Tensor]


def llama() -> Any:
    torch.manual_seed(0)
    return tf.LlamaForCausalLM(tf.LlamaConfig(**SIZE)).eval()


def layers_of(model: Any) -> Iterator[tuple[str, Any]]:
    return ((n, one) for n, one in model.named_modules() if isinstance(one, torch.nn.Linear) and n != "lm_head")


def of_parts(
    path: Path, said: dict[str, Any], packed: Callable[[torch.Tensor], tuple[dict[str, Any], torch.Tensor]]
) -> Numbers:
    """A checkpoint of which a library packs every layer: its tensors, and the numbers that it says they are."""
    model = llama()
    tensors, numbers = {name: as_numpy(one) for name, one in model.state_dict().items()}, {}
    for name, layer in layers_of(model):
        parts, numbers[name] = packed(layer.weight.detach())
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": as_numpy(one) for part, one in parts.items()}
    model.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **said}))
    save_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    return numbers


def bitsandbytes(path: Path, kind: str, double: bool, storage: str) -> Numbers:
    import bitsandbytes as bnb

    llama().save_pretrained(path / "dense")
    asked = tf.BitsAndBytesConfig(
        load_in_4bit=kind != "int8", load_in_8bit=kind == "int8", bnb_4bit_quant_type=kind if kind != "int8" else "nf4",
        bnb_4bit_use_double_quant=double, bnb_4bit_quant_storage=getattr(torch, storage), bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    model = tf.AutoModelForCausalLM.from_pretrained(
        path / "dense", quantization_config=asked, device_map="cpu", dtype=torch.float32
    )
    model.save_pretrained(path)
    if kind == "int8":
        return {n: one.weight.data.float() * one.weight.SCB[:, None] / 127 for n, one in layers_of(model)}
    return {n: bnb.functional.dequantize_4bit(one.weight.data, one.weight.quant_state) for n, one in layers_of(model)}


def hqq(path: Path, bits: int, group: int) -> Numbers:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
    from hqq.models.hf.base import AutoHQQHFModel

    model = llama()
    asked = BaseQuantizeConfig(nbits=bits, group_size=group, axis=1)
    AutoHQQHFModel.quantize_model(model, quant_config=asked, compute_dtype=torch.float32, device="cpu")
    AutoHQQHFModel.save_quantized(model, str(path))
    return {n: one.dequantize() for n, one in model.named_modules() if isinstance(one, HQQLinear)}


def quanto(path: Path, kind: str) -> Numbers:
    import optimum.quanto as quanto

    made = quanto.QuantizedModelForCausalLM.quantize(llama(), weights=getattr(quanto, kind), exclude="lm_head")
    made.save_pretrained(path)
    if kind in (
        "qint4",
        "qint2",
    ):  # whose numbers nobody asks for: Quanto compiles C++ for them, behind a lock that a killed run leaves
        return {}
    return {n: one.weight.dequantize() for n, one in layers_of(made._wrapped)}


def torchao(path: Path, kind: str, options: dict[str, Any]) -> Numbers:
    import torchao.quantization as ao

    llama().to(torch.bfloat16).save_pretrained(path / "dense")
    asked = tf.TorchAoConfig(getattr(ao, kind)(**options))
    model = tf.AutoModelForCausalLM.from_pretrained(path / "dense", quantization_config=asked, dtype=torch.bfloat16)
    model.save_pretrained(path)
    return {n: one.weight.dequantize() for n, one in layers_of(model)}


def mlx(path: Path, bits: int, group: int) -> Numbers:
    import mlx.core as mx
    import numpy as np

    def packed(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
        parts = mx.quantize(mx.array(weight.numpy()), group_size=group, bits=bits)
        numbers = torch.from_numpy(np.array(mx.dequantize(*parts, group_size=group, bits=bits)))
        return dict(zip(("weight", "scales", "biases"), map(np.array, parts))), numbers

    return of_parts(path, {"quantization": {"bits": bits, "group_size": group}}, packed)


def awq(path: Path, group: int) -> Numbers:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    def packed(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
        rows, columns = weight.shape
        scales = (torch.rand(rows, columns // group) / 50 + 0.01).half()
        zeros = torch.randint(0, 16, scales.shape)
        linear = torch.nn.Linear(columns, rows, bias=False).half()
        linear.weight.data = weight.half()
        made = WQLinear_GEMM.from_linear(linear, 4, group, False, scales.T.contiguous(), zeros.T.contiguous())
        parts = {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}
        return parts, dequantize_gemm(made.qweight, made.qzeros, made.scales, 4, group).T

    return of_parts(
        path,
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}},
        packed,
    )


def gptqmodel(path: Path, bits: int, group: int, act_order: bool) -> Numbers:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    def packed(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
        rows, columns = weight.shape
        scales = torch.rand(rows, columns // group) / 50 + 0.01
        zeros = torch.randint(0, 1 << bits, scales.shape).int()
        g_idx = torch.arange(columns, dtype=torch.int32) // group
        g_idx = g_idx[torch.randperm(columns)] if act_order else g_idx
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = weight.clone()
        made = TorchLinear(bits=bits, group_size=group, sym=False, desc_act=act_order, in_features=columns, out_features=rows, bias=False)  # fmt: skip
        made.pack(linear, scales, zeros, g_idx)
        parts = {name: getattr(made, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
        made.post_init()
        return parts, made.dequantize_weight().T

    said = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": act_order,
        "checkpoint_format": "gptq_v2",
    }
    return of_parts(path, {"quantization_config": said}, packed)


CASES: dict[str, tuple[str, Callable[..., Numbers], tuple[Any, ...]]] = {
    **{
        f"bitsandbytes {kind} {double} {storage}": ("bitsandbytes", bitsandbytes, (kind, double, storage))
        for kind, double, storage in (
            ("nf4", False, "uint8"), ("nf4", True, "uint8"), ("fp4", True, "bfloat16"), ("nf4", True, "float32"),
            ("int8", False, "uint8"),
        )
    },
    **{f"hqq {bits} {group}": ("hqq", hqq, (bits, group)) for bits, group in ((8, 64), (4, 64), (3, 64), (2, 64), (1, 64))},
    **{f"quanto {kind}": ("optimum.quanto", quanto, (kind,)) for kind in ("qint8", "qfloat8")},
    **{
        f"torchao {kind} {options}": ("torchao", torchao, (kind, options))
        for kind, options in (("Int8WeightOnlyConfig", {}), ("Float8WeightOnlyConfig", {}), ("IntxWeightOnlyConfig", {}))
    },
    **{f"mlx {bits} {group}": ("mlx.core", mlx, (bits, group)) for bits, group in ((4, 64), (8, 32), (2, 128), (3, 64), (6, 64))},
    "awq 32": ("awq", awq, (32,)),
    "awq 128": ("awq", awq, (128,)),
    **{
        f"gptqmodel {bits} {group} {act_order}": ("gptqmodel", gptqmodel, (bits, group, act_order))
        for bits, group, act_order in ((4, 32, False), (4, 128, True), (8, 64, False), (2, 32, False), (3, 32, True))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_that_the_library_makes(tmp_path: Path, case: str) -> None:
    library, make, options = CASES[case]
    try:
        importlib.import_module(library)
    except Exception as error:  # some fail in many ways with versions of torch that they do not know
        pytest.skip(f"{library}: {error}")
    numbers = make(tmp_path, *options)
    if (tmp_path / "qmodel.pt").exists():  # a file that transformers does not look for
        model = tilewright.load_quantized(llama(), tmp_path)
    else:
        model = tf.AutoModelForCausalLM.from_pretrained(
            tmp_path, quantization_config=tilewright.QuantizationConfig.as_stored(), dtype=torch.float32
        )
    layers = {n: one for n, one in model.named_modules() if isinstance(one, tilewright.Linear)}
    assert len(layers) == len(numbers) == 7
    exact = llama()
    for name, layer in layers.items():
        expected = numbers[name].detach().double()
        # The library computes in the type of its scales, half precision of some.
        assert (torch.from_numpy(layer.weight.to_dense()) - expected).abs().max() <= 2**-8 * expected.abs().max(), name
        exact.get_submodule(name).weight.data = torch.from_numpy(layer.weight.to_dense()).float()
    if not case.startswith("torchao"):  # whose embeddings and head are of bfloat16
        expected = logits_of(exact)
        assert (logits_of(model) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(("library", "make", "options", "said"), [
    ("optimum.quanto", quanto, ("qint4",), "[Qq]uanto"),
    ("optimum.quanto", quanto, ("qint2",), "[Qq]uanto"),
])  # fmt: skip
def test_what_is_not_read_is_refused_by_its_name(
    tmp_path: Path, library: str, make: Callable[..., Numbers], options: tuple[Any, ...], said: str
) -> None:
    pytest.importorskip(library)
    make(tmp_path, *options)
    with pytest.raises(TilewrightError, match=said):
        tf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=tilewright.QuantizationConfig.as_stored())
