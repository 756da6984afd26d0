"""The mixed-precision matmul library: packed weights, one product for all of them, and BitBLAS's names for it."""

from tilewright.collection import no_collection

with no_collection():
    from tilewright.matmul.config import MatmulConfig, OptimizeStrategy, TransformKind
    from tilewright.matmul.experts import grouped_matmul, quant_bmm
    from tilewright.matmul.fp8 import fp8_scaled_matmul
    from tilewright.matmul.operator import Matmul
    from tilewright.matmul.packed import PackedWeight
    from tilewright.matmul.packed_experts import PackedExperts
    from tilewright.matmul.product import quant_matmul
    from tilewright.matmul.tuning import tune, tune_grouped

__all__ = [
    "Matmul", "MatmulConfig", "OptimizeStrategy", "PackedExperts", "PackedWeight", "TransformKind", "fp8_scaled_matmul",
    "grouped_matmul", "quant_bmm", "quant_matmul", "tune", "tune_grouped",
]  # fmt: skip
