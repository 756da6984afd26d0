"""Number formats as data: tables from code to value, packing formulas, scale schemes; NumPy reference of each."""

from tilewright.formats.catalog import FORMATS, codebook, number_format
from tilewright.formats.number import Format
from tilewright.formats.packing import BITBLAS, PLAIN, WORD_ORDERS, Packing, pack_plain, packing, unpack_plain
from tilewright.formats.scales import SCHEMES, Scheme, scheme

__all__ = [
    "BITBLAS", "FORMATS", "PLAIN", "SCHEMES", "WORD_ORDERS", "Format", "Packing", "Scheme", "codebook", "number_format",
    "pack_plain", "packing", "scheme", "unpack_plain",
]  # fmt: skip
