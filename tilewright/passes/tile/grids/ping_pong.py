"""Two consumers of a persistent grid work at different tiles, so that one's results leave beside the other's products.

Before (the loop over tiles is what `persist_grid` would put around a role)::

    with role("consumer", warps=4):
        for iteration in range(iterations):
            tile = iteration * 132 + block
            ...
            for k in range(steps):
                receive("loads", iteration * steps + k)
                ...
            copy(total, C[by * 128, bx * 128])

After::

    channel("loads", ..., alternate=True)
    with role("consumer", warps=4, instances=2, index=consumer):
        for iteration in range(iterations):
            if iteration % 2 == consumer:
                take_turn(iteration == 0)
                tile = iteration * 132 + block
                ...
                pass_turn()
        if iterations > 0 and iterations % 2 == consumer:
            take_turn(False)                          # what the last one passed: nothing is left over

The producer goes through all tiles as before. Each iteration of a channel is read by the consumer whose tile it belongs
to, and `order_warpgroups` lets a turn last from the first tile of the ring that a consumer receives to the last: so
consumers receive in the order of the producer's numbers, and their main loops follow one another at the matrix unit.
Shared tiles that only the consumer uses belong to each of the two. The block gets the threads of a second consumer, and
registers are shared out anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import Span
from tilewright.ir import INT32, find, perform, performed, root
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.ops import Copy
from tilewright.passes.tile.copies.filled_tiles import slot_buffers
from tilewright.passes.tile.copies.stage_epilogue import shared_bytes, shared_room
from tilewright.passes.tile.roles.divide_roles import block_registers, share_registers

PING_PONG = "ping_pong"
"""The kernel's attribute by which the author asks for consumers that alternate."""

CONSUMERS = 2


def paired(kernel: ir.Kernel, arch: Arch) -> ir.Kernel | str:
    """A kernel that was divided into roles, with two consumers side by side; or why it cannot have them."""
    (roles,) = find(kernel.body, ir.Roles)
    consumer, producer = roles.roles
    threads = CONSUMERS * consumer.threads
    if threads + ir.WARPGROUP > arch.max_threads:
        return (
            f"two consumers of {threads // CONSUMERS} threads and a producer are more than the "
            f"{arch.max_threads} of a block"
        )
    registers = _registers(kernel, consumer, producer, threads, arch)
    if isinstance(registers, str):
        return registers
    own = _own_tiles(kernel, consumer)
    moved = [one for one in kernel.body.statements if isinstance(one, ir.Allocate) and root(one.buffer) in own]
    body = replace(consumer.body, statements=(*moved, *consumer.body.statements))
    both = replace(consumer, body=body, registers=registers[1], instances=CONSUMERS, index=ir.Var(INT32, consumer.name))
    made: list[ir.Statement] = []
    for one in kernel.body.statements:
        if isinstance(one, ir.Channel):
            made.append(replace(one, alternate=True))
        elif isinstance(one, ir.Roles):
            made.append(replace(one, roles=(both, replace(producer, registers=registers[0]))))
        elif one not in moved:
            made.append(one)
    made_kernel = replace(
        kernel, threads=(threads + ir.WARPGROUP, 1, 1), body=replace(kernel.body, statements=tuple(made))
    )
    needed, room = shared_bytes(made_kernel, arch), shared_room(kernel, arch)
    if needed > room:
        return f"the ring and the tiles of two consumers take {needed} bytes of {room} of shared memory"
    return made_kernel


def _registers(
    kernel: ir.Kernel, consumer: ir.Role, producer: ir.Role, threads: int, arch: Arch
) -> tuple[int | None, int | None] | str:
    """Registers of a thread of the producer and of the consumers, the author's where they fit."""
    if kernel.attribute("registers") is None:
        is_light = all(isinstance(node, Copy) for node in find(producer.body, ir.TileOperator, ir.Parallel))
        return share_registers(kernel, threads, is_light, arch)
    given = producer.registers, consumer.registers
    there_are = block_registers(kernel, threads + ir.WARPGROUP, arch)
    if given[0] is not None and given[1] is not None and given[0] * ir.WARPGROUP + given[1] * threads > there_are:
        return f"{given[1]} registers of each thread of two consumers are more than a block has"
    return given


def _own_tiles(kernel: ir.Kernel, consumer: ir.Role) -> set[ir.Buffer]:
    """Shared tiles that the consumer alone uses, but for the slots of channels."""
    declared = {
        one.buffer
        for one in kernel.body.statements
        if isinstance(one, ir.Allocate) and one.buffer.scope == "shared" and one.buffer.source is None
    }
    elsewhere = {
        root(buffer)
        for one in kernel.body.statements
        if not isinstance(one, ir.Allocate)
        for part in (one.roles if isinstance(one, ir.Roles) else (one,))
        if part is not consumer
        for buffer in find(part, ir.Buffer)
    }
    return declared - slot_buffers(kernel) - elsewhere


def own_turn(role: ir.Role, iteration: ir.Var, work: ir.Seq, span: Span | None) -> ir.Statement:
    """A tile's work, for the consumer whose turn it is."""
    assert role.index is not None
    mine = ir.index_binary("eq", iteration % role.instances, role.index)
    first = ir.index_binary("eq", iteration, 0)
    taken, passed = perform("take_turn", first, span=span), perform("pass_turn", span=span)
    return ir.If(mine, ir.seq(taken, work.statements, passed), span=span)


def last_turn(role: ir.Role, iterations: ir.Expr, span: Span | None) -> ir.Statement:
    """Takes what the last of so many tiles passed."""
    assert role.index is not None
    mine = ir.index_binary("eq", iterations % role.instances, role.index)
    passed = ir.binary("all", ir.index_binary("gt", iterations, 0), mine)
    return ir.If(passed, ir.seq(perform("take_turn", ir.const(False), span=span)), span=span)


def narrowed(statements: Sequence[ir.Statement], receives: Sequence[int]) -> list[ir.Statement]:
    """A turn that lasts from the first of some statements to the last, which are those that receive; all others stand
    around it.

    Parameters
    ----------
    receives : their places in `statements`.
    """
    taken, passed = (next(one for one in statements if performed(one) == name) for name in ("take_turn", "pass_turn"))
    first, last = (receives[0], receives[-1]) if receives else (len(statements), -1)
    made: list[ir.Statement] = []
    for place, one in enumerate(statements):
        if place == first:
            made.append(taken)
        if one is not taken and one is not passed:
            made.append(one)
        if place == last:
            made.append(passed)
    return made if receives else [*made, taken, passed]
