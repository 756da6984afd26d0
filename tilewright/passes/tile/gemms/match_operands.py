"""Gemms of types that no matrix instruction multiplies take both operands in the narrowest type that holds them
exactly.

Before::

    gemm(a=a, b=b, c=c)          # a: shared(float16), b: shared(float8_e4m3fn)

After::

    b_wide = shared(float16[64, 32])
    copy(b, b_wide)
    gemm(a=a, b=b_wide, c=c)

The products are the same numbers. Where there is no instruction for the wider type either, or no room for its tiles,
the gemm stays as it was.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import ALL, DType, Rewriter, Rewritten, find
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.ops import Copy, Gemm, matrix_shape
from tilewright.passes.context import Context

WIDER = ("float16", "bfloat16", "float32", "float64")
"""Types that operands become, narrowest first."""


def match_operands(function: ir.Function, context: Context) -> ir.Function:
    """Convert operands of gemms that matrix instructions can execute only then."""
    return function.with_body(_Match(context.arch)(function.body))


class _Match(Rewriter):
    def __init__(self, arch: Arch) -> None:
        self.arch, self.room = arch, 0

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        tiles = {node.buffer for node in find(kernel, ir.Allocate) if node.buffer.scope == "shared"}
        slots = max((loop.num_stages or 1 for loop in find(kernel, ir.Pipelined)), default=1)
        self.room = self.arch.shared_bytes - max(slots, 1) * sum(map(_bytes, tiles))
        return self.generic(kernel)

    def visit_Gemm(self, gemm: Gemm) -> Rewritten:
        a, b = gemm.a.dtype, gemm.b.dtype
        staged = all(region.buffer.scope in ("shared", "fragment") for region in gemm.operands)
        if gemm.token is not None or not staged or a.is_packed or b.is_packed or self._multiplied(gemm, a, b):
            return gemm
        common = next(
            (one for one in map(ALL.__getitem__, WIDER) if all(self.arch.multiplies(one, kind) for kind in (a, b))),
            None,
        )
        if common is None or a == b == common or not self._multiplied(gemm, common, common):
            return gemm
        wide = [_wide(region, common) for region in gemm.operands]
        needed = sum(_bytes(tile) for tile in wide if tile is not None and tile.scope == "shared")
        if needed > self.room:
            return gemm
        self.room -= needed
        before: list[ir.Statement] = []
        for region, tile in zip(gemm.operands, wide):
            if tile is not None:
                before += [ir.Allocate(tile, span=gemm.span), Copy(region, ir.whole(tile), span=gemm.span)]
        left, right = (ir.whole(tile) if tile else region for region, tile in zip(gemm.operands, wide))
        return [*before, replace(gemm, a=left, b=right)]

    def _multiplied(self, gemm: Gemm, a: DType, b: DType) -> bool:
        """Whether an instruction adds up products of these types in the gemm's own."""
        exact = gemm.scale_a is not None or gemm.promote_every is not None  # sums of their own, of float32
        return any(
            one.types[:2] == (a, b) and (exact or one.types[2] == gemm.c.dtype) for one in self.arch.matrix_instructions
        )


def _wide(region: ir.Region, to: DType) -> ir.Buffer | None:
    """The tile for an operand of another type."""
    if region.dtype == to:
        return None
    scope = "fragment" if region.buffer.scope == "fragment" else "shared"
    return ir.Buffer(f"{region.buffer.name}_wide", matrix_shape(region), to, scope)


def _bytes(tile: ir.Buffer) -> int:
    return tile.dtype.nbytes(tile.size)
