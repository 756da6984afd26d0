"""Layouts: who holds which element of a tile. One small algebra for fragments, shared memory and packed weights."""

from tilewright.layout.access import *
from tilewright.layout.algebra import *
from tilewright.layout.constructors import *
from tilewright.layout.digits import *
from tilewright.layout.layout import *
from tilewright.layout.records import *
from tilewright.layout.tables import *
from tilewright.layout.threads import *

__all__ = [
    "CHUNK_BYTES", "MEMORY", "NOTHING", "PATTERN_ROWS", "PLACES", "REGISTER", "THREAD", "AnyLayout",
    "Digit", "Field", "Layout", "RecordLayout", "Swizzle", "TableLayout", "bank_conflicts", "broadcast",
    "byte_swizzle", "column_major", "compacted",
    "divide", "expand", "from_function", "from_tables", "from_thread_and_index", "holds",
    "invert", "padded", "partial", "permuted", "product", "reduced", "register_of", "repeat", "replicate",
    "row_major", "shared_rows", "spread", "strided", "summed", "swizzled", "vector_width",
    "warp_conflicts",
]  # fmt: skip
