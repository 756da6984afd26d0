"""Scaled gemms, and those whose partial sums are promoted, become plain gemms and loops that add up their results.

Before::

    gemm(
        a=a,
        b=b,
        c=total,
        scale_a=A_scales[k, row : +128],
        scale_b=B_scales[column : +1, k : +1],
        promote_every=128,
    )

After::

    part = fragment(float32[128, 128])
    gemm(a=a, b=b, c=part, clear=True)
    rows = fragment(float32[128])
    for i in parallel(128):
        rows[i] = A_scales[k, row + i]
    scale_b: float32 = B_scales[column, k]
    for i, j in parallel(128, 128):
        total[i, j] = fma(part[i, j], rows[i] * scale_b, total[i, j])

Matrix instructions then see a gemm like any other, register budgets both accumulators, and factors are on their way
while the products are made. Gemms of one size in a loop's body use the same registers one after the other: with some of
their own each, the assembler starts the next one beside the additions and spills. Only gemms that are promoted once, at
their end, are rewritten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.ir import ALL, INT32, Rewriter, Rewritten, having
from tilewright.ir import nodes as ir
from tilewright.ops import Gemm, zero
from tilewright.passes.context import Context

F32 = ALL["float32"]

MAXIMUM_BLOCKS = 8
"""Blocks of columns with a scale each: so many values stay in registers."""


def promote_sums(function: ir.Function, context: Context) -> ir.Function:
    """Rewrite gemms with scales or promotion where matrix instructions can then execute them."""
    return function.with_body(_Promote()(function.body))


Parts = dict[tuple[int, int, ir.DType], ir.Buffer]
"""Fragments for what is not promoted yet, by rows, columns and type."""


class _Promote(Rewriter):
    def __init__(self) -> None:
        self.parts: Parts = {}

    def _with_parts(self, node: Any) -> Any:
        """A loop, role or kernel whose gemms share fragments that its body begins with."""
        parts: Parts = {}
        with having(self, parts=parts):
            made = self.generic(node)
        if not parts:
            return made
        new = tuple(ir.Allocate(part, span=made.span) for part in parts.values())
        return replace(made, body=replace(made.body, statements=(*new, *made.body.statements)))

    visit_For = visit_Pipelined = visit_While = visit_Role = visit_Kernel = _with_parts

    def visit_Gemm(self, gemm: Gemm) -> Rewritten:
        scaled = gemm.scale_a is not None or gemm.scale_b is not None
        if (not scaled and gemm.promote_every is None) or gemm.shift is not None:
            return gemm
        if gemm.c.buffer.scope != "fragment" or not gemm.c.is_whole or gemm.c.dtype != F32 or gemm.token is not None:
            return gemm
        if gemm.promote_every not in (None, gemm.k) or not all(_fits(gemm, is_a) for is_a in (True, False)):
            return gemm
        return _promoted(gemm, self.parts)


def _fits(gemm: Gemm, is_a: bool) -> bool:
    """Whether a scale is one of whole rows or columns, or of few blocks of them."""
    across, deep = gemm.scale_blocks(is_a)
    return deep == 1 and (across == (gemm.m if is_a else gemm.n) or across <= MAXIMUM_BLOCKS)


def _promoted(gemm: Gemm, parts: Parts) -> list[ir.Statement]:
    i, j = ir.Var(INT32, "i"), ir.Var(INT32, "j")
    key = gemm.m, gemm.n, ALL["int32"] if gemm.a.dtype.is_integer and gemm.b.dtype.is_integer else F32
    part = parts.setdefault(key, ir.Buffer("part", key[:2], key[2], "fragment"))
    behind: list[ir.Statement] = []
    factors = [_factor(gemm, is_a, var, behind) for is_a, var in ((True, i), (False, j))]
    product = replace(gemm, c=ir.whole(part), clear=True, scale_a=None, scale_b=None, promote_every=None)
    c = gemm.c.buffer
    where = (*(ir.const(0) for _ in range(c.rank - 2)), i, j)
    old: ir.Expr = ir.Load(F32, c, where)
    if isinstance(gemm.clear, ir.Expr):
        old = ir.Select(F32, gemm.clear, zero(F32), old)
    value = ir.cast(ir.Load(part.dtype, part, (i, j)), F32)
    known = [factor for factor in factors if factor is not None]
    factor = known[0] if len(known) == 1 else ir.binary("mul", *known) if known else None
    if factor is None:
        added = value if gemm.clear is True else ir.binary("add", old, value)
    else:
        added = ir.binary("mul", value, factor) if gemm.clear is True else ir.Call(F32, "fma", (value, factor, old))
    body = ir.seq(ir.Store(c, where, added, span=gemm.span))
    return [product, *behind, ir.Parallel((i, j), (gemm.m, gemm.n), body, span=gemm.span)]


def _factor(gemm: Gemm, is_a: bool, var: ir.Var, behind: list[ir.Statement]) -> ir.Expr | None:
    """What row `var` of op(a), or column `var` of op(b), is multiplied by; what loads it goes to `behind`."""
    scale, size = (gemm.scale_a, gemm.m) if is_a else (gemm.scale_b, gemm.n)
    if scale is None:
        return None
    across, _ = gemm.scale_blocks(is_a)
    if across == size and size > 1:
        index = ir.Var(INT32, var.name)
        line = ir.Buffer("rows" if is_a else "columns", (size,), F32, "fragment")
        value = ir.cast(_element(gemm, scale, is_a, index), F32)
        body = ir.seq(ir.Store(line, (index,), value, span=gemm.span))
        behind += [ir.Allocate(line, span=gemm.span), ir.Parallel((index,), (size,), body, span=gemm.span)]
        return ir.Load(F32, line, (var,))
    names = []
    for block in range(across):
        name = ir.Var(F32, "scale_a" if is_a else "scale_b")
        behind.append(ir.Let(name, ir.cast(_element(gemm, scale, is_a, ir.const(block)), F32), span=gemm.span))
        names.append(name)
    factor: ir.Expr = names[-1]
    for block in reversed(range(across - 1)):
        inside = ir.index_binary("lt", var, (block + 1) * (size // across))
        factor = ir.Select(F32, inside, names[block], factor)
    return factor


def _element(gemm: Gemm, scale: ir.Region, is_a: bool, block: ir.Expr) -> ir.Expr:
    """The scale of one block of rows of op(a), or columns of op(b)."""
    starts = list(scale.starts)
    if gemm.is_line(scale, is_a):
        axis = len(starts) - 1
    else:
        kept = [axis for axis, extent in enumerate(scale.extents) if extent != 1]
        last_two = range(len(starts) - 2, len(starts))
        axis = kept[0] if kept else last_two[1 - gemm.axis_of_k(is_a)]
    starts[axis] = starts[axis] + block
    return ir.Load(scale.dtype, scale.buffer, tuple(starts))
