"""Where rows and regions of tensors in global memory start: what their address and the steps between them are multiples
of, and whether they begin inside; and groups of neighbours along a variable, which one access may take together.

A view of a tensor (`T.reshape`, `T.view`) is a tensor at the same address: who moves rows asks about it as about any
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.arith import Analyzer
from tilewright.ir import Buffer, DType, Expr, Region, binary, const, expr, index_binary, root, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.layout import Layout, vector_width
from tilewright.passes.lower.flatten_buffers import strides_of


def placed_unsupported(tensor: Buffer) -> str | None:
    """Why the host cannot describe a tensor to the copy engine; None where it can."""
    if not tensor.placed:
        return None
    return f"only the kernel knows where {tensor.name} lies, and the host describes tensors to the engine"


def is_plain_tensor(tensor: Buffer) -> bool:
    """Whether a buffer is a tensor in global memory whose elements lie in the order of its dimensions, or a view of all
    of one."""
    return tensor.scope == root(tensor).scope == "global" and not tensor.packed and not root(tensor).packed


def conversion_unsupported(source: DType, destination: DType) -> str | None:
    """Why a copy that moves bytes as they are cannot be made between two types; None where it can."""
    if source == destination:
        return None
    told = f"it converts {source} to {destination}"
    if (source.name, destination.name) == ("float32", "tfloat32"):
        told += ": a tensor declared as tfloat32 takes arrays of float32 as they are"
    return told


def row_unsupported(tensor: Buffer, size: int, analyzer: Analyzer) -> str | None:
    """Why rows of a tensor are not known to start at multiples of `size` bytes; None where they are.

    Parameters
    ----------
    tensor : a global buffer, or a view of one.
    size : bytes, a power of two.
    analyzer : what is known of sizes.
    """
    *outer, last = strides_of(tensor)
    if last != 1:
        return f"the last dimension of {tensor.name} is not contiguous"
    address = max(root(tensor).alignment, root(tensor).dtype.nbytes(1))
    if address % size:
        return f"{tensor.name} starts at a multiple of {address} bytes, not of {size}"
    unit = max(1, size * 8 // tensor.dtype.stored_bits)
    if tensor.strides is None and analyzer.divides(tensor.shape[-1], unit):
        return None  # so are all steps
    for dimension, stride in enumerate(outer):
        if not analyzer.divides(stride, unit):
            return f"the stride of dimension {dimension} of {tensor.name} is not known to be a multiple of {size} bytes"
    return None


def box_unsupported(region: Region, size: int, analyzer: Analyzer) -> str | None:
    """Why a region's rows are not known to start at multiples of `size` bytes; None where they are.

    The copy engine takes any other innermost coordinate for an illegal instruction.
    """
    reason = row_unsupported(region.buffer, size, analyzer)
    if reason is None and not analyzer.divides(region.starts[-1], max(1, size * 8 // region.dtype.stored_bits)):
        reason = f"rows of {region.buffer.name} are not known to be taken from a multiple of {size} bytes on"
    return reason


def runs_of(layout: Layout, width: int) -> bool:
    """Whether `width` neighbours of a tile's last dimension lie side by side in its memory, at a multiple of it."""
    return vector_width(layout, 8, width) == width


def unproven_beginning(region: Region, analyzer: Analyzer | None, reaching: Sequence[int] = (-2, -1)) -> list[Expr]:
    """Conditions, not known to hold, under which a region of a global buffer begins inside it.

    Every start is at least zero, and only the dimensions of `reaching` may end beyond the buffer. Accesses outside of a
    tensor mean zeros, before its first element and beside its planes as well as beyond its end: whoever reads several
    elements at once counts how many there are up to the end, and asks here about all else.
    """
    if region.buffer.scope != "global":
        return []
    rank = len(region.starts)
    reaches = {axis % rank for axis in reaching}
    conditions: list[Expr] = []
    for axis, (start, extent) in enumerate(zip(region.starts, region.extents, strict=True)):
        conditions.append(binary("ge", start, const(0, start.dtype)))
        if axis not in reaches:
            end, size = start + extent, expr(region.buffer.shape[axis])
            conditions.append(index_binary("le", end, size))
    return [one for one in conditions if analyzer is None or not analyzer.prove(one)]


@dataclass(slots=True)
class Neighbours:
    """Groups of `width` neighbours along a variable, one behind the other.

    Attributes
    ----------
    origin : the first of the first group.
    groups : of the first and of the last group the number, where they are known.
    number, lane : which group, and which neighbour of it; what a value does with the variable shows on them.
    """

    analyzer: Analyzer
    var: ir.Var
    width: int
    origin: ir.Expr | None = None
    groups: tuple[ir.Extent | None, ir.Extent | None] = (None, None)
    number: ir.Var = field(init=False)
    lane: ir.Var = field(init=False)

    def __post_init__(self) -> None:
        self.number, self.lane = ir.Var(self.var.dtype, self.var.name), ir.Var(self.var.dtype, "lane")

    def of_lane(self, value: ir.Expr, less: ir.Extent = 0) -> ir.Expr:
        """A value for neighbour `lane` of group `number`, without so much."""
        place = self.number * self.width + self.lane
        made = substitute(value, {self.var: place if self.origin is None else self.origin + place})
        with self.analyzer.scope():
            self.analyzer.bind_extent(self.lane, self.width)
            if self.groups != (None, None):
                self.analyzer.bind(self.number, *self.groups)
            return self.analyzer.simplify(made if isinstance(less, int) else made - less)

    def agree(self, value: ir.Expr) -> bool:
        """Whether a value is the same for all of a group."""
        return self.var not in walk(value) or self.lane not in walk(self.of_lane(value))

    def begin(self, value: ir.Expr) -> ir.Expr | None:
        """What a value is for the first of a group where it grows by one from each to the next; None where it does
        not."""
        first = self.of_lane(value, less=self.lane)
        return None if self.lane in walk(first) else first
