"""How the hip target lowers operators: products of waves, reductions over lanes.

Copies, conversions and all other work are the loops that every machine has.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Statement
from tilewright.machine.amd import ARCHITECTURES
from tilewright.ops.gemm import Gemm
from tilewright.ops.reduce import Reduce
from tilewright.passes.context import Override
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.reduce import lower_reduce

OVERRIDES: Mapping[type[Statement], Override] = {Gemm: lower_gemm, Reduce: lower_reduce}

for _arch in ARCHITECTURES.values():
    register_products(_arch.matrix_instructions)
