"""Parallel loops become what one thread does: its registers one after the other, several at once where memory allows.

Before (``tile`` is a fragment of 64 x 64 laid out like the loop, 128 threads)::

    for i, j in parallel(64, 64):
        tile[i, j] = A[row + i, j] * 2.0

After (each thread has rows ``g * 8 + tx // 16`` and columns from ``tx % 16 * 4``)::

    for g in unroll(8):
        i = g * 8 + tx // 16
        j = tx % 16 * 4
        A_part.x4 = A[row + i, j].x4
        for v in unroll(4):
            tile[g * 4 + v] = A_part[v] * 2.0

Fragments become register arrays, one element a register; shared tiles get the one dimension of their layout.
Guards of global accesses are written here, one for a whole vector: neighbours along a row of a tensor whose
strides are multiples of the vector are in bounds together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.errors import InternalError
from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    Function,
    If,
    Kernel,
    Let,
    Load,
    Parallel,
    Region,
    Role,
    Roles,
    Seq,
    Statement,
    Store,
    TileOperator,
    Var,
    binary,
    const,
    index_binary,
    seq,
)
from tilewright.ir.visitor import Rewriter, key, substitute, variables, walk
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.layout.layout import Layout
from tilewright.layout.threads import register_of
from tilewright.passes.context import Context
from tilewright.passes.lower.flatten_buffers import strides_of
from tilewright.passes.scoped import ScopedRewriter
from tilewright.passes.tile.infer_layouts import accesses_of
from tilewright.passes.tile.select_async_copies import runs_of

MAXIMUM_VECTOR_BYTES = 16

WARP, WARPGROUP = 32, 128

BLOCK = "block"
"""Name in ``context.facts`` of the `BlockView` that overrides get."""


def assign_threads(function: Function, context: Context) -> Function:
    """Replace parallel loops, fragments and shared tiles by one thread's registers and places in shared memory."""
    body = _Assign(function, context)(function.body)
    return function.with_body(body, "threaded")


def linear_thread(kernel: Kernel) -> Expr:
    """The index of the executing thread in its block, x fastest."""
    x, y, z = kernel.thread_vars
    total: Expr = x
    if kernel.threads[1] > 1:
        total = index_binary("add", total, index_binary("mul", y, kernel.threads[0]))
    if kernel.threads[2] > 1:
        total = index_binary("add", total, index_binary("mul", z, kernel.threads[0] * kernel.threads[1]))
    return total


