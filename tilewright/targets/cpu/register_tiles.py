"""How many rows and columns of a product a micro-kernel keeps in registers, from the machine's description.

The model counts, for one step of k, the slots of the vector units (products and the unpacking of codes), the
loads, and the latency of the accumulators' chains; it knows nothing of a problem's size but the rows to cover.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.machine import Arch, DotInstruction

VECTOR_PORTS = 2
"""Vector units and load units of the cores in use today: two each."""
HALVED_BYTES = 64
"""Vectors that cores with `halved_vectors` multiply one a cycle, while their other units unpack the next ones. Codes
that become floats keep those units busy too, so that float products are counted as elsewhere."""
LOAD_WEIGHT = 0.25
"""Loads rarely bind, but fewer leave room for whoever shares the core."""
SAME_SET_ROWS = 8
"""Rows of a large matrix whose stride is a power of two fall into one set of the first-level cache."""
FAR_LOAD = 2.0
"""Cycles of a load that misses the first-level cache, which a panel too large for it does for every row tile."""
NEAR_SHARE = 0.75
"""Share of the first-level cache that a panel may fill; the rest is for rows and results."""
SPARE = 4
"""Registers that compilers want for themselves around sums that live through an inner loop; without them they spill."""
MOST_VECTORS = 8
MOST_ROWS = 14
"""Beyond these, loads of broadcasts bind, and compilers no longer unroll the loops."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Rows and vectors of columns of one micro-kernel."""

    rows: int
    vectors: int


def slots(tile: RegisterTile, instruction: DotInstruction, unpack: float, product_ports: int = VECTOR_PORTS) -> float:
    """Cycles of one step of k, `unpack` being the slots that each of its vectors needs before the product."""
    products = tile.rows * tile.vectors * instruction.uops
    loads = tile.rows + tile.vectors
    units = max(products / product_ports, (products + tile.vectors * unpack) / VECTOR_PORTS)
    return max(units, loads / VECTOR_PORTS, instruction.latency * instruction.uops) + LOAD_WEIGHT * loads


@dataclass(frozen=True, slots=True)
class TileModel:
    """What the choice depends on.

    Attributes
    ----------
    unpack : slots of the vector units that a vector of the right operand needs before the product.
    columns : vectors of columns to cover.
    vector_bytes : memory of one vector of columns over the whole run of k.
    totals : registers that every row of every vector takes: two where the sum of groups is kept beside the total of
        one.
    """

    arch: Arch
    instruction: DotInstruction
    unpack: float
    columns: int
    vector_bytes: int = 0
    totals: int = 1

    def cycles(self, rows: int, vectors: int) -> float:
        """Cycles of one step of k for `rows` rows and all columns, `vectors` at a time."""
        whole, rest = divmod(self.columns, vectors)
        total = whole * self._slots(rows, vectors) + (self._slots(rows, rest) if rest else 0.0)
        near = vectors * self.vector_bytes <= NEAR_SHARE * self.arch.l1_bytes
        return total if near else total + FAR_LOAD * self.columns

    def _slots(self, rows: int, vectors: int) -> float:
        dot = self.instruction
        halved = self.arch.has("halved_vectors") and dot.depth > 1 and dot.lanes * 4 == HALVED_BYTES
        ports = VECTOR_PORTS // 2 if halved else VECTOR_PORTS
        return slots(RegisterTile(rows, vectors), self.instruction, self.unpack, ports)

    def tile(self, rows: int) -> RegisterTile | None:
        """The best tile of `rows` rows; None where not even one vector fits the registers."""
        live = 2 if self.unpack else 1  # of each vector: what was loaded, and what was unpacked from it
        free = self.arch.registers - 1 - (SPARE if self.totals > 1 else 0)
        most = min(free // (self.totals * rows + live), MOST_VECTORS, self.columns)
        best = min(range(1, most + 1), key=lambda vectors: (self.cycles(rows, vectors), vectors), default=None)
        return RegisterTile(rows, best) if best else None

    def per_row(self, rows: int) -> float:
        """Cycles of one row of one step of k in the best tile of `rows` rows."""
        tile = self.tile(rows)
        return self.cycles(rows, tile.vectors) / rows if tile else float("inf")

    def choose(self, rows: int | None, most: int | None = None) -> list[RegisterTile]:
        """Register tiles that cover `rows` rows one after the other, the largest first.

        Each is used as often as it fits into what the ones before it left.  None: any number of rows, known
        only when the program runs, and the best for `most` of them, of no more rows than these, are tried first; the
        tiles then end with one of a single row.
        """
        if rows is None:
            few = range(1, min(SAME_SET_ROWS, most or SAME_SET_ROWS) + 1)
            first = min(few, key=self.per_row if most is None else lambda count: self._cost(most, count))
            counts = [first, *(1 << bit for bit in range(first.bit_length(), -1, -1) if 1 << bit < first)]
        else:
            first = min(range(1, min(rows, MOST_ROWS) + 1), key=lambda count: self._cost(rows, count))
            counts = [first] + ([rows % first] if rows % first else [])
        return [tile for tile in map(self.tile, counts) if tile is not None]

    def _cost(self, rows: int, count: int) -> tuple[float, int]:
        whole, rest = divmod(rows, count)
        cycles = whole * count * self.per_row(count) + (rest * self.per_row(rest) if rest else 0.0)
        return round(cycles, 6), -count
