"""Roles, channels and asynchronous products: a kernel whose warps divide the work, written by hand.

>>> ring = T.channel(A_ring, B_ring, writers="producer", readers="consumers")
>>> with T.roles():
...     with T.role("consumers", warps=8, registers=232):
...         for k in T.serial(steps):
...             slot = ring.receive(k)
...             T.wgmma_gemm(A_ring[slot, :, :], B_ring[slot, :, :], total, transpose_B=True)
...             T.wait_wgmma(0)
...             ring.release(k)
...     with T.role("producer", warps=4, registers=40):
...         for k in T.serial(steps):
...             slot = ring.acquire(k)
...             T.copy(A[row, k * 64], A_ring[slot, :, :])
...             T.copy(B[column, k * 64], B_ring[slot, :, :])
...             ring.publish(k)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright import ops
from tilewright.ir import find, root
from tilewright.ir import nodes as ir
from tilewright.language.branches import BlockContext
from tilewright.language.buffers import BufferProxy, region_of
from tilewright.language.mistakes import MisplacedRole, NumberExpected, TileExpected
from tilewright.language.proxies import Scalar, Value, as_expr, constant_within, describe, one_of, positive
from tilewright.language.recording import Builder, Frame, called, current, in_kernel, record, statement_here, word
from tilewright.language.tile_ops import gemm
from tilewright.language.warpgroups import register_count

KEPT = f"{ir.REGISTER_COUNTS_SAID}, the same for all roles of 4, 8, 12, ... warps"
"""What registers of a role may be."""

WGMMA = "wgmma"
"""The token of `wgmma_gemm`: one queue of groups a role."""


class Channel:
    """A ring of slots that roles hand to one another; `T.channel` makes it.

    Each role goes through the iterations 0, 1, 2, ...; iteration i uses slot ``i % stages``, which `acquire` and
    `receive` give back.
    """

    def __init__(self, name: str, stages: int, frame: Frame) -> None:
        self.name, self.stages, self.frame = name, stages, frame

    def acquire(self, iteration: object) -> Scalar:
        """A writer waits until its slot is free.  Returns the slot's number."""
        return self._step(ir.Acquire, iteration, "acquire")

    def publish(self, iteration: object) -> None:
        """A writer hands its slot over: it is received once all that was copied there has landed."""
        self._step(ir.Publish, iteration, "publish")

    def receive(self, iteration: object) -> Scalar:
        """A reader waits until its slot is filled.  Returns the slot's number."""
        return self._step(ir.Receive, iteration, "receive")

    def release(self, iteration: object) -> None:
        """A reader is done with its slot."""
        self._step(ir.Release, iteration, "release")

    def _step(self, kind: type[ir.ChannelStatement], iteration: object, word: str) -> Scalar:
        builder = in_kernel(word)
        if builder.enclosing("T.role") is None:
            raise MisplacedRole(f"`{word}` stands outside of `T.role`", "a channel joins roles: write it inside one")
        number = as_expr(iteration, ir.dtypes.INT32, f"the iteration of {word}")
        record(kind(self.name, number, span=statement_here()), word)
        frame = iteration.frame if isinstance(iteration, Scalar) else None
        return Scalar(number % self.stages, frame)


@word
def channel(
    *buffers: object, writers: str | Iterable[str], readers: str | Iterable[str], scope: str = "block"
) -> Channel:
    """A channel of shared tiles whose first dimension counts the slots.

    Parameters
    ----------
    buffers : made by `alloc_shared`, all with the same first extent.
    writers, readers : names of roles, one or a tuple of them.
    scope : ``"warp"``, ``"warpgroup"``, ``"block"`` or ``"cluster"``.  With ``"warp"`` every instance of one role (of
        one warp) has slots of its own, which it fills and empties: the first dimension of the buffers counts
        instances, the second slots.
    """
    builder = in_kernel("T.channel")
    tiles: list[ir.Buffer] = []
    for buffer in buffers:
        if not isinstance(buffer, BufferProxy) or buffer.buffer.scope != "shared" or buffer.buffer.rank < 2:
            raise TileExpected("T.channel", describe(buffer))
        tiles.append(buffer.buffer)
    if scope == "warp" and any(tile.rank < 3 for tile in tiles):
        raise NumberExpected("T.channel of scope 'warp'", "tiles of shape (instances, slots, ...)", "fewer dimensions")
    depths = {tile.static_shape[1 if scope == "warp" else 0] for tile in tiles}
    if len(depths) != 1:
        raise NumberExpected("T.channel", "shared tiles with the same number of slots", str(sorted(depths)))
    one_of(scope, ir.CHANNEL_SCOPES, "the scope of T.channel")
    name = builder.take_name("channel")
    stages = depths.pop()
    made = ir.Channel(name, tuple(tiles), stages, _names(writers), _names(readers), scope, span=statement_here())
    builder.append(made)
    return Channel(name, stages, builder.frame)


def refuse_registers_of_others(body: ir.Seq) -> None:
    """Tiles in registers are those of the threads that made them: a role has its own."""
    for role in find(body, ir.Role):
        own = {node.buffer for node in find(role.body, ir.Allocate)}
        for buffer in find(role.body, ir.Buffer):
            if buffer.scope == "fragment" and root(buffer) not in own:
                raise MisplacedRole(
                    f"the role {role.name!r} uses {buffer.name!r}, which lies in registers of other threads, too",
                    "make it in the role, or with T.alloc_shared",
                ).at(role.span)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


