"""Register fragments, swizzled shared memory, packed weights: one small algebra."""

from tilewright.layout.layout import Digit, Layout, Swizzle, column_major, fragment, row_major, spread, swizzled

__all__ = ["Digit", "Layout", "Swizzle", "column_major", "fragment", "row_major", "spread", "swizzled"]
