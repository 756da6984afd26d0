"""`T.PersistentTileScheduler`: which tiles of a matrix a block that stays on the device gets, one after the other.

>>> with T.Kernel(workers, threads=128) as block:
...     scheduler = T.PersistentTileScheduler(rows, columns, swizzle_size=8)
...     scheduler.init(block)
...     while scheduler.valid():
...         ...  # tile (scheduler.m_idx, scheduler.n_idx)
...         scheduler.next_tile()
"""

from __future__ import annotations

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32
from tilewright.language.kernel import get_block_extents
from tilewright.language.memory import alloc_var
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, Value, Variable, as_expr, constant, extent, frame_of
from tilewright.language.recording import Frame, author_facing, in_kernel


class BaseTileScheduler:
    """Base class of tile schedulers: the tile indices of a persistent worker, one after the other.

    A subclass sets ``self._total_tiles``, and says in ``update_current_idx(linear_idx)`` where a tile lies, by
    ``self._m_idx[0] = ...`` and ``self._n_idx[0] = ...``.

    Parameters
    ----------
    stateful : False for a subclass's own methods alone, without running numbers.
    name : how the running numbers are called in the program.
    """

    STATE: tuple[str, ...] = ("m_idx", "n_idx", "linear_idx", "current_iter")

    @author_facing
    def __init__(self, stateful: bool = True, name: str | None = None) -> None:
        self._total_tiles: object = None
        self._state: dict[str, Variable] = {}
        if stateful:
            in_kernel("a tile scheduler")
            for part in self.STATE:
                self._state[part] = _named_variable(f"{name}_{part}" if name else part)
                setattr(self, f"_{part}", self._state[part])

    def update_current_idx(self, linear_idx: object) -> None:
        """Say row and column of a tile: a subclass's business."""
        raise NumberExpected(
            f"update_current_idx of {type(self).__name__}", "a method that sets _m_idx[0] and _n_idx[0]", "none"
        )

    @author_facing
    def init(self, linear_init: object) -> None:
        """Begin with tile number `linear_init`: the worker's own number."""
        self._variable("current_iter")[0] = 0
        self._variable("linear_idx")[0] = linear_init
        self.update_current_idx(self.linear_idx)

    @author_facing
    def next_tile(self, step: object) -> None:
        """Go to the tile `step` further on."""
        self._variable("linear_idx")[0] = self.linear_idx + step
        self._variable("current_iter")[0] = self.current_iter + 1
        self.update_current_idx(self.linear_idx)

    @author_facing
    def valid(self) -> Scalar:
        """Whether there is such a tile."""
        if self._total_tiles is None:
            raise NumberExpected(f"_total_tiles of {type(self).__name__}", "how many tiles there are", "none")
        return self.linear_idx < self._total_tiles

    @property
    def m_idx(self) -> Scalar:
        """Row of the tile that is the worker's now."""
        return self._variable("m_idx")[0]

    @property
    def n_idx(self) -> Scalar:
        """Column of the tile that is the worker's now."""
        return self._variable("n_idx")[0]

    @property
    def linear_idx(self) -> Scalar:
        """Running number of the tile."""
        return self._variable("linear_idx")[0]

    @property
    def current_iter(self) -> Scalar:
        """How many tiles the worker has had before."""
        return self._variable("current_iter")[0]

    def _variable(self, part: str) -> Variable:
        if part not in self._state:
            raise NumberExpected("a tile scheduler", "stateful=True, or scheduler.coord(tile)", "stateful=False")
        return self._state[part]


def _named_variable(name: str) -> Variable:
    builder = in_kernel("a tile scheduler")
    before, builder.pending_names = builder.pending_names, (name,)
    made: Variable = alloc_var("int32", init=0)
    builder.pending_names = before
    made.is_fresh = False
    return made


class PersistentTileScheduler(BaseTileScheduler):
    """A static persistent tile scheduler: worker w gets tiles w, w + workers, ... of the rasterisation order.

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

    STATE = ("linear_idx", "current_iter")

    @author_facing
    def __init__(
        self,
        num_m_tiles: object,
        num_n_tiles: object,
        num_workers: object = None,
        swizzle_size: object = 1,
        column_major: bool = True,
        cluster_size: object = 1,
        stateful: bool = True,
        name: str | None = None,
    ) -> None:
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
        super().__init__(stateful, name)
        self._total_tiles, self._workers = clusters * columns, _value(num_workers, f"num_workers of {what}")

    @property
    def m_idx(self) -> Scalar:
        """Row of the tile that is the worker's now: its own formula, whose bounds the compiler sees."""
        return self.coord(self.linear_idx)[0]

    @property
    def n_idx(self) -> Scalar:
        """Column of the tile that is the worker's now."""
        return self.coord(self.linear_idx)[1]

    def update_current_idx(self, linear_idx: object) -> None:
        """Nothing: row and column are told by the running number."""

    @author_facing
    def next_tile(self, step: object = None) -> None:
        """Go to the worker's next tile."""
        super().next_tile(self._workers if step is None else step)

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
    found: ir.Expr = as_expr(value, INT32)
    return Scalar(ir.index_binary("min", found, limit), frame)
