"""Statements: what kernels and host programs do, but for the operators on tiles (`nodes` has their base).

What programs mean is said in `nodes`, which publishes all of this.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeAlias

from tilewright.errors import Span
from tilewright.ir.expressions import Call, Const, Expr, Extent, Record, Var, node
from tilewright.ir.regions import Buffer, Region


@node
class Statement(Record):
    """Something that happens; ``span`` is its place in the author's file."""

    span: Span | None = field(default=None, kw_only=True)


@node
class Seq(Statement):
    """Statements in order.  What a `Let` or an `Allocate` names is in scope to the end of its Seq."""

    statements: tuple[Statement, ...]

    @property
    def declares(self) -> bool:
        """Whether names begin in it, so that it cannot be taken apart."""
        return any(isinstance(statement, (Let, Allocate)) for statement in self.statements)


@node
class Let(Statement):
    """Names a value; the name is immutable."""

    var: Var
    value: Expr


@node
class Allocate(Statement):
    """A buffer that lives to the end of the enclosing Seq (in a host program: to the end of the call)."""

    buffer: Buffer
    initial: Expr | None = None
    """First value of a ``scalar`` buffer, if any; the address of a placed one."""


@node
class Store(Statement):
    """``buffer[indices] = value``; a vector goes to consecutive elements of the last dimension."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node
class Evaluate(Statement):
    """A call for its effect."""

    value: Call


@node
class If(Statement):
    """``then`` where the condition holds, else ``otherwise``."""

    condition: Expr
    then: Seq
    otherwise: Seq | None = None


@node
class For(Statement):
    """``for var in range(start, stop, step)``.

    kind : ``serial``; ``unroll`` (the emitter repeats the body); ``vectorize`` (iterations are
    independent and may run as vector lanes; thread programs and `T.vectorized`).
    """

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    body: Seq
    kind: str = "serial"

    @property
    def numbers(self) -> range | None:
        """The values of `var`, where all are known."""
        return _range(self.start, self.stop, self.step)

    @property
    def runs_once(self) -> bool:
        """Whether there is one iteration, as far as is known."""
        return self.numbers is not None and len(self.numbers) == 1


@node
class Pipelined(Statement):
    """A loop whose iterations may overlap: loads of later ones run beside the work of earlier ones.

    Its meaning is that of the serial loop.  `order` and `stage` are the author's plan, one number a
    statement of the body, or None.
    """

    var: Var
    start: Expr
    stop: Expr
    body: Seq
    num_stages: int = 0
    order: tuple[int, ...] | None = None
    stage: tuple[int, ...] | None = None
    specialize: bool | None = None

    @property
    def numbers(self) -> range | None:
        """The values of `var`, where all are known."""
        return _range(self.start, self.stop)


def _range(*ends: Expr) -> range | None:
    known = [int(end.value) for end in ends if isinstance(end, Const)]
    return range(*known) if len(known) == len(ends) else None


@node
class Parallel(Statement):
    """Element-wise work of the whole block: iterations are independent and run in any order.

    `layout` is the author's loop layout (an index map to threads and registers), or None.  A loop that brings rows of a
    tensor into a shared tile and nothing else may `prefer` ``"cp_async"``, and be asynchronous as a tile operator is:
    by its `token`.
    """

    vars: tuple[Var, ...]
    extents: tuple[Extent, ...]
    body: Seq
    layout: Any = None
    coalesced_width: int | None = None
    prefer: str | None = None
    token: str | None = None


@node
class While(Statement):
    """``body`` as long as the condition holds before it."""

    condition: Expr
    body: Seq


@node
class Break(Statement):
    """Leaves the innermost serial loop."""


@node
class Continue(Statement):
    """Goes to the next iteration of the innermost serial loop."""


@node
class Return(Statement):
    """The thread, or where no condition mentions a thread the whole block, is done (`T.thread_return`)."""


@node
class Assert(Statement):
    """`T.device_assert`: what does not hold ends the program, with the message and the author's line."""

    condition: Expr
    message: str = ""


@node
class Assume(Statement):
    """A fact that the author vouches for; the simplifier uses it, the interpreter checks it."""

    condition: Expr


@node
class Print(Statement):
    """``print(...)`` on symbolic values: texts, scalars and tiles, shown where the program runs (`ops.prints`).

    ``breakpoint()`` is a Print with ``stop=True``: the interpreter opens the debugger with the tiles named.
    `thread` is the one that shows what the whole block has.
    """

    values: tuple[Expr | Region | str, ...]
    stop: bool = False
    thread: int = 0


# Asynchrony and roles ---------------------------------------------------------------------------

