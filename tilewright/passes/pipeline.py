"""The passes in order, each with the reason for its place; a step asks for a capability of the machine."""

from __future__ import annotations

from tilewright.passes.context import Context
from tilewright.passes.lower.apply_operand_layouts import apply_packed_layouts
from tilewright.passes.lower.flatten_buffers import flatten_buffers
from tilewright.passes.lower.guard_bounds import guard_bounds
from tilewright.passes.lower.lower_parallel import lower_parallel
from tilewright.passes.lower.lower_threads import lower_threads
from tilewright.passes.lower.lower_tiles import lower_tiles
from tilewright.passes.manager import Step
from tilewright.passes.thread.unroll_loops import unroll_loops
from tilewright.passes.thread.vectorize_accesses import vectorize_accesses
from tilewright.passes.tile.forward_operands import forward_operands
from tilewright.passes.tile.plan_operand_layouts import plan_operand_layouts


def _one_thread(context: Context) -> bool:
    """A block is one thread of the operating system."""
    return not context.arch.has_threads


PIPELINE: tuple[Step, ...] = (
    Step(forward_operands, "before layouts: an operand that is not staged needs none", _one_thread),
    Step(plan_operand_layouts, "while gemms are whole: they say how their operands want to lie", _one_thread),
    Step(lower_tiles, "tile operators become loops over elements, or what the target does better"),
    Step(lower_threads, "while barriers and parallel loops still show where threads meet", _one_thread),
    Step(lower_parallel, "loops in an order that suits vectors", _one_thread),
    Step(guard_bounds, "on loops, which it can cut in two, and on indices that still have their dimensions", _one_thread),
    Step(apply_packed_layouts, "after the guards, which speak of the logical tensor", _one_thread),
    Step(flatten_buffers, "one index an access, so that strides are plain", _one_thread),
    Step(unroll_loops, "before vectors: constant indices prove more", _one_thread),
    Step(vectorize_accesses, "last: loops become vectors of the machine's width", _one_thread),
)  # fmt: skip
"""Every step in order; those for other machines are left out."""
