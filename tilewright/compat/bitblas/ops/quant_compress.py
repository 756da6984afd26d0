"""BitBLAS's place of ``QuantCompress``."""

from tilewright.compat.bitblas.ops.permutes import QuantCompress, QuantCompressConfig

__all__ = ["QuantCompress", "QuantCompressConfig"]
