"""The passes in order, each with the reason for its place; a step asks for a capability of the machine."""

from __future__ import annotations

from tilewright.passes.context import Context
from tilewright.passes.lower.apply_operand_layouts import apply_packed_layouts
from tilewright.passes.lower.assign_threads import assign_threads
from tilewright.passes.lower.expand_operators import expand_operators
from tilewright.passes.lower.flatten_buffers import flatten_buffers
from tilewright.passes.lower.forward_tiles import forward_tiles
from tilewright.passes.lower.guard_bounds import guard_bounds
from tilewright.passes.lower.lower_barriers import lower_barriers
from tilewright.passes.lower.lower_channels import lower_channels
from tilewright.passes.lower.lower_parallel import lower_parallel
from tilewright.passes.lower.lower_threads import lower_threads
from tilewright.passes.lower.lower_tiles import lower_tiles
from tilewright.passes.manager import Step
from tilewright.passes.thread.add_dependent_launch import add_dependent_launch
from tilewright.passes.thread.check_registers import check_registers
from tilewright.passes.thread.count_slots import count_slots
from tilewright.passes.thread.forward_stores import forward_stores
from tilewright.passes.thread.fuse_loops import fuse_loops
from tilewright.passes.thread.plan_shared_memory import plan_shared_memory
from tilewright.passes.thread.prefetch_next import prefetch_next
from tilewright.passes.thread.sink_names import sink_names
from tilewright.passes.thread.stream_stores import stream_stores
from tilewright.passes.thread.unroll_loops import unroll_loops
from tilewright.passes.thread.vectorize_accesses import vectorize_accesses
from tilewright.passes.tile.copies.select_copies import select_copies
from tilewright.passes.tile.copies.stage_epilogue import stage_epilogue
from tilewright.passes.tile.gemms.delay_waits import delay_waits
from tilewright.passes.tile.gemms.load_ahead import load_ahead
from tilewright.passes.tile.gemms.match_operands import match_operands
from tilewright.passes.tile.gemms.overlap_gemms import overlap_gemms
from tilewright.passes.tile.gemms.promote_sums import promote_sums
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.passes.tile.grids.drop_dependent_launch import drop_dependent_launch
from tilewright.passes.tile.grids.drop_empty_grids import drop_empty_grids
from tilewright.passes.tile.grids.form_clusters import form_clusters
from tilewright.passes.tile.grids.persist_grid import persist_grid
from tilewright.passes.tile.grids.rasterize_grid import rasterize_grid
from tilewright.passes.tile.grids.sync_grid import sync_grid
from tilewright.passes.tile.layouts.infer_layouts import infer_layouts
from tilewright.passes.tile.layouts.plan_synchronization import plan_synchronization
from tilewright.passes.tile.layouts.separate_views import separate_views
from tilewright.passes.tile.pipelines.inject_pipeline import inject_pipeline
from tilewright.passes.tile.pipelines.join_branches import join_branches
from tilewright.passes.tile.pipelines.overlay_rings import overlay_rings
from tilewright.passes.tile.pipelines.store_names import store_names
from tilewright.passes.tile.processors.begin_at_zero import begin_at_zero
from tilewright.passes.tile.processors.check_tiles import check_tiles
from tilewright.passes.tile.processors.forward_operands import forward_operands
from tilewright.passes.tile.processors.plan_operand_layouts import plan_operand_layouts
from tilewright.passes.tile.processors.share_packing import share_packing
from tilewright.passes.tile.roles.distribute_work import distribute_work
from tilewright.passes.tile.roles.order_warpgroups import order_warpgroups
from tilewright.passes.tile.roles.specialize_warps import specialize_warps
from tilewright.passes.tile.words.check_words import check_words
from tilewright.passes.tile.words.drop_guards import drop_guards
from tilewright.passes.tile.words.drop_idle_waits import drop_idle_waits
from tilewright.passes.tile.words.drop_unused import drop_unused
from tilewright.passes.tile.words.fit_loops import fit_loops
from tilewright.passes.tile.words.forward_locals import forward_locals
from tilewright.passes.tile.words.join_vector_loops import join_vector_loops
from tilewright.passes.tile.words.lower_prints import lower_prints
from tilewright.passes.tile.words.lower_votes import lower_votes
from tilewright.passes.tile.words.privatize_operators import privatize_operators
from tilewright.passes.tile.words.replace_words import replace_words
from tilewright.passes.tile.words.round_threads import round_threads
from tilewright.passes.tile.words.simplify import simplify
from tilewright.passes.tile.words.unify_locals import unify_locals
from tilewright.passes.tile.words.widen_indices import widen_indices


