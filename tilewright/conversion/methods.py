"""The words that a configuration of quantisation may say: for each way of quantising, those that are read and those
that change nothing.

`METHODS` is a closed world. A word that a reader goes by has a `Kind`: what its value may be. A word that changes no
number of a weight has the reason for that. `settings` refuses every other word that says something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.quant.importers.awq import FORMS as AWQ_FORMS
from tilewright.quant.importers.mlx import BITS as MLX_BITS
from tilewright.quant.importers.mlx import MODES as MLX_MODES

Kind = tuple[str, Callable[[Any], bool]]
"""What a value is to be, for messages, and whether one is that."""

OURS = "tilewright"

_MOST = 1 << 31


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _one_of(*names: object) -> Kind:
    known = [_spelt(name) for name in names]
    return f"one of {', '.join(map(str, names))}", lambda value: any(
        type(one) is type(_spelt(value)) and one == _spelt(value) for one in known
    )


def _spelt(value: object) -> Any:
    return value.lower() if isinstance(value, str) else value


def block_of(value: Any) -> tuple[int, int] | None:
    """Rows and columns of a block, ``[128, 128]`` or ``"128x128"``; None where a value says none."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}x[0-9]{1,9}", value):
        value = [int(part) for part in value.split("x")]
    fits = isinstance(value, list) and len(value) == 2 and all(map(_whole(1, _MOST), value))
    return (value[0], value[1]) if fits else None


SPARSE: Kind = _one_of("dense", "sparse-bitmask", "sparse-24-bitmask")
TEXT: Kind = ("a text", lambda value: isinstance(value, str))
TABLE: Kind = ("a table", lambda value: isinstance(value, Mapping))
LIST: Kind = ("a list", lambda value: isinstance(value, list))
_BITS: Kind = ("a number of bits from 1 to 16", _whole(1, 16))
_GROUP: Kind = ("a number of columns, or -1 for all", lambda value: value == -1 or _whole(1, _MOST)(value))
_BLOCK: Kind = ("rows and columns of a block, two numbers", lambda value: block_of(value) is not None)
_TRUTH: Kind = ("true or false", lambda value: isinstance(value, bool))
_TEXTS: Kind = ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value))
_SCALES: Kind = _one_of("float", "ue8m0")
_ORDER: Kind = _one_of("group", "weight", "dynamic", "static", True, False)
_ACTIVATIONS_OF: Kind = ("a text, or a table of them", lambda value: isinstance(value, (str, Mapping)))

_WHICH = "which layers are quantised; their tensors tell"
_FOUND = "how the codes were found, not what they mean"
_RUNS = "how another library loads or runs it"
_WHO = "who wrote it, and when"
_CACHE = "of keys and values in a cache, which are kept as they come"
_ACTIVATIONS = "of activations, which are multiplied as they come, or quantised one scale a token"
_TENSORS = "said by each layer's own tensors"


def _because(reason: str, keys: str) -> dict[str, str]:
    return dict.fromkeys(keys.split(), reason)


EVERYWHERE = {
    **_because(
        _WHICH,
        "modules_to_not_convert modules_to_convert modules_in_block_to_quantize ignore ignored_layers exclude_modules "
        "skip_modules lm_head block_name_to_quantize module_name_preceding_first_block llm_int8_skip_modules",
    ),
    **_because(
        _RUNS,
        "backend dequantize run_compressed use_optimized_inference tokenizer dataset max_input_length model_seqlen "
        "cache_block_outputs batch_size pad_token_id use_exllama disable_exllama exllama_config use_cuda_fp16 do_fuse "
        "fuse_max_seq_len modules_to_fuse",
    ),
    **_because(_WHO, "quantizer producer provider meta model_name_or_path model_file_base_name model_basename uri"),
    **_because(_CACHE, "kv_cache_scheme kv_cache_quant_algo"),
}

