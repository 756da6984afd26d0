"""BitBLAS's packing helpers."""

from tilewright.compat.bitblas.quantization import utils
from tilewright.compat.bitblas.quantization.utils import gen_quant4, general_compress, interleave_weight

__all__ = ["gen_quant4", "general_compress", "interleave_weight", "utils"]
