"""Functions of the device vocabulary that lowering calls, registered for the IR."""

from __future__ import annotations

from tilewright.ir.intrinsics import Intrinsic, register
from tilewright.targets.cuda import meanings as _meanings  # noqa: F401  gives them a meaning in NumPy

for _name in ("mma_m16n8k16", "mma_m16n8k8", "mma_m16n8k4", "mma_m16n8k32", "mma_m8n8k4"):
    register(Intrinsic(_name, 3, None, pure=False, collective=True))
for _name in ("ldmatrix", "ldmatrix_trans"):
    register(Intrinsic(_name, 3, None, pure=False, collective=True))