_OF_GPTQ = {
    **_because(
        _FOUND,
        "damp_percent damp_auto_increment static_groups true_sequential act_group_aware mse gptaq foem "
        "awq_gemm_checkpoint nsamples seqlen iters lr minmax_lr amp enable_minmax_tuning enable_norm_bias_tuning "
        "enable_quanted_input enable_alg_ext gradient_accumulate_steps low_gpu_mem_usage low_cpu_mem_usage batch_size "
        "supported_types to_quant_block_names quant_block_list momentum sampler not_use_best_mse dynamic_max_gap "
        "scale_dtype static_attention_granularity static_kv_granularity model_free",
    ),
    **_because(
        _ACTIVATIONS, "act_bits act_data_type act_group_size act_sym act_dynamic static_kv_dtype static_attention_dtype"
    ),
    **_because(_TENSORS, "sym zero_point is_marlin_format is_marlin_24_format"),
    **_because(_WHO, "autoround_version"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """What the configuration of one way of quantising may say.

    Attributes
    ----------
    reads : words that readers go by, with what they may be.
    ignored : words that change no number, beside `EVERYWHERE`, each with the reason.
    inside : what tables may say that stand under a word.
    each : what each of the tables may say that stand, by names of layers or groups, under a word.
    """

    reads: Mapping[str, Kind]
    ignored: Mapping[str, str]
    inside: Mapping[str, Method] = field(default_factory=dict)
    each: Mapping[str, Method] = field(default_factory=dict)


_OF_LAYERS = Method(
    {
        "bits": _BITS,
        "group_size": _GROUP,
        "sym": _TRUTH,
        "desc_act": _TRUTH,
        "data_type": _one_of("int", "float", "fp", "mx_fp", "nv_fp"),
    },
    {word: reason for word, reason in _OF_GPTQ.items() if word != "sym"},
)
"""What some layers of GPTQ's and AutoRound's may have of their own."""

_GPTQ_READS: dict[str, Kind] = {
    "method": _one_of("gptq", "marlin", "bitblas"), "bits": _BITS, "group_size": _GROUP, "desc_act": _TRUTH,
    "sym": _TRUTH,
    "checkpoint_format": _one_of("gptq", "gptq_v2", "gptq_p", "marlin", "marlin_24", "bitblas"),
    "format": _one_of("gptq", "gptq_v2", "gptq_p", "marlin", "marlin_24", "bitblas"), "pack_dtype": _one_of("int32"),
    "data_type": _one_of("int"), "packing_format": TEXT,
}  # fmt: skip
_GPTQ = Method(_GPTQ_READS, _OF_GPTQ, each={"dynamic": _OF_LAYERS, "extra_config": _OF_LAYERS})
_AWQ = _one_of(*AWQ_FORMS, "llm-awq", "bitblas")
_FP8_READS: dict[str, Kind] = {
    "method": _one_of("fp8"), "bits": _one_of(8), "checkpoint_format": _one_of("fp8"), "weight_block_size": _BLOCK,
    "weight_scale_semantics": _one_of("inverse"), "fmt": _one_of("e4m3", "float8_e4m3fn", "e5m2", "float8_e5m2"),
    "format": _one_of("float8_e4m3fn", "float8_e5m2"), "expert_dtype": _one_of("fp8", "fp4"),
    "scale_fmt": _SCALES, "weight_scale_method": _one_of("tensor", "row", "block"), "data_type": _one_of("fp"),
    "packing_format": _one_of("fp8", "auto_round:fp8"),
}  # fmt: skip
_FP8 = Method(
    _FP8_READS,
    {
        **_OF_GPTQ,
        **_because(_ACTIVATIONS, "activation_scheme linear_activation_scheme moe_activation_scheme"),
        **_because(_TENSORS, "group_size desc_act pack_dtype"),
    },
    each={"extra_config": _OF_LAYERS},
)


_AXIS: Kind = ("an axis of a matrix", _whole(-1, 1))
_OF_QUARK = Method(
    {},
    _because(_ACTIVATIONS, "input_tensors output_tensors bias"),
    inside={
        "weight": Method(
            {
                "dtype": _one_of(
                    "int4",
                    "uint4",
                    "int8",
                    "fp8_e4m3",
                    "fp8_e5m2",
                    "fp4",
                    "fp6_e2m3",
                    "fp6_e3m2",
                    "float16",
                    "bfloat16",
                    "float32",
                ),
                "scale_format": _one_of("float", "float32", "e8m0"),
                "group_size": _GROUP,
                "qscheme": _one_of("per_tensor", "per_channel", "per_group"),
                "scale_type": _one_of("float", "float16", "float32", "bfloat16", "pof2"),
                "ch_axis": _AXIS,
                "axis": _AXIS,
                "is_scale_quant": _one_of(False),
            },
            {
                **_because(_FOUND, "observer_cls round_method scale_calculation_mode is_dynamic dynamic"),
                **_because(_RUNS, "enable_buffer_reuse max_input_numel"),
                **_because(_TENSORS, "symmetric zero_point_type"),
            },
        )
    },
)
"""What Quark says of layers: weights have one scale each, a float or a power of two."""

_NO_ROTATION: Kind = (
    "ways to find codes that rotate no activations",
    lambda value: isinstance(value, list) and not re.search("rot(ation)?", str(value).lower()),
)

_FORM_NAMES = (
    "pack-quantized", "int-quantized", "int4-quantized", "float-quantized", "naive-quantized", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized", "marlin-24", "dense",
)  # fmt: skip
_FORMATS = _one_of(*_FORM_NAMES)
"""compressed-tensors' names of forms."""

_ALGORITHMS = (
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A16_AWQ", "W4A8_AWQ",
    "MXFP8", "W8A16", "W8A8_SQ_PER_CHANNEL", "MXFP4", "W4A8_MXFP4_FP8", "W4A8_NVFP4_FP8", "MIXED_PRECISION",
)  # fmt: skip
_ALGORITHM = _one_of(*_ALGORITHMS)
"""modelopt's ways of quantising."""

_OF_MODELOPT = Method(
    {"quant_algo": _ALGORITHM, "group_size": _GROUP, "has_zero_point": _one_of(False), "pre_quant_scale": _TRUTH}, {}
)
"""What modelopt says of a layer."""

_OF_WEIGHTS_READS: dict[str, Kind] = {
    "num_bits": _BITS, "type": _one_of("int", "float"), "symmetric": _TRUTH, "group_size": _GROUP,
    "block_structure": _BLOCK, "actorder": _ORDER, "dynamic": _one_of(False),
    "strategy": _one_of("tensor", "channel", "group", "block", "tensor_group"),
}  # fmt: skip
_OF_ACTIVATIONS = Method(
    {"num_bits": _BITS, "type": _one_of("int", "float")},
    _because(
        _ACTIVATIONS,
        "symmetric group_size block_structure actorder dynamic strategy observer observer_kwargs scale_dtype zp_dtype "
        "is_mx",
    ),
)
_OF_GROUPS = Method(
    {"format": _FORMATS, "targets": _TEXTS, **_OF_MODELOPT.reads},
    {},
    inside={
        "weights": Method(
            _OF_WEIGHTS_READS,
            {**_because(_FOUND, "observer observer_kwargs"), **_because(_TENSORS, "scale_dtype zp_dtype is_mx")},
        ),
        "input_activations": _OF_ACTIVATIONS,
        "output_activations": _OF_ACTIVATIONS,
    },
)
"""What compressed-tensors and modelopt say of a group of layers."""

_OF_SPARSITY = Method(
    {"format": SPARSE},
    {
        **_because(_WHICH, "targets registry_requires_subclass"),
        **_because(_FOUND, "global_sparsity sparsity_structure"),
    },
)


_OF_TRANSFORMS = Method(
    {},
    {},
    each={
        "config_groups": Method(
            {"apply": LIST},
            _because(
                "of rotations that are in the weights", "type head_dim requires_grad randomize precision block_size"
            ),
        )
    },
)
"""What compressed-tensors says of rotations; where they are done `settings` looks at."""

_OF_MLX = Method(
    {"bits": _one_of(*MLX_BITS), "group_size": _GROUP, "mode": _one_of(*MLX_MODES), "global_scale": _TRUTH}, {}
)
"""What MLX says of a layer."""

METHODS: dict[str, Method] = {
    OURS: Method({"version": _one_of(1), "quantized_by": _one_of(OURS), "declared_activations": _ACTIVATIONS_OF,
        "activations": _ACTIVATIONS_OF}, _because(_WHO, "converted_from scheme")),
    "gptq": _GPTQ,
    "auto-round": Method(
        {
            "bits": _BITS, "group_size": ("a number of columns, -1 for all, or 0 for one scale",
                lambda value: value in (-1, 0) or _whole(1, _MOST)(value)),
            "data_type": _one_of("mx_fp", "nv_fp", "fp"), "packing_format": _one_of("auto_round:llm_compressor",
                "auto_round:fp8", "auto_round:fp8_static"),
        },
        {**_OF_GPTQ, **_because(_ACTIVATIONS, "activation_scheme")},
        each={"extra_config": _OF_LAYERS},
    ),
    "marlin": _GPTQ,
    "bitblas": _GPTQ,
    "awq": Method(
        {
            "method": _one_of("awq"), "bits": _one_of(4), "w_bit": _one_of(4), "group_size": _GROUP, "version": _AWQ,
            "format": _AWQ,
            "checkpoint_format": _AWQ, "pack_dtype": _one_of("int32"), "data_type": _one_of("int"),
            "packing_format": TEXT, "pack_method": _one_of("reorder"), "zero_point": _TRUTH,
        },
        {**_OF_GPTQ, **_because(_FOUND, "desc_act")},
        each={"extra_config": _OF_LAYERS},
    ),
    "bitsandbytes": Method(
        {"method": _one_of("bitsandbytes"), "checkpoint_format": _one_of("bitsandbytes"),
            "format": _one_of("nf4", "fp4", "int8"), "bits": _one_of(4, 8)},
        {
            **_because(
                _TENSORS,
                "load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant "
                "bnb_4bit_quant_storage block_size compress_statistics group_size desc_act pack_dtype sym",
            ),
            **_because(
                _RUNS,
                "bnb_4bit_compute_dtype llm_int8_threshold llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight",
            ),
        },
    ),
    "eetq": Method({"weights": _one_of("int8"), "bits": _one_of(8), "zero_point": _one_of(False)}, {}),
    "hqq": Method({}, _because(_TENSORS, "quant_config")),
    "sinq": Method(
        {}, {**_because(_TENSORS, "nbits group_size tiling_mode method"),
            **_because(_WHO, "sinq sinq_version quantization_method")},
    ),
    "exl2": Method({}, {**_because(_TENSORS, "bits head_bits"), **_because(_FOUND, "calibration"),
        **_because(_WHO, "version")}),
    "fp_quant": Method(
        {"forward_dtype": _one_of("mxfp4", "nvfp4"), "hadamard_group_size": _GROUP,
            "pseudoquantization": _one_of(False), "store_master_weights": _one_of(False)},
        {**_because(_FOUND, "forward_method"), **_because(_RUNS, "backward_dtype"),
            **_because(_TENSORS, "transform_init")},
    ),
    "paroquant": Method(
        {"method": _one_of("paroquant"), "checkpoint_format": _one_of("paroquant"), "format": _one_of("paroquant"),
            "bits": _one_of(4), "group_size": _GROUP, "krot": _GROUP, "pack_dtype": _one_of("int32"),
            "desc_act": _one_of(False)},
        _OF_GPTQ,
    ),
    "qqq": Method(
        {"method": _one_of("qqq"), "bits": _one_of(4), "wbits": _one_of(4), "checkpoint_format": _one_of("qqq"),
            "format": _one_of("qqq"), "desc_act": _one_of(False), "pack_dtype": _one_of("int32")},
        {**_OF_GPTQ, **_because(_TENSORS, "group_size")},
    ),
    "torchao": Method(
        {}, _because(_TENSORS, "quant_type quant_type_kwargs include_input_output_embeddings untie_embedding_weights")
    ),
    "compressed-tensors": Method(
        {"format": _FORMATS, "scale_fmt": _SCALES},
        {**_because(_WHO, "version"), **_because(_TENSORS, "quantization_status global_compression_ratio")},
        inside={"transform_config": _OF_TRANSFORMS, "sparsity_config": _OF_SPARSITY},
        each={"config_groups": _OF_GROUPS},
    ),
    "modelopt": Method(
        {
            "quant_algo": _ALGORITHM,
            "group_size": _GROUP, "has_zero_point": _one_of(False), "pre_quant_scale": _TRUTH,
        },
        {},
        each={"config_groups": _OF_GROUPS, "quantized_layers": _OF_MODELOPT},
    ),
    "fp8": _FP8,
    "mxfp8": _FP8,
    "w4afp8": Method({**_FP8_READS, "group_size": _GROUP}, _FP8.ignored, each=_FP8.each),
    "quark": Method(
        {
            "algo_config": _NO_ROTATION,
        },
        {
            **_because(_WHICH, "exclude"), **_because(_WHO, "version quant_mode"),
            **_because(_ACTIVATIONS, "softmax_quant_spec"),
            **_because(_CACHE, "kv_cache_quant_config kv_cache_post_rope"),
        },
        inside={
            "global_quant_config": _OF_QUARK,
            "export": Method({"pack_method": TEXT, "weight_format": _one_of("real_quantized")},
                {**_because(_CACHE, "kv_cache_group min_kv_scale"),
                    **_because(_WHO, "custom_mode weight_merge_groups")}),
        },
        each={"layer_quant_config": _OF_QUARK, "layer_type_quant_config": _OF_QUARK},
    ),
    "fbgemm_fp8": Method({}, _because(_ACTIVATIONS, "activation_scale_ub")),
    "bitnet": Method(
        {"linear_class": _one_of("bitlinear", "autobitlinear"), "quantization_mode": _one_of("offline"),
            "use_rms_norm": _one_of(False)},
        _because("of a norm that there is not", "rms_norm_eps"),
    ),
    "mxfp4": Method({}, {}),
    "metal": Method({"bits": _one_of(2, 4, 8), "group_size": _GROUP}, {}),
    "mlx": Method({"bits": _one_of(*MLX_BITS), "group_size": _GROUP, "mode": _one_of(*MLX_MODES),
        "global_scale": _TRUTH}, {}, each={"quantization": _OF_MLX}),
}  # fmt: skip
"""Ways of quantising by the names that configurations have for them."""