class RolesContext(BlockContext):
    """The ``with`` frame that holds roles, and nothing else."""

    def __init__(self) -> None:
        self.span = statement_here()

    def __enter__(self) -> None:
        builder = in_kernel("T.roles")
        if builder.enclosing("T.role") is not None:
            raise MisplacedRole("`T.roles` stands in a role", "a role's warps cannot be divided once more")
        self.frame = builder.push("T.roles", self.span)

    def __exit__(self, *exception: object) -> None:
        body = current("T.roles").pop(self.frame)
        if exception[0] is not None:
            return
        stray = next((found for found in body.statements if not isinstance(found, ir.Role)), None)
        if stray is not None:
            raise MisplacedRole(
                "a statement stands in `T.roles` outside of any role", "put it in a role, or before `T.roles`"
            ).at(stray.span)
        made = ir.Roles(tuple(found for found in body.statements if isinstance(found, ir.Role)), span=self.span)
        for group in made.warpgroups():
            kept = {role.registers for role in group}
            if kept != {None} and (len(kept) > 1 or sum(role.all_warps for role in group) % 4):
                raise NumberExpected("registers of T.role", KEPT, " and ".join(map(str, kept))).at(group[0].span)
        record(made)


class RoleContext(BlockContext):
    """The ``with`` frame of one role."""

    def __init__(self, name: str, warps: int, registers: int | None, instances: int | None) -> None:
        self.name, self.warps, self.registers = name, warps, registers
        self.instances = 1 if instances is None else instances
        self.index = None if instances is None else ir.Var(ir.dtypes.INT32, name)
        self.span = statement_here()

    def __enter__(self) -> Value | None:
        builder: Builder = in_kernel("T.role")
        if builder.frame.kind != "T.roles":
            raise MisplacedRole(
                f"the role {self.name!r} stands outside of `T.roles`", "open `with T.roles():` around roles"
            )
        self.frame = builder.push("T.role", self.span)
        if self.index is None:
            return None
        if len(self.names) == 1:
            self.index = replace(self.index, name=self.names[0])
        return Scalar(self.index, self.frame)

    def __exit__(self, *exception: object) -> None:
        body = current("T.role").pop(self.frame)
        if exception[0] is None:
            record(ir.Role(self.name, self.warps, body, self.registers, self.instances, self.index, span=self.span))


@word
def roles() -> RolesContext:
    """Warp specialisation: `with T.roles():` contains the roles of the block's warps. They run concurrently, with a
    barrier at the end.

    Examples
    --------
    >>> with T.roles():
    ...     with T.role("load", warps=2):
    ...         T.copy(A, shared)
    ...     with T.role("other", warps=2):
    ...         T.copy(B, other)
    """
    return RolesContext()


@word
def role(name: str, warps: object, registers: object = None, instances: object = None) -> RoleContext:
    """What some warps of the block do.

    Parameters
    ----------
    name : how channels call it.
    warps : how many; the roles' warps together are the block's.
    registers : that each of its threads keeps, a multiple of 8; None leaves them even. Roles that share a warpgroup
        (four warps) keep the same.
    instances : how many copies of the role there are, each on `warps` warps of its own; ``with T.role(...) as
        which`` then gives the instance's number.

    Examples
    --------
    >>> with T.roles():
    ...     with T.role("load", warps=2):
    ...         T.copy(A, shared)
    ...     with T.role("other", warps=2):
    ...         T.copy(B, other)
    """
    copies = None if instances is None else positive(instances, "instances of T.role")
    kept = None if registers is None else register_count(registers, "registers of T.role", KEPT)
    return RoleContext(name, positive(warps, "warps of T.role"), kept, copies)


@called("wgmma_mma")
@word
def wgmma_gemm(
    A: object,
    B: object,
    C: object,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: object = "square",
    clear_accum: object = False,
    annotations: object = None,
) -> None:
    """`gemm` by whole warpgroups, started and not waited for: `wait_wgmma` does that before C is touched.

    Until then A and B stay as they are.  Operands are as those of `gemm`; A and B lie in shared tiles that
    asynchronous copies filled.

    Parameters
    ----------
    A, B, C, transpose_A, transpose_B, policy, clear_accum, annotations : as those of `gemm`.

    Examples
    --------
    >>> half, B2 = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
    >>> T.fill(half, 1)
    >>> T.fill(B2, 1)
    >>> T.clear(tile)
    >>> T.wgmma_gemm(half, B2, tile)
    >>> T.wait_wgmma(0)
    """
    builder = in_kernel("T.wgmma_gemm")
    gemm(A, B, C, transpose_A, transpose_B, policy, clear_accum)
    started = builder.frame.statements.pop()
    assert isinstance(started, ops.Gemm)
    builder.append(replace(started, token=WGMMA))
    builder.append(ir.Commit(WGMMA, span=started.span))


@word
def wait_wgmma(id: object = 0, *finished: object) -> None:
    """Wait until at most `id` of this role's `wgmma_gemm` are unfinished.

    Parameters
    ----------
    id : how many may still be pending.
    finished : accumulators of none of these, which are read or written while they run.

    Examples
    --------
    >>> half, B2 = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
    >>> T.fill(half, 1)
    >>> T.fill(B2, 1)
    >>> T.clear(tile)
    >>> T.wgmma_gemm(half, B2, tile)
    >>> T.wait_wgmma(0)
    """
    builder = in_kernel("T.wait_wgmma")
    count = constant_within(id, "the argument of T.wait_wgmma", 0, 7)
    record(ir.Wait(WGMMA, count, span=statement_here()))
    for fragment in finished if count else ():
        region = region_of(fragment, "an accumulator of T.wait_wgmma")
        builder.append(ir.Evaluate(ir.Call(ir.dtypes.BOOL, "settle", (region,)), span=statement_here()))
