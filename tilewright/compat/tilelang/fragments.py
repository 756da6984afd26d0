"""``tilelang.intrinsics.mma_layout`` and ``mfma_layout``: which lane holds which element of a matrix instruction's
operand, and the other way round; and ``tvm.tir.IndexMap``, by which programs turn such maps around.

NVIDIA's fragments are of 16 rows, four lanes a row and register; AMD's of 16 rows, one lane each, four lanes along k.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence

from tilewright.language.matrix_words import a_place, b_place, result_place
from tilewright.language.proxies import Value
from tilewright.specialization import InvalidUse

Map = Callable[..., tuple[Value, ...]]


class IndexMap:
    """A function of indices, which may be turned around where all its indices are known.

    Parameters
    ----------
    function : gives as many indices as it likes.
    """

    def __init__(self, function: Map) -> None:
        self.function = function

    @classmethod
    def from_func(cls, mapping_function: Map, ndim: int | None = None, **options: object) -> IndexMap:
        """The map of a Python function; what else TVM takes is accepted."""
        return cls(mapping_function)

    def map_indices(self, indices: Sequence[Value], **options: object) -> list[Value]:
        """Where the function sends some indices."""
        made = self.function(*indices)
        return list(made) if isinstance(made, (tuple, list)) else [made]

    def map_shape(self, shape: Sequence[int], **options: object) -> list[int]:
        """One more than the greatest indices that a shape's are sent to."""
        ends = (self.map_indices(point) for point in itertools.product(*map(range, shape)))
        return [max(int(one) for one in column) + 1 for column in zip(*ends, strict=True)]

    def inverse(self, shape: Sequence[int], **options: object) -> IndexMap:
        """The map that leads back to the indices of a shape. Raises InvalidUse where two of them are sent to the same
        place."""
        points = list(itertools.product(*(range(int(extent)) for extent in shape)))
        table = {tuple(int(one) for one in self.map_indices(point)): point for point in points}
        if len(table) < len(points):
            raise InvalidUse("an index map that sends two elements to one place cannot be turned around")
        return IndexMap(lambda *indices: table[tuple(int(one) for one in indices)])

    def __repr__(self) -> str:
        return f"IndexMap{inspect.signature(self.function)}"


def _to_lanes(bits: int, left: bool) -> Map:
    packed = 32 // bits

    def of(row: Value, deep: Value) -> tuple[Value, ...]:
        outer, inner = (deep // (4 * packed), row // 8) if left else (row // 8, deep // (4 * packed))
        return 4 * (row % 8) + deep % (4 * packed) // packed, (2 * outer + inner) * packed + deep % packed

    return of


def _turned(function: Map) -> Map:
    return lambda i, j: function(j, i)


def _of_amd(held: int) -> Map:
    return lambda row, deep: (deep // held * 16 + row, deep % held)


NAMES: dict[str, Map] = {
    "mma_store_32x8_to_shared_16x16_layout": result_place,
    "ldmatrix_32x8_to_shared_16x16_layout": lambda lane, local: (lane % 16, lane // 16 * 8 + local % 8),
    "ldmatrix_trans_32x8_to_shared_16x16_layout": lambda lane, local: (
        lane // 16 * 8 + lane % 8, lane % 16 // 8 * 8 + local % 8,
    ),
}  # fmt: skip
"""Each map under the names that TileLang has had for it."""

for _bits in (32, 16, 8):
    _deep, _held = 256 // _bits, 128 // _bits
    for _side in "ab":
        _map = _to_lanes(_bits, _side == "a")
        _shared, _lanes = f"shared_16x{_deep}_to_mma", f"32x{_held}_layout"
        NAMES[f"{_shared}_{_lanes}_sr_{_side}"] = NAMES[f"{_shared}_{_side}_{_lanes}"] = _map
        NAMES[f"{_shared}_{_lanes}_rs_{_side}"] = NAMES[f"{_shared}_{_side}_{_lanes}_trans"] = _turned(_map)
    NAMES[f"{_shared}_{_lanes}"] = NAMES[f"{_shared}_a_{_lanes}"]
    NAMES[f"mma_load_a_32x{_held}_to_shared_16x{_deep}_layout"] = lambda lane, local, bits=_bits: a_place(
        bits, lane, local
    )
    NAMES[f"mma_load_b_32x{_held}_to_shared_16x{_deep}_layout"] = lambda lane, local, bits=_bits: b_place(
        bits, 256 // bits, lane, local
    )
for _held in (1, 4, 8, 16):
    NAMES[f"shared_16x{4 * _held}_to_local_64x{_held}_layout_A"] = _of_amd(_held)
    NAMES[f"shared_{4 * _held}x16_to_local_64x{_held}_layout_B"] = _turned(_of_amd(_held))
globals().update(NAMES)
