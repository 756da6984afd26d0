"""tilewright: kernels over tiles, compiled in pure Python, and mixed-precision matmuls written with them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilewright.conversion import convert_checkpoint, dequantize, load_quantized, quantize
    from tilewright.errors import TilewrightError
    from tilewright.ir.dtypes import dtype, pack, unpack
    from tilewright.matmul import (
        Matmul,
        MatmulConfig,
        PackedExperts,
        PackedWeight,
        fp8_scaled_matmul,
        grouped_matmul,
        quant_bmm,
        quant_matmul,
        tune,
        tune_grouped,
    )
    from tilewright.nn import Linear
    from tilewright.runtime.kernel import Kernel
    from tilewright.runtime.profiler import do_bench
    from tilewright.specialization import compile, jit

_NAMES = {
    "conversion": ("convert_checkpoint", "dequantize", "load_quantized", "quantize"), "errors": ("TilewrightError",),
    "hf": ("QuantizationConfig",), "ir.dtypes": ("dtype", "pack", "unpack"),
    "matmul": (
        "Matmul", "MatmulConfig", "PackedExperts", "PackedWeight", "fp8_scaled_matmul", "grouped_matmul", "quant_bmm",
        "quant_matmul", "tune", "tune_grouped",
    ),
    "nn": ("Linear",), "runtime.kernel": ("Kernel",), "runtime.profiler": ("do_bench",),
    "specialization": ("compile", "jit"),
}  # fmt: skip
_HOMES = {name: f"tilewright.{room}" for room, names in _NAMES.items() for name in names}
"""Where each public name lives.  A room is loaded when something of it is first used, so that programs which only
mention tilewright start at once; no public name is the name of a module, or the module would hide it."""

__all__ = [
    "Kernel", "Linear", "Matmul", "MatmulConfig", "PackedExperts", "PackedWeight", "QuantizationConfig",
    "TilewrightError", "__version__", "compile",
    "convert_checkpoint", "dequantize", "do_bench", "dtype", "fp8_scaled_matmul", "grouped_matmul", "jit",
    "load_quantized", "pack", "quant_bmm", "quant_matmul",
    "quantize", "tune", "tune_grouped", "unpack",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from tilewright.errors import near

        close = near(name, __all__)
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}{': ' + close if close else ''}")
    from tilewright.collection import no_collection  # here, because importing the package alone loads nothing

    try:
        with no_collection():
            value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise ImportError(
            f"tilewright.{name} serves {error.name}, which is not installed: pip install 'tilewright[{error.name}]'",
            name=error.name,
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])
