"""How the hip target lowers operators: products of waves, reductions over lanes, copies that waves start.

Other copies, conversions and all other work are the loops that every machine has.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Commit, Statement, Wait
from tilewright.machine.amd import ARCHITECTURES
from tilewright.ops import Copy, Gemm, Reduce, SparseGemm, Transpose
from tilewright.passes.context import Override
from tilewright.targets.gpu import copy_meanings as _copy_meanings  # noqa: F401  gives copies a meaning in NumPy
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.reduce import lower_reduce
from tilewright.targets.hip.async_copy import lower_commit, lower_copy, lower_wait
from tilewright.targets.hip.sparse_gemm import lower_sparse_gemm
from tilewright.targets.hip.transposed_blocks import lower_transpose

OVERRIDES: Mapping[type[Statement], Override] = {
    Gemm: lower_gemm, Reduce: lower_reduce, Copy: lower_copy, Commit: lower_commit, Wait: lower_wait,
    Transpose: lower_transpose, SparseGemm: lower_sparse_gemm,
}  # fmt: skip

for _arch in ARCHITECTURES.values():
    register_products(_arch.matrix_instructions)
