"""Gemms on matrix instructions and reductions over threads, for the cuda target."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import TileOperator
from tilewright.ops.gemm import Gemm
from tilewright.ops.reduce import Reduce
from tilewright.passes.context import Override
from tilewright.targets.cuda import functions as _functions  # noqa: F401  registers what lowering calls
from tilewright.targets.cuda.gemm import lower_gemm
from tilewright.targets.cuda.reduce import lower_reduce

OVERRIDES: Mapping[type[TileOperator], Override] = {Gemm: lower_gemm, Reduce: lower_reduce}
