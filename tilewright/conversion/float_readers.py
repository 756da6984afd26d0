"""Readers of weights that are small floats: float8, mxfp4, nvfp4 and their kin."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from tilewright.conversion.methods import block_of
from tilewright.conversion.readers import Tensors, Weights, halves
from tilewright.conversion.settings import Settings, all_groups, groups_of_layer, weights_settings
from tilewright.errors import InvalidTensor
from tilewright.quant.importers import (
    from_awq,
    from_float_quantized,
    from_hf_bitnet,
    from_int_quantized,
    from_modelopt_int4,
    from_mx,
    from_nvfp4,
)
from tilewright.quant.importers.arrays import FLOATS, either, expect, factor, matrix, take
from tilewright.quant.weight import QuantizedWeight


def float8(tensors: Tensors, layer: str, settings: Settings) -> QuantizedWeight:
    """fp8: compressed-tensors' ``weight_scale`` and ``scale_weight`` multiply, and so do DeepSeek's
    ``weight_scale_inv`` and ``scale``, Mistral's ``qscale_weight``; GPTQModel's ``weight_scale_inv`` divides.

    The name says nothing of that: GPTQModel says it by ``weight_scale_semantics: inverse``, and of the others none has
    one scale a row under that name. Bytes are two numbers of fp4 (DeepSeek V4's experts), or of int4
    (w4afp8).
    """
    weight, inverse = tensors[f"{layer}.weight"], f"{layer}.weight_scale_inv"
    names = (".weight_scale_inv", ".weight_scale", ".scale_weight", ".scale", ".qscale_weight")
    found = either(tensors, layer, *names)
    scale = np.ones(1, np.float32) if found is None else found
    w4a8 = settings.get("quant_method") == "w4afp8"
    if weight.dtype.name in ("int8", "uint8"):
        if not w4a8:
            return from_mx(weight.view(np.uint8), scale, name=layer)
        codes = halves(expect(f"{layer}.weight", weight, ["int8"], [None, None], "[N, K / 2]"))
        return from_int_quantized(codes, scale, bits=4, group=all_groups(settings), name=layer)
    block = settings.get("weight_block_size") or ([128, 128] if w4a8 else None)
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
    elif inverse in tensors and scale.shape == (1,) and any(map(int.__gt__, weight.shape, block_of(block) or ())):
        raise InvalidTensor(
            f"{inverse} is one number, and the configuration declares blocks of {block} in {list(weight.shape)}"
        )
    blocks = None
    # A checkpoint may have layers in blocks and others with a scale a row.
    if block and scale.ndim == weight.ndim == 2 and scale.shape != (weight.shape[0], 1):
        blocks = block_of(block)
        grid = [one // max(count, 1) for one, count in zip(weight.shape, scale.shape)]
        whole = all(grid) and [count * part for count, part in zip(scale.shape, grid)] == [*weight.shape]
        if blocks and whole and scale.shape != tuple(-(-one // part) for one, part in zip(weight.shape, blocks)):
            blocks = grid[0], grid[1]  # some layers have others, as transformers reads them
    group = groups_of_layer(settings, layer)
    return from_float_quantized(weight, scale, block=blocks, group=group, name=layer)


def experts_of_float8(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """transformers' fp8 of all experts in one tensor ``[experts, N, K]``, its scales in one as well; fbgemm's of
    Llama 4 are ``[experts, K, N]``, with one scale a column of these."""
    named = scales_of_experts("", settings)
    weights, scales = tensors[layer], tensors[layer + named]
    if scales.shape[:1] != weights.shape[:1]:
        raise InvalidTensor(f"{layer} is {list(weights.shape)} beside scales of {list(scales.shape)}")
    if settings.get("quant_method") == "fbgemm_fp8":
        weights, scales = weights.transpose(0, 2, 1), scales.reshape(len(scales), -1, 1)
    parts = ({f"{layer}.weight": one, f"{layer}.weight{named}": scale} for one, scale in zip(weights, scales))
    return {f"{layer}.{e}": float8(each, layer, settings) for e, each in enumerate(parts)}


def scales_of_experts(layer: str, settings: Settings) -> str:
    """What their tensor is called."""
    return f"{layer}_scale" if settings.get("quant_method") == "fbgemm_fp8" else f"{layer}_scale_inv"


def quark(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """AMD's Quark: fp8, int8, mxfp4, mxfp6; groups of 4 bits in AWQ's order or their own, those with a sign in two's
    complement."""
    weight, scale = tensors[f"{layer}.weight"], take(tensors, layer, ".weight_scale", "Quark")
    point, group = f"{layer}.weight_zero_point", all_groups(settings)
    for said in _quark_weights(settings):
        if said.get("qscheme") == "per_channel" and said.get("ch_axis", said.get("axis")) not in (None, 0):
            raise InvalidTensor(f"{layer}.weight has a scale for each column, as the configuration says (ch_axis)")
    if weight.dtype.name == "uint8" and weight.ndim == scale.ndim == 2 and weight.shape[-1] == 24 * scale.shape[-1]:
        return {layer: from_mx(weight, scale, to=_quark_kind(settings, layer, "fp6_e2m3", "fp6_e3m2")[4:], name=layer)}
    if weight.dtype.name == "uint8":
        return from_mx(weight, scale, name=layer)
    if weight.dtype.name == "int8":
        zeros = tensors.get(point)
        points = None if zeros is None or not zeros.any() else zeros
        return from_int_quantized(weight, scale, points, group=group, name=layer)
    if weight.dtype.name != "int32":
        return from_float_quantized(weight, scale, group=group, name=layer)
    order, kind = (
        (settings.get("export") or {}).get("pack_method", "reorder"),
        _quark_kind(settings, layer, "int4", "uint4"),
    )
    if order not in _QUARKS_ORDERS:
        raise InvalidTensor(
            f"{layer}.weight is words of Quark's in the order {order!r}", hint=f"known: {', '.join(_QUARKS_ORDERS)}"
        )
    sign = np.int32(-0x77777778 if kind == "int4" else 0)  # of each of the eight numbers of a word
    points = np.zeros((len(scale), -(-scale.shape[-1] // 8)), np.int32) if scale.ndim == 2 else scale
    if point in tensors or kind == "uint4":
        points = take(tensors, layer, ".weight_zero_point", "Quark")
    points = expect(f"{layer}.weight_zero_point", points, ["int32"], [None, None], "[K / group, N / 8]")
    return from_awq(weight ^ sign, points ^ sign, scale, form=_QUARKS_ORDERS[order], group=group, name=layer)


_QUARKS_ORDERS = {"reorder": "gemm", "order": "order"}
"""Forms of AWQ by Quark's names of the order in which eight columns lie in a word."""


def _quark_kind(settings: Settings, layer: str, *known: str) -> str:
    """The one of some types of numbers, whose tensors look alike, that Quark's configuration speaks of."""
    kinds = {str(said.get("dtype")) for said in _quark_weights(settings)}
    if len(kinds.intersection(known)) != 1:
        raise InvalidTensor(
            f"{layer}.weight is of {' or '.join(known)}, and the configuration speaks of {' and '.join(sorted(kinds))}",
            hint="one of the two for all layers",
        )
    return kinds.intersection(known).pop()


def _quark_weights(settings: Settings) -> list[Settings]:
    """What Quark's configuration says of weights, those of all layers and of some."""
    several = (settings.get(key) or {} for key in ("layer_quant_config", "layer_type_quant_config"))
    groups = [settings.get("global_quant_config"), *(group for each in several for group in each.values())]
    return [group.get("weight") or {} for group in groups if group]


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
    rows = None if bias is None else bias.size
    weight, scale = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"]
    return from_hf_bitnet(weight, scale, divides=divides, name=layer, out_features=rows)


def mxfp4(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """gpt-oss: one weight, or one for each expert."""
    blocks, scales = tensors[f"{layer}_blocks"], tensors[f"{layer}_scales"]
    if blocks.ndim < 4:
        return from_mx(blocks, scales, name=layer)
    if blocks.ndim > 4 or scales.shape[:1] != blocks.shape[:1]:
        raise InvalidTensor(f"{layer}_blocks is {list(blocks.shape)} beside scales of {list(scales.shape)}")
    return {f"{layer}.{e}": from_mx(blocks[e], scales[e], name=f"{layer}.{e}") for e in range(blocks.shape[0])}


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
    said = [one.get("group_size") for one in (*weights_settings(settings, layer), settings)]
    group = next((size for size in said if size not in (None, -1)), None)
    runs = packed.shape[-1] * 2 // max(scales.shape[-1], 1) if packed.ndim == scales.ndim == 2 else 0
    group = group or (runs if runs in (16, 32) else 16)
    return from_nvfp4(*parts, group=group, name=layer)


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
    if scales.dtype.name in ("uint8", "float8_e8m0fnu"):
        return from_mx(packed, scales, name=layer)
    return from_modelopt_int4(packed, scales, group=groups_of_layer(settings, layer), name=layer)


def fp_quant(tensors: Tensors, layer: str, settings: Settings) -> QuantizedWeight:
    """FP-Quant's mxfp4 and nvfp4 of weights that a matrix has rotated, some columns at a time, and activations with
    them; a factor of the whole divides. Scales may have rows and columns more, which make tiles whole."""
    ends = (".qweight", ".scales", ".weight_global_scale", ".forward_hadamard_matrix")
    packed, scales, whole, matrix_ = (take(tensors, layer, end, "FP-Quant") for end in ends)
    of_powers = str(settings.get("forward_dtype", "nvfp4")).lower() == "mxfp4"
    packed = expect(f"{layer}.qweight", packed, ["uint8"], [None, None], "[N, K / 2]")
    rows, groups = packed.shape[0], packed.shape[1] * 2 // (32 if of_powers else 16)
    tiles = scales.shape == (-(-rows // 128) * 128, -(-groups // 4) * 4)
    scales = scales[:rows, :groups] if tiles else scales
    scales = expect(f"{layer}.scales", scales, ["uint8"], [rows, groups], "[N, K / block]")
    width = matrix_.shape[-1] if matrix_.ndim else 0
    turn = expect(f"{layer}.forward_hadamard_matrix", matrix_, FLOATS, [width, width], "[h, h]").astype(np.float32)
    if not width or packed.shape[1] * 2 % width or width != settings.get("hadamard_group_size", width):
        raise InvalidTensor(f"{layer}.forward_hadamard_matrix is {list(turn.shape)} for K = {packed.shape[1] * 2}")
    divisor = factor(f"{layer}.weight_global_scale", whole, FLOATS)
    if of_powers:
        found = from_mx(packed, scales, name=layer)
    else:
        of_floats = np.ascontiguousarray(scales).view(ml_dtypes.float8_e4m3fn)
        found = from_nvfp4(packed, of_floats, np.ones(1, np.float32), name=layer)
    return replace(found, tensor_scale=1.0 / divisor, rotation=turn[None])


def packed_mx(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' mxfp4 and mxfp6, which is e2m3: 16 or 24 bytes beside each scale."""
    packed, scales = matrix(tensors, f"{layer}.weight_packed"), matrix(tensors, f"{layer}.weight_scale")
    if packed.shape[-1] == 24 * scales.shape[-1]:
        return from_mx(packed, scales, to="e2m3", name=layer)
    return from_mx(packed, scales, name=layer)
