"""Blocks that multiply matrices get whole waves of the machine's: a matrix instruction takes all lanes of one.

Before, on a machine whose waves have 64 lanes::

    with kernel(blocks={bx: 8}, threads={tx: 32, ty: 1, tz: 1}):
        gemm(q, keys, scores)

After::

    with kernel(blocks={bx: 8}, threads={tx: 64, ty: 1, tz: 1}):
        gemm(q, keys, scores)

A block whose author speaks of single threads keeps those that were asked for.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Evaluate, Function, Kernel, Parallel, Role, TileOperator, Var, find
from tilewright.machine.arch import Arch
from tilewright.ops.gemm import Gemm
from tilewright.passes import Context, map_kernels


def round_threads(function: Function, context: Context) -> Function:
    """Round the threads of kernels with products up to whole waves."""
    return map_kernels(function, lambda kernel: _filled(kernel, context.arch))


def _filled(kernel: Kernel, arch: Arch) -> Kernel:
    missing = -kernel.num_threads % arch.warp_size
    if not missing or kernel.threads[1:] != (1, 1) or kernel.num_threads + missing > arch.max_threads:
        return kernel
    if not any(arch.product_rate(one.a.dtype, one.b.dtype) for one in find(kernel.body, Gemm)) or _counts(kernel):
        return kernel
    return replace(kernel, threads=(kernel.num_threads + missing, 1, 1))


def _counts(kernel: Kernel) -> bool:
    """Whether the author says which thread does what, or what each of them does: a layout, an index, a call of every
    thread's."""
    if kernel.layouts or kernel.thread_vars[0] in set(find(kernel.body, Var)):
        return True
    if any(loop.layout is not None for loop in find(kernel.body, Parallel)) or any(find(kernel.body, Role)):
        return True
    of_block = {call for part in find(kernel.body, Parallel, TileOperator) for call in find(part, Evaluate)}
    return any(call not in of_block for call in find(kernel.body, Evaluate))
