"""How the metal target lowers operators: products of simdgroups, reductions over threads."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Statement
from tilewright.machine.apple import FAMILIES
from tilewright.ops.gemm import Gemm
from tilewright.ops.reduce import Reduce
from tilewright.passes.context import Override
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.reduce import lower_reduce

for _arch in FAMILIES.values():
    register_products(_arch.matrix_instructions)

OVERRIDES: Mapping[type[Statement], Override] = {Gemm: lower_gemm, Reduce: lower_reduce}
