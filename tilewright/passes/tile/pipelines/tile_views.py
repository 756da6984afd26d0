"""Views of shared tiles: which there are, and what becomes of them where a tile gets slots.

A view of a tile in a ring is a view of the whole ring, with a dimension for the slots in front as the ring has one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from tilewright.errors import LayoutConflict
from tilewright.ir import Buffer, Expr, Kernel, Load, Statement, TileOperator, find, own, root
from tilewright.layout import Layout, shared_rows, viewed, widest_span


def views_of(kernel: Kernel) -> list[Buffer]:
    """The views of shared tiles that a kernel uses, in the order of their use."""
    buffers = dict.fromkeys(find(kernel.body, Buffer))
    return [one for one in buffers if one.source is not None and root(one).scope == "shared"]


def sees_all(view: Buffer) -> bool:
    """Whether a view has all bytes of its tile, so that views of slots follow each other as slots do."""
    tile = root(view)
    return tile.scope != "global" and view.dtype.stored_bits * view.size == tile.dtype.stored_bits * tile.size


def shown_tile(buffer: Buffer) -> Buffer:
    """The tile whose elements a buffer shows: itself, or for a view that tile; one that has fewer bytes shows its own
    (`T.alias`)."""
    return root(buffer) if buffer.source is not None and sees_all(buffer) else buffer


def view_of_ring(view: Buffer, ring: Buffer) -> Buffer:
    """The view of a tile that has become a ring, under one dimension for the slots."""
    name = ring.name.replace(root(view).name, view.name, 1)
    return replace(view, name=name, shape=(ring.shape[0], *view.shape), source=ring)


def with_views(
    slots: Mapping[Buffer, tuple[Buffer, Expr]], rings: dict[Buffer, Buffer], views: list[Buffer]
) -> dict[Buffer, tuple[Buffer, Expr]]:
    """The slots that stand for tiles, and for the views of these.

    Parameters
    ----------
    rings : the rings of views made before, to which those made here are added.
    """
    result = dict(slots)
    for view in views:
        if root(view) in slots:
            ring, number = slots[root(view)]
            result[view] = (rings.setdefault(view, view_of_ring(view, ring)), number)
    return result


def tile_span(tile: Buffer, kernel: Kernel, spans: Iterable[int]) -> int | None:
    """The widest span of a machine's (`Arch.spans`) within which a tile's rows may be swizzled, seen by its views too;
    None where none will do."""
    span = widest_span(tile.static_shape, tile.dtype.stored_bits, spans)
    if span is None:
        return None
    layout = shared_rows(tile.static_shape, tile.dtype.stored_bits, span)
    views = [view for view in views_of(kernel) if root(view) is tile and sees_all(view)]
    evenly = all(
        viewed(layout, tile.dtype.stored_bits, view.static_shape, view.dtype.stored_bits) is not None for view in views
    )
    return span if evenly else None


def view_layouts(kernel: Kernel, layouts: Mapping[Buffer, object]) -> dict[Buffer, Layout]:
    """Layouts of the views of tiles that do not lie row by row: a view lies where its tile does.

    What has fewer bytes is no view but another tile in the same place (`T.alias`), which lies row by row.

    Raises
    ------
    LayoutConflict : no digits say where the elements of a view are in a tile that its author laid out.
    """
    found: dict[Buffer, Layout] = {}
    for view in views_of(kernel):
        tile = root(view)
        layout = layouts.get(tile)
        if not isinstance(layout, Layout) or layout == shared_rows(tile.static_shape, tile.dtype.bits):
            continue
        if not sees_all(view):
            continue
        lies = viewed(layout, tile.dtype.stored_bits, view.static_shape, view.dtype.stored_bits)
        if lies is None:
            raise LayoutConflict(
                f"no layout says where the elements of {view.name} are in {tile.name}, which lies as its author wrote",
                hint="leave the layout to the compiler, or view the tile in a shape that keeps its rows",
            )
        found[view] = lies
    return found


def reads_tiles(statement: Statement, tiles: Container[Buffer]) -> bool:
    """Whether a statement itself, not one below it, touches tiles but as what an operator fills."""
    if isinstance(statement, TileOperator):
        operands = [region.buffer for region in statement.effects().reads]
        touched = [*operands, *(node.buffer for node in own(statement) if isinstance(node, Load))]
    else:
        touched = [node for node in own(statement) if isinstance(node, Buffer)]
    return any(shown_tile(one) in tiles for one in touched)
