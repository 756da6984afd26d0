"""Which tensors of a checkpoint are one weight, and in whose form: a table of forms, each told by the ending of a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.checkpoints.gguf import GGUFTensor
from tilewright.errors import InvalidTensor
from tilewright.quant.files import CODES, METADATA, SUFFIXES, read_weight
from tilewright.quant.importers import (
    from_awq,
    from_bitblas,
    from_float_quantized,
    from_gguf,
    from_gptq,
    from_hf_bitnet,
    from_int_quantized,
    from_mxfp4,
    from_nvfp4,
    from_pack_quantized,
    read_bitsandbytes,
)
from tilewright.quant.importers.arrays import take
from tilewright.quant.importers.bitsandbytes import STATE
from tilewright.quant.weight import QuantizedWeight

Tensors = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]
"""What a checkpoint's configuration says of its quantisation."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A quantised weight in a checkpoint.

    Attributes
    ----------
    name : of the layer, as in ``model.layers.0.mlp.up_proj``.
    form : whose form its tensors have.
    main : the tensor with the codes; the weight is converted with the shard that this is in.
    tensors : all that belong to it.
    """

    name: str
    form: str
    main: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a quantised weight.

    Attributes
    ----------
    main : ending of the tensor with the codes.
    others : endings of the tensors that may go with it.
    holds : whether a tensor of that ending is such a weight: by its companions, its type and the settings.
    read : the weights, by name: one, or one an expert.
    """

    main: str
    others: tuple[str, ...]
    holds: Callable[[Tensors, str, Settings], bool]
    read: Callable[[Tensors, str, Settings], dict[str, QuantizedWeight]]
    methods: tuple[str, ...] = field(default=())


def quantization_settings(config: Mapping[str, Any]) -> Settings:
    """The part of a configuration that is about quantisation, empty where there is none."""
    found = config.get("quantization_config") or config.get("compression_config") or {}
    return found if isinstance(found, Mapping) else {}


def recognise(tensors: Tensors, settings: Settings) -> list[Layer]:
    """The quantised weights among tensors, in the order of their names.

    Raises
    ------
    InvalidTensor : the settings name a way of quantising that cannot be read.
    """
    method = settings.get("quant_method")
    if method is not None and not any(method in form.methods for form in FORMS.values()):
        known = sorted({name for form in FORMS.values() for name in form.methods})
        raise InvalidTensor(f"the checkpoint is quantised by {method!r}", hint=f"what can be read: {', '.join(known)}")
    found = []
    for name in tensors:
        for form_name, form in FORMS.items():
            layer = name.removesuffix(form.main)
            if name.endswith(form.main) and form.holds(tensors, layer, settings):
                belonging = tuple(layer + ending for ending in (form.main, *form.others) if layer + ending in tensors)
                found.append(Layer(layer, form_name, name, belonging))
                break
    return found


def read_layer(tensors: Tensors, layer: Layer, settings: Settings) -> dict[str, QuantizedWeight]:
    """The weights of a layer by their names.

    Raises
    ------
    InvalidTensor, MissingTensor : tensors that make no weight of that form.
    """
    return FORMS[layer.form].read(tensors, layer.name, settings)


