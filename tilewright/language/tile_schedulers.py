"""`T.PersistentTileScheduler`: which tiles of a matrix a block that stays on the device gets, one after the other.

>>> with T.Kernel(workers, threads=128) as block:
...     scheduler = T.PersistentTileScheduler(rows, columns, swizzle_size=8)
...     scheduler.init(block)
...     while scheduler.valid():
...         ...  # tile (scheduler.m_idx, scheduler.n_idx)
...         scheduler.next_tile()
"""

from __future__ import annotations

from tilewright.ir import nodes
from tilewright.ir.dtypes import INT32
from tilewright.ir.nodes import Expr, Store
from tilewright.language.builder import Frame, in_kernel
from tilewright.language.interface import author_facing
from tilewright.language.kernel import get_block_extents
from tilewright.language.memory import alloc_var
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, Value, Variable, as_expr, constant, extent, frame_of
from tilewright.language.source import statement_here


class BaseTileScheduler:
    """Running numbers of tiles; a subclass says where a tile lies (`coord`) and how many there are.

    Parameters
    ----------
    total : tiles of all workers together.
    step : workers, which is the distance between two tiles of one of them.
    stateful : False for `coord` alone, without running numbers.
    """

    def __init__(self, total: object, step: object, stateful: bool = True, name: str | None = None) -> None:
        self._total, self._step = extent(total, "the tiles of a scheduler"), extent(step, "the workers of a scheduler")
        self._state: dict[str, Variable] = {}
        if stateful:
            in_kernel("a tile scheduler")
            prefix = f"{name}_" if name else ""
            for part in ("linear_idx", "current_iter"):
                self._state[part] = _named_variable(f"{prefix}{part}")

    def coord(self, tile_id: object) -> tuple[Scalar, Scalar]:
        """Row and column of a tile."""
        raise NotImplementedError

    @author_facing
    def init(self, linear_init: object) -> None:
        """Begin with tile number `linear_init`: the worker's own number."""
        self._set("current_iter", 0)
        self._set("linear_idx", linear_init)

    @author_facing
    def next_tile(self, step: object = None) -> None:
        """Go to the worker's next tile."""
        step = Scalar(nodes.expr(self._step)) if step is None else step
        self._set("linear_idx", self.linear_idx + step)
        self._set("current_iter", self.current_iter + 1)

    @author_facing
    def valid(self) -> Scalar:
        """Whether there is such a tile."""
        return self.linear_idx < Scalar(nodes.expr(self._total))

    @property
    def m_idx(self) -> Scalar:
        """Row of the tile that is the worker's now."""
        return self.coord(self.linear_idx)[0]

    @property
    def n_idx(self) -> Scalar:
        """Column of the tile that is the worker's now."""
        return self.coord(self.linear_idx)[1]

    @property
    def linear_idx(self) -> Scalar:
        """Running number of the tile."""
        return self._get("linear_idx")

    @property
    def current_iter(self) -> Scalar:
        """How many tiles the worker has had before."""
        return self._get("current_iter")

    def _get(self, part: str) -> Scalar:
        if part not in self._state:
            raise NumberExpected("a tile scheduler", "stateful=True, or scheduler.coord(tile)", "stateful=False")
        variable = self._state[part]
        return Scalar(variable.expr, variable.frame)

    def _set(self, part: str, value: object) -> None:
        self._get(part)
        variable = self._state[part]
        builder = in_kernel("a tile scheduler")
        expr = as_expr(value, INT32, "the number of a tile")
        builder.append(Store(variable.buffer, variable.indices, expr, span=statement_here()))


def _named_variable(name: str) -> Variable:
    builder = in_kernel("a tile scheduler")
    before, builder.pending_names = builder.pending_names, (name,)
    made: Variable = alloc_var("int32", init=0)
    builder.pending_names = before
    made.is_fresh = False
    return made


class PersistentTileScheduler(BaseTileScheduler):
    """The tiles of a matrix in turn: worker w gets tiles w, w + workers, ... of the order that is asked for.

    Parameters
    ----------
    num_m_tiles, num_n_tiles : tiles along rows and columns.
    num_workers : blocks (clusters, where there are such) that share the tiles; those of the grid unless given.
    swizzle_size : tiles of the slower direction that are walked together, for the L2 cache.
    column_major : whether rows are the faster direction.
    cluster_size : blocks of a cluster along the rows; tiles are then rows of that many tiles.
    stateful : False for `coord` alone.
    name : how the running numbers are called in the program.
    """

    @author_facing
    def __init__(
        self, num_m_tiles: object, num_n_tiles: object, num_workers: object = None, swizzle_size: object = 1,
        column_major: bool = True,
        cluster_size: object = 1, stateful: bool = True, name: str | None = None,
    ) -> None:  # fmt: skip
        what = "T.PersistentTileScheduler"
        width = constant(swizzle_size, f"swizzle_size of {what}")
        blocks = constant(cluster_size, f"cluster_size of {what}")
        if width < 1 or blocks < 1:
            raise NumberExpected(f"swizzle_size and cluster_size of {what}", "numbers from 1 up", f"{width}, {blocks}")
        rows = _value(num_m_tiles, f"num_m_tiles of {what}")
        columns = _value(num_n_tiles, f"num_n_tiles of {what}")
        clusters = (rows + (blocks - 1)) // blocks
        self._fast, self._slow = (clusters, columns) if column_major else (columns, clusters)
        self._width, self._column_major = width, bool(column_major)
        if num_workers is None:
            workers: Value = 1
            for size in get_block_extents():
                workers = workers * size
            num_workers = workers // blocks
        super().__init__(clusters * columns, num_workers, stateful, name)

    @author_facing
    def coord(self, tile_id: object) -> tuple[Scalar, Scalar]:
        """Row (of tiles, or of clusters of them) and column of tile number `tile_id`."""
        tile = Scalar(as_expr(tile_id, INT32, "the number of a tile"), frame_of(tile_id))
        if self._width == 1:
            fast, slow = tile % self._fast, tile // self._fast
        else:
            panel = self._fast * self._width
            first = tile // panel * self._width
            width = _smaller(self._slow - first, self._width, frame_of(tile))
            inside = tile % panel
            fast, slow = inside // width, first + inside % width
        return (fast, slow) if self._column_major else (slow, fast)


def _value(size: object, what: str) -> int | Scalar:
    """A size to compute with: an int where it is known."""
    found = extent(size, what)
    return found if isinstance(found, int) else Scalar(found, frame_of(size))


def _smaller(value: object, limit: int, frame: Frame | None) -> Scalar:
    found: Expr = as_expr(value, INT32)
    return Scalar(nodes.index_binary("min", found, limit), frame)
