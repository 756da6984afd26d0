"""BitBLAS's operators."""

import sys

from tilewright.compat.bitblas import base
from tilewright.compat.bitblas.ops import permutes
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
    "LadderPermutateConfig", "Matmul", "MatmulConfig", "MatmulConfigWithSplitK", "MatmulWithSplitK", "QuantCompress",
    "QuantCompressConfig",
]  # fmt: skip

for _name in ("ladder_permutate", "lop3_permutate", "quant_compress"):  # BitBLAS's places of these
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = permutes
sys.modules[f"{__name__}.operator"] = globals()["operator"] = base
