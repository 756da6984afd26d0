"""Stands in for ``import tilelang``: its decorators, its kernel objects, its tuner, served by tilewright.

::

    import tilewright.compat.tilelang as tilelang
    import tilewright.compat.tilelang.language as T

Differences that programs can see: pass configurations that only say how something is made have no effect, since tilewright decides that for
itself; a kernel runs where there is no GPU, too (on the processor, or by ``kernel.emulate``); times are medians.
"""

from __future__ import annotations

import logging
import os
import sys

from tilewright import language
from tilewright.compat.tilelang import autotuner, kernels, layout, profiler
from tilewright.compat.tilelang.autotuner import AutoTuner, autotune, set_autotune_inputs
from tilewright.compat.tilelang.kernels import JITKernel, PassConfigKey, compile, jit, par_compile
from tilewright.compat.tilelang.profiler import Profiler, TensorSupplyType, do_bench
from tilewright.language import Fragment, Layout
from tilewright.options import VARIABLES

sys.modules[f"{__name__}.language"] = language
# The very module, so that its errors name the author's line.

__version__ = "0.1.13"

__all__ = [
    "AutoTuner", "Fragment", "JITKernel", "Layout", "PassConfigKey", "Profiler", "TensorSupplyType", "autotune", "autotuner", "cdiv", "compile", "disable_cache",
    "do_bench", "enable_cache", "jit", "kernels", "language", "layout", "next_power_of_2", "par_compile", "profiler", "set_autotune_inputs", "set_log_level",
]  # fmt: skip


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()


def disable_cache() -> None:
    """Keep nothing on disk from here on."""
    os.environ[VARIABLES["cache"]] = "0"


def enable_cache() -> None:
    """Keep kernels on disk, which is how it begins."""
    os.environ.pop(VARIABLES["cache"], None)


def set_log_level(level: int | str) -> None:
    """The level of the logger ``tilelang``."""
    logging.getLogger("tilelang").setLevel(level)
