"""Warns where a thread's fragments need more registers than it has, so that they would spill to local memory.

Before::

    c = register(float32[320])
    c[0] = A[0]

The program stays as it is; the warning names the largest fragment and its line.  After::

    c = register(float32[320])
    c[0] = A[0]
"""

from __future__ import annotations

from tilewright.ir.nodes import Allocate, Function, Seq, Statement
from tilewright.ir.visitor import children, kernels
from tilewright.passes.context import Context


def check_registers(function: Function, context: Context) -> Function:
    """Warn of fragments that do not fit."""
    for kernel in kernels(function):
        most, largest = registers_needed(kernel.body)
        if most > context.arch.registers and largest is not None:
            context.warn(
                f"fragments need {most} registers of each thread, of {context.arch.registers}: they will spill, "
                f"{largest.buffer.name} first with {_words(largest)}; use more threads or smaller tiles",
                largest.span,
            )
    return function


def registers_needed(statement: Statement) -> tuple[int, Allocate | None]:
    """32-bit registers that arrays of a thread take at once at the most, and the largest of these arrays."""
    here, largest = 0, None
    inner: list[tuple[int, Allocate | None]] = [(0, None)]
    for child in children(statement):
        if isinstance(child, Allocate) and isinstance(statement, Seq):
            words = _words(child)
            here += words
            largest = child if words and (largest is None or words > _words(largest)) else largest
        elif isinstance(child, Statement):
            inner.append(registers_needed(child))
    below, other = max(inner, key=lambda one: one[0])
    if largest is None or (other is not None and _words(other) > _words(largest)):
        largest = other
    return here + below, largest


def _words(allocate: Allocate) -> int:
    buffer = allocate.buffer
    if buffer.scope != "register" or buffer.source is not None:
        return 0
    return -(-buffer.size * max(buffer.dtype.bits, 8) // 32)
