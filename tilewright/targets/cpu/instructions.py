"""The dot-product instructions of ordinary processors: records for the passes, meanings for the interpreter, names in
C.

`dot_instructions` lists what a machine has, best first; a new instruction is one entry here and one function
in ``device/tilewright_dot.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir import EVERY_OTHER, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType, Intrinsic, dtype, register
from tilewright.ir.nodes import Call, Const, Expr, Region, expr
from tilewright.machine import MULTIPLY_ADD, DotInstruction, TileInstruction
from tilewright.targets.c_family import Text
from tilewright.targets.cpu.spellings import (
    DEVICE_FUNCTIONS,
    TILE_UNIT,
    DeviceFunction,
    carrier,
    device_function,
    lanes_suffix,
)

HEADER = "tilewright_dot.h"


def _dot_reference(depth: int) -> Callable[..., np.ndarray]:
    """Meaning of a dot product over `depth` neighbours: lanes are the last axis."""

    def reference(accumulator: np.ndarray, vector: np.ndarray, broadcast: np.ndarray) -> np.ndarray:
        wide = np.int64 if np.issubdtype(np.asarray(vector).dtype, np.integer) else np.float64
        products = np.asarray(vector).astype(wide) * np.asarray(broadcast).astype(wide)
        return accumulator + products.reshape(*products.shape[:-1], -1, depth).sum(axis=-1)

    return reference


def _machine_function(name: str, c_name: str, reference: Callable[..., np.ndarray], arity: int = 3) -> None:
    register(Intrinsic(name, arity, reference))
    device_function(name, c_name, HEADER)


def _spell_total(printer: object, call: Call, arguments: list[Text]) -> Text:
    """Named by its argument, since its result is a scalar."""
    (vector,) = call.arguments
    assert isinstance(vector, Expr)
    return Text(f"tw_total_i32x{vector.dtype.lanes}({arguments[0]})")


_machine_function("cpu.dot4_u8_s8", "tw_dot4_u8_s8_{code}{lanes}", _dot_reference(4))
_machine_function("cpu.dot4_s8_u8", "tw_dot4_s8_u8_{code}{lanes}", _dot_reference(4))
_machine_function("cpu.dot4_s8_s8", "tw_dot4_s8_s8_{code}{lanes}", _dot_reference(4))
_machine_function("cpu.dot4_u4_s8", "tw_dot4_u4_s8_{code}{lanes}", _dot_reference(4))
for _name in EVERY_OTHER:
    device_function(_name, f"tw_{_name}_{{code}}{{lanes}}")
device_function("prefetch", "tw_prefetch")
device_function("prefetch_far", "tw_prefetch_far")


def _spell_first(printer: Any, call: Call, arguments: list[Text]) -> Text:
    """The place, the vector where it is a store, and how many of its lanes exist.

    The end of a tile is stored whole, into the room behind it: what part of a vector has just been written can be read
    again only once it has left for the cache, behind all stores before it.
    """
    region = call.regions[0]
    if call.function == "store_first" and _has_room_behind(region, call.dtype):
        return Text(f"tw_store_{carrier(call.dtype)}{lanes_suffix(call.dtype)}({arguments[0]}, {arguments[1]})")
    count = printer.expression(expr(region.extents[0]))
    parts = ", ".join(str(part) for part in (*arguments, count))
    return Text(f"tw_{call.function}_{carrier(call.dtype)}{lanes_suffix(call.dtype)}({parts})")


def _has_room_behind(region: Region, vector: DType) -> bool:
    """Whether a vector from the beginning of a region on reaches over the end of a tile's elements, and not of its
    memory."""
    (start,), (count,), tile = region.starts, region.extents, region.buffer
    count = int(count.value) if isinstance(count, Const) else count  # as loops that were written out leave it
    if tile.scope == "global" or tile.source is not None or not isinstance(start, Const) or not isinstance(count, int):
        return False
    aligned = vector.nbytes(1) <= TILE_UNIT and start.value % vector.lanes == 0
    return aligned and start.value + count == tile.size > vector.lanes


def _spell_stream(printer: object, call: Call, arguments: list[Text]) -> Text:
    """Named by how many vectors it stores, between the place and the condition."""
    vectors = len(arguments) - 2
    count = "" if vectors == 1 else f"{vectors}_"
    name = f"tw_stream_{count}{carrier(call.dtype)}{lanes_suffix(call.dtype)}"
    return Text(f"{name}({', '.join(str(part) for part in arguments)})")


def _spell_head(printer: object, call: Call, arguments: list[Text]) -> Text:
    return Text(f"tw_stream_head({arguments[0]}, {call.regions[0].dtype.storage_bytes}, {arguments[1]})")


DEVICE_FUNCTIONS["load_first"] = DEVICE_FUNCTIONS["store_first"] = DeviceFunction(_spell_first)
DEVICE_FUNCTIONS["stream"] = DeviceFunction(_spell_stream)
DEVICE_FUNCTIONS["stream_head"] = DeviceFunction(_spell_head)
for _kind in ("words", "wide", "bytes", "pairs"):
    register(Intrinsic(f"cpu.pack_{_kind}", 3, None, pure=False))
    device_function(f"cpu.pack_{_kind}", f"tw_pack_{_kind}_{{code}}{{lanes}}", HEADER)


def _look_up_reference(codes: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    table = np.array([low, high], np.uint64).view(np.uint8)
    return table[codes]


# Bytes by their number, below 16, in a table of two words.
_machine_function("cpu.look_up", "tw_look_up_{code}{lanes}", _look_up_reference)


def _choose_reference(codes: np.ndarray, *values: np.ndarray) -> np.ndarray:
    return np.array(values, np.float32)[np.asarray(codes) & len(values) - 1]


# Floats by the lowest four bits of each lane, among sixteen.
_machine_function("cpu.choose", "tw_choose_{code}{lanes}", _choose_reference, 17)
register(Intrinsic("cpu.total", 1, lambda values: np.asarray(values).sum(axis=-1)))
DEVICE_FUNCTIONS["cpu.total"] = DeviceFunction(_spell_total, HEADER)
_machine_function("cpu.dot2_bf16", "tw_dot2_bf16_{code}{lanes}", _dot_reference(2))


def _bytes(
    function: str,
    vector: DType,
    broadcast: DType,
    lanes: int,
    uops: float = 1.0,
    latency: int = 4,
    largest: int | None = None,
) -> DotInstruction:
    return DotInstruction(function, INT32, vector, broadcast, 4, lanes, uops, latency, largest)


def _multiply_adds(vector_bytes: int) -> tuple[list[DotInstruction], list[DotInstruction]]:
    """What every machine has, for floats and for integers: one element of k at a time."""

    def one(element: DType, uops: float) -> DotInstruction:
        lanes = max(1, vector_bytes // element.storage_bytes)
        return DotInstruction(MULTIPLY_ADD, element, element, element, 1, lanes, uops)

    return [one(FLOAT32, 1.0), one(FLOAT64, 1.0)], [one(INT32, 2.0), one(INT64, 3.0)]


def tile_instructions(features: frozenset[str], vector_bytes: int) -> tuple[TileInstruction, ...]:
    """The products of a machine's matrix unit; none where panels are not as wide as its tiles."""
    lanes, found = vector_bytes // 4, []
    if "amx_tile" not in features or lanes != TILE_LANES:
        return ()
    if "amx_int8" in features:
        for a in (INT8, UINT8):
            for b in (INT8, UINT8):
                name = f"cpu.tile_{'su'[a is UINT8]}{'su'[b is UINT8]}"
                found.append(TileInstruction(name, INT32, b, a, 4, lanes))
    if "amx_bf16" in features:
        bf16 = dtype("bfloat16")
        found.append(TileInstruction("cpu.tile_bf16", FLOAT32, bf16, bf16, 2, lanes))
    return tuple(found)


