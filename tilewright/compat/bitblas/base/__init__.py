"""BitBLAS's enumerations."""

from tilewright.compat.bitblas.base.operator_common import (
    BackendKind,
    OptimizeStrategy,
    QuantizationMemoryStage,
    TransformKind,
)

__all__ = ["BackendKind", "OptimizeStrategy", "QuantizationMemoryStage", "TransformKind"]
