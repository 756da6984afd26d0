"""How GPUs lower operators and waits that have threads which start copies in groups, a copy engine, products of groups
of warps: as far as the machine's records offer them."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Commit, Parallel, Statement, Wait
from tilewright.ops import QUADS, Copy, Gemm, LoadAhead, Reduce, SparseGemm, Transpose, Unpack
from tilewright.passes.context import Context, Override
from tilewright.targets.gpu import functions as _functions  # noqa: F401  registers what lowering calls
from tilewright.targets.gpu.copies import matrix_loads as _matrix_loads  # noqa: F401  registers a way to load operands
from tilewright.targets.gpu.copies.async_copy import lower_commit, lower_copy, lower_gather, lower_wait
from tilewright.targets.gpu.copies.cluster_copy import lower_cluster_copy, lower_cluster_send
from tilewright.targets.gpu.copies.engine_copy import lower_engine_copy, lower_engine_tile_store
from tilewright.targets.gpu.copies.engine_store import lower_engine_store
from tilewright.targets.gpu.copies.quad_copy import lower_quad_copy
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.products.group_gemm import (
    lower_group,
    lower_group_wait,
    lower_load_ahead,
    lower_warpgroup_gemm,
)
from tilewright.targets.gpu.products.sparse_metadata import lower_sparse_gemm
from tilewright.targets.gpu.products.unpack import lower_unpack
from tilewright.targets.gpu.reduce import lower_reduce


def _first(*ways: Override) -> Override:
    """The first way that applies."""

    def lower(statement: Statement, context: Context) -> Statement | None:
        return next((made for way in ways if (made := way(statement, context)) is not None), None)

    return lower


def _copy(copy: Copy, context: Context) -> Statement | None:
    if copy.rank is not None:
        into_tile = copy.destination.buffer.scope == "shared"
        return lower_cluster_send(copy, context) if into_tile else lower_cluster_copy(copy, context)
    if copy.schedule.prefer == QUADS:
        return lower_quad_copy(copy, context)
    if not copy.schedule.by_engine:
        return lower_copy(copy, context)
    loads = copy.source.buffer.scope == "global"
    if loads:
        return lower_engine_copy(copy, context)
    return lower_engine_tile_store(copy, context) if copy.by_hand else lower_engine_store(copy, context)


def _transpose(transpose: Transpose, context: Context) -> Statement | None:
    return lower_engine_store(transpose, context) if transpose.schedule.by_engine else None


OVERRIDES: Mapping[type[Statement], Override] = {
    Unpack: lower_unpack, Gemm: _first(lower_warpgroup_gemm, lower_gemm),
    SparseGemm: _first(lower_warpgroup_gemm, lower_sparse_gemm), Reduce: lower_reduce, Copy: _copy,
    Transpose: _transpose, LoadAhead: lower_load_ahead, Commit: _first(lower_commit, lower_group),
    Wait: _first(lower_wait, lower_group_wait), Parallel: lower_gather,
}  # fmt: skip
