"""How each form of quantised weight in a checkpoint is read: from a layer's tensors and the configuration to weights by
name."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright.checkpoints.gguf import GGUFTensor
from tilewright.conversion.settings import Settings, all_groups, groups_of_layer, weights_settings
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.quant.importers import (
    from_awq,
    from_awq_fast,
    from_bitblas,
    from_bitsandbytes_int8,
    from_exl2,
    from_float_quantized,
    from_gguf,
    from_gptq,
    from_int_quantized,
    from_marlin,
    from_marlin_24,
    from_mlx,
    from_pack_quantized,
)
from tilewright.quant.importers.arrays import FLOATS, either, expect, matrix, take
from tilewright.quant.importers.awq import FORMS as AWQ_FORMS
from tilewright.quant.importers.compressed_tensors import words_of
from tilewright.quant.importers.gptq import BITS as GPTQ_BITS
from tilewright.quant.importers.gptq import PLANE_BITS
from tilewright.quant.importers.mlx import MODES as MLX_MODES
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

Tensors = Mapping[str, np.ndarray]
Weights = QuantizedWeight | dict[str, QuantizedWeight]
"""That of a layer, or several by their names."""


# GPTQ, AWQ and their kin --------------------------------------------------------------------------------


def gptq(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """GPTQ.  Some layers may have other bits or groups than the configuration says (``dynamic``, ``extra_config``)."""
    words, order = matrix(tensors, f"{layer}.qweight"), tensors.get(f"{layer}.g_idx")
    order = order if order is not None and order.size else None  # some writers leave an empty one
    zeros, scales = take(tensors, layer, ".qzeros", "GPTQ"), take(tensors, layer, ".scales", "GPTQ")
    bits, several = settings.get("bits", 4), settings.get("dynamic") or settings.get("extra_config")
    if order is None and settings.get("desc_act") and scales.ndim == 2 and len(scales) > 1:
        raise MissingTensor(f"{layer}.g_idx is missing: the configuration says desc_act", hint="a shard may be missing")
    if order is not None and words.shape[0] * 32 % order.size == 0:
        bits = words.shape[0] * 32 // order.size
    elif zeros.ndim == scales.ndim == 2 and (zeros.shape[1], words.shape[0] * 32 % bits) != (_words(scales, bits), 0):
        bits = next((one for one in (*GPTQ_BITS, *PLANE_BITS) if zeros.shape[1] == _words(scales, one)), bits)
    form = _one_of(settings, "checkpoint_format", "format") or "gptq"
    if form not in _VERSIONS:
        raise InvalidTensor(
            f"{layer}.qweight is there, where the configuration says the form {form}", hint="is it of this checkpoint?"
        )
    return from_gptq(
        words,
        zeros,
        scales,
        order,
        bits=bits,
        version=_VERSIONS[form],
        planes=form == "gptq_p" or bits in PLANE_BITS,
        borrowed=_borrows(settings),
        group=all_groups(settings) if several else settings.get("group_size"),
        name=layer,
    )


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


def awq(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """AWQ in any of its forms; zero points in floats (llm-awq: ``scaled_zeros``) are gemv_fast's alone."""
    form = _one_of(settings, "version", "checkpoint_format", "format") or "gemm"
    words, scales = tensors[f"{layer}.qweight"], take(tensors, layer, ".scales", "AWQ")
    bits, group = settings.get("bits", settings.get("w_bit", 4)), settings.get("group_size")
    if form == "marlin":
        return from_marlin(words, scales, bits=bits, name=layer)
    points = either(tensors, layer, ".scaled_zeros", ".qzeros")
    if points is not None and points.dtype.kind != "i":
        return from_awq_fast(words, points, scales, group=group or -1, bits=bits, name=layer)
    if form not in AWQ_FORMS or form == "gemv_fast":
        raise InvalidTensor(
            f"{layer}.qweight is beside zero points in words, where the configuration says the form {form}",
            hint="gemm and gemv of AWQ's forms have them",
        )
    zeros = take(tensors, layer, ".qzeros", "AWQ")
    given = all_groups(settings) if settings.get("extra_config") else group
    return from_awq(words, zeros, scales, form=form, group=given, bits=bits, name=layer)