@dataclass(frozen=True, slots=True)
class BlockView:
    """What an operator's lowering may ask of the block it runs in (``context.facts[BLOCK]``)."""

    owner: _Assign

    @property
    def thread(self) -> Expr:
        """Index of the executing thread."""
        return self.owner.thread

    @property
    def threads(self) -> int:
        return self.owner.threads

    def layout(self, buffer: Buffer) -> Layout:
        """Layout of a fragment or a shared tile."""
        return self.owner.layouts[buffer]

    def memory_layout(self, buffer: Buffer) -> Layout | None:
        """Layout of a shared tile, None where it is row-major as declared."""
        return self.owner.layouts.get(buffer)

    def registers(self, buffer: Buffer) -> Buffer:
        """The register array that a fragment has become."""
        return self.owner.map_buffer(buffer)

    def shared(self, region: Region, offsets: Sequence[Expr]) -> Region:
        """The place in memory of the element at `offsets` from the start of a shared region."""
        indices = [index_binary("add", start, offset) for start, offset in zip(region.starts, offsets, strict=True)]
        buffer, places = self.owner._physical(region.buffer, indices)
        return Region(buffer, places, (1,) * len(places))

    @property
    def warpgroup(self) -> Expr:
        """Index of the executing thread's warpgroup, the same in all lanes of a warp."""
        return self.owner.warpgroup

    @property
    def cluster(self) -> int:
        """Blocks of the cluster."""
        return self.owner.cluster

    @property
    def free_barrier(self) -> int:
        """The first named barrier that roles leave to operators."""
        return self.owner.roles + 1

    def operators(self, token: str) -> list[TileOperator]:
        """The asynchronous operators of the role, or block, that a token stands for."""
        return [node for node in self.owner.asynchronous if node.token == token]

    @property
    def analyzer(self) -> Analyzer:
        """What is known where the operator stands."""
        return self.owner.analyzer

    def simplify(self, value: Expr) -> Expr:
        return self.owner.analyzer.simplify(value)

    def visited(self, values: Sequence[Expr]) -> list[Expr]:
        """Index expressions of the tile program as those of a thread."""
        return [self.owner.visit(value) for value in values]

    def guard(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr | None:
        """The condition under which a global access is in bounds; None where it always is."""
        return self.owner.guard(buffer, indices)

    def bind(self, var: Var, extent: int) -> None:
        """Tell the simplifier the range of a new variable."""
        self.owner.analyzer.bind_extent(var, extent)


class _Assign(ScopedRewriter):
    """Rewrites one function; the buffers of the kernel at hand are replaced as they are met."""

    def __init__(self, function: Function, context: Context) -> None:
        super().__init__(function)
        self.context = context
        self.threads = 1
        self.layouts: dict[Buffer, Layout] = {}
        self.made: dict[Buffer, Buffer] = {}
        self.safe: dict[Buffer, Expr] = {}
        self.thread: Expr = const(0)
        self.warpgroup: Expr = const(0)
        self.thread_var: Var | None = None
        self.barriers = 0
        self.roles = 0
        self.cluster = 1
        self.asynchronous: list[TileOperator] = []

    def visit_Kernel(self, kernel: Kernel) -> Any:
        self.thread_var = kernel.thread_vars[0]
        self.cluster = math.prod(kernel.attribute("cluster", (1,)))
        self.asynchronous = _asynchronous(kernel)
        self.layouts = {buffer: layout for buffer, layout in kernel.layouts if isinstance(layout, Layout)}
        for buffer, layout in kernel.layouts:
            if not isinstance(layout, Layout) and buffer.scope == "shared":
                self.context.warn(
                    f"the layout of {buffer.name} is not made of digits and a swizzle; the tile lies row by row",
                    kernel.span,
                )
        self.safe = dict(kernel.safe_values)
        self.thread = linear_thread(kernel)
        self.threads = kernel.num_threads
        made = super().visit_Kernel(kernel)
        return replace(made, layouts=())

    # Roles ---------------------------------------------------------------------------------------

    def visit_Roles(self, roles: Roles) -> Any:
        """Each role under a condition on the warp; in it threads count from the role's first one."""
        outside = (self.thread, self.threads, self.warpgroup, self.asynchronous, self.barriers)
        warp = Var(INT32, "warp")
        warps = index_binary("floordiv", self.thread, WARP)
        head = Let(warp, Call(INT32, "warp_uniform", (warps,)), span=roles.span)
        self.roles = len(roles.roles)
        first, branches = 0, []
        for number, role in enumerate(roles.roles):
            self.barriers = number + 1
            branches.append(self._role(role, outside[0], first))
            first += role.warps
        self.thread, self.threads, self.warpgroup, self.asynchronous, self.barriers = outside
        otherwise = branches.pop()
        for role, body in zip(reversed(roles.roles[:-1]), reversed(branches), strict=True):
            first -= roles.roles[len(branches)].warps
            branches = branches[:-1]
            otherwise = seq(If(binary("lt", warp, const(first)), body, otherwise, span=role.span))
        return [head, *otherwise.statements]

    def _role(self, role: Role, thread: Expr, first: int) -> Seq:
        """The body of one role, whose first warp is number `first` of the block."""
        threads = role.warps * WARP
        own, group = Var(INT32, "thread"), Var(INT32, "warpgroup")
        self.thread, self.threads, self.warpgroup = own, threads, group
        self.asynchronous = _asynchronous(role)
        with self.analyzer.scope():
            self.analyzer.bind_extent(own, threads)
            self.analyzer.bind_extent(group, max(1, threads // WARPGROUP))
            body = self(role.body)
        head: list[Statement] = []
        if role.registers is not None:
            head.append(Evaluate(Call(BOOL, "setmaxnreg", (const(role.registers),)), span=role.span))
        head.append(Let(own, index_binary("sub", thread, first * WARP)))
        if group in variables(body):
            head.append(Let(group, Call(INT32, "warp_uniform", (index_binary("floordiv", own, WARPGROUP),))))
        return seq(head, body.statements)

    def map_var(self, var: Var) -> Expr:
        return self.thread if self.barriers and var is self.thread_var else var

    def visit_Evaluate(self, evaluate: Evaluate) -> Any:
        value = evaluate.value
        if self.barriers and isinstance(value, Call) and value.function == "sync_threads":
            meeting = Call(BOOL, "named_barrier_sync", (const(self.barriers), const(self.threads)))
            return replace(evaluate, value=meeting)
        return self.generic(evaluate)

    def visit_Region(self, region: Region) -> Region:
        if region.buffer.scope != "shared":
            return self.generic(region)  # type: ignore[no-any-return]
        buffer, places = self._physical(region.buffer, [self.visit(start) for start in region.starts])
        return Region(buffer, places, (1,) * len(places))

    # Buffers -------------------------------------------------------------------------------------

    def map_buffer(self, buffer: Buffer) -> Buffer:
        layout = self.layouts.get(buffer)
        if buffer.source is not None and self.map_buffer(buffer.source) is not buffer.source:
            return self._remember(buffer, replace(buffer, source=self.map_buffer(buffer.source)))
        if layout is None or buffer.scope not in ("fragment", "shared"):
            if buffer.scope == "local":
                return self._remember(buffer, replace(buffer, scope="register"))
            return buffer
        if buffer.scope == "fragment":
            return self._remember(buffer, replace(buffer, scope="register", shape=(layout.extent(REGISTER),)))
        return self._remember(buffer, replace(buffer, shape=(layout.extent("memory"),)))

    def _remember(self, buffer: Buffer, made: Buffer) -> Buffer:
        return self.made.setdefault(buffer, made)

    def _physical(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[Buffer, tuple[Expr, ...]]:
        """A shared access in the one dimension of its layout; others unchanged."""
        layout = self.layouts.get(buffer)
        if layout is None or buffer.scope != "shared":
            return self.map_buffer(buffer), tuple(indices)
        return self.map_buffer(buffer), (self.analyzer.simplify(_offset(layout, indices)),)

    def visit_Load(self, load: Load) -> Expr:
        indices = tuple(self.visit(index) for index in load.indices)
        buffer, places = self._physical(load.buffer, indices)
        return Load(load.dtype, buffer, places)

    def visit_Store(self, store: Store) -> Statement:
        indices = tuple(self.visit(index) for index in store.indices)
        buffer, places = self._physical(store.buffer, indices)
        return replace(store, buffer=buffer, indices=places, value=self.visit(store.value))

    def visit_Allocate(self, allocate: Allocate) -> Any:
        made = self.generic(allocate)
        layout = self.layouts.get(allocate.buffer)
        if allocate.buffer.scope != "fragment" or layout is None or layout.size == allocate.buffer.size:
            return made
        # Registers of threads beyond the tile are folded and moved with the others: they hold zeros.
        index = Var(INT32, "r")
        zero = const(
            False if made.buffer.dtype.kind == "bool" else 0.0 if made.buffer.dtype.is_float else 0, made.buffer.dtype
        )
        fill = seq(Store(made.buffer, (index,), zero, span=allocate.span))
        return [made, For(index, const(0), const(made.buffer.size), const(1), fill, "unroll", span=allocate.span)]

    # Loops ---------------------------------------------------------------------------------------

    def visit_Parallel(self, loop: Parallel) -> Statement:
        return self._strided(loop) if loop.layout is None else _ThreadLoop(self, loop).run()

    def _strided(self, loop: Parallel) -> Statement:
        """A loop of a size known only at launch: each thread takes every so many-th iteration."""
        total: Expr = const(1)
        for extent in loop.extents:
            total = index_binary("mul", total, extent)
        start = Var(total.dtype, "first")
        place = index_binary("add", start, self.thread)
        names: list[Statement] = []
        rest = place
        for var, extent in reversed(list(zip(loop.vars, loop.extents, strict=True))):
            last = var is loop.vars[0]
            names.append(Let(var, nodes.cast(rest if last else index_binary("floormod", rest, extent), var.dtype)))
            rest = index_binary("floordiv", rest, extent)
        with self.analyzer.scope():
            for var, extent in zip(loop.vars, loop.extents, strict=True):
                self.analyzer.bind_extent(var, extent)
            work = _ThreadLoop(self, loop)
            body = work._elements(loop.body, [], [])
        inside = If(index_binary("lt", place, total), seq(names, body.statements), span=loop.span)
        step = const(self.threads, total.dtype)
        return For(start, const(0, total.dtype), total, step, seq(inside), "serial", span=loop.span)

    def guard(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr | None:
        """The condition under which a global access is in bounds; None where it always is."""
        if buffer.scope != "global":
            return None
        condition: Expr | None = None
        for index, extent in zip(indices, buffer.shape, strict=True):
            for test in (index_binary("ge", index, 0), index_binary("lt", index, extent)):
                if not self.analyzer.prove(test):
                    condition = test if condition is None else binary("all", condition, test)
        return condition

    # Operators -----------------------------------------------------------------------------------

    def visit_TileOperator(self, operator: TileOperator) -> Statement:
        return self._overridden(operator, operator.name)

    def visit_Commit(self, commit: nodes.Commit) -> Statement:
        return self._overridden(commit, f"the commit of {commit.token}")

    def visit_Wait(self, wait: nodes.Wait) -> Statement:
        return self._overridden(wait, f"the wait for {wait.token}")

    def _overridden(self, statement: Any, name: str) -> Statement:
        """What the target makes of a statement that threads execute together."""
        override = self.context.overrides.get(type(statement))
        made = (
            override(statement, replace(self.context, facts={**self.context.facts, BLOCK: BlockView(self)}))
            if override
            else None
        )
        if made is None:
            raise InternalError(f"{name} has no way to run on threads", span=statement.span)
        return made if made.span is not None else replace(made, span=statement.span)


def _asynchronous(node: Kernel | Role) -> list[TileOperator]:
    return [found for found in walk(node) if isinstance(found, TileOperator) and found.token is not None]


@dataclass(slots=True)
class _Vector:
    """An access of several neighbours at once, through registers of its own."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    part: Buffer


@dataclass(slots=True)
class _ThreadLoop:
    """One parallel loop while its thread code is made."""

    owner: _Assign
    loop: Parallel
    width: int = 1
    group: Var = field(default_factory=lambda: Var(INT32, "g"))
    lane: Var = field(default_factory=lambda: Var(INT32, "v"))

    @property
    def layout(self) -> Layout:
        return self.loop.layout  # type: ignore[no-any-return]

    def run(self) -> Statement:
        owner, loop = self.owner, self.loop
        registers = self.layout.extent(REGISTER)
        with owner.analyzer.scope():
            self._choose_width()
            groups = registers // self.width
            owner.analyzer.bind_extent(self.group, groups)
            owner.analyzer.bind_extent(self.lane, self.width)
            coordinates = self._coordinates()
            for var, coordinate in zip(loop.vars, coordinates, strict=True):
                owner.analyzer.bind(var, coordinate, coordinate)
            inside = self._padding(coordinates)
            if inside is not None:
                owner.analyzer.assume(inside)
            body = self._body(coordinates)
        if inside is not None:
            body = seq(If(inside, body, span=loop.span))
        if groups == 1:
            body = substitute(body, {self.group: const(0)})
            return replace(body, span=loop.span)
        return For(self.group, const(0), const(groups), const(1), body, "unroll", span=loop.span)

    # Where this thread works -----------------------------------------------------------------------

    def _coordinates(self) -> tuple[Expr, ...]:
        """The loop's variables for the first element of group `group`."""
        register = index_binary("mul", self.group, self.width)
        locations: dict[str, Expr] = {THREAD: self.owner.thread, REGISTER: register}
        places = self.layout.places
        found = self.layout.coordinate_expressions(**{place: locations[place] for place in places})
        return tuple(self.owner.analyzer.simplify(value) for value in found)

    def _padding(self, coordinates: Sequence[Expr]) -> Expr | None:
        """Whether the element exists, where the layout covers more than the loop."""
        condition: Expr | None = None
        for coordinate, extent in zip(coordinates, self.loop.extents, strict=True):
            inside = index_binary("lt", coordinate, extent)
            if not self.owner.analyzer.prove(inside):
                condition = inside if condition is None else binary("all", condition, inside)
        return condition

    def _choose_width(self) -> None:
        """The vector width: neighbours in registers that some access to memory can move at once."""
        dimension = self.layout.digits[-1] if self.layout.digits else ()
        if not dimension or dimension[0].place != REGISTER or dimension[0].stride != 1:
            return
        last = self.loop.extents[-1]
        limit = math.gcd(dimension[0].extent, last if isinstance(last, int) else 1)
        if not _is_plain(self.loop.body) or limit == 1:
            return
        accesses = [
            node for node in walk(self.loop.body) if isinstance(node, (Load, Store)) and self._in_memory(node.buffer)
        ]
        widths = [self._width_of(node, limit) for node in accesses]
        self.width = max(widths, default=1)

    @staticmethod
    def _in_memory(buffer: Buffer) -> bool:
        return buffer.scope in ("global", "shared") and not buffer.dtype.is_packed

    def _width_of(self, access: Load | Store, limit: int) -> int:
        """How many neighbours along the last loop variable one access moves."""
        var, buffer = self.loop.vars[-1], access.buffer
        if not access.indices or not self._steps(access.indices, var):
            return 1
        named = {statement.var for statement in self.loop.body.statements if isinstance(statement, Let)}
        if any(node in named for index in access.indices for node in walk(index)):
            return 1  # the name has no value where whole vectors move
        width = math.gcd(limit, max(1, MAXIMUM_VECTOR_BYTES * 8 // max(buffer.dtype.bits, 8)))
        layout = self.owner.layouts.get(buffer)
        while width > 1:
            aligned = self._aligned(access, width) if layout is None else runs_of(layout, width)
            if aligned and self._starts(access.indices[-1], var, width):
                return width
            width //= 2
        return 1

    def _steps(self, indices: Sequence[Expr], var: Var) -> bool:
        """Whether the last index moves with `var` by one and the others do not move."""
        if any(node is var for index in indices[:-1] for node in walk(index)):
            return False
        stride = self.owner.analyzer.stride(indices[-1], var)
        return isinstance(stride, nodes.Const) and stride.value == 1

    def _starts(self, index: Expr, var: Var, width: int) -> bool:
        """Whether the index is a multiple of `width` where the loop variable is."""
        rest = substitute(index, {var: const(0)})
        return self.owner.analyzer.divides(rest, width)

    def _aligned(self, access: Load | Store, width: int) -> bool:
        """Whether rows of a tensor start at multiples of `width`, and end there too, so that a guard serves all."""
        buffer = access.buffer
        if buffer.scope != "global" or buffer.source is not None:
            return False
        *outer, last = strides_of(buffer)
        if last != 1 or not all(self.owner.analyzer.divides(stride, width) for stride in outer):
            return False
        return self.owner.analyzer.divides(buffer.shape[-1], width)

    # What this thread does -----------------------------------------------------------------------

    def _body(self, coordinates: Sequence[Expr]) -> Seq:
        """Names for the coordinates, vector loads, the elements, vector stores."""
        names = [Let(var, value) for var, value in zip(self.loop.vars, coordinates, strict=True)]
        body: Seq = self.loop.body
        loads, stores = self._vectors()
        before: list[Statement] = []
        for vector in loads:
            before += self._load(vector)
        elements = self._elements(body, loads, stores)
        if self.width > 1:
            elements = seq(
                For(self.lane, const(0), const(self.width), const(1), elements, "unroll", span=self.loop.span)
            )
        after: list[Statement] = []
        for vector in stores:
            before.append(Allocate(vector.part, span=self.loop.span))
            after += self._store(vector)
        return seq(names, before, elements.statements, after)

    def _vectors(self) -> tuple[list[_Vector], list[_Vector]]:
        """The loads and stores that move whole vectors."""
        if self.width == 1:
            return [], []
        loads: dict[Any, _Vector] = {}
        stores: list[_Vector] = []
        stored: set[Buffer] = set()
        for statement in self.loop.body.statements:
            for node in walk(statement):
                if isinstance(node, Load) and self._whole(node) and node.buffer not in stored:
                    loads.setdefault(key(node), self._vector(node.buffer, node.indices))
            if isinstance(statement, Store):
                if self._whole(statement) and statement.buffer not in stored:
                    stores.append(self._vector(statement.buffer, statement.indices))
                stored.add(statement.buffer)
        return list(loads.values()), stores

    def _whole(self, access: Load | Store) -> bool:
        return self._in_memory(access.buffer) and self._width_of(access, self.width) == self.width

    def _vector(self, buffer: Buffer, indices: tuple[Expr, ...]) -> _Vector:
        return _Vector(buffer, indices, Buffer(f"{buffer.name}_part", (self.width,), buffer.dtype, "register"))

    def _load(self, vector: _Vector) -> list[Statement]:
        buffer, places = self.owner._physical(vector.buffer, vector.indices)
        dtype = vector.buffer.dtype.with_lanes(self.width)
        moved = Store(vector.part, (const(0),), Load(dtype, buffer, places), span=self.loop.span)
        guard = self._guard(vector.buffer, vector.indices)
        allocated = Allocate(vector.part, span=self.loop.span)
        if guard is None:
            return [allocated, moved]
        lane = Var(INT32, "lane")
        fill = Store(vector.part, (lane,), self._safe(vector.buffer), span=self.loop.span)
        filled = For(lane, const(0), const(self.width), const(1), seq(fill), "unroll", span=self.loop.span)
        return [allocated, If(guard, seq(moved), seq(filled), span=self.loop.span)]

    def _store(self, vector: _Vector) -> list[Statement]:
        buffer, places = self.owner._physical(vector.buffer, vector.indices)
        dtype = vector.buffer.dtype.with_lanes(self.width)
        moved = Store(buffer, places, Load(dtype, vector.part, (const(0),)), span=self.loop.span)
        guard = self._guard(vector.buffer, vector.indices)
        return [moved if guard is None else If(guard, seq(moved), span=self.loop.span)]

    def _safe(self, buffer: Buffer) -> Expr:
        from_author = self.owner.safe.get(buffer)
        if from_author is not None:
            return nodes.cast(from_author, buffer.dtype)
        return const(False if buffer.dtype.kind == "bool" else 0.0 if buffer.dtype.is_float else 0, buffer.dtype)

    def _guard(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr | None:
        return self.owner.guard(buffer, indices)

    def _elements(self, body: Seq, loads: list[_Vector], stores: list[_Vector]) -> Seq:
        """The author's statements for one element, on registers."""
        moved = {key(Load(v.buffer.dtype, v.buffer, v.indices)): v.part for v in loads}
        parts = {(v.buffer, key(v.indices)): v.part for v in stores}
        registers = _Registers(self, moved, parts)
        made = registers(body)
        return made if isinstance(made, Seq) else seq(made)


class _Registers(Rewriter):
    """Accesses of one element: fragments by register, vectors by their parts, the rest guarded and in place."""

    def __init__(self, work: _ThreadLoop, loads: dict[Any, Buffer], stores: dict[Any, Buffer]) -> None:
        self.work, self.loads, self.stores = work, loads, stores
        self.axes = {access.buffer: access.axes for access in accesses_of(work.loop)}

    def map_buffer(self, buffer: Buffer) -> Buffer:
        return self.work.owner.map_buffer(buffer)

    def map_var(self, var: Var) -> Expr:
        """The last loop variable counts the vector's first element; what is left here is about one of them."""
        if self.work.width > 1 and var is self.work.loop.vars[-1]:
            return index_binary("add", var, self.work.lane)
        return var

    def _register(self, buffer: Buffer) -> Expr:
        """The register of a fragment that holds the element at hand."""
        axes = self.axes[buffer]
        assert axes is not None
        work, width = self.work, self.work.width
        total: Expr = const(0)
        for divisor, modulus, stride in register_of(work.owner.layouts[buffer], work.layout, axes):
            total = index_binary("add", total, index_binary("mul", _digit(work, divisor, modulus, width), stride))
        return work.owner.analyzer.simplify(total)

    def visit_Load(self, load: Load) -> Expr:
        part = self.loads.get(key(load))
        if part is not None:
            return Load(load.dtype, part, (self.work.lane,))
        buffer = load.buffer
        if buffer.scope == "fragment":
            return Load(load.dtype, self.map_buffer(buffer), (self._register(buffer),))
        indices = tuple(self.visit(index) for index in load.indices)
        made, places = self.work.owner._physical(buffer, indices)
        value = Load(load.dtype, made, places)
        guard = self.work._guard(buffer, indices)
        if guard is None:
            return value
        return nodes.Select(load.dtype, guard, value, self.work._safe(buffer))

    def visit_Store(self, store: Store) -> Statement:
        value = self.visit(store.value)
        part = self.stores.get((store.buffer, key(store.indices)))
        if part is not None:
            return replace(store, buffer=part, indices=(self.work.lane,), value=value)
        buffer = store.buffer
        if buffer.scope == "fragment":
            return replace(store, buffer=self.map_buffer(buffer), indices=(self._register(buffer),), value=value)
        indices = tuple(self.visit(index) for index in store.indices)
        made, places = self.work.owner._physical(buffer, indices)
        result = replace(store, buffer=made, indices=places, value=value)
        guard = self.work._guard(buffer, indices)
        return result if guard is None else If(guard, seq(result), span=store.span)

    def visit_Region(self, region: Region) -> Region:
        if region.buffer.scope == "fragment":
            return Region(self.map_buffer(region.buffer), (self._register(region.buffer),), (1,))
        starts = tuple(self.visit(start) for start in region.starts)
        buffer, places = self.work.owner._physical(region.buffer, starts)
        return Region(buffer, places, (1,) * len(places))


def _digit(work: _ThreadLoop, divisor: int, modulus: int, width: int) -> Expr:
    """``register // divisor % modulus`` of register ``group * width + lane``, without mixing the two."""
    registers = work.layout.extent(REGISTER)
    if divisor >= width:
        value = index_binary("floordiv", work.group, divisor // width)
        return value if divisor * modulus >= registers else index_binary("floormod", value, modulus)
    if divisor * modulus <= width:
        value = index_binary("floordiv", work.lane, divisor)
        return value if divisor * modulus == width else index_binary("floormod", value, modulus)
    whole = index_binary("add", index_binary("mul", work.group, width), work.lane)
    value = index_binary("floordiv", whole, divisor)
    return value if divisor * modulus >= registers else index_binary("floormod", value, modulus)


def _offset(layout: Layout, indices: Sequence[Expr]) -> Expr:
    """The element of memory at `indices`.

    Where the swizzle permutes chunks within a run of the last dimension alone, only that run is under its exclusive
    or: stages, rows and columns of runs are added to it, so that what is the same for many accesses shows.
    """
    swizzle = layout.swizzle
    first = layout.digits[-1][0] if layout.rank and layout.digits[-1] else None
    if swizzle is None or first is None or (first.stride, first.extent) != (1, 1 << (swizzle.base + swizzle.bits)):
        return layout.expression("memory", indices)
    others = [one for dimension in layout.digits for one in dimension if one is not first]
    if any(one.stride % first.extent for one in others):
        return layout.expression("memory", indices)
    column = index_binary("floormod", indices[-1], first.extent)
    runs = index_binary("mul", index_binary("floordiv", indices[-1], first.extent), first.extent)
    rest = replace(layout, swizzle=None).expression("memory", (*indices[:-1], runs))
    chunk = index_binary(
        "floormod", index_binary("floordiv", rest, 1 << (swizzle.base + swizzle.shift)), 1 << swizzle.bits
    )
    return index_binary("add", rest, index_binary("xor", column, index_binary("mul", chunk, 1 << swizzle.base)))


def _is_plain(body: Seq) -> bool:
    """Whether a loop's body is stores and names alone, so that memory accesses may move before and behind them."""
    return all(
        isinstance(statement, Store) or (isinstance(statement, Let) and not _has_effect(statement.value))
        for statement in body.statements
    )


def _has_effect(value: Expr) -> bool:
    return any(isinstance(node, nodes.Call) and not INTRINSICS[node.function].pure for node in walk(value))
