"""How each form of quantised weight in a checkpoint is read: from a layer's tensors and the configuration to weights by
name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.checkpoints.gguf import GGUFTensor
from tilewright.conversion.settings import Settings, weights_settings
from tilewright.conversion.words import block_of
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.quant.files import read_weight
from tilewright.quant.importers import (
    from_awq,
    from_awq_fast,
    from_bitblas,
    from_bitsandbytes_int8,
    from_float_quantized,
    from_gguf,
    from_gptq,
    from_hf_bitnet,
    from_int_quantized,
    from_marlin,
    from_mlx,
    from_modelopt_int4,
    from_mxfp4,
    from_mxfp6,
    from_nvfp4,
    from_pack_quantized,
    read_bitsandbytes,
    read_hqq,
    read_torchao,
)
from tilewright.quant.importers.arrays import FLOATS, expect, matrix, take
from tilewright.quant.importers.assemble import smoothed
from tilewright.quant.importers.awq import FORMS as AWQ_FORMS
from tilewright.quant.importers.compressed_tensors import words_of
from tilewright.quant.importers.gptq import BITS as GPTQ_BITS
from tilewright.quant.importers.gptq import PLANE_BITS
from tilewright.quant.weight import QuantizedWeight

Tensors = Mapping[str, np.ndarray]
Weights = dict[str, QuantizedWeight]


def _group(settings: Settings) -> int | None:
    group = settings.get("group_size")
    return None if group in (None, -1) else group


def own(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """tilewright's own."""
    return {layer: read_weight(tensors, layer)}


# GPTQ, AWQ and their kin --------------------------------------------------------------------------------


