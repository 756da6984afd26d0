"""Warns where a thread's fragments need more registers than it has, so that they would spill to local memory.

Before::

    c = register(float32[320])
    c[0] = A[0]

The program stays as it is; the warning names the largest fragment and its line.  After::

    c = register(float32[320])
    c[0] = A[0]
"""

from __future__ import annotations

from tilewright.ir import Allocate, Buffer, Function, Kernel, Seq, Statement, children, find, kernels, root
from tilewright.machine.arch import Arch
from tilewright.passes.context import Context

_PARTS = {2: "half", 4: "a quarter of", 8: "an eighth of"}


def check_registers(function: Function, context: Context) -> Function:
    """Warn of fragments that do not fit."""
    for kernel in kernels(function):
        most, largest = registers_needed(kernel.body)
        if most > context.arch.registers and largest is not None:
            context.warn(
                f"fragments need {most} registers of each thread, of {context.arch.registers}: they will spill, "
                f"{largest.buffer.name} first with {_words(largest)}",
                largest.span,
                roomier(kernel, context.arch),
            )
    return function


def roomier(kernel: Kernel, arch: Arch) -> str:
    """The nearest number of threads, and size of the largest fragment, with which a kernel that spills would not."""
    most, largest = registers_needed(kernel.body)
    factor = 2
    while most > factor * arch.fragment_registers:
        factor *= 2
    ways = [f"{kernel.num_threads * factor} threads"] if kernel.num_threads * factor <= arch.max_threads else []
    if largest is not None:
        ways.append(f"{largest.buffer.name} of {_PARTS.get(factor, f'a {factor}th of')} its size")
    return f"it fits with {', or '.join(ways)}" if ways else "use smaller tiles"


def registers_needed(statement: Statement) -> tuple[int, Allocate | None]:
    """32-bit registers that arrays of a thread take at once at the most, and the largest of these arrays.

    An array takes them from its declaration to the last statement of its sequence that mentions it.
    """
    below = [registers_needed(child) for child in children(statement) if isinstance(child, Statement)]
    if not isinstance(statement, Seq):
        return max(below, key=lambda one: one[0], default=(0, None))
    arrays = [(at, one) for at, one in enumerate(statement.statements) if isinstance(one, Allocate) and _words(one)]
    last = _last_mentions(statement) if arrays else {}
    lives = [(allocate, position, last.get(allocate.buffer, 0)) for position, allocate in arrays]
    most: tuple[int, Allocate | None] = (0, None)
    for position, (inner, largest) in enumerate(below):
        alive = [allocate for allocate, first, last in lives if first <= position <= last]
        total = inner + sum(map(_words, alive))
        if total > most[0]:
            most = (total, max([*alive, *([largest] if largest else [])], key=_words))
    return most


def _last_mentions(body: Seq) -> dict[Buffer, int]:
    """The last statement of a sequence that touches each array, or a view of it."""
    return {
        root(buffer): position
        for position, statement in enumerate(body.statements)
        for buffer in find(statement, Buffer)
    }


def _words(allocate: Allocate) -> int:
    buffer = allocate.buffer
    if buffer.scope != "register" or buffer.source is not None:
        return 0
    return -(-buffer.size * max(buffer.dtype.bits, 8) // 32)
