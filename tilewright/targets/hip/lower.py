"""How the hip target lowers operators: products of waves, reductions over lanes.

Copies, conversions and all other work are the loops that every machine has.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Commit, Seq, Statement, Wait, seq
from tilewright.machine.amd import ARCHITECTURES
from tilewright.ops.gemm import Gemm
from tilewright.ops.reduce import Reduce
from tilewright.passes.context import Context, Override
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.reduce import lower_reduce


def landed(statement: Commit | Wait, context: Context) -> Seq:
    """Threads load and store by themselves: what an author begins and waits for by hand has happened where it began."""
    return seq()


OVERRIDES: Mapping[type[Statement], Override] = {Gemm: lower_gemm, Reduce: lower_reduce, Commit: landed, Wait: landed}

for _arch in ARCHITECTURES.values():
    register_products(_arch.matrix_instructions)
