"""Calls with a meaning of their own: atomics, votes over tiles, barriers, what must be rounded with care."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.errors import InternalError
from tilewright.interpreter.arithmetic import Numbers, carried, fused_multiply_add, settle
from tilewright.interpreter.collectives import divergent
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.memory import Cell, View
from tilewright.interpreter.state import both
from tilewright.interpreter.tiles import read_region
from tilewright.ir.nodes import Call, Expr, Region, expr
from tilewright.ops.atomic import combine

STREAMED = 64
"""Bytes at whose multiples `stream_head` ends, in every text."""


def _target(state: Evaluator, node: Call) -> tuple[Region, View]:
    region = node.arguments[0]
    if not isinstance(region, Region):
        raise InternalError(f"{node.function} needs a region of one element", span=state.span)
    place = state.place(region.buffer)
    if isinstance(place, Cell):
        raise InternalError(f"{node.function} on a scalar", span=state.span)
    return region, place


def _operand(state: Evaluator, node: Call) -> Numbers:
    value = node.arguments[1]
    assert isinstance(value, Expr)
    return carried(state.value(value), value.dtype)


def _atomic(kind: str) -> Callable[[Evaluator, Call], Numbers]:
    def run(state: Evaluator, node: Call) -> Numbers:
        region, place = _target(state, node)
        indices = [state.value(start) for start in region.starts]
        value = _operand(state, node)
        offset, inside = place.locate(indices)
        if kind != "exchange":
            place.load(indices, 1, state.mask)  # reports what is out of bounds or was never written
        active = np.True_ if state.mask is None else state.mask
        shape = np.broadcast_shapes(np.shape(offset), np.shape(value), np.shape(active), state.lanes)
        offsets, values, wanted = (np.broadcast_to(x, shape).reshape(-1) for x in (offset, value, active))
        kept = wanted if inside is None else wanted & np.broadcast_to(inside, shape).reshape(-1)
        old = np.full(offsets.shape, carried(place.safe, place.dtype))
        old[kept] = _in_lane_order(place, kind, offsets[kept], values[kept])
        return settle(old.reshape(shape), place.dtype)

    return run


def _in_lane_order(place: View, kind: str, offsets: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Apply atomics in the order of lanes: lanes that meet at one element take turns."""
    old = np.empty(offsets.shape, place.dtype.numpy)
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    new_element = np.append(True, ordered[1:] != ordered[:-1])
    starts = np.flatnonzero(new_element)
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    for now in range(int(rank.max(initial=-1)) + 1):
        lanes = order[rank == now]
        before = place.gather(offsets[lanes])
        old[lanes] = before
        after = values[lanes] if kind == "exchange" else combine(kind, before, values[lanes], place.dtype)
        place.scatter(offsets[lanes], after)
    return old


def _atomic_load(state: Evaluator, node: Call) -> Numbers:
    region, place = _target(state, node)
    return place.load([state.value(start) for start in region.starts], 1, state.mask)


def _stream(state: Evaluator, node: Call) -> Numbers:
    """Vectors stored as any others: where they pass by is the machine's business."""
    region, place = _target(state, node)
    *outer, last = (state.value(start) for start in region.starts)
    for vector in node.arguments[1:-1]:
        assert isinstance(vector, Expr)
        bits, lanes = state.value(vector), vector.dtype.lanes
        if vector.dtype.scalar != region.buffer.dtype:
            bits = np.asarray(bits).view(region.buffer.dtype.numpy)
        place.store([*outer, last], lanes, bits, state.element_mask(lanes))
        last = last + lanes
    return 0


SPECIAL_CALLS["stream"] = _stream


def _first_elements(state: Evaluator, node: Call, lanes: int) -> tuple[View, list[Numbers], Numbers]:
    """Where the first lanes of a vector of so many are, and which lanes those are."""
    region, place = _target(state, node)
    (count,) = region.extents
    counted = np.asarray(state.value(expr(count)))[..., None]
    mask = state.element_mask(lanes)
    if np.any(both(mask, counted > lanes)):  # machines' masks have no more bits
        raise InternalError(f"{node.function} of {counted.max()} elements of a vector of {lanes}")
    return place, [state.value(start) for start in region.starts], both(mask, np.arange(lanes) < counted)


def _load_first(state: Evaluator, node: Call) -> Numbers:
    place, indices, mask = _first_elements(state, node, node.dtype.lanes)
    values = carried(place.load(indices, node.dtype.lanes, mask), node.dtype.scalar)
    return settle(np.where(mask, values, np.zeros((), values.dtype)), node.dtype)


def _store_first(state: Evaluator, node: Call) -> Numbers:
    value = node.arguments[1]
    assert isinstance(value, Expr)
    place, indices, mask = _first_elements(state, node, value.dtype.lanes)
    place.store(indices, value.dtype.lanes, state.value(value), mask)
    return 0


def _stream_head(state: Evaluator, node: Call) -> Numbers:
    """As if every tensor began with a line."""
    (region,), (large,) = node.regions, node.operands
    at = np.asarray(state.value(region.starts[0]))
    return settle(np.where(state.value(large), -at % (STREAMED // region.dtype.storage_bytes), 0), node.dtype)


SPECIAL_CALLS["load_first"] = _load_first
SPECIAL_CALLS["store_first"] = _store_first
SPECIAL_CALLS["stream_head"] = _stream_head


def _atomic_store(state: Evaluator, node: Call) -> Numbers:
    _atomic("exchange")(state, node)
    return 0


def _vote(every: bool) -> Callable[[Evaluator, Call], Numbers]:
    def run(state: Evaluator, node: Call) -> Numbers:
        region = node.regions[0]
        truth = read_region(state, region).astype(np.float64) != 0
        axes = tuple(range(truth.ndim - len(region.extents), truth.ndim))
        return settle(truth.all(axis=axes) if every else truth.any(axis=axes), node.dtype)

    return run


def _barrier(state: Evaluator, node: Call) -> int:
    """Statements run for all threads in turn, so that there is nothing to wait for."""
    if state.mask is not None and not np.all(np.logical_or(state.mask, state.returned)):
        raise divergent("the block", node.function)
    return 0


def _lane_index(state: Evaluator, node: Call) -> np.ndarray:
    return np.arange(node.dtype.lanes).astype(node.dtype.numpy)


def _fma(state: Evaluator, node: Call) -> Numbers:
    values = [state.value(argument) for argument in node.operands]
    return fused_multiply_add(values, node.dtype)


_NOTHING_TO_DO = (
    "grid_wait grid_launch take_turn pass_turn end_turns settle sync_warp "
    "set_registers fence_proxy_async schedule_fence"
)
for _name in _NOTHING_TO_DO.split():
    SPECIAL_CALLS[_name] = lambda state, node: 0  # kernels, and statements of threads, run one after the other
SPECIAL_CALLS["fma"] = _fma
SPECIAL_CALLS["lane_index"] = _lane_index
for _kind in ("add", "max", "min", "and", "or", "xor", "exchange"):
    SPECIAL_CALLS[f"atomic_{_kind}"] = _atomic(_kind)
SPECIAL_CALLS["atomic_load"] = _atomic_load
SPECIAL_CALLS["atomic_store"] = _atomic_store
SPECIAL_CALLS["any_of"] = _vote(False)
SPECIAL_CALLS["all_of"] = _vote(True)
SPECIAL_CALLS["sync_threads"] = _barrier
