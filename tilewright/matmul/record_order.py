"""Plain codes again from a weight's records: a packed weight holds its codes once, in the order that its kernels
read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.formats import Format, pack_plain
from tilewright.ir.dtypes import UINT8
from tilewright.kernels.record_packing import places_of, unpack_codes
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.matmul.arrays import constant, empty_like, placed_like
from tilewright.runtime.tensors import Array, as_numpy, is_torch
from tilewright.targets.registry import resolve


@dataclass(frozen=True)
class RecordOrder:
    """How a weight's codes stand in records.

    Attributes
    ----------
    form : of the records.
    table : the record's code for each of the format's, as bytes.
    """

    form: FragmentRecords
    table: bytes

    def __str__(self) -> str:
        return str(self.form)

    def plain(self, words: Array, of: Format, shape: tuple[int, int]) -> Array:
        """Codes row by row, low bits first, uint8 ``[N, bytes]``, where the records are."""
        rows, columns = shape
        if not (is_torch(words) and words.is_cuda):
            codes = self._inverse(of)[self.form.unpack(as_numpy(words), "codes", rows, columns)]
            return placed_like(pack_plain(codes, of.bits), words)
        codes = empty_like(words, (rows, -(-columns * of.bits // 8)), UINT8)
        table = constant(("table", self, of.name), lambda: self._inverse(of), words)
        places = constant(("places", self.form), lambda: places_of(self.form), words)
        kernel = unpack_codes.for_target(resolve(words.device.type)[1], self.form, of.bits)
        kernel(words, columns, table, places, codes)
        return codes

    def _inverse(self, of: Format) -> np.ndarray:
        """The format's code for each of the record's; codes that stand for nothing give way to others."""
        back = np.zeros(1 << self.form.bits, np.uint8)
        used = [code not in of.unused for code in range(1 << of.bits)]
        codes = np.arange(1 << of.bits, dtype=np.uint8)[used]
        back[np.frombuffer(self.table, np.uint8)[: 1 << of.bits][used]] = codes
        return back
