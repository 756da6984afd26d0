"""Layouts: who holds which element of a tile. One small algebra for fragments, shared memory and packed weights."""

from tilewright.layout.access import bank_conflicts, common_vector, fragment_conflicts, vector_width, warp_conflicts
from tilewright.layout.algebra import (
    broadcast,
    compacted,
    compose,
    divide,
    expand,
    invert,
    partial,
    permuted,
    product,
    reduced,
    replicate,
    sliced,
    summed,
)
from tilewright.layout.constructors import (
    byte_swizzle,
    column_major,
    conflict_free,
    core_matrices,
    padded,
    row_major,
    strided,
    swizzled,
)
from tilewright.layout.digits import MEMORY, NOTHING, PLACES, REGISTER, THREAD, Digit
from tilewright.layout.layout import Layout
from tilewright.layout.records import Field, RecordLayout
from tilewright.layout.swizzle import Swizzle
from tilewright.layout.tables import AnyLayout, TableLayout, from_function, from_tables, from_thread_and_index
from tilewright.layout.threads import holds, register_of, repeat, spread

__all__ = [
    "MEMORY", "NOTHING", "PLACES", "REGISTER", "THREAD", "AnyLayout", "Digit", "Field", "Layout", "RecordLayout",
    "Swizzle", "TableLayout", "bank_conflicts", "broadcast", "byte_swizzle", "column_major", "common_vector",
    "compacted", "compose", "conflict_free", "core_matrices", "divide", "expand", "fragment_conflicts",
    "from_function", "from_tables", "from_thread_and_index", "holds", "invert", "padded", "partial", "permuted",
    "product", "reduced", "register_of", "repeat", "replicate", "row_major", "sliced", "spread", "strided",
    "summed", "swizzled", "vector_width", "warp_conflicts",
]  # fmt: skip
