"""`Swizzle`: an exclusive-or that spreads the rows of a tile over the banks of a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import InvalidLayout
from tilewright.ir.nodes import Expr, index_binary


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``offset ^ (((offset >> (base + shift)) & (2**bits - 1)) << base)``.

    Attributes
    ----------
    bits : how many bits change.
    base : the lowest bit that changes; runs of ``2**base`` offsets stay together.
    shift : how far above stand the bits that decide; at least `bits`, so that swizzling twice changes nothing.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 1 or self.base < 0 or self.shift < self.bits:
            raise InvalidLayout(
                f"a swizzle of ({self.bits}, {self.base}, {self.shift})",
                hint="write (bits, base, shift) with at least one bit and shift >= bits",
            )

    @property
    def period(self) -> int:
        """Offsets after which the pattern repeats: tiles that are swizzled start at a multiple of it."""
        return 1 << (self.base + self.shift + self.bits)

    def __call__(self, offset: Any) -> Any:
        """The swizzled offset, of an int or of an integer array."""
        return offset ^ (((offset >> (self.base + self.shift)) & ((1 << self.bits) - 1)) << self.base)

    def expression(self, offset: Expr) -> Expr:
        """The swizzled offset of an index expression."""
        source = offset // (1 << (self.base + self.shift))
        chunk = source % (1 << self.bits)
        return index_binary("xor", offset, chunk * (1 << self.base))

    def scaled(self, factor_bits: int) -> Swizzle:
        """The same pattern on offsets counted in units ``2**factor_bits`` times smaller (or larger, if negative)."""
        return Swizzle(self.bits, self.base + factor_bits, self.shift)
