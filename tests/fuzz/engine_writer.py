"""Mixed programs on machines with a copy engine, whose authors give it tiles: loads of boxes from anywhere, stores, sums."""

from __future__ import annotations

import math

import numpy as np
from mixed_tiles import Tile, exact_range
from mixed_writer import MixedWriter
from tile_programs import Param

from tilewright.ir.dtypes import ALL

ENGINES = ("sm_90", "sm_90a", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
ADDED = ("float32", "int32", "uint32", "float16", "bfloat16")
"""Types of which the engine adds tiles to tensors."""


class EngineWriter(MixedWriter):
    """Writes the program of a seed."""

    specialized = 0.5

    def start(self) -> None:
        """One barrier and its phase serve all loads of the program."""
        self.machines = tuple(f"cuda -arch={one}" for one in dict.fromkeys((self.pick(ENGINES), self.pick(ENGINES))))
        self.emit(f"full = T.alloc_barrier({self.threads})", 'phase = T.alloc_var("int32", init=0)')

    def load(self, tile: Tile) -> None:
        if self.by_hand(tile) and self.chance(0.7):
            tensor = self.boxed(tile, self.start_range(tile.dtype))
            text, values = self.box(tensor, tile), self.start_range(tile.dtype)
            self.emit(
                "T.sync_threads()", f"T.tma_copy({text}, {tile.name}, barrier=full)", "T.mbarrier_arrive(full)",
                "T.mbarrier_wait_parity(full, phase)", "phase = 1 - phase",
            )  # fmt: skip
            self.feature("engine", "load", tile.dtype)
            self.wrote(tile, (min(0, values[0]), max(0, values[1])))
        else:
            super().load(tile)

    def output(self, tile: Tile) -> None:
        """By the engine, where it takes the tile: to a tensor of the same columns, or beyond its end."""
        if not self.by_hand(tile) or tile.dtype == "bool" or self.chance(0.3):
            super().output(tile)
            return
        out = self.result(tile.shape, tile.dtype)
        place = f"{self.block_place()}, {', '.join('0' for _ in tile.shape)}"
        self.emit(f"T.tma_copy({tile.name}, {out.name}[{place}])", "T.tma_store_wait(0)")
        self.feature("engine", "store", tile.dtype)

    def through_tensor(self) -> None:
        """A box stored or added into a tensor of the caller's, beyond its end too; sums where blocks meet."""
        tiles = [one for one in self.usable(("shared",)) if self.by_hand(one) and one.dtype in ADDED]
        if not tiles:
            super().through_tensor()
            return
        tile = self.pick(tiles)
        into = self.boxed(tile, (0, 2))
        self.emit(f"T.atomic_add({self.box(into, tile, True)}, {tile.name}, use_tma=True)")
        self.feature("engine", "add", tile.dtype)

    def by_hand(self, tile: Tile) -> bool:
        """Whether the engine takes a tile here, where the block is one line of work."""
        row = tile.shape[-1] * ALL[tile.dtype].bits
        return (
            tile.scope == "shared" and tile.base is None and (tile not in self.annotated or self.seed % 4 == 0) and len(tile.shape) == 2 and row % 128 == 0 and not self.roles
            and not self.context.pipelined and not self.context.group and tile.shape[-1] * max(8, ALL[tile.dtype].bits) <= 2048
        )  # fmt: skip

    def boxed(self, tile: Tile, values: tuple[int, int]) -> Tile:
        """A tensor whose rows begin at multiples of 16 bytes, wherever they end."""
        name, unit = self.name("A"), self.unit(tile.dtype)
        low, high = exact_range(tile.dtype)
        values = max(low, values[0]), min(high, values[1])
        shape = [extent + self.pick((0, 0, 3, 8, -1 if extent > 1 else 0, extent)) for extent in tile.shape]
        if self.chance(0.3):
            shape = [self.pick((1, 2)), *shape]
        pitch = -(-shape[-1] // unit) * unit + self.pick((0, 0, unit))
        if ALL[tile.dtype].is_packed:
            shape[-1] = pitch
        numbers = self.numbers((*shape[:-1], pitch), tile.dtype, values)
        strides = [pitch * math.prod(shape[axis + 1 : -1]) for axis in range(len(shape) - 1)]
        declared = f'T.StridedTensor({tuple(shape)}, ({", ".join(map(str, strides))}, 1), "{tile.dtype}")'
        if pitch == shape[-1]:
            declared = f'T.Tensor({tuple(shape)}, "{tile.dtype}")'
        else:
            numbers = numbers[..., : shape[-1]]
        self.params.append(Param(name, declared, np.asarray(numbers)))
        return Tile(name, "global", tuple(shape), tile.dtype, values)

    def unit(self, dtype: str) -> int:
        return 128 // ALL[dtype].stored_bits

    def box(self, tensor: Tile, tile: Tile, inside: bool = False) -> str:
        """A box of a tensor, mostly from a multiple of 16 bytes on; stores begin inside."""
        unit, name = self.unit(tile.dtype), self.pick(self.context.indices)[0]
        row = self.pick(
            ("0", "0", self.index(0, 3), f"{name} * 3 - 4", f"{name} - 2", f"T.max({name}, 1000)", f"T.max({name}, 0)")
        )
        column = self.pick(
            (
                "0",
                "0",
                "0",
                f"({name} - 1) * {unit}",
                f"{name} * {unit}",
                f"({name} + 1) % 3 * {unit}",
                f"T.max({name}, 40) * {unit}",
            )
        )
        if self.chance(0.03):  # most of these are refused
            column = self.pick((f"{name}", str(self.between(1, 9)), f"{name} * {max(1, unit // 2)}"))
        if inside:
            row, column = f"T.max({row}, 0)", f"T.max({column}, 0)"
        lead = f"{self.index(0, tensor.shape[0] - 1)}, " if len(tensor.shape) > 2 else ""
        return f"{tensor.name}[{lead}{row}, {column}]"
