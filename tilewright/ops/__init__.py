"""Tile operators, one file each; importing this registers all of them in `nodes.TILE_OPERATORS`."""

from typing import Any

from tilewright.ops.atomic import Atomic
from tilewright.ops.copy import Copy
from tilewright.ops.decode import Decode
from tilewright.ops.fill import Fill
from tilewright.ops.gemm import Gemm
from tilewright.ops.load_ahead import LoadAhead
from tilewright.ops.reduce import Reduce
from tilewright.ops.scan import Scan
from tilewright.ops.sparse_gemm import ORDERS, SparseGemm
from tilewright.ops.transpose import Transpose
from tilewright.ops.unpack import Unpack

__all__ = [
    "ORDERS", "Atomic", "Copy", "Decode", "Fill", "Gemm", "LoadAhead", "Reduce", "Scan", "SparseGemm", "Transpose",
    "Unpack",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`fp8_scaled_matmul` of tensors, which people look for here; the package's front door has it."""
    if name != "fp8_scaled_matmul":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tilewright

    return tilewright.fp8_scaled_matmul