def gptq(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """GPTQ.  Some layers may have other bits or groups than the configuration says (``dynamic``, ``extra_config``)."""
    words, order = matrix(tensors, f"{layer}.qweight"), tensors.get(f"{layer}.g_idx")
    order = order if order is not None and order.size else None  # some writers leave an empty one
    zeros, scales = take(tensors, layer, ".qzeros", "GPTQ"), take(tensors, layer, ".scales", "GPTQ")
    bits, group = settings.get("bits", 4), _group(settings)
    if order is None and settings.get("desc_act") and scales.ndim == 2 and len(scales) > 1:
        raise MissingTensor(f"{layer}.g_idx is missing: the configuration says desc_act", hint="a shard may be missing")
    if order is not None and words.shape[0] * 32 % order.size == 0:
        bits = words.shape[0] * 32 // order.size
    elif zeros.ndim == scales.ndim == 2 and (zeros.shape[1], words.shape[0] * 32 % bits) != (_words(scales, bits), 0):
        bits = next((one for one in (*GPTQ_BITS, *PLANE_BITS) if zeros.shape[1] == _words(scales, one)), bits)
    if settings.get("dynamic") or settings.get("extra_config"):
        group = None  # as many as there are scales
    form = _one_of(settings, "checkpoint_format", "format") or "gptq"
    if form not in _VERSIONS:
        raise InvalidTensor(
            f"{layer}.qweight is there, where the configuration says the form {form}", hint="is it of this checkpoint?"
        )
    weight = from_gptq(
        words,
        zeros,
        scales,
        order,
        bits=bits,
        version=_VERSIONS[form],
        planes=form == "gptq_p" or bits in PLANE_BITS,
        borrowed=_borrows(settings),
        group=group,
        name=layer,
    )
    return {layer: weight}


def _borrows(settings: Settings) -> bool:
    """Whether GPTQModel or AutoRound wrote a checkpoint, whose first version AutoGPTQ has in words of another kind."""
    meta = settings.get("meta")
    writers = meta.get("quantizer") if isinstance(meta, Mapping) else ()
    return "autoround_version" in settings or "gptqmodel" in str(writers).lower()


_VERSIONS = {"gptq": 1, "gptq_v2": 2, "gptq_p": 2}
"""How zero points are stored, by the name of the checkpoint's format."""


def _one_of(settings: Settings, *keys: str) -> str | None:
    """What the configuration says by several names.  Raises InvalidTensor where they differ."""
    said = {str(settings[key]).lower() for key in keys if settings.get(key)}
    if len(said) > 1:
        raise InvalidTensor(f"the configuration says {' and '.join(sorted(said))} ({', '.join(keys)})")
    return said.pop() if said else None


def _words(scales: np.ndarray, bits: int) -> int:
    """Words of a row of zero points beside scales ``[groups, N]``."""
    return -(-int(scales.shape[1]) * bits // 32)


def gptq_marlin(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """GPTQ saved for the Marlin kernel, ``B`` and ``s``."""
    scales = take(tensors, layer, ".s", "Marlin")
    return {layer: from_marlin(tensors[f"{layer}.B"], scales, bits=settings.get("bits", 4), name=layer)}


def awq(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """AWQ in any of its forms; zero points in floats (llm-awq: ``scaled_zeros``) are gemv_fast's alone."""
    form = _one_of(settings, "version", "checkpoint_format", "format") or "gemm"
    words, scales = tensors[f"{layer}.qweight"], take(tensors, layer, ".scales", "AWQ")
    bits, group = settings.get("bits", settings.get("w_bit", 4)), _group(settings)
    points = tensors.get(f"{layer}.scaled_zeros", tensors.get(f"{layer}.qzeros"))
    if points is not None and points.dtype.kind != "i":
        return {layer: from_awq_fast(words, points, scales, group=group or -1, bits=bits, name=layer)}
    if form == "marlin":
        return {layer: from_marlin(words, scales, bits=bits, name=layer)}
    if form not in AWQ_FORMS and form != "llm-awq":
        raise InvalidTensor(f"{layer}: no AWQ form {form!r}", hint=f"known: {', '.join(AWQ_FORMS)}")
    form = "gemv" if form == "gemv" else "gemm"
    zeros = take(tensors, layer, ".qzeros", "AWQ")
    return {layer: from_awq(words, zeros, scales, form=form, group=group, bits=bits, name=layer)}


def bitblas(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """GPTQModel's checkpoints for BitBLAS: rows of interleaved words, codes of 8 bits as they are."""
    packed, bits = matrix(tensors, f"{layer}.qweight"), settings.get("bits", 4)
    zeros = tensors.get(f"{layer}.zeros", tensors.get(f"{layer}.qzeros"))
    weight = from_bitblas(
        packed,
        take(tensors, layer, ".scales", "BitBLAS"),
        zeros,
        W_dtype=f"{'int' if zeros is None else 'uint'}{bits}",
        N=packed.shape[0],
        K=packed.shape[1] * 8 // bits,
        group_size=_group(settings) or -1,
        zeros_mode="original" if zeros is None or zeros.dtype.kind == "f" else "quantized",
        fast_decoding=bits < 8,
        name=layer,
    )
    return {layer: weight}


def mlx(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """MLX, some layers of which may have bits and groups of their own; transformers' for Apple's GPUs (``metal``)."""
    said = {"bits": 4, "group_size": 64, **settings, **((settings.get("layers") or {}).get(layer) or {})}
    added = ".qbiases" if settings.get("quant_method") == "metal" else ".biases"
    parts = (take(tensors, layer, ending, "MLX") for ending in (".weight", ".scales", added))
    return {layer: from_mlx(*parts, bits=said["bits"], group=said["group_size"], name=layer)}


def hqq(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """HQQ."""
    return {layer: read_hqq(tensors, layer)}


def torchao(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """torchao, whose kinds of tensors are in the metadata of the files."""
    return {layer: read_torchao(tensors, layer, getattr(tensors, "metadata", {}))}


def quanto(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """Quanto's int8 and fp8.  Its 4 and 2 bits lie in groups of a matrix whose shape no file has."""
    if f"{layer}.weight._data._data" in tensors:
        raise InvalidTensor(
            f"{layer} is in Quanto's form of 4 or 2 bits, whose files do not say the shape of a weight",
            hint="qint8 and qfloat8 of Quanto can be read; or quantise the dense model: tilewright convert MODEL "
            "--scheme w4a16",
        )
    codes, scales = tensors[f"{layer}.weight._data"], take(tensors, layer, ".weight._scale", "Quanto")
    read = from_int_quantized if codes.dtype.name == "int8" else from_float_quantized
    return {layer: read(codes, scales, name=layer)}


# bitsandbytes -------------------------------------------------------------------------------------------


def bitsandbytes(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """nf4 and fp4."""
    return {layer: read_bitsandbytes(tensors, f"{layer}.weight")}


def bitsandbytes_int8(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """LLM.int8; its codes are saved row by row."""
    order = tensors.get(f"{layer}.weight_format")
    if order is not None and (order.reshape(-1) != 0).any():
        raise InvalidTensor(
            f"{layer}.weight is in the order of a GPU's kernel", hint="weight_format 0 (row by row) can be read"
        )
    return {layer: from_bitsandbytes_int8(tensors[f"{layer}.weight"], tensors[f"{layer}.SCB"], name=layer)}


# compressed-tensors, fp8, fp4 ---------------------------------------------------------------------------


def _check_said(tensors: Tensors, layer: str, settings: Settings) -> None:
    """Whether compressed-tensors' zero points and orders of columns are there, where the configuration says that the
    layer has some.  Raises MissingTensor."""
    said = weights_settings(settings, layer)
    several = tensors[f"{layer}.weight_scale"].shape[-1:] not in ((), (1,))
    for part, what, there in (
        (".weight_zero_point", "symmetric: false", all(entry.get("symmetric") is False for entry in said)),
        (".weight_g_idx", "actorder: group", several and all(entry.get("actorder") == "group" for entry in said)),
    ):
        if said and there and layer + part not in tensors:
            raise MissingTensor(
                f"{layer}{part} is missing: the configuration says {what}", hint="a shard may be missing"
            )


def pack_quantized(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' packed integers; how many bits they have is told by their shape."""
    packed, shape = matrix(tensors, f"{layer}.weight_packed"), take(tensors, layer, ".weight_shape", "packed")
    _check_said(tensors, layer, settings)
    said = [entry.get("num_bits") or 4 for entry in weights_settings(settings, layer)]
    columns = int(shape[1]) if shape.shape == (2,) else 0
    known = (*said, 4, 8, 2, 3, 5, 6, 7, 1)
    fitting = [bits for bits in known if packed.shape[-1] in words_of(bits, columns)[: 2 if bits in said else 1]]
    weight = from_pack_quantized(
        packed,
        take(tensors, layer, ".weight_scale", "packed"),
        shape,
        tensors.get(f"{layer}.weight_zero_point"),
        tensors.get(f"{layer}.weight_g_idx"),
        bits=(fitting or said or [4])[0],
        name=layer,
    )
    return {layer: weight}


def int8(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' int8."""
    _check_said(tensors, layer, settings)
    scale, zero = tensors[f"{layer}.weight_scale"], tensors.get(f"{layer}.weight_zero_point")
    order = tensors.get(f"{layer}.weight_g_idx")
    weight = from_int_quantized(tensors[f"{layer}.weight"], scale, zero, order, name=layer)
    return {layer: _smoothed(weight, tensors, layer)}


def _smoothed(weight: QuantizedWeight, tensors: Tensors, layer: str) -> QuantizedWeight:
    """The weight for activations that modelopt multiplies by ``pre_quant_scale`` first, where there is one."""
    return smoothed(weight, tensors.get(f"{layer}.pre_quant_scale"), f"{layer}.pre_quant_scale")


def float8(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """fp8: compressed-tensors' ``weight_scale`` and ``scale_weight`` multiply, and so do DeepSeek's
    ``weight_scale_inv`` and ``scale``, Mistral's ``qscale_weight``; GPTQModel's ``weight_scale_inv`` divides.

    The name says nothing of that: GPTQModel says it by ``weight_scale_semantics: inverse``, and of the others none has
    one scale a row under that name. Bytes are two numbers of fp4 (DeepSeek V4's experts).
    """
    weight, inverse = tensors[f"{layer}.weight"], f"{layer}.weight_scale_inv"
    names = (inverse, *(f"{layer}.{one}" for one in ("weight_scale", "scale_weight", "scale", "qscale_weight")))
    scale = next((tensors[name] for name in names if name in tensors), np.ones(1, np.float32))
    if weight.dtype.name in ("int8", "uint8"):
        return {layer: from_mxfp4(weight.view(np.uint8), scale, name=layer)}
    block = settings.get("weight_block_size")
    for entry in weights_settings(settings, layer):
        block = entry.get("block_structure") if entry.get("strategy") == "block" else block
    if scale.ndim == 4 and scale.shape[1::2] == (1, 1):  # modelopt's blocks
        scale, block = scale[:, 0, :, 0], [128, 128]
    if inverse in tensors and settings.get("weight_scale_semantics") == "inverse":
        scale = _reciprocal(inverse, scale)
    elif inverse in tensors and scale.size > 1 and not (block and scale.ndim == 2):
        raise InvalidTensor(
            f"{inverse} is {list(scale.shape)}, and the configuration does not say whether it multiplies or divides",
            hint="weight_block_size for DeepSeek's blocks, weight_scale_semantics for GPTQModel's rows",
        )
    blocks = None
    # A checkpoint may have layers in blocks and others with a scale a row.
    if block and scale.ndim == weight.ndim == 2 and scale.shape != (weight.shape[0], 1):
        blocks = block_of(block)
        grid = [one // max(count, 1) for one, count in zip(weight.shape, scale.shape)]
        whole = all(grid) and [count * part for count, part in zip(scale.shape, grid)] == [*weight.shape]
        if blocks and whole and scale.shape != tuple(-(-one // part) for one, part in zip(weight.shape, blocks)):
            blocks = grid[0], grid[1]  # some layers have others, as transformers reads them
    return {layer: _smoothed(from_float_quantized(weight, scale, block=blocks, name=layer), tensors, layer)}


def quark(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """AMD's Quark: fp8, int8, mxfp4, and groups of 4 bits in AWQ's order, those with a sign in two's complement."""
    weight, scale = tensors[f"{layer}.weight"], take(tensors, layer, ".weight_scale", "Quark")
    zeros = tensors.get(f"{layer}.weight_zero_point")
    if weight.dtype.name == "uint8":
        return {layer: from_mxfp4(weight, scale, name=layer)}
    if weight.dtype.name == "int8":
        return {
            layer: from_int_quantized(weight, scale, None if zeros is None or not zeros.any() else zeros, name=layer)
        }
    if weight.dtype.name != "int32":
        return {layer: from_float_quantized(weight, scale, name=layer)}
    groups = [settings.get("global_quant_config"), *(settings.get("layer_quant_config") or {}).values()]
    kinds = {str((group.get("weight") or {}).get("dtype")) for group in groups if group}
    order = (settings.get("export") or {}).get("pack_method", "reorder")
    if order != "reorder" or len(kinds) > 1 or not kinds <= {"int4", "uint4"}:
        raise InvalidTensor(
            f"{layer}.weight is words of Quark's in the order {order!r}, of {' and '.join(sorted(kinds))}",
            hint="int4 or uint4 of all layers, pack_method reorder",
        )
    sign = np.int32(-0x77777778 if kinds == {"int4"} else 0)  # of each of the eight numbers of a word
    points = np.zeros((len(scale), -(-scale.shape[-1] // 8)), np.int32) if scale.ndim == 2 else scale
    if zeros is not None or kinds == {"uint4"}:
        points = take(tensors, layer, ".weight_zero_point", "Quark")
    points = expect(f"{layer}.weight_zero_point", points, ["int32"], [None, None], "[K / group, N / 8]")
    return {layer: from_awq(weight ^ sign, points ^ sign, scale, name=layer)}


def _reciprocal(name: str, values: np.ndarray) -> np.ndarray:
    """Scales that multiply for scales that divide, as float64.  Raises InvalidTensor."""
    wide = np.asarray(values, np.float64)
    if not (np.isfinite(wide) & (wide > 0)).all():
        raise InvalidTensor(f"{name} holds {wide[~(np.isfinite(wide) & (wide > 0))][0]}, where positive numbers divide")
    return 1.0 / wide


def bitnet(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """transformers' BitNet."""
    divides = str(settings.get("linear_class", "bitlinear")).lower() == "bitlinear"
    bias = tensors.get(f"{layer}.bias")
    weight = from_hf_bitnet(
        tensors[f"{layer}.weight"],
        tensors[f"{layer}.weight_scale"],
        divides=divides,
        name=layer,
        out_features=None if bias is None else bias.size,
    )
    return {layer: weight}


def mxfp4(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """gpt-oss: one weight, or one for each expert."""
    blocks, scales = tensors[f"{layer}_blocks"], tensors[f"{layer}_scales"]
    if blocks.ndim < 4:
        return {layer: from_mxfp4(blocks, scales, name=layer)}
    if blocks.ndim > 4 or scales.shape[:1] != blocks.shape[:1]:
        raise InvalidTensor(f"{layer}_blocks is {list(blocks.shape)} beside scales of {list(scales.shape)}")
    return {f"{layer}.{e}": from_mxfp4(blocks[e], scales[e], name=f"{layer}.{e}") for e in range(blocks.shape[0])}


def mxfp4_biases(tensors: Tensors, layer: str) -> dict[str, np.ndarray]:
    """The bias of each expert, a row of ``layer_bias``, by the name that its layer's weight gets."""
    bias = tensors.get(f"{layer}_bias")
    if bias is None:
        return {}
    experts = tensors[f"{layer}_blocks"]
    if experts.ndim < 4:
        return {f"{layer}.bias": bias}
    if bias.shape != experts.shape[:2]:
        raise InvalidTensor(
            f"{layer}_bias is {list(bias.shape)}, where one element a row is due: {list(experts.shape[:2])}"
        )
    return {f"{layer}.{e}.bias": np.ascontiguousarray(bias[e]) for e in range(len(bias))}


def nvfp4(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """modelopt's form; its scale of the whole weight multiplies.

    Blocks are as long as the configuration says, which may leave it to the file beside it: then as the scales say.
    """
    parts = packed, scales, _ = [tensors[layer + end] for end in (".weight", ".weight_scale", ".weight_scale_2")]
    group = next((one["group_size"] for one in (*weights_settings(settings, layer), settings) if _group(one)), None)
    runs = packed.shape[-1] * 2 // max(scales.shape[-1], 1) if packed.ndim == scales.ndim == 2 else 0
    group = group or (runs if runs in (16, 32) else 16)
    return {layer: _smoothed(from_nvfp4(*parts, group=group, name=layer), tensors, layer)}


def modelopt(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """modelopt's other weights of 4 bits: mxfp4 with bytes for scales, int4 of two rows a byte (AWQ) with floats.

    ``weight_scale_2`` of W4A8 is no factor of the weight: a kernel rounds the numbers of the codes to floats of 8 bits
    by it.
    """
    packed, scales = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"]
    second = f"{layer}.weight_scale_2"
    if second in tensors:
        if settings.get("quant_algo") not in ("W4A8_AWQ", "MIXED_PRECISION"):
            raise InvalidTensor(f"{second} is beside scales of {scales.dtype}, where quant_algo W4A8_AWQ has one")
        found = expect(second, np.reshape(tensors[second], -1), FLOATS, [1], "one")
        if tensors[second].ndim > 1 or not found[0] > 0 or not np.isfinite(found[0]):
            raise InvalidTensor(
                f"{second} is {list(tensors[second].shape)}, {found[0]}, where one positive number is due"
            )
    read = from_mxfp4 if scales.dtype.name in ("uint8", "float8_e8m0fnu") else from_modelopt_int4
    return {layer: _smoothed(read(packed, scales, name=layer), tensors, layer)}


def packed_nvfp4(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' form; its scale of the whole weight divides."""
    parts = (tensors[layer + ending] for ending in (".weight_packed", ".weight_scale", ".weight_global_scale"))
    return {layer: from_nvfp4(*parts, divides=True, name=layer)}


def packed_mx(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' mxfp4 and mxfp6: 16 or 24 bytes beside each scale."""
    packed, scales = matrix(tensors, f"{layer}.weight_packed"), matrix(tensors, f"{layer}.weight_scale")
    if packed.shape[-1] == 24 * scales.shape[-1]:
        return {layer: from_mxfp6(packed, scales, name=layer)}
    return {layer: from_mxfp4(packed, scales, name=layer)}


# GGUF ---------------------------------------------------------------------------------------------------


def blocks_of(tensors: Tensors) -> Mapping[str, GGUFTensor]:
    """The tensors of a GGUF file that are blocks."""
    return getattr(tensors, "blocks", {})


def gguf(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """A GGUF file's blocks: one weight, or one for each expert."""
    found, name = blocks_of(tensors)[layer], layer.removesuffix(".weight")
    if len(found.shape) != 3:
        return {name: from_gguf(found.data, found.type, found.shape, name=layer)}
    if 0 in found.shape:
        raise InvalidTensor(f"{layer} is {list(found.shape)}: there are no weights in it")
    experts = np.reshape(found.data, (found.shape[0], -1))
    return {
        f"{name}.{e}": from_gguf(experts[e], found.type, found.shape[1:], name=f"{layer} {e}")
        for e in range(len(experts))
    }
