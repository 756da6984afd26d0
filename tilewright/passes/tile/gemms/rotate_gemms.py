"""Software pipelining of two gemms: the last one of an iteration runs beside the first one of the next.

Before (attention: the second gemm needs what became of the first one's result)::

    for k in range(steps):
        receive("keys", k)
        gemm(q, keys[k % 2, :, :], scores, clear=True)
        release("keys", k)
        ...                                       # weights from scores; rescales total
        receive("values", k)
        gemm(weights, values[k % 2, :, :], total)
        release("values", k)

After::

    if steps > 0:
        receive("keys", 0)
        gemm(token="wgmma", q, keys[0, :, :], scores, clear=True)
        ...
        for k in range(1, steps):
            receive("keys", k)
            gemm(token="wgmma", q, keys[k % 2, :, :], scores, clear=True)
            commit("wgmma")
            receive("values", k - 1)
            gemm(token="wgmma_1", weights, values[(k - 1) % 2, :, :], total)
            commit("wgmma_1")
            wait("wgmma", pending=0, others=1)
            release("keys", k)
            ...                                   # what touches neither weights nor total
            wait("wgmma_1", pending=0)
            release("values", k - 1)
            ...                                   # the rest
        receive("values", steps - 1)
        gemm(token="wgmma_1", weights, values[(steps - 1) % 2, :, :], total)
        ...

Source of the schedule: FlashAttention-3 (Shah et al., 2024), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir import find, holds, substitute, touched, walk
from tilewright.ir import nodes as ir
from tilewright.ops.product import Product
from tilewright.passes.scoped import fresh
from tilewright.passes.tile.gemms.gemm_candidates import may_start_alone
from tilewright.passes.tile.gemms.gemm_groups import conditional
from tilewright.passes.tile.pipelines.pipeline_plan import needed_names


def rotate_gemms(loop: ir.For, channels: dict[str, ir.Channel], token: Callable[[], str]) -> list[ir.Statement] | None:
    """The statements that replace a loop; None where its gemms must stay in order.

    Parameters
    ----------
    token : makes names of groups.
    """
    if not ir.is_literal(loop.step, 1):
        return None
    found = _Rotation(loop, channels)
    return found.statements(token(), token()) if found.is_possible() else None


@dataclass(slots=True)
class _Rotation:
    """One loop while its last gemm is moved.

    Attributes
    ----------
    opening, between, last : statements up to the first gemm; those up to the last one's; the last gemm's.
    """

    loop: ir.For
    channels: dict[str, ir.Channel]
    declared: list[ir.Statement] = field(default_factory=list)
    opening: list[ir.Statement] = field(default_factory=list)
    between: list[ir.Statement] = field(default_factory=list)
    last: list[ir.Statement] = field(default_factory=list)

    def __post_init__(self) -> None:
        body = [one for one in self.loop.body.statements if not isinstance(one, ir.Allocate)]
        self.declared = [one for one in self.loop.body.statements if isinstance(one, ir.Allocate)]
        places = [place for place, one in enumerate(body) if isinstance(one, Product) and may_start_alone(one)]
        if len(places) < 2:
            return
        first, last = places[0], places[-1]
        gemm = body[last]
        assert isinstance(gemm, Product)
        own = {
            name
            for name, channel in self.channels.items()
            if {region.buffer for region in gemm.operands} & {*channel.buffers}
        }
        begin = last
        while begin - 1 > first and self._receives(body[begin - 1], own):
            begin -= 1
        self.opening, self.between, self.last = body[: first + 1], body[first + 1 : begin], body[begin:]

    @staticmethod
    def _receives(statement: ir.Statement, own: set[str]) -> bool:
        """Whether a statement receives the last gemm's slots, or counts them."""
        counts = isinstance(statement, ir.Assume) or (
            isinstance(statement, ir.Let) and isinstance(statement.value, ir.Load)
        )
        counts = counts or (isinstance(statement, ir.Store) and statement.buffer.scope == "scalar")
        return counts or (isinstance(statement, ir.Receive) and statement.channel in own)

    @property
    def gemm(self) -> Product:
        """The one that moves."""
        return next(one for one in self.last if isinstance(one, Product))

    @property
    def held(self) -> set[ir.Buffer]:
        """Buffers in use while it runs: its accumulator, and operands, which may be read but not written."""
        slots = {buffer for channel in self.channels.values() for buffer in channel.buffers}
        return {region.buffer for region in self.gemm.operands} - slots

    # Conditions -----------------------------------------------------------------------------------

    def is_possible(self) -> bool:
        """Whether the last gemm may run after the next iteration's first one has started."""
        if not self.last:
            return False
        behind = self.last[self.last.index(self.gemm) + 1 :]
        received = {one.channel for one in self.last if isinstance(one, ir.Receive)}
        for one in behind:
            if not isinstance(one, ir.Release):
                return False
            if one.channel not in received and self.channels[one.channel].stages < 2:
                return False  # its slot is still held when the next iteration asks for one
        if any(self._disturbs(one) for one in self.opening):
            return False
        first = self.opening[-1]
        assert isinstance(first, Product)
        if first.c.buffer in touched(self.gemm).all or any(isinstance(one, ir.Break) for one in walk(self.loop.body)):
            return False
        return all(self._number(one) is not None for one in self._defined() if isinstance(one, ir.Let))

    def _disturbs(self, statement: ir.Statement) -> bool:
        """Whether a statement must not run beside the last gemm."""
        effects = touched(statement)
        return self.gemm.c.buffer in effects.all or bool(self.held & effects.writes)

    def _defined(self) -> list[ir.Let]:
        """Names before the last gemm that its statements use."""
        lets = [one for one in (*self.opening, *self.between) if isinstance(one, ir.Let)]
        return needed_names(ir.Seq(tuple(self.last)), lets)

    def _number(self, let: ir.Let) -> bool | None:
        """True for a name that counts iterations, False for one that can be computed again, None for others."""
        if isinstance(let.value, ir.Load) and let.value.buffer.scope == "scalar":
            return True
        return None if holds(let.value, ir.Load) else False

    # The loop -------------------------------------------------------------------------------------

    def statements(self, first_token: str, last_token: str) -> list[ir.Statement]:
        """The statements that replace the loop."""
        loop = self.loop
        begins = self._copied([*self.opening, *self.between], {loop.var: ir.cast(loop.start, loop.var.dtype)})
        before, gemm, after = _around_gemm(begins)
        prologue = [*before, *self._started(gemm, first_token), ir.Wait(first_token), *after]
        before, gemm, after = _around_gemm(self._earlier(loop.var - 1))
        settled = [ir.Wait(last_token, span=loop.span), *after]
        steady = [*self.opening[:-1], *self._started(self.opening[-1], first_token), *before]
        steady += [*self._started(gemm, last_token), ir.Wait(first_token, others=1, span=loop.span)]
        free = next((i for i, one in enumerate(self.between) if self._disturbs(one)), len(self.between))
        steady += [*self.between[:free], *settled, *self.between[free:]]
        second = ir.cast(loop.start, loop.var.dtype) + 1
        before, gemm, after = _around_gemm(self._earlier(loop.stop - 1))
        epilogue = [*before, *self._started(gemm, last_token), ir.Wait(last_token), *after]
        body = [*prologue, replace(loop, start=second, body=ir.seq(steady)), *epilogue]
        return [*self.declared, *conditional(ir.index_binary("lt", loop.start, loop.stop), body, loop.span)]

    def _started(self, gemm: ir.Statement, token: str) -> list[ir.Statement]:
        assert isinstance(gemm, Product)
        return [replace(gemm, token=token), ir.Commit(token, span=gemm.span)]

    def _earlier(self, iteration: ir.Expr) -> list[ir.Statement]:
        """The last gemm's statements for the previous iteration."""
        names: list[ir.Statement] = []
        values: dict[ir.Var, ir.Expr] = {self.loop.var: iteration}
        for let in self._defined():
            if self._number(let):
                inside = any(node is self.loop.var for node in find(iteration, ir.Var))
                now = let.var if inside else self._now(let, names)
                values[let.var] = now - 1
            else:
                names.append(let)
        return self._copied([*names, *self.last], values)

    @staticmethod
    def _now(let: ir.Let, names: list[ir.Statement]) -> ir.Var:
        """The value of a counter behind the loop."""
        now = ir.Var(let.var.dtype, let.var.name)
        names.append(ir.Let(now, let.value, span=let.span))
        return now

    def _copied(self, statements: Sequence[ir.Statement], values: dict[ir.Var, ir.Expr]) -> list[ir.Statement]:
        """Statements with variables replaced, and new names."""
        return list(fresh(substitute(ir.Seq(tuple(statements)), values)).statements)


def _around_gemm(
    statements: Sequence[ir.Statement],
) -> tuple[Sequence[ir.Statement], ir.Statement, Sequence[ir.Statement]]:
    """The statements before the first gemm, the gemm, and those behind it."""
    place = next(i for i, one in enumerate(statements) if isinstance(one, Product))
    return statements[:place], statements[place], statements[place + 1 :]
