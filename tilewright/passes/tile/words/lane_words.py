"""What lanes of a warp tell one another, where the machine runs no whole warps: through shared memory, between meetings
of the block.

Before::

    B[tx] = shuffle_xor(A[tx], 1)

After::

    lanes = shared(float32[64])
    sync_threads()
    lanes[tx] = A[tx]
    sync_threads()
    B[tx] = lanes[tx - (tx & 31) + (tx & 31 ^ 1) if (tx & 31 ^ 1) < 32 else tx]
"""

from __future__ import annotations

import math
from functools import partial, reduce

from tilewright.ir import INT32, UINT32, perform
from tilewright.ir import nodes as ir

SHUFFLES = frozenset({"shuffle", "shuffle_xor", "shuffle_up", "shuffle_down"})
COMBINED = {**{f"warp_{kind}": kind for kind in ("add", "min", "max", "and", "or", "xor")}, "simdgroup_add": "add"}
LANE_WORDS = SHUFFLES | {*COMBINED, "ballot"}
"""Those that `exchanged` says otherwise."""

SIMDGROUP = {"simdgroup_add"}
"""Of these, what lanes do that the machine runs together, however many."""

OF_WARPS = LANE_WORDS - SIMDGROUP | {"sync_warp", "match_any", "match_all"}
"""What the threads of a warp do together."""


def exchanged(call: ir.Call, kernel: ir.Kernel) -> tuple[list[ir.Statement], ir.Expr]:
    """What comes before the statement of one of these words, and its value; the word itself for blocks that do not
    consist of whole warps."""
    if kernel.num_threads % ir.WARP:
        return [], call
    said, *others = call.operands
    if call.function == "ballot":
        bit = ir.binary("shl", ir.const(1, UINT32), ir.cast(_lane(kernel), UINT32))
        return _combined(ir.Select(UINT32, said, bit, ir.const(0, UINT32)), "or", kernel)
    if call.function in COMBINED:
        return _combined(said, COMBINED[call.function], kernel)
    pool = _pool(said, kernel)
    lane, (by,) = _lane(kernel), others
    by = ir.cast(by, INT32)
    inside: ir.Expr = ir.const(True)
    if call.function == "shuffle":
        wanted = ir.binary("and", by, ir.const(ir.WARP - 1))
    else:
        op = {"shuffle_xor": "xor", "shuffle_up": "sub", "shuffle_down": "add"}[call.function]
        wanted = ir.binary(op, lane, by)
        inside = ir.binary("all", ir.binary("ge", wanted, ir.const(0)), ir.binary("lt", wanted, ir.const(ir.WARP)))
    number = _number(kernel)
    source = ir.Select(INT32, inside, number - lane + wanted, number)
    return [ir.Allocate(pool), *_shown(pool, said, kernel)], ir.load(pool, source)


def _combined(value: ir.Expr, op: str, kernel: ir.Kernel) -> tuple[list[ir.Statement], ir.Expr]:
    """The values of a warp's lanes in every lane, in the order of a butterfly, as GPUs do it."""
    pool, number = _pool(value, kernel), _number(kernel)
    before: list[ir.Statement] = [ir.Allocate(pool)]
    for distance in (16, 8, 4, 2, 1):
        own = ir.Var(value.dtype, "own")
        before += [ir.Let(own, value), *_shown(pool, own, kernel)]
        value = ir.binary(op, own, ir.load(pool, ir.binary("xor", number, ir.const(distance))))
    return before, value


def _shown(pool: ir.Buffer, value: ir.Expr, kernel: ir.Kernel) -> list[ir.Statement]:
    """Every thread puts its value where all see it, once all have read what was there."""
    return [perform("sync_threads"), ir.Store(pool, (_number(kernel),), value), perform("sync_threads")]


def _pool(value: ir.Expr, kernel: ir.Kernel) -> ir.Buffer:
    return ir.Buffer("lanes", (kernel.num_threads,), value.dtype, "shared")


def _number(kernel: ir.Kernel) -> ir.Expr:
    """A thread's number in its block."""
    steps = [math.prod(kernel.threads[:axis]) for axis in range(3)]
    terms = [var * ir.const(step) for var, step, size in zip(kernel.thread_vars, steps, kernel.threads) if size > 1]
    return reduce(partial(ir.binary, "add"), terms)


def _lane(kernel: ir.Kernel) -> ir.Expr:
    return ir.binary("and", _number(kernel), ir.const(ir.WARP - 1))
