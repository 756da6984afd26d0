"""Configurations as libraries write them, every word of which is known: none of them may be refused."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.conversion.settings import declared_activations, quantization_settings
from tilewright.errors import InvalidTensor

QUARKS_MX = {
    "dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "block_size": None, "symmetric": None,
    "round_method": "half_even", "scale_type": "float", "scale_format": "e8m0", "scale_calculation_mode": "even",
    "mx_element_dtype": None, "observer_cls": "PerBlockMXObserver", "is_scale_quant": False, "enable_buffer_reuse": True,
    "max_input_numel": 4194304,
}  # fmt: skip
"""What Quark 0.11 says of a tensor."""

WRITTEN: dict[str, dict[str, Any]] = {
    "deepseek": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "qwen fp8": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
    },
    "deepseek v3.1": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "deepseek v4": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
        "expert_dtype": "fp4",
    },
    "minimax mxfp8": {
        "activation_scheme": "dynamic",
        "fmt": "float8_e4m3fn",
        "quant_method": "mxfp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [1, 32],
        "ignored_layers": ["lm_head"],
    },
    "gptqmodel": {
        "bits": 4,
        "checkpoint_format": "gptq",
        "desc_act": False,
        "group_size": 128,
        "lm_head": False,
        "meta": {"quantizer": ["gptqmodel:1.4"], "damp_percent": 0.1},
        "pack_dtype": "int32",
        "quant_method": "gptq",
        "sym": True,
        "true_sequential": True,
        "static_groups": False,
        "damp_percent": 0.01,
        "dynamic": {"-:x": {}},
        "method": "gptq",
        "format": "gptq",
    },
    "autogptq old": {
        "bits": 4,
        "group_size": 128,
        "damp_percent": 0.1,
        "desc_act": True,
        "static_groups": False,
        "sym": True,
        "true_sequential": True,
        "model_name_or_path": None,
        "model_file_base_name": "model",
        "quant_method": "gptq",
        "is_marlin_format": False,
    },
    "autogptq qcfg": {
        "bits": 4,
        "group_size": 128,
        "damp_percent": 0.1,
        "desc_act": True,
        "model_basename": "x",
        "quant_method": "gptq",
    },
    "autoawq": {
        "bits": 4,
        "group_size": 128,
        "modules_to_not_convert": None,
        "quant_method": "awq",
        "version": "gemm",
        "zero_point": True,
    },
    "hf awq old": {
        "backend": "autoawq",
        "bits": 4,
        "do_fuse": False,
        "exllama_config": None,
        "fuse_max_seq_len": None,
        "group_size": 128,
        "modules_to_fuse": None,
        "modules_to_not_convert": None,
        "quant_method": "awq",
        "version": "gemm",
        "zero_point": True,
    },
    "autoround": {
        "amp": True,
        "autoround_version": "0.4.7",
        "backend": "auto_round:gptq:exllamav2",
        "batch_size": 8,
        "bits": 4,
        "block_name_to_quantize": None,
        "data_type": "int",
        "dataset": "x",
        "enable_minmax_tuning": True,
        "enable_norm_bias_tuning": False,
        "enable_quanted_input": True,
        "gradient_accumulate_steps": 1,
        "group_size": 128,
        "iters": 200,
        "low_gpu_mem_usage": True,
        "lr": 0.005,
        "minmax_lr": 0.005,
        "nsamples": 128,
        "quant_method": "intel/auto-round",
        "scale_dtype": "torch.float16",
        "seqlen": 2048,
        "supported_types": ["Linear"],
        "sym": True,
        "to_quant_block_names": None,
    },
    "ct": {
        "config_groups": {
            "group_0": {
                "input_activations": {
                    "actorder": None,
                    "block_structure": None,
                    "dynamic": True,
                    "group_size": None,
                    "num_bits": 8,
                    "observer": None,
                    "observer_kwargs": {},
                    "strategy": "token",
                    "symmetric": True,
                    "type": "int",
                },
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "actorder": None,
                    "block_structure": None,
                    "dynamic": False,
                    "group_size": None,
                    "num_bits": 8,
                    "observer": "minmax",
                    "observer_kwargs": {},
                    "strategy": "channel",
                    "symmetric": True,
                    "type": "int",
                },
            }
        },
        "format": "int-quantized",
        "global_compression_ratio": 1.5,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.11",
    },
    "ct old": {
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "block_structure": None,
                    "dynamic": False,
                    "group_size": 128,
                    "num_bits": 4,
                    "observer": "minmax",
                    "observer_kwargs": {},
                    "strategy": "group",
                    "symmetric": True,
                    "type": "int",
                    "actorder": "weight",
                },
            }
        },
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "quant_method": "compressed-tensors",
        "quantization_status": "frozen",
    },
    "ct dense sparse": {
        "config_groups": {},
        "format": "dense",
        "quant_method": "compressed-tensors",
        "sparsity_config": {
            "format": "dense",
            "global_sparsity": 0.1,
            "ignore": [],
            "registry_requires_subclass": False,
            "sparsity_structure": "unstructured",
            "targets": ["Linear"],
        },
    },
    "modelopt fp8": {
        "config_groups": {
            "group_0": {
                "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
                "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
                "targets": ["Linear"],
            }
        },
        "ignore": ["lm_head"],
        "quant_algo": "FP8",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.29"},
        "quant_method": "modelopt",
    },
    "gpt-oss": {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
    "bitnet 2b": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
    "llama fbgemm": {
        "activation_scale_ub": 1200.0,
        "modules_to_not_convert": ["lm_head"],
        "quant_method": "fbgemm_fp8",
    },
    "hqq": {
        "quant_config": {
            "offload_meta": False,
            "scale_quant_params": None,
            "weight_quant_params": {"axis": 1, "channel_wise": True, "group_size": 64, "nbits": 4},
        },
        "quant_method": "hqq",
        "skip_modules": ["lm_head"],
    },
    "torchao": {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig", "_data": {}}},
        "quant_type_kwargs": {},
        "modules_to_not_convert": None,
        "include_input_output_embeddings": True,
        "untie_embedding_weights": False,
    },
    "unsloth bnb": {
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": True,
        "load_in_8bit": False,
        "quant_method": "bitsandbytes",
    },
    "autoround model free": {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "data_type": "int",
        "iters": 0,
        "model_free": True,
        "autoround_version": "0.13.0",
        "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}},
    },
    "autoround fp8 blocks": {
        "quant_method": "auto-round",
        "packing_format": "auto_round:fp8",
        "bits": 8,
        "act_bits": 8,
        "data_type": "fp",
        "act_data_type": "fp",
        "group_size": [128, 128],
        "act_group_size": 128,
        "act_dynamic": True,
        "sym": True,
        "iters": 0,
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "autoround_version": "0.14.2",
        "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}},
    },
    "autoround fp8 blocks in deepseek's words": {
        "quant_method": "fp8",
        "provider": "auto-round",
        "packing_format": "fp8",
        "bits": 8,
        "act_bits": 8,
        "data_type": "fp",
        "act_data_type": "fp",
        "group_size": [128, 128],
        "weight_block_size": [128, 128],
        "sym": True,
        "iters": 200,
        "activation_scheme": "dynamic",
        "autoround_version": "0.14.2",
    },
    "quark mxfp4": {
        "global_quant_config": {
            "input_tensors": {**QUARKS_MX, "is_dynamic": True},
            "output_tensors": None,
            "weight": {**QUARKS_MX, "is_dynamic": False},
            "bias": None,
            "target_device": None,
        },
        "algo_config": None,
        "softmax_quant_spec": None,
        "quant_method": "quark",
        "layer_type_quant_config": {},
        "layer_quant_config": {},
        "kv_cache_quant_config": {},
        "kv_cache_post_rope": False,
        "quant_mode": "eager_mode",
        "version": "0.11",
        "exclude": ["lm_head"],
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    },
    "ct blocks of powers of two": {
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": "block",
                    "block_structure": [128, 128],
                    "scale_dtype": None,
                    "zp_dtype": None,
                },
            }
        },
        "format": "float-quantized",
        "scale_fmt": "ue8m0",
        "quant_method": "compressed-tensors",
    },
    "gptqmodel by optimum": {
        "act_group_aware": True,
        "backend": "auto",
        "batch_size": 1,
        "bits": 4,
        "cache_block_outputs": True,
        "checkpoint_format": "gptq_v2",
        "damp_percent": 0.1,
        "dataset": ["a"],
        "desc_act": False,
        "format": "gptq_v2",
        "group_size": 128,
        "meta": {"quantizer": ["optimum:2.1.0", "gptqmodel:6.0.3"]},
        "quant_method": "gptq",
        "sym": True,
        "true_sequential": True,
    },
}


@pytest.mark.parametrize("library", WRITTEN)
def test_what_libraries_write_is_understood(library: str) -> None:
    found = quantization_settings({"model_type": "llama", "quantization_config": WRITTEN[library]})
    assert found["quant_method"] in (WRITTEN[library]["quant_method"], "gptq", "fp8")


def test_what_a_part_says_holds_where_the_whole_says_nothing() -> None:
    """Models that see have it in ``text_config`` (Kimi K2.5), where transformers looks too."""
    said = WRITTEN["deepseek"]
    for config in (
        {"text_config": {"quantization_config": said}},
        {"a": {"text_config": {"quantization_config": said}}, "b": {"x": 1}},
    ):
        assert quantization_settings(config)["weight_block_size"] == [128, 128]
    both = {
        "vision_config": {"quantization_config": WRITTEN["autogptq qcfg"]},
        "text_config": {"quantization_config": said},
    }
    with pytest.raises(InvalidTensor, match="parts of the configuration say different things"):
        quantization_settings(both)
    assert quantization_settings({**both, "quantization_config": said})["quant_method"] == "fp8"


def test_the_group_that_means_a_layer_most_closely_says_its_activations() -> None:
    """A name before a regular expression, and that before a class, in whichever order the groups stand."""
    eight = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token", "symmetric": True}
    groups = [
        {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": eight},
        {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8}, "input_activations": None},
        {"targets": ["a.down_proj"], "weights": {"num_bits": 8}, "input_activations": {**eight, "type": "float"}},
    ]
    for order in (groups, groups[::-1]):
        config = {"quant_method": "compressed-tensors", "config_groups": dict(zip("abc", order))}
        said = quantization_settings({"quantization_config": config})
        found = [declared_activations(said, layer) for layer in ("a.up_proj", "b.down_proj", "a.down_proj")]
        assert found == ["int8", None, "float8_e4m3fn"]
        assert declared_activations({**said, "config_groups": {"b": groups[1]}}, "a.up_proj") is None


def test_modelopt_says_of_each_layer_or_of_what_it_is_in() -> None:
    """MIXED_PRECISION: what is written beside a configuration (``hf_quant_config.json``), and in it, where the groups of
    two ways that leave activations at 4 bits speak of 8."""
    layers = {
        "a.q_proj": {"quant_algo": "FP8"}, "a.experts": {"quant_algo": "W4A8_AWQ", "group_size": 128, "has_zero_point": False,
        "pre_quant_scale": True}, "a.up_proj": {"quant_algo": "NVFP4_AWQ"}, "a.down_proj": {"quant_algo": "W8A8_SQ_PER_CHANNEL"},
    }  # fmt: skip
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    eight = {"num_bits": 8, "type": "float", "dynamic": False}
    groups = {
        "group_0": {"targets": ["a.up_proj"], "weights": {"num_bits": 4, "type": "float"}, "input_activations": eight}
    }
    for said in (config, {**config, "config_groups": groups}):
        read = quantization_settings({"quantization_config": said})
        found = [
            declared_activations(read, f"a.{one}")
            for one in ("q_proj", "experts.3.w1", "up_proj", "down_proj", "o_proj")
        ]
        assert found == ["float8_e4m3fn", "float8_e4m3fn", None, "int8", None]
    told = {**config, "quantized_layers": None, "config_groups": {"b": {**groups["group_0"], "targets": ["a.experts"]}}}
    read = quantization_settings({"quantization_config": told})
    assert [declared_activations(read, one) for one in ("a.experts.3.w1", "a.expert")] == ["float8_e4m3fn", None]
    weight_only = quantization_settings(
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}}
    )
    assert declared_activations(weight_only, "a.q_proj") is None
    with pytest.raises(InvalidTensor, match="quantized_layers: a: strange: 3, which nothing here reads"):
        quantization_settings({"quantization_config": {**config, "quantized_layers": {"a": {"strange": 3}}}})
