"""How the hip target lowers operators: products of waves, reductions over lanes, copies that waves start.

Other copies, conversions and all other work are the loops that every machine has.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Commit, Statement, Wait
from tilewright.machine.amd import ARCHITECTURES
from tilewright.machine.instructions import MatrixInstruction
from tilewright.ops import Copy, Gemm, Reduce, SparseGemm, Transpose
from tilewright.passes.context import Override
from tilewright.targets.gpu.copies import copy_meanings as _copy_meanings  # noqa: F401  gives copies a meaning in NumPy
from tilewright.targets.gpu.copies.counted_copies import lower_commit, lower_copy, lower_wait
from tilewright.targets.gpu.copies.transposed_blocks import lower_transpose
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products, register_sparse
from tilewright.targets.gpu.products.sparse_waves import lower_sparse_gemm, multiply_sparse
from tilewright.targets.gpu.reduce import lower_reduce

OVERRIDES: Mapping[type[Statement], Override] = {
    Gemm: lower_gemm, Reduce: lower_reduce, Copy: lower_copy, Commit: lower_commit, Wait: lower_wait,
    Transpose: lower_transpose, SparseGemm: lower_sparse_gemm,
}  # fmt: skip

for _arch in ARCHITECTURES.values():
    register_products(_arch.products(MatrixInstruction))
    register_sparse(_arch.sparse_instructions, multiply_sparse)
