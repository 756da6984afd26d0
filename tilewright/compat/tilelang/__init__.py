"""Stands in for ``import tilelang``: its decorators, its kernel objects, its tuner, served by tilewright.

::

    import tilewright.compat.tilelang as tilelang
    import tilewright.compat.tilelang.language as T

Differences that programs can see: pass configurations that only say how something is made have no effect, since
tilewright decides that for itself; a kernel runs where there is no GPU, too (on the processor, or by
``kernel.emulate``); times are medians.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from tilewright import language
from tilewright.compat.tilelang import (
    autotuner,
    carver,
    engine,
    environment,
    expressions,
    hints,
    kernels,
    layout,
    modules,
    pass_configs,
    profiler,
    quantize,
    targets,
    templates,
    tensors,
    testing,
)
from tilewright.compat.tilelang.autotuner import AutoTuner, autotune, set_autotune_inputs
from tilewright.compat.tilelang.buffers import deprecated
from tilewright.compat.tilelang.engine import lower, register_c_postproc, register_cuda_postproc, register_hip_postproc
from tilewright.compat.tilelang.environment import disable_cache, enable_cache, env, is_cache_enabled
from tilewright.compat.tilelang.kernels import JITKernel, compile, jit, lazy_jit, par_compile
from tilewright.compat.tilelang.pass_configs import PassConfigKey
from tilewright.compat.tilelang.profiler import Profiler, do_bench
from tilewright.compat.tilelang.targets import tvm
from tilewright.compat.tilelang.tensors import TensorSupplyType
from tilewright.language import Fragment, Layout
from tilewright.language import dtype as DataType
from tilewright.language.foreign import SPELLINGS

for _module, _sources in {
    autotuner: (kernels, tensors, targets),
    carver: (hints, templates),
    engine: (tensors, targets),
    kernels: (targets, environment, profiler, pass_configs),
    layout: (language,),
    profiler: (tensors,),
    quantize: (),
    testing: (),
}.items():
    modules.with_names_elsewhere(_module, *_sources)
modules.install()
SPELLINGS.update(expressions.WORDS)
sys.modules[f"{__name__}.language"] = language
# The very module, so that its errors name the author's line.
sys.modules[f"{__name__}.jit"] = kernels
sys.modules[f"{__name__}.engine.lower"] = engine
sys.modules[f"{__name__}.language.allocate"] = language
# Here already, or importing them would put the module in place of the function or the object.
sys.modules[f"{__name__}.env"] = environment

__version__ = "0.1.13"

logger = logging.getLogger("tilelang")
dtypes = language

__all__ = [
    "AutoTuner", "DataType", "Fragment", "JITKernel", "Layout", "PassConfigKey", "Profiler", "TensorSupplyType",
    "autotune", "autotuner", "carver", "cdiv", "compile", "deprecated", "disable_cache", "do_bench", "dtypes",
    "enable_cache", "engine", "env", "is_cache_enabled", "jit", "kernels", "language", "layout", "lazy_jit", "logger",
    "lower", "next_power_of_2", "par_compile", "profiler", "quantize", "register_c_postproc", "register_cuda_postproc",
    "register_hip_postproc", "set_autotune_inputs", "set_log_level", "testing", "tvm",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """TileLang's modules, which a program may name without importing them."""
    if name in modules.MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"tilewright has no tilelang.{name}")


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def next_power_of_2(x: int) -> int:
    """The least power of two that is not below `x`."""
    return 1 << max(0, x - 1).bit_length()


def set_log_level(level: int | str) -> None:
    """The level of the logger ``tilelang``."""
    logger.setLevel(level)
