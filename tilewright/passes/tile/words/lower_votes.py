"""`T.any_of` and `T.all_of`, where threads share a block's work: a reduction of a fragment, a loop of each thread over
other tiles.

Before::

    if any_of(mask[by, 0 : +4]):
        ...

After::

    found = scalar(bool)
    found = False
    for i in range(4):
        found = found or mask[by, i]
    if found:
        ...
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import MissingCapability
from tilewright.ir import BOOL, INT32, Rewritten, find, fresh, having
from tilewright.ir import nodes as ir
from tilewright.ops import Copy, Reduce, zero
from tilewright.passes import Context, HoistingRewriter, nested

VOTES = {"any_of": "any", "all_of": "all"}


def lower_votes(function: ir.Function, context: Context) -> ir.Function:
    """Compute before a statement what it asks of whole tiles.

    Raises
    ------
    MissingCapability : elements of a parallel loop ask about fragments, which the whole block does together.
    """
    if not any(call.function in VOTES for call in find(function.body, ir.Call)):
        return function
    return function.with_body(_Votes()(function.body))


class _Votes(HoistingRewriter):
    def __init__(self) -> None:
        super().__init__()
        self.in_parallel = False

    def placed(self, made: Rewritten) -> Rewritten:
        """Iterations of a loop ask anew."""
        if not isinstance(made, ir.While):
            return made
        again = [fresh(part) for part in self.before if not isinstance(part, ir.Allocate)]
        return replace(made, body=replace(made.body, statements=(*made.body.statements, *again)))

    def visit_Parallel(self, loop: ir.Parallel) -> Rewritten:
        with having(self, in_parallel=True):
            return self.generic(loop)

    def visit_Call(self, call: ir.Call) -> ir.Expr:
        made: ir.Call = self.generic(call)
        if made.function not in VOTES:
            return made
        (region,), kind = made.regions, VOTES[made.function]
        return self._folded(region, kind) if region.buffer.scope == "fragment" else self._scanned(region, kind)

    def _folded(self, region: ir.Region, kind: str) -> ir.Expr:
        """What all threads get of a reduction."""
        if self.in_parallel:
            raise MissingCapability(
                f"single elements of a T.Parallel cannot ask about the fragment {region.buffer.name!r}, which "
                "lies in many threads",
                hint=f"ask before the loop: `found = T.{kind}_of({region.buffer.name})`",
            )
        shape = region.static_tile_shape
        source = ir.Buffer(f"{region.buffer.name}_part", shape, region.dtype, "fragment")
        self.before += [ir.Allocate(source), Copy(region, ir.whole(source))]
        while True:
            left = shape[:-1] or (1,)
            folded = ir.Buffer("found", left, BOOL, "fragment")
            self.before += [ir.Allocate(folded), Reduce(ir.whole(source), ir.whole(folded), kind)]
            source, shape = folded, shape[:-1]
            if not shape:
                return ir.Load(BOOL, folded, (ir.const(0),))

    def _scanned(self, region: ir.Region, kind: str) -> ir.Expr:
        """What a thread finds that looks at every element."""
        found = ir.Buffer("found", (), BOOL, "scalar")
        vars = tuple(ir.Var(INT32, "i") for _ in region.extents)
        place = tuple(start + var for start, var in zip(region.starts, vars, strict=True))
        element: ir.Expr = ir.Load(region.dtype, region.buffer, place)
        if region.dtype != BOOL:
            element = ir.binary("ne", element, zero(region.dtype))
        step: ir.Statement = ir.Store(found, (), ir.binary(kind, ir.Load(BOOL, found, ()), ir.cast(element, BOOL)))
        loops = nested(vars, region.extents, ir.seq(step), ["serial"] * len(vars))
        self.before += [ir.Allocate(found), ir.Store(found, (), ir.const(kind == "all", BOOL)), loops]
        return ir.Load(BOOL, found, ())
