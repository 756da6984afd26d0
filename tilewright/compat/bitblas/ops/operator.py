"""BitBLAS's place of what its operators' configurations say."""

from tilewright.compat.bitblas.base import BackendKind, OptimizeStrategy, QuantizationMemoryStage, TransformKind

__all__ = ["BackendKind", "OptimizeStrategy", "QuantizationMemoryStage", "TransformKind"]
