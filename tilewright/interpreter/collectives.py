"""What threads do together: exchange values in a warp, read and write the registers of all of them.

Targets give their matrix instructions a meaning with `read_each`, `write_each` and `whole_warps`, and put it in
`evaluate.SPECIAL_CALLS`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.errors import DivergentThreads, ForeignFunction, InternalError, OutOfBounds, UninitializedRead
from tilewright.interpreter.arithmetic import Numbers, binary, carried
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.memory import View
from tilewright.ir.nodes import WARP, Call, Region
from tilewright.ops.rounding import wrap


def divergent(unit: str, function: str) -> DivergentThreads:
    """The mistake of threads that do not all come where they must meet."""
    return DivergentThreads(
        f"only some of {unit}'s threads reach {function}",
        hint=f"move it out of the condition: all threads of {unit} must reach it",
    )


def whole_warps(state: Evaluator, function: str, lanes: int = WARP) -> np.ndarray:
    """The active threads, of which each warp of so many lanes has all or none.

    Raises
    ------
    DivergentThreads : some threads of a warp are active and others are not.
    """
    active = state.active
    if state.lanes[-1] % lanes:
        raise DivergentThreads(
            f"{function} needs whole warps of {lanes} threads, but the block has {state.lanes[-1]}",
            hint=f"use a multiple of {lanes} threads",
        )
    warps = active.reshape(*state.lanes[:-1], -1, lanes)
    if (warps.any(axis=-1) != warps.all(axis=-1)).any():
        raise divergent("a warp", function)
    return active


def each_offset(state: Evaluator, region: Region) -> tuple[View, np.ndarray]:
    """Where each lane finds the elements of a region: flat offsets, shaped as the lanes and the number of elements.

    The region lies along the buffer's last dimension; its place may differ from lane to lane.
    """
    place = state.view(region.buffer)
    count = int(np.prod([state.extent(extent) for extent in region.extents]))
    starts = [state.value(start) for start in region.starts]
    for step in (0, count - 1):
        ends = [*starts[:-1], starts[-1] + step]
        inside = place.locate(ends)[1]
        if inside is not None and np.any(np.logical_and(~np.asarray(inside), state.active)):
            raise OutOfBounds(place.name, f"[... + {step}]", place.shape, "read")
    first = np.broadcast_to(np.asarray(place.locate(starts)[0]), state.lanes)
    return place, first[..., None] + np.arange(count) * place.strides[-1]


def read_each(state: Evaluator, region: Region) -> np.ndarray:
    """What each lane has in a region: an array shaped as the lanes and the number of elements."""
    place, offsets = each_offset(state, region)
    missing = np.logical_and(place.unwritten(offsets), state.active[..., None])
    if missing.any():
        raise UninitializedRead(place.name, place.first_text(offsets, missing))
    return place.gather(offsets)


def write_each(state: Evaluator, region: Region, values: np.ndarray) -> None:
    """Set what each active lane has in a region; `values` is shaped as `read_each` gives them."""
    place, offsets = each_offset(state, region)
    active = np.broadcast_to(state.active[..., None], offsets.shape)
    place.scatter(offsets[active], values[active])


def _shuffled(from_lane: Callable[[np.ndarray, Numbers], Numbers]) -> Callable[[Evaluator, Call], Numbers]:
    """The value of another thread of the warp: `from_lane` gives its lane; the own value where there is no such
    lane."""

    def run(state: Evaluator, node: Call) -> Numbers:
        value, by = node.operands
        if not state.lanes:
            raise InternalError(f"{node.function} outside threads", span=state.span)
        values = np.broadcast_to(carried(state.value(value), value.dtype), state.lanes)
        threads = np.arange(state.lanes[-1])
        lane = threads % WARP
        wanted = np.broadcast_to(from_lane(lane, np.asarray(state.value(by))), state.lanes)
        source = threads - lane + wanted
        source = np.where((wanted >= 0) & (wanted < WARP) & (source < len(threads)), source, threads)
        active = state.active
        if np.logical_and(active, ~np.take_along_axis(active, source, -1)).any():
            raise DivergentThreads(
                f"{node.function} reads a thread that does not take part",
                hint="move it out of the condition: all threads of the warp must reach it",
            )
        return np.take_along_axis(values, source, -1)

    return run


def _ballot(state: Evaluator, node: Call) -> Numbers:
    """A word a warp whose bits are the conditions of its threads."""
    (condition,) = node.operands
    active = whole_warps(state, node.function)
    held = np.broadcast_to(np.asarray(state.value(condition)).astype(bool), state.lanes) & active
    warps = held.reshape(*state.lanes[:-1], -1, WARP)
    words = (warps * (np.uint32(1) << np.arange(WARP, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return np.repeat(words, WARP, axis=-1)


def _matched(every: bool) -> Callable[[Evaluator, Call], Numbers]:
    """A word whose bits are the threads of the warp with the same value; of `every` thread or none."""

    def run(state: Evaluator, node: Call) -> Numbers:
        (value,) = node.operands
        active = whole_warps(state, node.function)
        values = np.broadcast_to(state.value(value), state.lanes).reshape(*state.lanes[:-1], -1, WARP)
        bits = values.view(f"u{values.dtype.itemsize}") if values.dtype.kind != "b" else values
        same = (bits[..., :, None] == bits[..., None, :]) & active.reshape(values.shape)[..., None, :]
        words = (same * (np.uint32(1) << np.arange(WARP, dtype=np.uint32))).sum(-1, dtype=np.uint32)
        if every:
            words = np.where((words == words.max(-1, keepdims=True)).all(-1, keepdims=True), words, np.uint32(0))
        return words.reshape(state.lanes)

    return run


SPECIAL_CALLS["match_any"] = _matched(False)
SPECIAL_CALLS["match_all"] = _matched(True)
SPECIAL_CALLS["shuffle"] = _shuffled(lambda lane, by: by % WARP)
SPECIAL_CALLS["shuffle_xor"] = _shuffled(lambda lane, by: lane ^ by)
SPECIAL_CALLS["shuffle_up"] = _shuffled(lambda lane, by: lane - by)
SPECIAL_CALLS["shuffle_down"] = _shuffled(lambda lane, by: lane + by)
SPECIAL_CALLS["ballot"] = _ballot


def _whole_warp(kind: str, of_machine: bool = False) -> Callable[[Evaluator, Call], Numbers]:
    """The values of all lanes of a warp, or of all that the machine runs together, combined as a butterfly does, in
    every lane."""

    def run(state: Evaluator, node: Call) -> Numbers:
        (value,) = node.operands
        count = state.together if of_machine else WARP
        whole_warps(state, node.function, count)
        values = np.broadcast_to(carried(state.value(value), value.dtype), state.lanes)
        lanes, distance = values.reshape(*state.lanes[:-1], -1, count), count // 2
        while distance:
            lanes = np.asarray(binary(kind, lanes, lanes[..., np.arange(count) ^ distance], value.dtype))
            distance //= 2
        return lanes.reshape(state.lanes)

    return run


def _vote_of_block(fold: Callable[..., Numbers]) -> Callable[[Evaluator, Call], Numbers]:
    """All threads of the block meet, and learn something of the conditions of all."""

    def run(state: Evaluator, node: Call) -> Numbers:
        (condition,) = node.operands
        if not state.active.all():
            raise divergent("the block", node.function)
        held = np.broadcast_to(np.asarray(state.value(condition)).astype(bool), state.lanes)
        return np.broadcast_to(fold(held), state.lanes).astype(node.dtype.numpy)

    return run


def _dot(state: Evaluator, node: Call) -> int:
    """Each thread adds four products of bytes to its sum."""
    left, right, total = node.regions
    lanes = state.lanes
    if not lanes:
        state.lanes = (1,)
    try:
        products = read_each(state, left).astype(np.int64) * read_each(state, right).astype(np.int64)
        result = products.sum(-1, keepdims=True) + read_each(state, total).astype(np.int64)
        write_each(state, total, wrap(result, total.dtype))
    finally:
        state.lanes = lanes
    return 0


def _foreign(state: Evaluator, node: Call) -> Numbers:
    raise ForeignFunction(
        f"{node.arguments[0]} is a function of the device's own language, which only a device or its emulator runs",
        hint="call kernel.emulate(...), or write the function in Python with @T.macro",
    )


for _kind in ("add", "min", "max", "and", "or", "xor"):
    SPECIAL_CALLS[f"warp_{_kind}"] = _whole_warp(_kind)
SPECIAL_CALLS["simdgroup_add"] = _whole_warp("add", of_machine=True)
SPECIAL_CALLS["sync_threads_and"] = _vote_of_block(np.all)
SPECIAL_CALLS["sync_threads_or"] = _vote_of_block(np.any)
SPECIAL_CALLS["sync_threads_count"] = _vote_of_block(np.count_nonzero)
SPECIAL_CALLS["dp4a"] = _dot
SPECIAL_CALLS["call_extern"] = _foreign