def paroquant(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """ParoQuant: AWQ's words beside activations whose columns are multiplied by ``channel_scales`` and then turned in
    pairs within each group, one ``theta`` a pair, some times over; pairs out of the group stay.

    With c and s for cosine and sine of ``theta[r, p]`` and i, j for ``pairs[r, 2 * p : 2 * p + 2]``, what was ``x[i],
    x[j]`` becomes ``x[i] * c + x[j] * s, x[j] * c - x[i] * s``.
    """
    of_awq = {word: settings[word] for word in ("bits", "group_size") if word in settings}
    found, K = awq(tensors, layer, of_awq), 2 * take(tensors, layer, ".theta", "ParoQuant").shape[-1]
    theta = expect(f"{layer}.theta", tensors[f"{layer}.theta"], FLOATS, [None, K // 2], "[rotations, K / 2]")
    pairs = take(tensors, layer, ".pairs", "ParoQuant")
    pairs = expect(f"{layer}.pairs", pairs, ["int16"], [len(theta), K], "[rotations, K]").astype(int)
    scales = np.reshape(as_numpy(take(tensors, layer, ".channel_scales", "ParoQuant")), -1)
    scales = expect(f"{layer}.channel_scales", scales, FLOATS, [K], "[1, K]").astype(np.float64)
    group = settings.get("group_size", 128)
    group = K if group == -1 else int(group)
    if not isinstance(found, QuantizedWeight) or found.shape[1] != K or K % group or group % 2:
        raise InvalidTensor(f"{layer}.theta is {list(theta.shape)}, where groups of {group} columns are due")
    if len(theta) != settings.get("krot", len(theta)):
        raise InvalidTensor(f"{layer}.theta has {len(theta)} rotations, the configuration says {settings['krot']}")
    turns = np.zeros((K // group, group, group))
    turns[:, np.arange(group), np.arange(group)] = scales.reshape(-1, group)
    for angles, both in zip(theta.astype(np.float64), pairs.reshape(len(theta), K // group, -1, 2)):
        inside = ((both >= 0) & (both < group)).all(-1)
        if any(len(np.unique(part[there])) < 2 * there.sum() for part, there in zip(both, np.asarray(inside))):
            raise InvalidTensor(f"{layer}.pairs has a column in two pairs of one rotation")
        g, p = np.nonzero(inside)
        (i, j), angle = both[g, p].T, angles.reshape(K // group, -1)[g, p]
        c, s, first, second = np.cos(angle)[:, None], np.sin(angle)[:, None], turns[g, :, i], turns[g, :, j]
        turns[g, :, i], turns[g, :, j] = first * c + second * s, second * c - first * s
    return replace(found, rotation=turns.astype(np.float32))


def bitblas(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """GPTQModel's checkpoints for BitBLAS: rows of interleaved words, codes of 8 bits as they are."""
    packed, bits = matrix(tensors, f"{layer}.qweight"), settings.get("bits", 4)
    zeros = either(tensors, layer, ".zeros", ".qzeros")
    return from_bitblas(
        packed,
        take(tensors, layer, ".scales", "BitBLAS"),
        zeros,
        W_dtype=f"{'int' if zeros is None else 'uint'}{bits}",
        N=packed.shape[0],
        K=packed.shape[1] * 8 // bits,
        group_size=settings.get("group_size") or -1,
        zeros_mode="original" if zeros is None or zeros.dtype.kind == "f" else "quantized",
        fast_decoding=bits < 8,
        name=layer,
    )


def mlx(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """MLX, some layers of which may have a mode, bits and groups of their own, where what they leave out is as usual;
    transformers' for Apple's GPUs (``metal``).  Experts are in one tensor, which MLX's layers call ``switch_mlp``.

    Where the configuration does not name a layer of floats, its scales tell of which they are.
    """
    named = (settings.get("quantization") or {}).get(layer)
    added = ".qbiases" if settings.get("quant_method") == "metal" else ".biases"
    words, scales = (take(tensors, layer, ending, "MLX") for ending in (".weight", ".scales"))
    parts = words, scales, *(tensors.get(layer + ending) for ending in (added, ".global_scale"))
    mode, bits, group = ((named or settings).get(word) for word in ("mode", "bits", "group_size"))
    if named is None and scales.dtype.name == "uint8" and words.shape and scales.size:
        known = {one * columns: name for name, (one, columns) in MLX_MODES.items() if name != "affine"}
        mode, bits, group = known.get(words.shape[-1] * 32 // scales.shape[-1], mode), None, None
    read = functools.partial(from_mlx, mode=mode or "affine", bits=bits, group=group)
    if words.ndim != 3:
        return read(*parts, name=layer)
    if any(one is not None and len(one) != len(words) for one in parts):
        raise InvalidTensor(f"{layer} has {len(words)} experts in its weight, others in what is beside it")
    experts = _MLX_EXPERTS.sub(lambda found: f".experts.{_MLX_FC.get(found[1], found[1])}", layer)
    each = ([None if one is None else one[e] for one in parts] for e in range(len(words)))
    return {f"{experts}.{e}": read(*one, name=f"{layer}[{e}]") for e, one in enumerate(each)}


_MLX_EXPERTS = re.compile(r"\.switch_mlp\.(\w+)$")
_MLX_FC = {"fc1": "up_proj", "fc2": "down_proj"}
"""What MLX calls the two layers of experts without gates."""


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
    return read(codes, scales, name=layer)


def exl2(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """ExLlamaV2's; a bias tells how many of the rows are the weight's."""
    ends, bias = (".q_weight", ".q_scale", ".q_scale_max", ".q_groups", ".q_invperm"), tensors.get(f"{layer}.bias")
    parts = (take(tensors, layer, ending, "EXL2") for ending in ends)
    return from_exl2(*parts, out_features=None if bias is None else bias.size, name=layer)


# bitsandbytes -------------------------------------------------------------------------------------------


def bitsandbytes_int8(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """LLM.int8; its codes are saved row by row."""
    order = tensors.get(f"{layer}.weight_format")
    if order is not None and (order.reshape(-1) != 0).any():
        raise InvalidTensor(
            f"{layer}.weight is in the order of a GPU's kernel", hint="weight_format 0 (row by row) can be read"
        )
    return from_bitsandbytes_int8(tensors[f"{layer}.weight"], tensors[f"{layer}.SCB"], name=layer)


# compressed-tensors, fp8, fp4 ---------------------------------------------------------------------------


def _check_declared(tensors: Tensors, layer: str, settings: Settings) -> None:
    """Whether compressed-tensors' zero points and orders of columns are there, where the configuration says that the
    layer has some.  Raises MissingTensor."""
    said = weights_settings(settings, layer)
    several = tensors[f"{layer}.weight_scale"].shape[-1:] not in ((), (1,))
    for part, what, there in (
        (".weight_zero_point", "symmetric: false", all(entry.get("symmetric") is False for entry in said)),
        (".weight_g_idx", "actorder: group", several and all(_reorders(entry.get("actorder")) for entry in said)),
    ):
        if said and there and layer + part not in tensors:
            raise MissingTensor(
                f"{layer}{part} is missing: the configuration says {what}", hint="a shard may be missing"
            )


def _reorders(said: object) -> bool:
    """Whether an ``actorder`` deals columns out to groups; the others only say how codes were found."""
    return said is True or str(said).lower() in ("group", "dynamic")


def pack_quantized(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' packed integers; how many bits they have is told by their shape."""
    packed = as_numpy(matrix(tensors, f"{layer}.weight_packed"))
    _check_declared(tensors, layer, settings)
    if packed.dtype.name == "int8":  # int4-quantized: the even column in the low half
        return _integers(halves(packed), tensors, layer, settings)
    shape = take(tensors, layer, ".weight_shape", "packed")
    said = [entry.get("num_bits") or 4 for entry in weights_settings(settings, layer)]
    columns = int(shape[1]) if shape.shape == (2,) else 0
    known = (*said, 4, 8, 2, 3, 5, 6, 7, 1)
    fitting = [bits for bits in known if packed.shape[-1] in words_of(bits, columns)[: 2 if bits in said else 1]]
    return from_pack_quantized(
        packed,
        take(tensors, layer, ".weight_scale", "packed"),
        shape,
        tensors.get(f"{layer}.weight_zero_point"),
        tensors.get(f"{layer}.weight_g_idx"),
        bits=(fitting or said or [4])[0],
        group=groups_of_layer(settings, layer),
        name=layer,
    )


def halves(packed: np.ndarray) -> np.ndarray:
    """Two's complement of 4 bits in bytes ``[N, K / 2]``, the even column in the low half, as int8 ``[N, K]``."""
    return np.stack([packed << 4 >> 4, packed >> 4], -1).reshape(len(packed), -1)


def marlin_24(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' sparse integers in Marlin's order."""
    said = {entry.get("num_bits") or 4 for entry in weights_settings(settings, layer)} or {4}
    if len(said) > 1:
        raise InvalidTensor(f"{layer}.weight_packed has {' or '.join(map(str, sorted(said)))} bits, as groups say")
    parts = (tensors[layer + ending] for ending in (".weight_packed", ".scale_packed", ".meta"))
    return from_marlin_24(*parts, bits=said.pop(), name=layer)


def int8(tensors: Tensors, layer: str, settings: Settings) -> Weights:
    """compressed-tensors' int8."""
    _check_declared(tensors, layer, settings)
    return _integers(tensors[f"{layer}.weight"], tensors, layer, settings)


def _integers(values: np.ndarray, tensors: Tensors, layer: str, settings: Settings) -> QuantizedWeight:
    """Integers of at most 8 bits in as many bytes, with compressed-tensors' scales beside them."""
    scale, zero = tensors[f"{layer}.weight_scale"], tensors.get(f"{layer}.weight_zero_point")
    order, bits = tensors.get(f"{layer}.weight_g_idx"), 4 if f"{layer}.weight_packed" in tensors else 8
    return from_int_quantized(values, scale, zero, order, bits=bits, group=groups_of_layer(settings, layer), name=layer)


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