def _many_threads(context: Context) -> bool:
    """A block is many threads that share memory."""
    return context.arch.has_threads


def _one_thread(context: Context) -> bool:
    """A block is one thread of the operating system."""
    return not context.arch.has_threads


def _serial_launches(context: Context) -> bool:
    """A kernel begins when the one before it has ended."""
    return not context.arch.dependent_launch


def _dependent_launches(context: Context) -> bool:
    """A kernel may begin before the one before it has ended."""
    return context.arch.dependent_launch


PIPELINE: tuple[Step, ...] = (
    Step(drop_empty_grids, "first: no index of such a kernel exists"),
    Step(drop_dependent_launch, "early: they stand in the way of nothing then", _serial_launches),
    Step(lower_prints, "early: what shows a tile is a copy and a thread's loop like others"),
    Step(replace_words, "before words are refused: some can be said otherwise"),
    Step(drop_idle_waits, "before what is only started is refused; and nobody else need ask what is waited for"),
    Step(check_words, "before anything is built on what the machine lacks"),
    Step(round_threads, "before anything asks how many threads there are", _many_threads),
    Step(lower_votes, "early: what they ask is work of the block, or loops of threads, like any other", _many_threads),
    Step(sync_grid, "early: workspaces are the host program's", _many_threads),
    Step(check_tiles, "before anything changes: it speaks of the tiles that the author wrote", _one_thread),
    Step(distribute_work, "before work is taken for the block's: of what only some threads come to, each does its "
                    "part", _many_threads),
    Step(privatize_operators, "early: what threads do alone is no work of the block"),
    Step(forward_locals, "early, as below; and before scalars hold what tensors do", _many_threads),
    Step(unify_locals, "early: what places copies, or decides whether they are made, is the block's business",
        _many_threads),
    Step(join_vector_loops, "while loops are the author's: what is left are parallel loops like any other",
        _many_threads),
    Step(drop_guards, "before conditions mean anything to others: what is left asks about more than bounds"),
    Step(join_branches, "early: whoever looks for what fills a tile sees all of it written", _many_threads),
    Step(widen_indices, "before anything computes with indices"),
    Step(simplify, "early: what never runs asks nothing of the passes behind", _one_thread),
    Step(select_instructions, "before operands are prepared for them", _one_thread),
    Step(begin_at_zero, "before operands move: gemms and what clears their sums stand as the author wrote them",
        _one_thread),
    Step(share_packing, "before tiles are forwarded or laid out: some of them go", _one_thread),
    Step(forward_operands, "before layouts: an operand that is not staged needs none", _one_thread),
    Step(plan_operand_layouts, "while gemms are whole: they say how their operands want to lie", _one_thread),
    Step(drop_unused, "before roles and rings are weighed by the bytes of tiles", _many_threads),
    Step(fit_loops, "before anything is said of fragments: places in them are known", _many_threads),
    Step(separate_views, "before anything is said of fragments: there are no others from here on", _many_threads),
    Step(match_operands, "before instructions, and while scales are fields of gemms", _many_threads),
    Step(promote_sums, "before instructions and roles: what is left are gemms like any other", _many_threads),
    Step(store_names, "before statements of pipelined loops get places of their own", _many_threads),
    Step(specialize_warps, "before all that loads: roles decide who does, and by which instruction", _many_threads),
    Step(replace_words, "roles are known: a vote of one is of its own threads", _many_threads),
    Step(form_clusters, "roles are known: which loads neighbours share can be seen", _many_threads),
    Step(persist_grid, "clusters are known: they are what tiles are dealt to", _many_threads),
    Step(rasterize_grid, "what is not persistent is launched in this order", _many_threads),
    Step(select_copies, "before instructions and pipelines: they ask what the copy engine fills, and what is "
                        "asynchronous", _many_threads),
    Step(inject_pipeline, "on whole operators; what follows sees plain loops, and tiles with their stages",
        _many_threads),
    Step(select_instructions, "matrix instructions are what layouts are anchored on", _many_threads),
    Step(overlap_gemms, "once it is known which gemms are asynchronous, and while they are whole", _many_threads),
    Step(delay_waits, "what is in flight over iterations is known: the others wait within theirs", _many_threads),
    Step(load_ahead, "the others wait within their iteration: those whose operands lanes transpose are left",
        _many_threads),
    Step(stage_epilogue, "accumulators are known, layouts of what they leave through are not yet", _many_threads),
    Step(overlay_rings, "all tiles are in sight, and where gemms are waited for", _many_threads),
    Step(expand_operators, "what is left to cooperate on is what layouts are inferred from", _many_threads),
    Step(infer_layouts, "all loops over tiles are in sight", _many_threads),
    Step(plan_synchronization, "while statements are those of the whole block", _many_threads),
    Step(order_warpgroups, "groups of gemms and their waits are final, and it is known where their warps meet",
        _many_threads),
    Step(lower_barriers, "as below, for barriers that the author counts", _many_threads),
    Step(lower_channels, "the executors of copies and gemms are known: they decide what is counted", _many_threads),
    Step(assign_threads, "layouts and barriers are known: what is left is the work of one thread", _many_threads),
    Step(plan_synchronization, "while tile operators are whole: loops over threads will end at barriers", _one_thread),
    Step(lower_tiles, "tile operators become loops over elements, or what the target does better", _one_thread),
    Step(lower_threads, "while barriers and parallel loops still show where threads meet", _one_thread),
    Step(lower_parallel, "loops in an order that suits vectors", _one_thread),
    Step(forward_tiles, "on loops over whole tiles: guards, which cut them in two, are then those of the tensor "
                       "read", _one_thread),
    Step(guard_bounds, "on loops, which it can cut in two, and on indices that still have their dimensions"),
    Step(apply_packed_layouts, "after the guards, which speak of the logical tensor", _one_thread),
    Step(simplify, "guards and the conditions of pipelines are written: what sizes decide among them goes",
        _many_threads),
    Step(count_slots, "numbers of iterations are as simple as they get, and slots are dimensions of their own",
        _many_threads),
    Step(sink_names, "loops count by what they carry: all that their bodies need is in sight", _many_threads),
    Step(flatten_buffers, "one index an access, so that strides are plain"),
    Step(plan_shared_memory, "sizes are final, and every barrier stands where it will be", _many_threads),
    Step(check_registers, "arrays of a thread are final", _many_threads),
    Step(add_dependent_launch, "last: nothing may move over a kernel's ends", _dependent_launches),
    Step(unroll_loops, "before vectors: constant indices prove more", _one_thread),
    Step(vectorize_accesses, "loops become vectors of the machine's width", _one_thread),
    Step(fuse_loops, "loops over vectors have plain steps; joined, they pass a row once", _one_thread),
    Step(forward_stores, "joined loops hand values on through tiles that they need not have", _one_thread),
    Step(prefetch_next, "loops are those that run: it is seen which of them leave the memory idle", _one_thread),
    Step(stream_stores, "last: what is stored, and how, is final", _one_thread),
)  # fmt: skip
"""Every step in order; those for other machines are left out."""