Token: TypeAlias = str
"""What an asynchronous operator yields: a name within its kernel.

A tile operator with a token only *starts* where it stands; its reads and writes happen at any time from there to
the `Wait` that covers it.  Operators join the token's open group, `Commit` closes it, `Wait` waits for groups, in
the order in which they were closed.  Each role counts its own groups."""


@node
class Commit(Statement):
    """Closes the open group of a token: what was started since the last `Commit` (perhaps nothing)."""

    token: Token


@node
class Wait(Statement):
    """Waits until at most `pending` of the closed groups of a token are unfinished.

    `reading_only` waits for their reads alone: their source may be overwritten, their writes may still be on
    the way (stores that leave through shared memory).  `others` groups of other tokens, closed later than those waited
    for, may be unfinished too, where the machine counts the groups of all tokens together. Where `full` does not hold
    some of those `pending` groups are empty, and a machine that counts copies in place of groups waits for all.
    """

    token: Token
    pending: int = 0
    reading_only: bool = False
    others: int = 0
    full: Expr | None = None


CHANNEL_SCOPES = ("warp", "warpgroup", "block", "cluster")


@node
class Channel(Statement):
    """A ring of slots through which roles hand tiles to one another, until the end of the enclosing Seq.

    It holds neither arrival counts nor bytes nor parities: what its statements become decides those.
    Iteration number i uses slot ``i % stages``; `Acquire`, `Publish`, `Receive` and `Release` name the running
    number, and each role goes through 0, 1, 2, ... without gaps.

    Attributes
    ----------
    name : its name within the kernel.
    buffers : shared buffers whose first dimension counts the slots.
    writers, readers : names of roles.
    scope : one of `CHANNEL_SCOPES`: whose threads it joins.  One of scope ``"warp"`` is a ring that each warp of one
        role fills and empties alone; the first dimension of its buffers counts the role's instances, the second
        the slots.
    alternate : whether each iteration is read by one instance of the reader alone. Instances receive in the order of
        the numbers: they take turns.
    """

    name: str
    buffers: tuple[Buffer, ...]
    stages: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    scope: str = "block"
    alternate: bool = False

    @property
    def is_private(self) -> bool:
        """Whether each warp has slots of its own."""
        return self.scope == "warp"


@node
class ChannelStatement(Statement):
    """Base of what a role does with a channel in iteration number `iteration`."""

    channel: str
    iteration: Expr


@node
class Acquire(ChannelStatement):
    """A writer waits until every reader has released its slot's previous contents."""


@node
class Publish(ChannelStatement):
    """A writer hands its slot over: readers receive it once all that was copied there since `Acquire` has landed."""


@node
class Receive(ChannelStatement):
    """A reader waits until every writer has published its slot."""


@node
class Release(ChannelStatement):
    """A reader is done with its slot."""


WARP, WARPGROUP = 32, 128
"""Threads of a warp and of a warpgroup, as the language counts them on every machine.

A machine that runs 64 lanes together runs two warps at once (`Arch.warp_size`).
"""

NAMED_BARRIERS = 16
"""Of a block, number 0 among them, at which all of its threads meet; roles and the author share the others."""

REGISTER_COUNTS, REGISTER_COUNTS_SAID = range(24, 257, 8), "a multiple of 8 from 24 to 256"
"""Registers that a program may give the threads of a role; a machine without such shares does not read them."""


@node
class Role(Statement):
    """What some warps of the block do; stands in `Roles` only.

    In its body the block's threads are the role's: tile operators act on its threads alone, fragments spread
    over them.

    Attributes
    ----------
    name : its name within the kernel.
    warps : how many.
    registers : of each of its threads, where the author or a pass says so (a multiple of 8).
    instances : how often the role stands side by side, each time on warps of its own.
    index : in the body, which of the instances executes it; None where there is one.
    """

    name: str
    warps: int
    body: Seq
    registers: int | None = None
    instances: int = 1
    index: Var | None = None

    @property
    def threads(self) -> int:
        """Threads of one instance."""
        return self.warps * WARP

    @property
    def all_warps(self) -> int:
        """Warps of all instances together."""
        return self.warps * self.instances


@node
class Roles(Statement):
    """Roles that run at once, each on its own warps: the block's, in order.  A barrier of all of them ends it."""

    roles: tuple[Role, ...]

    def warpgroups(self) -> list[tuple[Role, ...]]:
        """The roles, those together that share warpgroups: they keep the same number of registers."""
        found: list[list[Role]] = [[]]
        warps = 0
        for role in self.roles:
            if warps % 4 == 0 and found[-1]:
                found.append([])
            found[-1].append(role)
            warps += role.all_warps
        return [tuple(group) for group in found]
