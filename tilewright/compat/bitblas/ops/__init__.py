"""BitBLAS's operators."""

from tilewright.compat.bitblas.ops.general_flashatten import FlashAtten, FlashAttenConfig
from tilewright.compat.bitblas.ops.general_matmul import Matmul, MatmulConfig
from tilewright.compat.bitblas.ops.general_matmul_splitk import MatmulConfigWithSplitK, MatmulWithSplitK
from tilewright.compat.bitblas.ops.permutes import (
    LadderPermutate,
    LadderPermutateConfig,
    LOP3Permutate,
    LOP3PermutateConfig,
    QuantCompress,
    QuantCompressConfig,
)

__all__ = [
    "FlashAtten", "FlashAttenConfig", "LOP3Permutate", "LOP3PermutateConfig", "LadderPermutate",
    "LadderPermutateConfig", "Matmul", "MatmulConfig",
    "MatmulConfigWithSplitK", "MatmulWithSplitK",
    "QuantCompress", "QuantCompressConfig",
]  # fmt: skip