TILE_LANES = 16
"""Columns of an accumulator of the matrix unit."""


def dot_instructions(features: frozenset[str], vector_bytes: int) -> tuple[DotInstruction, ...]:
    """The dot products of a machine with these features, best first.

    Parameters
    ----------
    features : as `Arch.features`: ``vnni``, ``avxvnni``, ``avx2``, ``sse4_2``, ``x86_64``, ``dotprod``, ``i8mm``,
        ``bf16``, ``slow_bf16``.
    vector_bytes : width of a vector register.
    """
    lanes = vector_bytes // 4
    found: list[DotInstruction] = []
    if features & {"vnni", "avxvnni"}:
        found.append(_bytes("cpu.dot4_u8_s8", UINT8, INT8, lanes, latency=5))
        found.append(_bytes("cpu.dot4_s8_u8", INT8, UINT8, lanes, latency=5))
    elif "x86_64" in features:
        # Pairs of products saturate at 16 bits, which codes of up to seven bits cannot reach.
        if features & {"avx2", "sse4_2"}:
            found.append(_bytes("cpu.dot4_u4_s8", UINT8, INT8, lanes, uops=3.0, latency=6, largest=127))
        found.append(_bytes("cpu.dot4_u8_s8", UINT8, INT8, lanes, uops=7.0, latency=2))
        found.append(_bytes("cpu.dot4_s8_u8", INT8, UINT8, lanes, uops=7.0, latency=2))
    elif features & {"dotprod", "i8mm"}:
        found.append(_bytes("cpu.dot4_s8_s8", INT8, INT8, lanes))
        if "i8mm" in features:
            found.append(_bytes("cpu.dot4_u8_s8", UINT8, INT8, lanes))
            found.append(_bytes("cpu.dot4_s8_u8", INT8, UINT8, lanes))
    floats, integers = _multiply_adds(vector_bytes)
    if "bf16" in features:
        slow, bf16 = "slow_bf16" in features, dtype("bfloat16")
        uops, latency = (4.3, 8) if slow else (1.0, 6)
        floats.append(DotInstruction("cpu.dot2_bf16", FLOAT32, bf16, bf16, 2, lanes, uops, latency))
    return (*found, *sorted(floats, key=lambda one: -one.rate), *integers)
