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
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Expr,
    Function,
    Load,
    Parallel,
    Region,
    Statement,
    Store,
    Var,
    While,
    binary,
    cast,
    const,
    seq,
    whole,
)
from tilewright.ir.visitor import Rewritten, find, fresh, having
from tilewright.ops.base import zero
from tilewright.ops.copy import Copy
from tilewright.ops.reduce import Reduce
from tilewright.passes.context import Context
from tilewright.passes.scoped import HoistingRewriter, nested

VOTES = {"any_of": "any", "all_of": "all"}


def lower_votes(function: Function, context: Context) -> Function:
    """Compute before a statement what it asks of whole tiles.

    Raises
    ------
    MissingCapability : elements of a parallel loop ask about fragments, which the whole block does together.
    """
    if not any(call.function in VOTES for call in find(function.body, Call)):
        return function
    return function.with_body(_Votes()(function.body))


class _Votes(HoistingRewriter):
    def __init__(self) -> None:
        super().__init__()
        self.in_parallel = False

    def placed(self, made: Rewritten) -> Rewritten:
        """Iterations of a loop ask anew."""
        if not isinstance(made, While):
            return made
        again = [fresh(part) for part in self.before if not isinstance(part, Allocate)]
        return replace(made, body=replace(made.body, statements=(*made.body.statements, *again)))

    def visit_Parallel(self, loop: Parallel) -> Rewritten:
        with having(self, in_parallel=True):
            return self.generic(loop)

    def visit_Call(self, call: Call) -> Expr:
        made: Call = self.generic(call)
        if made.function not in VOTES:
            return made
        (region,) = made.arguments
        assert isinstance(region, Region)
        kind = VOTES[made.function]
        return self._folded(region, kind) if region.buffer.scope == "fragment" else self._scanned(region, kind)

    def _folded(self, region: Region, kind: str) -> Expr:
        """What all threads get of a reduction."""
        if self.in_parallel:
            raise MissingCapability(
                f"single elements of a T.Parallel cannot ask about the fragment {region.buffer.name!r}, which "
                "lies in many threads",
                hint=f"ask before the loop: `found = T.{kind}_of({region.buffer.name})`",
            )  # fmt: skip
        shape = region.static_tile_shape
        source = Buffer(f"{region.buffer.name}_part", shape, region.dtype, "fragment")
        self.before += [Allocate(source), Copy(region, whole(source))]
        while True:
            left = shape[:-1] or (1,)
            folded = Buffer("found", left, BOOL, "fragment")
            self.before += [Allocate(folded), Reduce(whole(source), whole(folded), kind)]
            source, shape = folded, shape[:-1]
            if not shape:
                return Load(BOOL, folded, (const(0),))

    def _scanned(self, region: Region, kind: str) -> Expr:
        """What a thread finds that looks at every element."""
        found = Buffer("found", (), BOOL, "scalar")
        vars = tuple(Var(INT32, "i") for _ in region.extents)
        place = tuple(start + var for start, var in zip(region.starts, vars, strict=True))
        element: Expr = Load(region.dtype, region.buffer, place)
        if region.dtype != BOOL:
            element = binary("ne", element, zero(region.dtype))
        step: Statement = Store(found, (), binary(kind, Load(BOOL, found, ()), cast(element, BOOL)))
        loops = nested(vars, region.extents, seq(step), ["serial"] * len(vars))
        self.before += [Allocate(found), Store(found, (), const(kind == "all", BOOL)), loops]
        return Load(BOOL, found, ())
