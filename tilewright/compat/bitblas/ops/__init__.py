"""BitBLAS's operators."""

from tilewright.compat.bitblas.ops.general_matmul import Matmul, MatmulConfig
from tilewright.compat.bitblas.ops.permutes import (
    LadderPermutate,
    LadderPermutateConfig,
    LOP3Permutate,
    LOP3PermutateConfig,
    QuantCompress,
    QuantCompressConfig,
)

__all__ = [
    "LOP3Permutate", "LOP3PermutateConfig", "LadderPermutate", "LadderPermutateConfig", "Matmul", "MatmulConfig",
    "QuantCompress", "QuantCompressConfig",
]  # fmt: skip
