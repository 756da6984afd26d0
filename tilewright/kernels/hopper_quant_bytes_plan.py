"""What a kernel of `byte_quant_matmul` is made for: its options as a record, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.kernels import PLAIN, Epilogue, Value, in_pieces
from tilewright.kernels.running_sums import UNIT, can_run, start_of_run
from tilewright.kernels.stream_k import StreamK, in_panels
from tilewright.machine import COLUMNS, FragmentRecords

PIECE = 32
"""Rows of A whose sums leave at once, where a block has more tiles to come."""


FEW = 64
"""Rows of A of a tile beside whose products there are registers for the scales of its results."""

MOST, CONVERTED = 168, 16
"""Registers of sums and codes with which it pays to decode the next copy's first codes beside a product, and those that
sums of int32 take on their way to floats: with as many as a thread of 384 begins with. Tiles of 160 rows became 3%
faster by it, of 192 and 224 rows 3% slower (H200)."""


def decodes_ahead(form: FragmentRecords, sizes: Mapping[str, int]) -> bool:
    """Whether the last product of a copy of weights leaves registers for the first codes of the next copy: it must have
    the other set of them, and a thread must have some left beside its sums and codes."""
    sums, codes = sizes["tokens"] * sizes["tiles"] // 2 + sizes["part"] // 2, COLUMNS // form.sets // 4
    converted = CONVERTED if form.operand.is_integer else 0
    even = sizes["records"] * sizes["tiles"] * form.sets % 2 == 0
    return not sizes["running"] and even and sums + codes + converted <= MOST


@dataclass(frozen=True, slots=True)
class BytePlan:
    """The options of `byte_quant_matmul`.

    Attributes
    ----------
    form : order of W.  Scales of a float type are those of groups; int8 ones are multiplied into the codes.
    activations : ``"int8"`` or ``"uint8"`` where the form's operand is int8, else ``"float8_e4m3fn"`` or
        ``"float8_e5m2"``.
    out : type of C.  int32 is exact where nothing is scaled.
    zeros : ``"codes"``: int8 zeros of the form are taken from codes; ``"original"``, ``"rescale"``: float32 ones, in
        units of codes or of scaled weights, are taken from sums, with the sums of the activations.
    offset : a whole number that is taken from codes of int8.
    of_rows : scales of A: ``"token"``, one a row, ``"tensor"``, one for all, or None.
    by_channel, scale_type : whether W's rows have scales, and of what type.
    epilogue : what becomes of scaled sums; it has no factor.
    tokens, part : rows of A that a block multiplies, and those that one product takes.
    warpgroups, tiles : a block has ``64 * warpgroups * tiles`` rows of W.
    records : groups of 128 columns in one copy of weights, at most 4.
    weight_stages, stages : copies of weights, and of 128 columns of A, on their way.
    cluster : blocks that divide K among them.
    sharing : blocks that send one another the columns of A, where K is not divided.
    turns : whether warpgroups start products of groups one after the other, so that the others scale sums meanwhile.
    by_tokens : whether blocks that run at once have the same rows of W, and all rows of A, rather than the other way
        around.
    blocks : that stay and share the tiles evenly (`stream_k`); 0 for a block a tile.
    running : whether int32 sums run on from group to group (`running_sums`).
    overlaps : whether a product of a group begins before the sums of the one before it are scaled, which takes
        registers for both.
    band : with blocks that stay, tiles of A's rows that are walked before the next rows of W.
    """

    N: int
    K: int
    form: FragmentRecords
    activations: str = "int8"
    out: str = "float16"
    zeros: str | None = None
    offset: int = 0
    of_rows: str | None = "token"
    by_channel: bool = False
    scale_type: str = "float32"
    epilogue: Epilogue = PLAIN
    tokens: int = 64
    part: int = 64
    warpgroups: int = 2
    tiles: int = 1
    records: int = 4
    weight_stages: int = 2
    stages: int = 4
    cluster: int = 1
    sharing: int = 1
    turns: bool = False
    by_tokens: bool = False
    blocks: int = 0
    band: int = 4
    running: bool = False
    overlaps: bool = False

    def __post_init__(self) -> None:
        if self.blocks:
            assert self.cluster == 1 and self.records * self.tiles % 2 == 0 and not self.by_tokens
        assert not self.overlaps or (self.promoted and not self.running and not self.of_sums)
        if self.running:
            assert can_run(self.form, self.offset, self.activations) and self.promoted and not self.of_sums
            assert self.halves == self.tiles == 1

    @property
    def slab(self) -> int:
        """Rows of W that one product of all warpgroups takes."""
        return 64 * self.warpgroups

    @property
    def rows(self) -> int:
        """Rows of W of a tile."""
        return self.slab * self.tiles

    @property
    def parts(self) -> int:
        """Rows of records of a slab."""
        return self.slab // self.form.rows

    @property
    def halves(self) -> int:
        """Products that take a block's rows of A."""
        return self.tokens // self.part

    @property
    def wide(self) -> int:
        """Tiles, or groups of them that share activations, that cover W's rows."""
        return -(-self.form.shape(self.N, self.K)[0] // (self.parts * self.tiles * self.sharing))

    @property
    def chunks(self) -> int:
        """Copies of weights that cover K, and no more of the records behind it than the last of them has."""
        return -(-self.K // (COLUMNS * self.records))

    @property
    def count(self) -> int:
        """Those of each block of a cluster: behind the last one A reads as zero, whatever the weights."""
        return -(-self.chunks // self.cluster)

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """First rows of A of a part, and how many, whose sums leave at once; the highest piece first."""
        return in_pieces(self.part, self.part if self.boxed or self.cluster > 1 else PIECE)

    @property
    def boxed(self) -> bool:
        """Whether sums leave in boxes of the copy engine: of blocks that stay, for whole rows of halves."""
        halves = self.out in ("float16", "bfloat16") and self.N % 8 == 0
        return self.blocks > 0 and halves and not self.epilogue.residual

    @property
    def loads_factors_early(self) -> bool:
        """Whether factors of results are loaded before the products: of a block's only tile, where registers hold
        them."""
        return not self.blocks and self.cluster == 1 and self.tokens <= FEW and not self.promoted

    @property
    def together(self) -> int:
        """Blocks of a cluster of the machine."""
        return self.cluster * self.sharing

    def place_of(self, tile: Any, work: StreamK) -> tuple[Value, Value]:
        """A tile's number among those of A's rows, and among those of W's."""
        return in_panels(tile, work.tiles // self.wide, self.wide, self.band) if self.blocks else tile

    @property
    def multiplied(self) -> bool:
        """Whether scales of groups are multiplied into the codes."""
        return self.form.scale is not None and self.form.scale.is_integer

    @property
    def of_sums(self) -> bool:
        """Whether zeros are taken from sums, with the sums of the activations."""
        return self.zeros in ("original", "rescale")

    @property
    def promoted(self) -> bool:
        """Whether each group has a sum of its own, which is scaled on its way into the total."""
        return (self.form.scale is not None and not self.multiplied) or self.of_sums

    @property
    def decodes_ahead(self) -> bool:
        """Whether the first codes of a copy of weights are decoded beside the last product of the copy before."""
        sizes = {name: int(getattr(self, name)) for name in ("tokens", "part", "tiles", "records", "running")}
        return self.promoted and decodes_ahead(self.form, sizes)

    @property
    def in_codes(self) -> bool:
        """Whether codes become numbers, and not only what stands for them."""
        return self.zeros == "codes" or self.multiplied or self.offset != 0 or self.running

    @property
    def unit(self) -> float:
        """What totals are multiples of."""
        return UNIT if self.running else 1.0 if self.in_codes else self.form.raw_unit(0)

    @property
    def scaled(self) -> bool:
        """Whether totals are scaled or more becomes of them."""
        return self.of_rows is not None or self.by_channel or self.promoted or not self.epilogue.is_plain

    @property
    def sum_type(self) -> str:
        """Type of the sums of products."""
        return "int32" if self.form.operand.is_integer else "float32"

    @property
    def kept(self) -> str:
        """Type of totals."""
        return "float32" if self.promoted else self.sum_type

    @property
    def sets(self) -> int:
        """Sums of 128 columns."""
        return self.form.sets if self.promoted else 1

    @property
    def columns(self) -> int:
        """Columns of a sum of 128, or of a group."""
        return COLUMNS // self.sets

    @property
    def start_of_sums(self) -> int:
        """What sums that run on begin with."""
        return start_of_run(self.form, self.offset, self.activations)

    @property
    def products(self) -> list[tuple[int, int, int, int]]:
        """The products of a copy of weights in their order: record, tile, group and half of each."""
        return [
            (record, tile, group, half)
            for record in range(self.records)
            for tile in range(self.tiles)
            for group in range(self.sets)
            for half in range(self.halves)
        ]
