"""Types of what kernels hand to their macros while they are traced."""

from tilewright.language.buffers import BufferProxy as Tile
from tilewright.language.proxies import Value

__all__ = ["Tile", "Value"]
