"""Programs whose places are reckoned in 64 bits, mostly beyond all tensors, and whose vector loops change what all their iterations have.

A place that is 2^32 further is no other one, and a sum is one whoever runs a loop: both are easily taken for what they look like.
"""

from __future__ import annotations

from collections.abc import Callable

from mixed_tiles import Tile
from own_writer import OwnWriter

from tilewright.ir.dtypes import ALL

FAR = (2**32, 2**32, -(2**32), 2**31, 2**32 - 8, 3 * 2**32 + 1)


class WideWriter(OwnWriter):
    """Writes the program of a seed."""

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        ways = super().ways()
        if self.parted_by or self.context.group is not None:
            return ways
        part = sum(weight for weight, _ in ways) / 12
        return [*ways, (2 * part, self.folded), (part, self.stored_far), (part, self.read_far)]

    # Places ------------------------------------------------------------------------------------------

    def far(self) -> str:
        """A place in 64 bits: one of the tensor where what it is reckoned with is nought."""
        names = [name for name, low, _ in self.context.indices if low <= 0]
        name = self.pick(names) if names else "0"
        return f'T.cast({name}, "int64") * {self.pick(FAR)} + {self.between(0, 3)}'

    def start_in(self, extent: int) -> str:
        return self.far() if extent and self.chance(0.15) else super().start_in(extent)

    def stored_far(self) -> None:
        """A tile goes to a tensor of the block's, or nowhere."""
        tiles = [one for one in self.usable() if len(one.shape) == 2 and not ALL[one.dtype].is_packed]
        if not tiles:
            return
        tile = self.pick(tiles)
        rows, columns = tile.shape
        whole = (self.blocks, *((self.grid_y,) if self.grid_y > 1 else ()), rows + self.pick((0, 3)), columns)
        into = self.tensor(whole, tile.dtype, (-2, 2))
        self.emit(f"T.copy({tile.name}, {into.name}[{self.block_place()}, {self.far()}, 0])")
        self.feature("wide", "stored", tile.scope)

    def read_far(self) -> None:
        """Elements of a tensor, one by one."""
        tiles = [one for one in self.usable(value=None) if self.takes(one, (-3, 3)) and not ALL[one.dtype].is_packed]
        if not tiles:
            return
        tile = self.pick(tiles)
        source = self.tensor(tuple(extent + self.pick((0, 3)) for extent in tile.shape), "int32", (-3, 3))
        indices = [name for name, _ in self.loop(tile.shape)]
        at = self.between(0, len(indices) - 1)
        there = [f"{self.far()} + {name}" if axis == at else name for axis, name in enumerate(indices)]
        self.emit(f'    {tile.name}[{", ".join(indices)}] = T.cast({source.name}[{", ".join(there)}], "{tile.dtype}")')
        self.wrote(tile, (-3, 3))
        self.feature("wide", "read", tile.scope)

    # Vector loops ------------------------------------------------------------------------------------

    def folded(self) -> None:
        """What a vector loop brings is added to elements of a tile one after the other, or compared with them."""
        tiles = [one for one in self.usable() if ALL[one.dtype].bits >= 16 and one.dtype != "bool"]
        if not tiles:
            return
        tile: Tile = self.pick(tiles)
        lanes = self.pick((2, 4, 8, 5))
        assert tile.range is not None
        low, high = tile.range
        least = 0 if ALL[tile.dtype].kind == "uint" else -2
        ways = ["T.max({}, {})", "T.min({}, {})"]
        added = low + lanes * least, high + lanes * 2
        if self.takes(tile, added) and tile.holder.made_in == self.context.loops:
            ways += ["{} + {}"] * 3
        way = self.pick(ways)
        values = added if "+" in way else (min(low, least), max(high, 2))
        if not self.takes(tile, values):
            return
        source = self.tensor((*tile.shape, lanes), tile.dtype, (least, 2))
        place = ", ".join(name for name, _ in self.loop(tile.shape))
        lane = self.name("v")
        element = f"{tile.name}[{place}]"
        self.emit(f"    for {lane} in T.vectorized({lanes}):")
        before = element
        if self.chance(0.3):
            before = self.name("y")
            self.emit(f"        {before} = {element}")
        self.emit(f"        {element} = {way.format(before, f'{source.name}[{place}, {lane}]')}")
        self.wrote(tile, values)
        self.feature("wide", "folded", tile.scope, tile.dtype)
