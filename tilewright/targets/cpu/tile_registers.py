"""The matrix unit of a processor: eight registers of tiles, as functions that kernels call, with their meaning in
NumPy.

Registers 0 to 3 are accumulators, 4 and 5 left tiles, 6 and 7 right ones.  A configuration gives them their sizes: how
many rows the accumulators 0 and 1 and the left tile 4 have, how many the accumulators 2 and 3 and the left tile 5, and
how many words of k left tiles have in a row, which are the rows of right tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.interpreter.memory import View
from tilewright.ir import INT32, Intrinsic, register
from tilewright.ir.nodes import Call, Const, Evaluate, Expr, Extent, Region, Statement, const, expr
from tilewright.targets.c_family import Text
from tilewright.targets.cpu.instructions import TILE_LANES
from tilewright.targets.cpu.spellings import DEVICE_FUNCTIONS, DeviceFunction

HEADER = "tilewright_amx.h"
LEFT, RIGHT = 4, 6
"""The first left and the first right register."""
ROW_BYTES = 64
WORD = 4


# Statements -------------------------------------------------------------------------------------


def _call(function: str, *arguments: Expr | Region) -> Statement:
    return Evaluate(Call(INT32, f"cpu.{function}", arguments))


def configure(first: Extent, second: Extent, words: int) -> Statement:
    """Sizes of the registers; what they held is lost, unless they have these sizes already."""
    return _call("tile_configure", expr(first), expr(second), const(words))


def zero(tile: int) -> Statement:
    return _call("tile_zero", const(tile))


def load(tile: int, place: Region, stride: Extent) -> Statement:
    """Fill a register from rows that lie `stride` bytes apart."""
    return _call("tile_load", const(tile), place, expr(stride))


def store(tile: int, place: Region, stride: Extent) -> Statement:
    return _call("tile_store", const(tile), place, expr(stride))


def multiply(function: str, accumulator: int, left: int, right: int) -> Statement:
    return Evaluate(Call(INT32, function, (const(accumulator), const(left), const(right))))


# Text -------------------------------------------------------------------------------------------


def _spell(name: str) -> DeviceFunction:
    """Numbers of registers are part of the instruction, so they are written as such."""

    def spell(printer: object, call: Call, arguments: list[Text]) -> Text:
        parts = [
            str(a.value) if isinstance(a, Const) else str(t) for a, t in zip(call.arguments, arguments, strict=True)
        ]
        return Text(f"tw_{name}({', '.join(parts)})")

    return DeviceFunction(spell, HEADER)


# Meaning in NumPy -------------------------------------------------------------------------------


def _numbers(arguments: Sequence[object]) -> list[int]:
    return [int(argument.value) for argument in arguments if isinstance(argument, Const)]


def _configure(state: Evaluator, node: Call) -> int:
    first, second, words = (state.uniform(a) for a in node.operands)
    sizes = (
        [(first, TILE_LANES)] * 2
        + [(second, TILE_LANES)] * 2
        + [(first, words), (second, words)]
        + [(words, TILE_LANES)] * 2
    )
    if state.tiles.get(-1) != sizes:
        state.tiles = {
            -1: sizes,
            **{tile: np.zeros((rows, columns * WORD), np.uint8) for tile, (rows, columns) in enumerate(sizes)},
        }
    return 0


def _zero(state: Evaluator, node: Call) -> int:
    (tile,) = _numbers(node.arguments)
    state.tiles[tile] = np.zeros_like(state.tiles[tile])
    return 0


def _place(state: Evaluator, node: Call) -> tuple[int, View, np.ndarray]:
    """The register, and the elements of a view that it stands for."""
    (number, stride), (region,) = node.operands, node.regions
    assert isinstance(number, Const)
    view = state.view(region.buffer)
    size = region.dtype.storage_bytes
    rows, bytes_ = state.tiles[int(number.value)].shape
    step, rest = divmod(state.uniform(stride), size)
    assert rest == 0
    return (
        int(number.value),
        view,
        state.uniform(region.starts[0]) + np.arange(rows)[:, None] * step + np.arange(bytes_ // size),
    )


def _load(state: Evaluator, node: Call) -> int:
    tile, view, offsets = _place(state, node)
    state.tiles[tile] = np.ascontiguousarray(view.gather(offsets)).view(np.uint8)
    return 0


def _store(state: Evaluator, node: Call) -> int:
    tile, view, offsets = _place(state, node)
    view.scatter(offsets, state.tiles[tile].view(view.dtype.numpy))
    return 0


def _integer_product(left: type, right: type) -> Any:
    def product(state: Evaluator, node: Call) -> int:
        total, a, b = _numbers(node.arguments)
        words = state.tiles[b].shape[0]
        rows = state.tiles[a].view(left).astype(np.int64)
        columns = (
            state.tiles[b].view(right).reshape(words, TILE_LANES, WORD).swapaxes(1, 2).reshape(words * WORD, TILE_LANES)
        )
        sums = state.tiles[total].view(np.int32) + rows @ columns.astype(np.int64)
        state.tiles[total] = sums.astype(np.int32).view(np.uint8)
        return 0

    return product


def _flushed(values: np.ndarray) -> np.ndarray:
    """float32 without subnormal numbers."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values).astype(
        np.float32
    )


def _bfloat16_product(state: Evaluator, node: Call) -> int:
    """Even and odd elements of k are summed apart, each by fused multiply-adds; then both, and what was there."""
    total, a, b = _numbers(node.arguments)

    def halves(tile: int) -> np.ndarray:
        words = (state.tiles[tile].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return _flushed(words).astype(np.float64).reshape(*words.shape[:-1], -1, 2)

    left, right = halves(a), halves(b)
    sums = np.zeros((left.shape[0], TILE_LANES, 2), np.float32)
    with np.errstate(all="ignore"):
        for word in range(right.shape[0]):
            sums = _flushed((sums + left[:, word, None, :] * right[None, word]).astype(np.float32))
        both = _flushed(sums[..., 0] + sums[..., 1])
        result = _flushed(_flushed(state.tiles[total].view(np.float32)) + both)
    state.tiles[total] = result.view(np.uint8)
    return 0


for _name, _arity, _meaning in (
    ("tile_configure", 3, _configure),
    ("tile_zero", 1, _zero),
    ("tile_load", 3, _load),
    ("tile_store", 3, _store),
    ("tile_ss", 3, _integer_product(np.int8, np.int8)),
    ("tile_su", 3, _integer_product(np.int8, np.uint8)),
    ("tile_us", 3, _integer_product(np.uint8, np.int8)),
    ("tile_uu", 3, _integer_product(np.uint8, np.uint8)),
    ("tile_bf16", 3, _bfloat16_product),
):
    _only = (1,) if _name == "tile_load" else ()
    register(Intrinsic(f"cpu.{_name}", _arity, None, pure=False, checks_bounds=True, reads_only=_only))
    SPECIAL_CALLS[f"cpu.{_name}"] = _meaning
    DEVICE_FUNCTIONS[f"cpu.{_name}"] = _spell(_name)