def _method(*names: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: settings.get("quant_method", names[0]) in names


def _has(*endings: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: all(layer + ending in tensors for ending in endings)


def _of_type(ending: str, *types: str) -> Callable[[Tensors, str, Settings], bool]:
    def holds(tensors: Tensors, layer: str, settings: Settings) -> bool:
        return layer + ending in tensors and tensors[layer + ".weight"].dtype.name in types

    return holds


def _group(settings: Settings) -> int | None:
    group = settings.get("group_size")
    return None if group in (None, -1) else int(group)


def _read_own(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    return {layer: read_weight(tensors, layer)}


def _read_gptq(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    words, order = tensors[f"{layer}.qweight"], tensors.get(f"{layer}.g_idx")
    # Some layers of a checkpoint may have other bits than the configuration says; g_idx tells how many codes there are.
    bits = int(settings.get("bits", 4))
    if order is not None and order.size and words.shape[0] * 32 % order.size == 0:
        bits = words.shape[0] * 32 // order.size
    weight = from_gptq(
        words, take(tensors, layer, ".qzeros", "GPTQ"), take(tensors, layer, ".scales", "GPTQ"), order, bits=bits,
        version=2 if settings.get("checkpoint_format") == "gptq_v2" else 1, group=_group(settings), name=layer,
    )  # fmt: skip
    return {layer: weight}


def _read_awq(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    form = str(settings.get("version", "gemm")).lower()
    weight = from_awq(
        tensors[f"{layer}.qweight"], take(tensors, layer, ".qzeros", "AWQ"), take(tensors, layer, ".scales", "AWQ"),
        form=form, group=_group(settings), bits=int(settings.get("bits", 4)), name=layer,
    )  # fmt: skip
    return {layer: weight}


def _read_bitsandbytes(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    return {layer: read_bitsandbytes(tensors, f"{layer}.weight")}


def _weights_settings(settings: Settings) -> list[Mapping[str, Any]]:
    """What compressed-tensors says of weights, one entry a group of layers."""
    groups = settings.get("config_groups") or {}
    return [group["weights"] for group in groups.values() if isinstance(group, Mapping) and group.get("weights")]


def _read_pack_quantized(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    packed, shape = tensors[f"{layer}.weight_packed"], take(tensors, layer, ".weight_shape", "packed")
    said = [int(entry.get("num_bits", 4)) for entry in _weights_settings(settings)]
    columns = int(shape[1]) if shape.size == 2 else 0
    fitting = [bits for bits in (*said, 4, 8, 2) if -(-columns * bits // 32) == packed.shape[-1]]
    weight = from_pack_quantized(
        packed, take(tensors, layer, ".weight_scale", "packed"), shape, tensors.get(f"{layer}.weight_zero_point"),
        tensors.get(f"{layer}.weight_g_idx"), bits=(fitting or said or [4])[0], name=layer,
    )  # fmt: skip
    return {layer: weight}


def _read_int8(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    scale, zero = tensors[f"{layer}.weight_scale"], tensors.get(f"{layer}.weight_zero_point")
    return {layer: from_int_quantized(tensors[f"{layer}.weight"], scale, zero, name=layer)}


def _read_float8(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    """Both compressed-tensors' ``weight_scale`` and DeepSeek's ``weight_scale_inv`` multiply."""
    scale = tensors.get(f"{layer}.weight_scale_inv", tensors.get(f"{layer}.weight_scale"))
    block = settings.get("weight_block_size")
    for entry in _weights_settings(settings):
        block = entry.get("block_structure") if entry.get("strategy") == "block" else block
    assert scale is not None
    blocks = (int(block[0]), int(block[1])) if block and np.ndim(scale) == 2 else None
    return {layer: from_float_quantized(tensors[f"{layer}.weight"], scale, block=blocks, name=layer)}


def _read_bitnet(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    divides = settings.get("linear_class", "bitlinear") == "bitlinear"
    bias = tensors.get(f"{layer}.bias")
    weight = from_hf_bitnet(
        tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"], divides=divides, name=layer,
        out_features=None if bias is None else bias.size,
    )  # fmt: skip
    return {layer: weight}


def _read_mxfp4(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    blocks, scales = tensors[f"{layer}_blocks"], tensors[f"{layer}_scales"]
    if blocks.ndim < 4:
        return {layer: from_mxfp4(blocks, scales, name=layer)}
    if blocks.ndim > 4 or scales.shape[:1] != blocks.shape[:1]:
        raise InvalidTensor(f"{layer}_blocks is {list(blocks.shape)} beside scales of {list(scales.shape)}")
    return {f"{layer}.{e}": from_mxfp4(blocks[e], scales[e], name=f"{layer}.{e}") for e in range(blocks.shape[0])}


def _read_nvfp4(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    """modelopt's form; its scale of the whole weight multiplies."""
    parts = (tensors[layer + ending] for ending in (".weight", ".weight_scale", ".weight_scale_2"))
    return {layer: from_nvfp4(*parts, name=layer)}


def _read_packed_nvfp4(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    """compressed-tensors' form; its scale of the whole weight divides."""
    parts = (tensors[layer + ending] for ending in (".weight_packed", ".weight_scale", ".weight_global_scale"))
    return {layer: from_nvfp4(*parts, divides=True, name=layer)}


def _read_packed_mxfp4(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    return {layer: from_mxfp4(tensors[f"{layer}.weight_packed"], tensors[f"{layer}.weight_scale"], name=layer)}


def _read_gguf(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    found = _blocks(tensors)[layer]
    return {layer.removesuffix(".weight"): from_gguf(found.data, found.type, found.shape, name=layer)}


def _blocks(tensors: Tensors) -> Mapping[str, GGUFTensor]:
    return getattr(tensors, "blocks", {})


def _read_bitblas(tensors: Tensors, layer: str, settings: Settings) -> dict[str, QuantizedWeight]:
    """GPTQModel's checkpoints for BitBLAS: rows of interleaved words, codes of 8 bits as they are."""
    packed, bits = tensors[f"{layer}.qweight"], int(settings.get("bits", 4))
    zeros = tensors.get(f"{layer}.zeros", tensors.get(f"{layer}.qzeros"))
    weight = from_bitblas(
        packed, take(tensors, layer, ".scales", "BitBLAS"), zeros, W_dtype=f"{'int' if zeros is None else 'uint'}{bits}",
        N=packed.shape[0], K=packed.shape[1] * 8 // bits, group_size=_group(settings) or -1,
        zeros_mode="original" if zeros is None or zeros.dtype.kind == "f" else "quantized", fast_decoding=bits < 8, name=layer,
    )  # fmt: skip
    return {layer: weight}


_PACKED = ("compressed-tensors",)
_COMPANIONS = (".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")
_STATIC = (".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale")
"""Scales of activations that were measured beforehand: activations are quantised as they come, so these go."""
_BNB = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", STATE)

FORMS: dict[str, Form] = {
    "tilewright": Form(f".{CODES}", tuple(f".{s}" for s in SUFFIXES[1:]), _has(f".{METADATA}"), _read_own, ("tilewright",)),
    "awq": Form(".qweight", (".qzeros", ".scales"), lambda t, n, s: s.get("quant_method") == "awq", _read_awq, ("awq",)),
    "bitblas": Form(
        ".qweight", (".scales", ".zeros", ".qzeros"), lambda t, n, s: "bitblas" in (s.get("checkpoint_format"), s.get("quant_method")),
        _read_bitblas, ("bitblas",),
    ),
    "gptq": Form(".qweight", (".qzeros", ".scales", ".g_idx"), _method("gptq"), _read_gptq, ("gptq",)),
    "bitsandbytes": Form(
        ".weight", tuple(".weight" + ending for ending in _BNB), _has(".weight" + STATE), _read_bitsandbytes, ("bitsandbytes",)
    ),
    "nvfp4-pack-quantized": Form(
        ".weight_packed", (".weight_scale", ".weight_global_scale", *_STATIC), _has(".weight_scale", ".weight_global_scale"),
        _read_packed_nvfp4, _PACKED,
    ),
    "mxfp4-pack-quantized": Form(
        ".weight_packed", (".weight_scale", *_STATIC),
        lambda t, n, s: n + ".weight_scale" in t and t[n + ".weight_scale"].dtype.name in ("uint8", "float8_e8m0fnu"),
        _read_packed_mxfp4, _PACKED,
    ),
    "pack-quantized": Form(
        ".weight_packed", (*_COMPANIONS, *_STATIC), _has(".weight_scale"), _read_pack_quantized, _PACKED
    ),
    "nvfp4": Form(
        ".weight", (".weight_scale", ".weight_scale_2", *_STATIC), _has(".weight_scale", ".weight_scale_2"), _read_nvfp4,
        ("modelopt",),
    ),
    "int8": Form(".weight", (*_COMPANIONS, *_STATIC), _of_type(".weight_scale", "int8"), _read_int8, _PACKED),
    "fp8": Form(
        ".weight", (".weight_scale", *_STATIC), _of_type(".weight_scale", "float8_e4m3fn", "float8_e5m2"), _read_float8, (*_PACKED, "fp8", "modelopt")
    ),
    "fp8-block": Form(
        ".weight", (".weight_scale_inv",), _of_type(".weight_scale_inv", "float8_e4m3fn", "float8_e5m2"), _read_float8, ("fp8",)
    ),
    "bitnet": Form(".weight", (".weight_scale",), _of_type(".weight_scale", "uint8"), _read_bitnet, ("bitnet",)),
    "mxfp4": Form("_blocks", ("_scales",), _has("_scales"), _read_mxfp4, ("mxfp4",)),
    "gguf": Form("", (), lambda tensors, name, settings: name in _blocks(tensors), _read_gguf),
}  # fmt: skip
"""Forms in the order in which a tensor is tried against them."""


def dense_weights(tensors: Tensors, names: Iterable[str], skip: Callable[[str], bool]) -> list[str]:
    """Layers whose weight is a matrix of floats that a scheme may quantise, by name.

    Parameters
    ----------
    names : of tensors to look at.
    skip : says of a layer's name that it stays as it is.
    """
    found = []
    for name in names:
        layer = name.removesuffix(".weight")
        if layer == name or skip(layer):
            continue
        tensor = tensors[name]
        if (
            tensor.ndim == 2
            and tensor.dtype.name in ("float16", "bfloat16", "float32", "float64")
            and min(tensor.shape) > 1
        ):
            found.append(layer)
    return found
