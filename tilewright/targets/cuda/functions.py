"""Functions of the device vocabulary that lowering calls, registered for the IR."""

from __future__ import annotations

from tilewright.ir.intrinsics import Intrinsic, register
from tilewright.targets.cuda import meanings as _meanings  # noqa: F401  gives them a meaning in NumPy

for _name in ("mma_m16n8k16", "mma_m16n8k8", "mma_m16n8k4", "mma_m16n8k32", "mma_m8n8k4"):
    register(Intrinsic(_name, 3, None, pure=False, collective=True))
for _name in ("ldmatrix", "ldmatrix_trans"):
    register(Intrinsic(_name, 3, None, pure=False, collective=True))
# Copies that a thread starts: places in shared and global memory, for the second also how many bytes are valid.
register(Intrinsic("cp_async", 2, None, pure=False))
register(Intrinsic("cp_async_zfill", 3, None, pure=False))
register(Intrinsic("cp_async_commit", 0, None, pure=False))
register(Intrinsic("cp_async_wait", 1, None, pure=False))
