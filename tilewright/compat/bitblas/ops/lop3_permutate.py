"""BitBLAS's place of ``LOP3Permutate``."""

from tilewright.compat.bitblas.ops.permutes import LOP3Permutate, LOP3PermutateConfig

__all__ = ["LOP3Permutate", "LOP3PermutateConfig"]
