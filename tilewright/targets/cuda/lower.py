"""How the cuda target lowers operators and waits: as GPUs with asynchronous copies do, with its own products."""

from __future__ import annotations

from tilewright.ir.intrinsics import declare
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.cuda.instructions import matrix_instructions
from tilewright.targets.gpu.lower import OVERRIDES as OVERRIDES
from tilewright.targets.gpu.meanings import register_products

for _arch in ARCHITECTURES.values():
    register_products(matrix_instructions(_arch))

# Gemms of warpgroups: n, types, majors, how many steps of k and where each begins in a (unless it is in registers) and
# b, accumulator, a, b, and whether the old sum counts. Sparse ones are one step, have the selector of lanes behind the
# types, and the metadata behind b.
declare("wgmma_ss/* wgmma_rs/* wgmma_sparse_ss/9 wgmma_sparse_rs/9", pure=False, collective=True)
declare("mma_sparse_m16n8k16/4 mma_sparse_m16n8k32/4 mma_sparse_m16n8k64/4", pure=False, collective=True)
