"""``tilelang.env``: switches of TileLang's, those that mean something here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tilewright.options import VARIABLES, options


def disable_cache() -> None:
    """Keep nothing on disk from here on."""
    os.environ[VARIABLES["cache"]] = "0"


def enable_cache() -> None:
    """Keep kernels on disk, which is how it begins."""
    os.environ.pop(VARIABLES["cache"], None)


def is_cache_enabled() -> bool:
    """Whether kernels are kept on disk."""
    return options().cache


DEFAULTS = {
    "TILELANG_PRINT_ON_COMPILATION": "1", "TILELANG_DISABLE_CACHE": "0", "TILELANG_KERNEL_CACHE_USE_LIB_STAMP": "0",
    "TILELANG_CLEANUP_TEMP_FILES": "1", "TILELANG_HIP_SAVE_TEMP_FILES": "0", "TILELANG_JIT_DIAGNOSTICS": "0",
    "TILELANG_COMPILE_TIMEOUT_SECONDS": "", "TILELANG_PASS_DIFF": "0", "TL_LOWER_TRACE": "0",
    "TILELANG_PASS_DIFF_OUTPUT": "tmp/pass_diff_output", "TL_LOWER_TRACE_DIR": "./tmp/lower_trace_dir",
    "TILELANG_PASS_PROFILE": "0", "TILELANG_PASS_PROFILE_THRESHOLD_MS": "0", "TILELANG_ENABLE_IR_SPAN": "1",
    "TILELANG_AUTO_TUNING_DISABLE_CACHE": "0", "TILELANG_AUTO_TUNING_CPU_UTILITIES": "0.9",
    "TILELANG_AUTO_TUNING_CPU_COUNTS": "-1", "TILELANG_AUTO_TUNING_MAX_CPU_COUNT": "-1",
    "TILELANG_DEFAULT_TARGET": "auto", "SKIP_LOADING_TILELANG_SO": "0", "TILELANG_EXECUTION_BACKEND": "auto",
    "TILELANG_VERBOSE": "0",
}  # fmt: skip
"""What TileLang's switches are where the environment says nothing."""

VARIABLE = {
    "TILELANG_DEFAULT_EXECUTION_BACKEND": "TILELANG_EXECUTION_BACKEND", "TILELANG_DEFAULT_VERBOSE": "TILELANG_VERBOSE",
    "CUTLASS_INCLUDE_DIR": "TL_CUTLASS_PATH", "TVM_PYTHON_PATH": "TVM_IMPORT_PYTHON_PATH",
    "TILELANG_TEMPLATE_PATH": "TL_TEMPLATE_PATH",
}  # fmt: skip
"""Switches whose variable has another name."""

ASKED = {
    "is_autotune_cache_disabled": "TILELANG_AUTO_TUNING_DISABLE_CACHE", "is_span_enable": "TILELANG_ENABLE_IR_SPAN",
    "is_print_on_compilation_enabled": "TILELANG_PRINT_ON_COMPILATION",
    "should_cleanup_temp_files": "TILELANG_CLEANUP_TEMP_FILES",
    "should_use_kernel_cache_lib_stamp": "TILELANG_KERNEL_CACHE_USE_LIB_STAMP",
    "is_jit_diagnostics_enabled": "TILELANG_JIT_DIAGNOSTICS", "is_pass_profile_enabled": "TILELANG_PASS_PROFILE",
    "get_default_verbose": "TILELANG_DEFAULT_VERBOSE", "get_default_target": "TILELANG_DEFAULT_TARGET",
    "get_default_execution_backend": "TILELANG_DEFAULT_EXECUTION_BACKEND", "get_lower_trace_dir": "TL_LOWER_TRACE_DIR",
    "get_default_layout_cost_model": "TILELANG_LAYOUT_COST_MODEL", "get_pass_diff_mode": "TILELANG_PASS_DIFF",
    "get_lower_trace_mode": "TL_LOWER_TRACE", "get_compile_timeout_seconds": "TILELANG_COMPILE_TIMEOUT_SECONDS",
    "get_pass_profile_threshold_ms": "TILELANG_PASS_PROFILE_THRESHOLD_MS", "is_running_autodd": "TILELANG_AUTODD",
    "is_light_import": "TILELANG_LIGHT_IMPORT",
}  # fmt: skip
"""The switch that each question is about."""


class Environment:
    """``env``: the same, where kernels are kept, and TileLang's switches: any that is set, on this object or in the
    process's environment, or what it begins with.  Those that say how TileLang makes a kernel change nothing here."""

    disable_cache, enable_cache = staticmethod(disable_cache), staticmethod(enable_cache)
    is_cache_enabled = staticmethod(is_cache_enabled)
    TILELANG_PACKAGE_PATH = Path(__file__).parent
    TILELANG_CACHE_DIR: str

    def is_cache_globally_disabled(self) -> bool:
        """Whether nothing is kept on disk."""
        return not is_cache_enabled()

    def __getattr__(self, name: str) -> Any:
        if name in ASKED:
            return lambda: self._answer(name, getattr(self, ASKED[name]))
        if name.startswith("_") or not name.isupper():
            raise AttributeError(f"tilewright has no tilelang.env.{name}")
        if name == "TILELANG_CACHE_DIR":
            return str(options().cache_dir)
        variable = VARIABLE.get(name, name)
        return os.environ.get(variable, DEFAULTS.get(variable))

    @staticmethod
    def _answer(question: str, value: Any) -> object:
        if question.endswith("_mode"):
            return None if str(value).lower() in OFF else "terminal" if value in ("1", "true") else value
        if question.startswith(("is_", "should_")) or question == "get_default_verbose":
            return str(value).lower() in ("1", "true", "yes", "on")
        if question == "get_compile_timeout_seconds":
            return float(value) if value else None
        return float(value) if question.endswith("_ms") else value


OFF = ("", "0", "off", "false", "none")

env = Environment()


def __getattr__(name: str) -> str | None:
    """What TileLang's module has by names in capitals: as the environment has it, or None."""
    if name.isupper():
        return getattr(env, name)  # type: ignore[no-any-return]
    raise AttributeError(f"tilewright has no tilelang.env.{name}")
