"""What is known of a product with a quantised weight before it is compiled: of its weight (`WeightFacts`), of the call
(`Request`), and how it is computed (`Recipe`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tilewright.formats import Format


@dataclass(frozen=True, slots=True)
class Grouped:
    """A tensor with an element for each group of a weight: ``[rows, columns]``, where 1 stands for the same in all
    groups.

    Attributes
    ----------
    rows_each : rows of the weight that share a row of the tensor.
    """

    dtype: str
    rows: int = 1
    columns: int = 1
    rows_each: int = 1

    @property
    def varies_along_k(self) -> bool:
        return self.columns > 1


UNUSED = Grouped("float32")


TILE_ROWS = 16
"""Rows of the tiles that BitBLAS cuts weights into."""


def tile_place(i: int | np.ndarray, j: int | np.ndarray, tiles: tuple[int, int]) -> int | np.ndarray:
    """Place of element (i, j) among the codes of a tile of BitBLAS's, for integers, arrays and expressions.

    With ``h`` for half of the tile's columns and ``q = h / 4``::

        stage 1   i * columns + j                                                             row by row
        stage 2   (16 * (i // 8) + 8 * (j // h) + i % 8) * h + j % h                          as ldmatrix reads rows
        stage 3   (i % 8 * 4 + j % h // q) * h + (2 * (i // 8) + j // h) * q + j % q          as mma holds elements

    Source: BitBLAS's `LadderPermutate` (Wang et al., "Ladder", OSDI 2024).
    """
    columns, stage = tiles
    half, quarter = columns // 2, columns // 8
    if stage == 1:
        return i * columns + j
    if stage == 2:
        return (16 * (i // 8) + 8 * (j // half) + i % 8) * half + j % half
    return (i % 8 * 4 + j % half // quarter) * half + (2 * (i // 8) + j // half) * quarter + j % quarter


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """A packed weight without its numbers.

    Attributes
    ----------
    N, K : of the weight as packed; `columns` is the width of A, which differs where K is gathered or padded.
    format : of the codes.
    group : columns of a group.
    zeros : ``"none"``, ``"one"`` (`zero` for all), ``"groups"`` (a tensor, subtracted first), ``"packed"`` (the same as
        codes ``[groups, N * bits / 8]``), ``"rescale"`` (a tensor, subtracted from the scaled weight).
    scale, zero_point, multiplier : shapes and types of these tensors; multipliers are second-level int8 scales.
    factor : whether the result is multiplied by one more number (the scaled weight where zeros are subtracted from
        that).
    divisors : A is divided by a vector first (SmoothQuant).
    gather : columns of A are taken in another order (act-order, padding).
    slots : place of every code within its 32-bit word; empty where codes lie in order.
    tiles : columns of the tiles of 16 rows that the weight is cut into, and the stage of BitBLAS's permutation inside
        them (see `tile_place`); (0, 0) for rows.
    offset_binary : signed codes are values plus half their range, not two's complement.
    """

    N: int
    K: int
    columns: int
    format: Format
    group: int
    scale: Grouped | None = None
    zeros: str = "none"
    zero: float = 0.0
    zero_point: Grouped | None = None
    multiplier: Grouped | None = None
    factor: bool = False
    divisors: bool = False
    gather: bool = False
    slots: tuple[int, ...] = ()
    tiles: tuple[int, int] = (0, 0)
    offset_binary: bool = False

    @property
    def groups(self) -> int:
        return -(-self.K // self.group)


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of call.

    Attributes
    ----------
    activations : element type of A.
    out : of C.
    activation_scales : ``"none"``, ``"tensor"``, ``"token"`` or ``"group"``; with their type.
    activation_group : columns that share an activation scale.
    quantize : type that A is quantised to as part of the call, or None.
    divided : whether A was divided by the weight's divisors already.
    bias : its element type, None for none.
    residual, function : the rest of the epilogue.
    rows : of A; 0 for any number.  Kernels take any number: a tier chooses among the few that serve a weight by it.
    """

    activations: str
    out: str
    activation_scales: str = "none"
    activation_scale_dtype: str = "float32"
    activation_group: int = 0
    quantize: str | None = None
    divided: bool = False
    bias: str | None = None
    residual: bool = False
    function: str | None = None
    rows: int = 0

    @property
    def kind(self) -> Request:
        """The request for the next power of two of rows: what tuning found for some holds for others near them."""
        return replace(self, rows=1 << max(self.rows - 1, 0).bit_length())


@dataclass(frozen=True, kw_only=True)
class Recipe(WeightFacts):
    """``C = function((A a_scale) ((values - zeros) multipliers scales)^T factor + bias) + residual``, and how to
    compute it: a weight as the kernel meets it, and what is done with it.

    Attributes
    ----------
    activations : element type of A as the caller holds it.
    left, right : types that are multiplied, of A's tiles and of the weight's.
    accumulate : ``"int32"``, ``"float32"`` or ``"float64"``.
    scaled : where scales enter: ``"none"``, ``"result"`` (the epilogue), ``"sums"`` (partial sums of groups, which are
        multiples of 16 columns) or ``"weight"`` (each element, before it is rounded to `right`).
    whole : table values were multiplied by this to be whole numbers.
    activation_scales : ``"none"``, ``"tensor"``, ``"token"``, ``"group"`` (of `activation_group` columns, scaling
        partial sums) or ``"element"`` (the same, each element scaled before it is rounded to `left`).
    bias : its type, None for none.
    residual, function : the rest of the epilogue.
    out : type of C; integers are rounded to nearest and saturate.
    """

    activations: str
    left: str
    right: str
    accumulate: str
    scaled: str = "none"
    scale: Grouped = UNUSED
    zero_point: Grouped = UNUSED
    whole: int = 1
    activation_scales: str = "none"
    activation_group: int = 0
    activation_scale_dtype: str = "float32"
    bias: str | None = None
    residual: bool = False
    function: str | None = None
    out: str = "float32"

    @property
    def period(self) -> int | None:
        """Columns after which a partial sum is scaled; None where sums run over all of K."""
        period = self.group if self.scaled == "sums" else 0
        if self.activation_scales == "group":
            period = math.gcd(period, self.activation_group)
        return period or None

    @property
    def is_native(self) -> bool:
        """Whether the weight's elements are multiplied as they are stored."""
        own = self.format.dtype
        plain = self.zeros == "none" and self.multiplier is None and self.scaled != "weight"
        return own is not None and own.bits >= 8 and own.name == self.right and plain

    @property
    def zero_tensor(self) -> tuple[tuple[int, int], str]:
        """Shape and type of the tensor of zeros."""
        if self.zeros == "packed":
            return (self.groups, -(-self.N * self.format.bits // 8)), "uint8"
        return (self.zero_point.rows, self.zero_point.columns), self.zero_point.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of packed codes."""
        bits = self.K * self.format.bits
        return -(-bits // 32) * 4 if self.slots else -(-bits // 8)
