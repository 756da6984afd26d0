"""``pass_configs`` of `jit` and `compile`: the keys that TileLang has, and the refusal of others."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tilewright.errors import an
from tilewright.language.compiler_flags import texts_of_flags
from tilewright.specialization import InvalidUse

_TIR = "add_lower_pass disable_storage_rewrite disable_vectorize enable_debug merge_static_smem noalias use_async_copy"
_TL = (
    "ast_print_enable config_index_bitwidth cuda_compiler debug_merge_shared_memory_allocations device_compile_flags "
    "disable_buffer_init_check disable_data_race_check disable_dynamic_tail_split disable_fast_math "
    "disable_loop_unswitching disable_out_of_bound_warning disable_prelower_semantic_check "
    "disable_shared_memory_reuse disable_shuffle_elect disable_thread_storage_sync disable_tma_lower "
    "disable_vectorize_256 disable_warp_specialized disable_wgmma dynamic_alignment emit_line_directives "
    "enable_aggressive_shared_memory_merge enable_async_copy enable_auto_schedule enable_auto_warp_specialization "
    "enable_dump_ir enable_fast_math enable_fp32x2_reduction enable_lower_ldgstg enable_lower_ldgstg_predicated "
    "enable_ptxas_verbose_output enable_reducer_plan_verbose enable_vectorize_planner_verbose force_let_inline "
    "if_stmt_binding_inline_replayable_binds layout_cost_model layout_visualization_enable "
    "layout_visualization_formats loop_unswitching_allow_non_trivial_else pass_profile pass_profile_threshold_ms "
    "ptxas_register_usage_level reducer_force_baseline storage_rewrite_detect_inplace"
)
_SIMPLIFY = (
    "apply_constraints_to_boolean_branches convert_boolean_to_and_of_ors propagate_knowns_to_prove_conditional "
    "propagate_knowns_to_simplify_expressions transitively_prove_inequalities"
)
"""Keys by their prefixes, after which their members are named."""

_NAMED = {
    "CUDA_KERNELS_OUTPUT_DIR": "cuda.kernels_output_dir",
    "TIR_DISABLE_CSE": "tirx.disable_cse_tir",
    "TIR_ENABLE_EQUIV_TERMS_IN_CSE": "tir.enable_equiv_terms_in_cse_tir",
    "TIR_SIMPLIFY": "tirx.Simplify",
    "TL_DISABLE_SAFE_MEMORY_ACCESS": "tl.disable_safe_memory_legalize",
    "TL_DUMP_IR_DIR": "tl.dump_ir_path",
    "TL_SIMPLIFY": "tl.Simplify",
    "TL_SIMPLIFY_ENABLE_LET_INLINE": "enable_simplify_let_inline",
}
"""Those that have others."""

PassConfigKey = Enum(  # type: ignore[misc]  # whose members are made
    "PassConfigKey",
    {
        f"{name}_{key.upper()}": prefix + key
        for name, prefix, keys in (("TIR", "tirx.", _TIR), ("TL", "tl.", _TL), ("TL_SIMPLIFY", "", _SIMPLIFY))
        for key in keys.split()
    }
    | _NAMED,
    type=str,
    module=__name__,
)
PassConfigKey.__doc__ = "Keys of ``pass_configs``.  All say how something is made, which tilewright decides for itself."


def texts_before(compile_flags: object, pass_configs: object) -> tuple[str, ...]:
    """Texts that flags of the device's compiler put before the kernels; keys that TileLang has not are refused."""
    given = check_pass_configs(pass_configs)
    return (*texts_of_flags(compile_flags), *texts_of_flags(given.get("tl.device_compile_flags")))


def check_pass_configs(pass_configs: object) -> dict[str, object]:
    """The values by the names of their keys; what is no mapping, and keys that TileLang has not, are refused."""
    if not isinstance(pass_configs, Mapping | None):
        raise InvalidUse(
            f"pass_configs is {an(type(pass_configs).__name__)}, expected a dict",
            hint="write pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}",
        )
    given = {str(getattr(key, "value", key)): value for key, value in (pass_configs or {}).items()}
    known = {key.value for key in PassConfigKey}
    for key in given:
        if key not in known and not key.startswith(("tirx.", "tir.")):
            raise InvalidUse(f"pass_configs has no key {key!r}", hint="tilelang.PassConfigKey lists the keys")
    return given
