"""What is known of a product before it is compiled: of its weight (`WeightFacts`) and of the call (`Request`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.formats import Format
from tilewright.kernels.recipe import Grouped


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """A packed weight without its numbers; the fields mean what they mean in `Recipe`."""

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
