"""Tile operators, one file each; importing this registers all of them in `nodes.TILE_OPERATORS`."""

from tilewright.ops.atomic import Atomic
from tilewright.ops.copy import Copy
from tilewright.ops.decode import Decode
from tilewright.ops.fill import Fill
from tilewright.ops.gemm import Gemm
from tilewright.ops.reduce import Reduce
from tilewright.ops.scan import Scan
from tilewright.ops.sparse_gemm import ORDERS, SparseGemm
from tilewright.ops.transpose import Transpose
from tilewright.ops.unpack import Unpack

__all__ = ["ORDERS", "Atomic", "Copy", "Decode", "Fill", "Gemm", "Reduce", "Scan", "SparseGemm", "Transpose", "Unpack"]
