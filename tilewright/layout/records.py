"""`RecordLayout`: the parts of a packed weight (codes, scales, zeros) bundled block by block.

A matrix is cut into blocks.  One record holds what belongs to one block: each field is a tile of its own, laid out
by a layout of its own in its own elements, at its own byte of the record.  A bulk copy of one record brings a block
whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.errors import InvalidLayout
from tilewright.ir import DType, pack, register_record, unpack
from tilewright.layout.digits import MEMORY
from tilewright.layout.layout import Layout


@register_record
@dataclass(frozen=True, slots=True)
class Field:
    """One part of a record.

    Attributes
    ----------
    name : what the caller passes it by.
    dtype : of its elements; those of fewer than eight bits share bytes, low bits first.
    layout : of the part of it that belongs to one block, in elements.
    """

    name: str
    dtype: DType
    layout: Layout

    @property
    def nbytes(self) -> int:
        """Bytes it takes in each record."""
        return self.dtype.nbytes(self.layout.extent(MEMORY))


@register_record
@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The order of a packed operand.

    Attributes
    ----------
    grid : position of each block among the records: a bijective memory layout over the grid of blocks.
    fields : the parts, in their order within a record.
    alignment : bytes that every field starts at a multiple of, and that records are padded to.

    Raises
    ------
    InvalidLayout : fields of another rank than the grid, or that put two elements in one place.
    """

    grid: Layout
    fields: tuple[Field, ...]
    alignment: int = 16

    def __post_init__(self) -> None:
        if not self.grid.is_bijective:
            raise InvalidLayout(f"the blocks of a record layout leave holes or overlap: {self.grid}")
        for one in self.fields:
            if one.layout.rank != self.grid.rank or not one.layout.is_injective:
                raise InvalidLayout(f"field {one.name} does not fit its record: {one.layout}")

    def offset(self, name: str) -> int:
        """Byte of a record at which a field starts."""
        reached = 0
        for one in self.fields:
            if one.name == name:
                return reached
            reached += -(-one.nbytes // self.alignment) * self.alignment
        raise InvalidLayout(f"a record of {', '.join(one.name for one in self.fields)} has no field {name!r}")

    @property
    def record_bytes(self) -> int:
        """Bytes of one record, padding included."""
        return sum(-(-one.nbytes // self.alignment) * self.alignment for one in self.fields)

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self.grid.size * self.record_bytes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a field of the whole operand."""
        one = self._field(name)
        return tuple(blocks * extent for blocks, extent in zip(self.grid.shape, one.layout.shape))

    def pack(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """The records of an operand.

        Parameters
        ----------
        parts : for each field its whole array, of ``shape(name)``, unpacked in the carrier of its dtype.

        Returns
        -------
        uint8 array of `nbytes` bytes.
        """
        records = np.zeros((self.grid.size, self.record_bytes), np.uint8)
        for one in self.fields:
            blocks = self._blocks(one, np.asarray(parts[one.name]))
            elements = np.zeros((self.grid.size, one.layout.extent(MEMORY)), one.dtype.numpy)
            elements[:, one.layout.permutation().reshape(-1)] = blocks
            packed = np.ascontiguousarray(pack(elements, one.dtype)).view(np.uint8)
            start = self.offset(one.name)
            records[:, start : start + one.nbytes] = packed.reshape(self.grid.size, -1)
        return records.reshape(-1)

    def unpack(self, packed: np.ndarray, name: str) -> np.ndarray:
        """One field of packed records, as `pack` was given it."""
        one = self._field(name)
        records = np.asarray(packed, np.uint8).reshape(self.grid.size, self.record_bytes)
        start, count = self.offset(name), one.layout.extent(MEMORY)
        raw = np.ascontiguousarray(records[:, start : start + one.nbytes])
        elements = unpack(raw, one.dtype, count) if one.dtype.is_packed else raw.view(one.dtype.numpy)
        ordered = elements[:, one.layout.permutation().reshape(-1)][self.grid.permutation().reshape(-1)]
        rank = self.grid.rank
        tiles = ordered.reshape(*self.grid.shape, *one.layout.shape)
        order = [axis for pair in zip(range(rank), range(rank, 2 * rank)) for axis in pair]
        return tiles.transpose(order).reshape(self.shape(name))

    def _field(self, name: str) -> Field:
        self.offset(name)
        return next(one for one in self.fields if one.name == name)

    def _blocks(self, one: Field, array: np.ndarray) -> np.ndarray:
        """The blocks of a field in the order of their records, each flat."""
        if array.shape != self.shape(one.name):
            raise InvalidLayout(f"field {one.name} has shape {array.shape}", hint=f"expected {self.shape(one.name)}")
        rank = self.grid.rank
        pairs = [extent for pair in zip(self.grid.shape, one.layout.shape) for extent in pair]
        tiles = array.reshape(pairs).transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        blocks = np.empty((self.grid.size, one.layout.size), array.dtype)
        blocks[self.grid.permutation().reshape(-1)] = tiles.reshape(self.grid.size, -1)
        return blocks
