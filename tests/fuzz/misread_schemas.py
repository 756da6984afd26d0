"""What configurations of quantisation may say by their producers' own schemas, and what a weight is then: decoded in float64, number by
number, from the formats' descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Said = Mapping[str, Any]
Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Schema:
    """A whole configuration of one producer.

    Attributes
    ----------
    base, bases : the sound checkpoints whose tensors it describes.
    settings : the configuration.
    values : other values of words, by their places (with dots).
    meaning : the weight of a changed configuration, the tensors and the sound weight; None for a contradiction.
    by_names : words under which tables stand by the names of layers or groups.
    """

    base: str
    settings: dict[str, Any]
    values: dict[str, list[Any]]
    meaning: Callable[[Said, Tensors, np.ndarray], np.ndarray | None]
    bases: tuple[str, ...] = ()
    by_names: frozenset[str] = field(default=frozenset({"dynamic", "extra_config", "config_groups", "quantized_layers", "layer_quant_config",
        "layer_type_quant_config", "quantization"}))  # fmt: skip


def field_of(words: np.ndarray, place: int, bits: int) -> int:
    """A field of the string of bits that words make, lowest bits first."""
    string = sum((int(word) & 0xFFFFFFFF) << 32 * i for i, word in enumerate(words))
    return string >> place * bits & (1 << bits) - 1


def told(changed: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """Tensors tell all, whatever the configuration says."""
    return sound


def at(said: Said, path: str) -> Any:
    found: Any = said
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def refused(*places: tuple[str, Any]) -> Callable[[Said, Tensors, np.ndarray], np.ndarray | None]:
    """Each of the places must say nothing or one of its values; tensors tell the rest."""

    def meaning(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
        return sound if all(at(said, path) in (None, *known) for path, known in places) else None

    return meaning


# GPTQ and its kin ---------------------------------------------------------------------------------------


def gptq(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """Version 1 has zero points less one, taken off field by field, or by GPTQModel and AutoRound off whole words."""
    forms = {str(said[key]).lower() for key in ("checkpoint_format", "format") if said.get(key)} or {"gptq"}
    packing = str(said.get("packing_format") or "").split(":")
    if said["quant_method"] == "auto-round":
        if "auto_awq" in packing or said.get("data_type", "int") != "int":
            return None
        forms = {"gptq" if "auto_gptq" in packing else "gptq_v2"}
    layers = [one for key in ("dynamic", "extra_config") for one in (said.get(key) or {}).values()]
    strange = {"adapter", "rotation", "super_bits"} & said.keys() or any(
        {"format", "pack_dtype"} & one.keys() for one in layers
    )
    known = said["quant_method"] in ("gptq", "auto-round") and said.get("method", "gptq") == "gptq"
    if (
        strange
        or not known
        or len(forms) != 1
        or not forms <= {"gptq", "gptq_v2", "gptq_p"}
        or said.get("pack_dtype") not in (None, "int32")
    ):
        return None
    first = forms == {"gptq"}
    borrowed = "autoround_version" in said or "gptqmodel" in str((said.get("meta") or {}).get("quantizer"))
    words, scales, (N, K) = tensors["up.qweight"], tensors["up.scales"].astype(float), sound.shape
    bits, order = len(words) * 32 // K, tensors.get("up.g_idx", np.arange(K) * len(scales) // K)
    weight, asymmetric = np.zeros((N, K)), False
    for n in range(N):
        zeros = []
        for row in tensors["up.qzeros"]:
            whole = [int(word) + (sum(1 << i for i in range(0, 32, bits)) if first and borrowed else 0) for word in row]
            zeros.append((field_of(np.array(whole, object), n, bits) + (first and not borrowed)) % (1 << bits))
        asymmetric |= any(zero != 1 << (bits - 1) for zero in zeros)
        string = sum((int(word) & 0xFFFFFFFF) << 32 * i for i, word in enumerate(words[:, n]))
        for k in range(K):
            weight[n, k] = ((string >> bits * k & (1 << bits) - 1) - zeros[order[k]]) * scales[order[k], n]
    return None if said.get("sym") and asymmetric else weight


GPTQ = {
    "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False, "lm_head": False, "pack_dtype": "int32",
    "true_sequential": True, "static_groups": False, "damp_percent": 0.01, "checkpoint_format": "gptq", "model_name_or_path": "x",
    "dynamic": {"+:.*none.*": {"bits": 8, "group_size": 64, "sym": True, "desc_act": True}, "-:.*other.*": {}},
}  # fmt: skip
OF_GPTQ: dict[str, list[Any]] = {
    "bits": [2, 3, 8, 16], "group_size": [-1, 16, 48, 64, 128], "desc_act": [True, None], "sym": [True, None], "lm_head": [True],
    "static_groups": [True], "true_sequential": [False], "damp_percent": [0.5], "act_group_aware": [True], "mse": [2.4],
    "checkpoint_format": ["gptq_v2", "gptq_p", "marlin", "marlin_24", "bitblas", "gguf", "exl3", "qvq", "gemm", None, "gptq_v3"],
    "format": ["gptq", "gptq_v2", "gptq_p", "marlin", "gguf"], "pack_dtype": ["int8", "int16", "int64", None],
    "method": ["gptq", "awq", "qqq", "exl3", "paroquant"], "is_marlin_format": [False], "backend": ["triton", "marlin", "auto"],
    "quant_method": ["awq", "marlin", "hqq", "fp8", "exl3", "gguf", "vptq", "aqlm", "higgs", "quip", "spqr", "compressed-tensors"],
    "dynamic": [{"+:up": {"bits": 4}}, {"+:up": {"format": "gptq_v2"}}, {"+:up": {"pack_dtype": "int16"}}, {"-:up": {}}],
    "adapter": [{"name": "lora", "rank": 8}], "rotation": ["hadamard", "random"],
    "meta": [{"quantizer": ["gptqmodel:5.0"]}, {"quantizer": ["autogptq:0.7"], "mse": 2}, {}], "kv_cache_scheme": [{"num_bits": 8}],
    "modules_to_not_convert": [["lm_head", "re:.*gate$"]], "modules_in_block_to_quantize": [[["q_proj"]]],
}  # fmt: skip
AUTO_ROUND = {
    "quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": False, "data_type": "int", "packing_format": "auto_round:auto_gptq",
    "iters": 200, "act_bits": 16, "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}, "scale_dtype": "torch.float16",
}  # fmt: skip
OF_AUTO_ROUND: dict[str, list[Any]] = {
    "sym": [True], "packing_format": ["auto_round", "auto_round:auto_awq", "auto_round:gptqmodel", "auto_round:llm_compressor"],
    "data_type": ["mx_fp", "nv_fp", "fp", "int_asym_dq", "int_sym_dq", "mx_int4", "int_asym_float_zp"], "autoround_version": ["0.9"],
    "super_bits": [6], "act_bits": [8], "act_dynamic": [True], "iters": [0], "group_size": [-1, 32, 8],
    "extra_config": [{"up": {"bits": 4, "format": "x"}}, {"up": {"bits": 4, "group_size": 16}}, {"other": {"bits": 2, "sym": False}}],
}  # fmt: skip


def awq(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """Zero points of the checkpoint are no middles of codes; its words are those of ``gemm``."""
    form = {str(said[key]).lower() for key in ("version", "format", "checkpoint_format") if said.get(key)} or {"gemm"}
    right = (
        form == {"gemm"}
        and said["quant_method"] == "awq"
        and said.get("bits") in (4, None)
        and said.get("zero_point") is not False
    )
    return (
        sound
        if right and said.get("pack_method", "reorder") == "reorder" and said.get("pack_dtype", "int32") == "int32"
        else None
    )


AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": None,
}
OF_AWQ: dict[str, list[Any]] = {
    "bits": [2, 3, 8], "zero_point": [False, None], "group_size": [-1, 64, 16], "modules_to_not_convert": [["lm_head"]],
    "version": ["gemv", "gemv_fast", "marlin", "exllama", "ipex", "llm-awq", "GEMM"], "backend": ["autoawq", "llm-awq"],
    "quant_method": ["gptq", "quark", "fp8", "hqq"], "format": ["gemm", "gemv"], "pack_method": ["order"], "pack_dtype": ["int64"],
}  # fmt: skip


# compressed-tensors, modelopt ---------------------------------------------------------------------------


def compressed(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """Tensors tell the numbers; zero points, orders of columns and kinds that are declared must be theirs."""
    weights = at(said, "config_groups.group_0.weights") or {}
    codes = next(tensors[name] for name in ("up.weight_packed", "up.weight") if name in tensors)
    floats = codes.dtype.name.startswith("float8") or tensors["up.weight_scale"].dtype.name in (
        "uint8",
        "float8_e4m3fn",
    )
    ordered = weights.get("actorder") is True or str(weights.get("actorder")).lower() in ("group", "dynamic")
    several = tensors["up.weight_scale"].shape[-1] > 1
    points = tensors.get("up.weight_zero_point")
    turned = [one.get("location", "") for one in (at(said, "transform_config.config_groups.a.apply") or [])]
    wrong = (
        (weights.get("type") is not None and (weights["type"] == "float") != floats)
        or (ordered and several and not floats and "up.weight_g_idx" not in tensors)
        or (weights.get("symmetric") is True and points is not None)
        or (weights.get("symmetric") is False and points is None and not floats)
        or not all(place.startswith("weight") for place in turned)
        or weights.get("dynamic") not in (None, False)
        or said["quant_method"] != "compressed-tensors"
        or at(said, "sparsity_config.format") not in (None, "dense", "sparse-bitmask", "sparse-24-bitmask")
    )
    return None if wrong else sound


ARGS = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32, "block_structure": None, "dynamic": False,
    "actorder": None, "observer": "minmax", "observer_kwargs": {}, "scale_dtype": None, "zp_dtype": "torch.int8"}  # fmt: skip
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
    "global_compression_ratio": None, "kv_cache_scheme": None, "version": "0.15",
    "sparsity_config": {"format": "dense", "targets": [], "ignore": []},
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": ARGS, "input_activations": None, "output_activations": None, "format": None}},
    "transform_config": {"config_groups": {"a": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "weight_input"}]}}},
}  # fmt: skip
ACTIVATIONS = {**ARGS, "num_bits": 8, "strategy": "token", "group_size": None, "dynamic": True, "symmetric": True}
_W = "config_groups.group_0.weights"
OF_COMPRESSED: dict[str, list[Any]] = {
    f"{_W}.num_bits": [2, 3, 8], f"{_W}.type": ["float", "INT", None], f"{_W}.symmetric": [True, None], f"{_W}.dynamic": [True, "local"],
    f"{_W}.strategy": ["tensor", "channel", "block", "tensor_group", "token", "attn_head", None], f"{_W}.group_size": [None, 16, 64, 128, -1],
    f"{_W}.actorder": ["group", "weight", "dynamic", "static", True, False, "GROUP"], f"{_W}.block_structure": [[128, 128], "2x4"],
    f"{_W}.scale_dtype": ["torch.float8_e4m3fn", "torch.uint8"], f"{_W}.zp_dtype": ["torch.int8"], f"{_W}.observer": ["mse"],
    "config_groups.group_0.targets": [["re:.*up"], ["up"], ["Embedding"], ["re:.*down"]], "ignore": [["re:.*up"], ["up"]],
    "config_groups.group_0.input_activations": [ACTIVATIONS, {**ACTIVATIONS, "type": "float"}, {**ACTIVATIONS, "symmetric": False}],
    "config_groups.group_0.format": ["pack-quantized", "int-quantized", "nvfp4-pack-quantized", "int3-quantized"],
    "format": ["int-quantized", "marlin-24", "nvfp4-pack-quantized", "naive-quantized", "mixed-precision", "lut-quantized"],
    "quant_method": ["modelopt", "awq", "gptq", "fp8"], "quantization_status": ["frozen", "initialized"], "kv_cache_scheme": [ACTIVATIONS],
    "transform_config.config_groups.a.apply": [[{"location": place}] for place in ("input", "output", "k_cache", "q_attn", "weight_output")],
    "sparsity_config.format": ["sparse-24", "sparse-24-bitmask", "sparse-bitmask"], "sparsity_config.sparsity_structure": ["2:4"],
}  # fmt: skip


def compressed_of(**weights: Any) -> dict[str, Any]:
    group = {**COMPRESSED["config_groups"]["group_0"], "weights": {**ARGS, **weights}}
    return {**COMPRESSED, "config_groups": {"group_0": group}}


MODELOPT = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "ignore": ["lm_head"],
    "producer": {"name": "modelopt", "version": "0.40"},
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16},
        "input_activations": {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 16}}},
}  # fmt: skip
OF_MODELOPT: dict[str, list[Any]] = {
    "quant_algo": ["NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "NVFP4_SVD", "W4A8_FP9", None], f"{_W}.type": ["int"],
    f"{_W}.group_size": [32, 64], f"{_W}.dynamic": [True], "pre_quant_scale": [True], "has_zero_point": [True], "svd_rank": [32],
    "kv_cache_quant_algo": ["FP8"], "quantized_layers": [{"up": {"quant_algo": "NVFP4", "rank": 3}}, {"up": {"quant_algo": "NVFP4"}}],
    "quant_method": ["fp8", "compressed-tensors", "quark"], "rotate": [True],
}  # fmt: skip


def modelopt(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    weights = at(said, _W)
    known = (
        said["quant_method"] == "modelopt"
        and said.get("quant_algo") in (None, *NVFP4)
        and weights.get("type") == "float"
    )
    layers = (said.get("quantized_layers") or {}).values()
    words = (
        {"has_zero_point", "svd_rank", "rotate"} & said.keys()
        or any("rank" in one for one in layers)
        or weights.get("dynamic")
    )
    return sound if known and not words and weights.get("group_size") == 16 else None


NVFP4 = ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8")


# fp8, Quark, BitNet -------------------------------------------------------------------------------------


def fp8(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """A scale for each block; where the blocks that are said do not make the scales, those that do."""
    values, scales, (N, K) = (
        tensors["up.weight"].astype(float),
        tensors["up.weight_scale_inv"].astype(float),
        sound.shape,
    )
    block = said.get("weight_block_size")
    if said["quant_method"] not in ("fp8", "mxfp8", "w4afp8") or said.get("fmt") not in (None, "e4m3", "e5m2"):
        return None
    block = block or ([128, 128] if said["quant_method"] == "w4afp8" else None)
    inverse = said.get("weight_scale_semantics") == "inverse"
    if block is None:
        return None
    if [-(-N // block[0]), -(-K // block[1])] != [*scales.shape]:
        if N % scales.shape[0] or K % scales.shape[1]:
            return None
        block = [N // scales.shape[0], K // scales.shape[1]]
    spread = scales[np.arange(N)[:, None] // block[0], np.arange(K) // block[1]]
    return values / spread if inverse else values * spread


FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [16, 32],
    "activation_scheme": "dynamic",
    "modules_to_not_convert": ["lm_head"],
}
OF_FP8: dict[str, list[Any]] = {
    "fmt": ["e5m2", "e4m3fnuz", "e3m4", None], "weight_block_size": [[12, 32], [128, 128], [24, 32], [16, 48], [7, 32], None],
    "activation_scheme": ["static"], "scale_fmt": ["ue8m0", "float", "e5m3"], "weight_scale_semantics": ["inverse", "direct"],
    "quant_method": ["mxfp8", "w4afp8", "fbgemm_fp8", "modelopt", "compressed-tensors"], "dequantize": [True], "expert_dtype": ["fp4", "int4"],
    "weight_scale_method": ["row", "tensor"], "transpose": [True], "ignored_layers": [["up"]],
}  # fmt: skip


def quark(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """Eight columns a word, in AWQ's order or their own, numbers with a sign or without; of one byte tensors tell."""
    weight = at(said, "global_quant_config.weight")
    known = ("int4", "uint4", "int8", "fp8_e4m3", "fp8_e5m2", "fp4", "fp6_e2m3", "fp6_e3m2")
    wrong = (
        weight["dtype"] not in known
        or weight.get("scale_format") not in (None, "float", "float32", "e8m0")
        or weight.get("is_scale_quant")
    )
    turned = weight.get("qscheme") not in (None, "per_tensor", "per_channel", "per_group") or weight.get(
        "mx_element_dtype"
    )
    turned = turned or (weight.get("qscheme") == "per_channel" and weight.get("ch_axis") not in (None, 0))
    algorithms = "rotation" in str(said.get("algo_config")) or "quarot" in str(said.get("algo_config"))
    if (
        wrong
        or turned
        or algorithms
        or at(said, "export.weight_format") not in (None, "real_quantized")
        or said["quant_method"] != "quark"
    ):
        return None
    words, order = tensors["up.weight"], at(said, "export.pack_method") or "reorder"
    if words.dtype != np.int32:
        return sound
    if order not in ("reorder", "order") or weight["dtype"] not in ("int4", "uint4"):
        return None
    columns, half = (
        ((0, 2, 4, 6, 1, 3, 5, 7) if order == "reorder" else range(8)),
        8 if weight["dtype"] == "int4" else 0,
    )

    def numbers(packed: np.ndarray) -> np.ndarray:
        made = np.zeros((len(packed), 8 * packed.shape[1]))
        for place, column in enumerate(columns):
            made[:, column::8] = ((packed.astype(np.int64) >> 4 * place & 15) ^ half) - half
        return made

    scales = np.repeat(tensors["up.weight_scale"].astype(float), sound.shape[1] // len(tensors["up.weight_scale"]), 0)
    zeros = np.repeat(
        numbers(tensors["up.weight_zero_point"]), sound.shape[1] // len(tensors["up.weight_zero_point"]), 0
    )
    return ((numbers(words) - zeros) * scales).T


def quark_of(dtype: str, scheme: str, axis: int) -> dict[str, Any]:
    weight = {"dtype": dtype, "qscheme": scheme, "ch_axis": axis, "group_size": 32 if scheme == "per_group" else None, "is_dynamic": False,
        "symmetric": None, "scale_type": "float", "scale_format": None, "round_method": "half_even", "scale_calculation_mode": None,
        "observer_cls": "PerGroupMinMaxObserver", "mx_element_dtype": None, "is_scale_quant": False}  # fmt: skip
    return {
        "quant_method": "quark", "global_quant_config": {"weight": weight, "input_tensors": None, "output_tensors": None, "bias": None},
        "layer_quant_config": {}, "layer_type_quant_config": {}, "exclude": ["lm_head"], "algo_config": None, "softmax_quant_spec": None,
        "quant_mode": "eager_mode", "version": "0.9", "export": {"pack_method": "reorder", "weight_format": "real_quantized", "kv_cache_group": []},
    }  # fmt: skip


_G = "global_quant_config.weight"
OF_QUARK: dict[str, list[Any]] = {
    f"{_G}.dtype": ["int4", "uint4", "int8", "uint8", "mx", "mx6", "mx9", "bfp16", "int3", "fp4", "fp8_e5m2", "fp6_e3m2", "int2"],
    f"{_G}.qscheme": ["per_tensor", "per_channel", "per_group", "per_block"], f"{_G}.ch_axis": [0, 1, -1, 2], f"{_G}.is_scale_quant": [True],
    f"{_G}.scale_format": ["float32", "e8m0", "e4m3", "e5m3"], f"{_G}.mx_element_dtype": ["int8"], f"{_G}.symmetric": [False, None],
    f"{_G}.scale_type": ["pof2"], f"{_G}.zero_point_type": ["int32"], "export.pack_method": ["order", "transposed"],
    "export.weight_format": ["fake_quantized"], "export.custom_mode": ["awq"], "algo_config": [[{"name": "awq"}], [{"name": "rotation"}]],
    "global_quant_config.input_tensors": [{"dtype": "fp8_e4m3", "is_dynamic": True}], "quant_method": ["awq", "fp8"], "exclude": [["re:.*up"]],
}  # fmt: skip


def bitnet(said: Said, tensors: Tensors, sound: np.ndarray) -> np.ndarray | None:
    """BitLinear divides by the scale, AutoBitLinear multiplies; a norm within a layer is not there."""
    if said.get("use_rms_norm") or said.get("quantization_mode", "offline") != "offline":
        return None
    scale = float(tensors["up.weight_scale"].astype(float).reshape(-1)[0])
    kinds = {"bitlinear": sound, "autobitlinear": sound * scale * scale}
    return kinds.get(str(said.get("linear_class") or "bitlinear"))


MODES = ("affine", "nvfp4", "mxfp4", "mxfp8")
SCHEMAS: dict[str, Schema] = {
    "gptq, all words": Schema("gptq", GPTQ, OF_GPTQ, gptq),
    "gptq_v2 act-order, all words": Schema("gptq act-order", {**GPTQ, "desc_act": True, "checkpoint_format": "gptq_v2"}, OF_GPTQ, gptq),
    "auto-round int, all words": Schema("auto-round gptq", AUTO_ROUND, OF_AUTO_ROUND, gptq),
    "auto-round floats, all words": Schema(
        "auto-round mxfp4", {**AUTO_ROUND, "data_type": "mx_fp", "group_size": 32, "packing_format": "auto_round:llm_compressor", "sym": True},
        {"data_type": ["mx_fp4", "mx_fp4e2m1", "mx_fp_rceil", "mx_fp6e3m2", "mx_fp4e3m0", "mx_int4", "mx_fp8e5m2", "nv_fp4_v9"], "sym": [False],
         "packing_format": ["auto_round:mx9"], "act_bits": [4], "extra_config": [{"up": {"data_type": "mx_fp6e3m2"}}, {"up": {"rotation": 3}}]},
        refused(("data_type", ("mx_fp", "mx_fp4", "mx_fp4e2m1", "mx_fp_rceil")), ("packing_format", ("auto_round:llm_compressor",)),
            ("extra_config.up.data_type", ("mx_fp",)), ("extra_config.up.rotation", ())),
    ),
    "awq, all words": Schema("awq", AWQ, OF_AWQ, awq),
    "compressed-tensors packed, all words": Schema("pack-quantized", COMPRESSED, OF_COMPRESSED, compressed),
    "compressed-tensors int8, all words": Schema(
        "int8", compressed_of(num_bits=8, symmetric=True, strategy="channel", group_size=None), OF_COMPRESSED, compressed),
    "compressed-tensors int4, all words": Schema("compressed-tensors int4, groups", compressed_of(symmetric=True), OF_COMPRESSED, compressed),
    "compressed-tensors fp8, all words": Schema(
        "fp8", compressed_of(num_bits=8, type="float", symmetric=True, strategy="channel", group_size=None), OF_COMPRESSED, compressed),
    "compressed-tensors floats, all words": Schema(
        "mxfp6", compressed_of(num_bits=6, type="float", symmetric=True), OF_COMPRESSED, compressed, bases=("mxfp8",)),
    "modelopt nvfp4, all words": Schema("modelopt nvfp4", MODELOPT, OF_MODELOPT, modelopt),
    "fp8 in blocks, all words": Schema("fp8 blocks", FP8, OF_FP8, fp8),
    "quark int4, all words": Schema("quark int4", quark_of("int4", "per_group", 1), OF_QUARK, quark),
    "quark uint4, all words": Schema("quark uint4", quark_of("uint4", "per_group", -1), OF_QUARK, quark),
    "quark int8, all words": Schema("quark int8", quark_of("int8", "per_channel", 0), OF_QUARK, quark, bases=("quark fp8 of channels",)),
    "bitnet, all words": Schema(
        "bitnet", {"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline", "use_rms_norm": False},
        {"linear_class": ["autobitlinear", None, "hbitlinear"], "quantization_mode": ["online"], "use_rms_norm": [True], "rms_norm_eps": [1e-5]}, bitnet),
    "mlx, all words": Schema(
        "mlx mxfp4", {"quant_method": "mlx", "mode": "mxfp4", "bits": 4, "group_size": 32, "quantization": {"other": {"bits": 8, "group_size": 32}}},
        {"mode": ["affine", "nvfp4", "mxfp8", "mxfp9"], "bits": [2, 8], "group_size": [16, 64], "quantization": [{"up": {"bits": 8}},
            {"up": {"mode": "nvfp4", "group_size": 16}}, {"up": {"mode": "mxfp4", "bits": 4, "group_size": 32}}, {"up": {"mode": "affine", "x": 1}}]},
        refused(("mode", MODES), ("quantization.up.bits", (4,)), ("quantization.up.mode", ("mxfp4",)))),  # of others the scales tell
    "bitsandbytes, all words": Schema(
        "bitsandbytes", {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0},
        {"bnb_4bit_quant_type": ["fp4"], "bnb_4bit_use_double_quant": [False], "load_in_8bit": [True], "llm_int8_skip_modules": [["up"]],
         "bnb_4bit_blocksize": [128]}, refused(("bnb_4bit_blocksize", ()))),
    "qqq, all words": Schema(
        "qqq 32", {"quant_method": "qqq", "bits": 4, "wbits": 4, "group_size": 32, "desc_act": False, "sym": True, "checkpoint_format": "qqq"},
        {"bits": [8], "wbits": [8], "desc_act": [True], "checkpoint_format": ["gptq"], "rotation": [True], "pack_dtype": ["int8"]},
        refused(("bits", (4,)), ("wbits", (4,)), ("desc_act", (False,)), ("checkpoint_format", ("qqq",)), ("rotation", ()), ("pack_dtype", ()))),
    "fp_quant, all words": Schema(
        "fp_quant", {"quant_method": "fp_quant", "forward_dtype": "mxfp4", "forward_method": "abs_max", "backward_dtype": "bf16",
            "hadamard_group_size": 32, "pseudoquantization": False, "transform_init": "hadamard", "store_master_weights": False},
        {"forward_dtype": ["nvfp4", "mxfp8"], "hadamard_group_size": [16, 64], "pseudoquantization": [True], "transform_init": ["gsr"],
         "store_master_weights": [True]},
        refused(("forward_dtype", ("mxfp4",)), ("hadamard_group_size", (32,)), ("pseudoquantization", (False,)), ("store_master_weights", (False,)))),
    "hqq, all words": Schema(
        "hqq 4 bits", {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}}, "skip_modules": []},
        {"quant_config": [{"weight_quant_params": {"nbits": 2, "axis": 0}}], "lora": [3]}, refused(("lora", ()))),
    "exl2, all words": Schema("exl2", {"quant_method": "exl2", "version": "0.3.2", "bits": 4.0, "calibration": {"rows": 1}},
        {"bits": [3.0], "head_bits": [6], "tensor_parallel": [2]}, refused(("tensor_parallel", ()))),
    "sinq, all words": Schema(
        "sinq dual", {"quant_method": "sinq", "nbits": 4, "group_size": 64, "tiling_mode": "1D", "method": "sinq", "_extra_kwargs": {}},
        {"tiling_mode": ["2D"], "nbits": [8], "_extra_kwargs": [{"rotation": "hadamard"}]}, refused(("_extra_kwargs.rotation", ()))),
    "eetq, all words": Schema("eetq", {"quant_method": "eetq", "weights": "int8"}, {"weights": ["int4"], "zero_point": [True]},
        refused(("weights", ("int8",)), ("zero_point", ()))),
}  # fmt: skip
