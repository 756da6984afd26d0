"""BitBLAS's enumerations."""

from __future__ import annotations

import enum
import sys

from tilewright.matmul.config import OptimizeStrategy, TransformKind

__all__ = ["BackendKind", "OptimizeStrategy", "QuantizationMemoryStage", "TransformKind"]


class BackendKind(enum.IntEnum):
    """What BitBLAS generates code with; here it is one compiler."""

    TIR = 0
    TileLang = 1


class QuantizationMemoryStage(enum.IntEnum):
    """Where BitBLAS decodes a weight."""

    Local = 0
    Shared = 1
    Global = 2


sys.modules[f"{__name__}.operator_common"] = sys.modules[__name__]
