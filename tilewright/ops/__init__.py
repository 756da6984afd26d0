"""Tile operators, one file each; importing this registers all of them in `nodes.TILE_OPERATORS`."""

from typing import Any

from tilewright.ops.atomic import Atomic as Atomic
from tilewright.ops.base import *
from tilewright.ops.copy import *
from tilewright.ops.copy_schedule import *
from tilewright.ops.decode import *
from tilewright.ops.fill import *
from tilewright.ops.gemm import *
from tilewright.ops.gemm_plan import *
from tilewright.ops.load_ahead import *
from tilewright.ops.product import *
from tilewright.ops.reduce import *
from tilewright.ops.rounding import *
from tilewright.ops.scan import *
from tilewright.ops.sparse_gemm import *
from tilewright.ops.transpose import *
from tilewright.ops.unpack import *


def __getattr__(name: str) -> Any:
    """`fp8_scaled_matmul` of tensors, which people look for here; the package's front door has it."""
    if name != "fp8_scaled_matmul":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tilewright

    return tilewright.fp8_scaled_matmul
