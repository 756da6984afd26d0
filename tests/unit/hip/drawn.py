"""What a kernel drawn at random is judged by, and what draws share: types, numbers, sizes."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright.language as T
from tilewright.ir.dtypes import dtype as ir_dtype

OPERANDS = {
    "gfx90a": ("float16", "bfloat16", "int8", "float32"),
    "gfx942": ("float16", "bfloat16", "int8", "float8_e4m3fnuz", "float8_e5m2fnuz", "float32"),
    "gfx950": ("float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2", "float32"),
    "gfx1100": ("float16", "bfloat16", "int8", "uint8"),
    "gfx1201": ("float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"),
}
"""Types that each machine has matrix instructions for."""


@dataclass(frozen=True)
class Drawn:
    """A kernel and what its machine code is judged by.

    Attributes
    ----------
    name : all that was drawn.
    function : of the language.
    arguments : small arrays, of sizes that divide nothing.
    tile : rows, columns and depth of what a block multiplies in a step of its loop; None where it multiplies nothing.
    overlaps : whether loads of a later step stand before the products of one.
    reads_between : whether a step reads tensors while it works on its tiles.
    """

    name: str
    function: Callable[..., Any]
    arguments: list[np.ndarray]
    tile: tuple[int, int, int] | None = None
    threads: int = 128
    overlaps: bool = False
    reads_between: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether rows of scores are longer than waves of 32 lanes have registers for, which hold each element twice."""
        return "attention" in self.name and self.tile is not None and self.tile[1] > 64

    @property
    def registers(self) -> int:
        """What a thread holds of a step, at least: sums and operands that are multiplied or on their way. Waves share a
        tile's products evenly, or some of them make the same ones."""
        if self.tile is None:
            return 0
        rows, columns, depth = self.tile
        products, waves = max(rows // 16, 1) * max(columns // 16, 1), max(self.threads // 64, 1)
        sharing = max(one for one in range(1, waves + 1) if waves % one == 0 and products % one == 0)
        return (rows * columns + (rows + columns) * depth // 2) * waves // (sharing * self.threads)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = ir_dtype(dtype).numpy
    if math.prod(shape) > 1 << 17:
        return np.zeros(shape, kind)  # of these only the machine code is looked at
    if dtype.startswith(("int", "uint")):
        low, high = (0, 4) if dtype.startswith("u") else (-3, 4)
        return rng.integers(low, high, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)


def size_of(pick: random.Random, tile: int, most: int, large: bool) -> int:
    """A size in tiles: of at most `most` and odd, or of many, as models have them."""
    if not large:
        return pick.randrange(1, most * tile + 9)
    return pick.choice([1, 1, 3]) * 8 * tile + pick.choice([0, 0, 8, pick.randrange(tile)])


def summed(dtype: str) -> str:
    return "int32" if "int" in dtype else "float32"


EPILOGUES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "plain": lambda value, column, row: value,
    "bias": lambda value, column, row: value + column,
    "relu": lambda value, column, row: T.max(value + column, 0.0),
    "silu": lambda value, column, row: value * T.sigmoid(value) * row,
    "gelu": lambda value, column, row: 0.5 * value * (1.0 + T.erf(value * 0.70710678)),
    "scaled": lambda value, column, row: value * column * row,
    "tanh": lambda value, column, row: 30.0 * T.tanh(value / 30.0),
}
