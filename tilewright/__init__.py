"""tilewright: kernels over tiles, compiled in pure Python, and mixed-precision matmuls written with them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilewright.errors import TilewrightError
    from tilewright.ir.dtypes import dtype, pack, unpack
    from tilewright.jit import compile, jit
    from tilewright.runtime.kernel import Kernel
    from tilewright.runtime.profiler import do_bench

_HOMES = {
    "Kernel": "tilewright.runtime.kernel",
    "TilewrightError": "tilewright.errors",
    "compile": "tilewright.jit",
    "do_bench": "tilewright.runtime.profiler",
    "dtype": "tilewright.ir.dtypes",
    "jit": "tilewright.jit",
    "pack": "tilewright.ir.dtypes",
    "unpack": "tilewright.ir.dtypes",
}
"""Where each public name lives; a room is loaded when something of it is first used."""

__all__ = [
    "Kernel", "TilewrightError", "__version__", "compile", "do_bench", "dtype", "jit", "pack", "unpack",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing ``tilewright.jit`` would put that module in the place of the function `jit`: the function stays."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
