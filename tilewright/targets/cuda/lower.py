"""How the cuda target lowers operators and waits: as GPUs with asynchronous copies do, with its own products."""

from __future__ import annotations

from tilewright.ir.intrinsics import declare
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.cuda.instructions import matrix_instructions
from tilewright.targets.gpu.lower import OVERRIDES as OVERRIDES
from tilewright.targets.gpu.meanings import register_products

for _arch in ARCHITECTURES.values():
    register_products(matrix_instructions(_arch))

declare("mma_sparse_m16n8k16/4 mma_sparse_m16n8k32/4 mma_sparse_m16n8k64/4", pure=False, collective=True)
