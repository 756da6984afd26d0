"""BitBLAS's place of ``LadderPermutate``."""

from tilewright.compat.bitblas.ops.permutes import LadderPermutate, LadderPermutateConfig

__all__ = ["LadderPermutate", "LadderPermutateConfig"]
