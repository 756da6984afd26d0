"""Programs whose blocks, warpgroups and warps wait for one another as their authors say: clusters that exchange tiles and load them once for
all, turns of warpgroups, named barriers, copies of each thread that arrive at barriers, products that run on, kernels beside one another.

Most of these words are for NVIDIA's machines from sm_90 on; half of the programs are for these alone, and only they have such statements.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_writer import ENGINES
from hand_writer import HandWriter
from mixed_tiles import Context, Tile
from thread_writer import Number

from tilewright.ir.dtypes import ALL

WHOLE_ROWS = ("float32", "float16", "int32", "bfloat16", "int8")
"""Types of tiles that the engine moves between blocks here."""


class MeetingWriter(HandWriter):
    """Writes the program of a seed."""

    hopper = False
    size = 1
    """Blocks of a cluster."""

    products = False
    """Whether the machine has products that are started and waited for."""

    beside = False

    def start(self) -> None:
        self.hopper = self.chance(0.5)
        if self.hopper:
            self.products = self.chance(0.5)
            both = ("sm_90a",) if self.products else (self.pick(ENGINES), self.pick(ENGINES))
            self.machines = tuple(f"cuda -arch={one}" for one in dict.fromkeys(both))
            self.threads = self.pick((128, 256, 384, 384)) if self.products else self.threads
        if self.cluster or (self.hopper and self.chance(0.5)):
            self.size = self.pick((2, 2, 4))
            self.blocks, self.grid_y, self.cluster = self.size * self.pick((1, 1, 2)), 1, True
            self.context = Context(indices=(*self.grid_indices(), *self.scalars))
        elif self.chance(0.1):
            self.special = self.pick((', persistent="claim"', ", ping_pong=True"))
        super().start()
        if self.threads == 384:
            self.weights["in_turns"] = 9.0
        self.hints()

    def kernel_line(self) -> str:
        line = super().kernel_line()
        if self.cluster:
            line = line.replace("cluster_dims=2", f"cluster_dims={self.size}")
            return line.replace("T.Kernel(", "T.ClusterKernel(") if self.chance(0.3) else line
        if self.beside:
            return line.replace(") as b", ", beside=True) as b").replace(") as (b", ", beside=True) as (b")
        if (
            self.grid_y == 1
            and not self.special
            and not self.rows
            and self.chance(0.1)
            and not any("T.thread_binding(" in one for one in self.lines)
        ):
            return f'with T.launch_thread("blockIdx.x", {self.blocks}) as bx, T.launch_thread("threadIdx.x", {self.threads}) as t0:'
        return line

    def kernel_before(self) -> tuple[str, ...]:
        """As often as not one that has nothing to do with this one, which may begin beside it."""
        if not self.hopper or self.cluster or self.chance(0.5):
            return super().kernel_before()
        self.beside = True
        lines = super().kernel_before()
        apart = self.tiles.pop().name
        shape = next(one for one in lines if f"{apart} =" in one).split("T.alloc_global(")[1].rpartition(", ")
        self.outputs.append((apart, shape[0], shape[2].strip('")')))
        self.feature("meeting", "beside")
        return lines[1:]

    def weighed(
        self, others: list[tuple[float, Callable[[], None]]], mine: list[tuple[float, Callable[[], None]]], part: float
    ) -> list[tuple[float, Callable[[], None]]]:
        """Statements of before and new ones, each of which this program likes or not; all of them together as often as `part` of the others say."""
        for _, way in mine:
            if way.__name__ not in self.weights:
                self.weights[way.__name__] = self.pick((0.0, 0.5, 1.0, 3.0))
        total = sum(weight for weight, _ in others)
        return [*others, *((weight * self.weights[way.__name__] * total / part, way) for weight, way in mine)]

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        mine: list[tuple[float, Callable[[], None]]] = []
        if not self.parted_by and self.context.group is None and self.context.depth == 0:
            mine += [(2, self.arrived), (1, self.lanes_meet)]
            if self.threads >= 64 and not self.rows:
                mine += [(2, self.named_barrier)]
            if self.hopper:
                mine += [(2, self.left_by_engine)]
                mine += [(2, self.brought_by_threads)] + [(6, self.started)] * self.products
                mine += [(4, self.in_turns)] if self.threads == 384 and not self.rows else []
                mine += [(6, self.of_warpgroups)] if self.threads >= 256 and not self.rows else []
            if self.cluster and self.hopper:
                mine += [(6, self.exchanged), (4, self.of_another), (6, self.loaded_once), (5, self.cluster_meets)]
        return self.weighed(super().ways(), mine, 8)

    # Hints -------------------------------------------------------------------------------------------

    def hints(self) -> None:
        """What is said to the compiler and changes no result."""
        said = [
            "T.annotate_min_blocks_per_sm(1)", 'T.annotate_pass_configs({"tl.disable_tma_lower": True})', 'T.func_attr({"note": 1})',
            f"T.annotate_l2_hit_ratio({{{self.flags.name}: 0.5}})", f"T.annotate_restrict_buffers({self.flags.name})", f"T.reads({self.flags.name}[0:4])",
            'T.annotate_compile_flags(["-O3"])', "T.annotate_producer_reg_dealloc(24)", "T.annotate_consumer_reg_alloc(240)", "T.no_set_max_nreg()",
            'T.annotate_ws_schedule(T.WSSchedule(4, [T.WSRole("all", warps_lo=0, warps_hi=4)], [], []))', "T.pdl_trigger()", "T.pdl_sync()",
            "T.fence_proxy_async()", "T.warpgroup_arrive()", "T.warpgroup_commit_batch()",
        ]  # fmt: skip
        for _ in range(self.pick((0, 0, 1, 2))):
            self.emit(self.pick(said))

    # Warps -------------------------------------------------------------------------------------------

    def lanes_meet(self) -> None:
        """Lanes of a warp leave numbers and meet; each reads what another one left."""
        tile, one = self.name("s"), self.number(-(2**10), 2**10)
        self.emit(f'{tile} = T.alloc_shared(({self.threads},), "int32")', f"{tile}[tx] = {one.text}")
        self.emit(self.pick(("T.sync_warp()", "T.sync_warp(0xFFFFFFFF)", 'T.tvm_storage_sync("warp")')))
        self.give(f"{tile}[tx // 32 * 32 + (tx + {self.between(1, 31)}) % 32]", one.low, one.high, variable=1.0)
        self.emit(
            self.pick(("T.sync_threads()", 'T.tvm_storage_sync("shared")', f"T.sync_threads({self.between(1, 15)})"))
        )
        self.feature("meeting", "lanes")

    def named_barrier(self) -> None:
        """Some warps leave numbers and go on; the others wait for them at a barrier that has a number."""
        first, number = 32 * self.between(1, self.threads // 32 - 1), self.between(1, 15)
        tile, one, got = self.name("s"), self.number(-(2**10), 2**10), self.name("y")
        self.emit(
            f'{tile} = T.alloc_shared(({first},), "int32")',
            f'{got} = T.alloc_var("int32", init=0)',
            f"if tx < {first}:",
        )
        self.emit(f"    {tile}[tx] = {one.text}", f"    T.named_barrier_arrive({number}, {self.threads})", "else:")
        self.emit(f"    T.sync_threads({number}, {self.threads})", f"    {got} = {tile}[(tx * 3) % {first}]")
        self.numbers_of_threads.append(Number(got, min(0, one.low), max(0, one.high)))
        self.emit("T.sync_threads()")
        self.feature("meeting", "named barrier")

    def of_warpgroups(self) -> None:
        """Warpgroups that each keep as many registers as their author says, and do something of their own."""
        words = self.pick(
            ((("T.set_max_nreg(104, 0)", "T.set_max_nreg(152, 1)")), ("T.dec_max_nreg(104)", "T.inc_max_nreg(152)"))
        )
        tiles = [self.new_tile((16, 16), "int32", "shared") for _ in range(2)]
        if any(one.scope != "shared" or one.holder.sums_in for one in tiles):
            return
        for group, (tile, word) in enumerate(zip(tiles, words, strict=True)):
            self.emit(
                f"with T.ws({group}):",
                f"    {word}",
                "    for i, j in T.Parallel(16, 16):",
                f"        {tile.name}[i, j] = (i * {group + 2} + j) % 7",
            )
            self.wrote(tile, (0, 6))
        self.feature("meeting", "registers")

    def in_turns(self) -> None:
        """Warpgroups of a role whose products begin one after the other, of tiles that others load, for the blocks of a cluster once."""
        rows, columns, inner = self.pick((128, 256)), 8 * self.size * self.pick((1, 2, 4)), self.pick((32, 64))
        slots, rounds, turns, dtype = (
            self.pick((1, 2, 3)),
            self.pick((1, 2)),
            self.pick((1, 2, 4)),
            self.pick(("float16", "bfloat16")),
        )
        if (slots * (rows + columns) * inner) * 2 > 140_000:
            slots = 1
        a, b = (
            self.tensor((rounds * rows, turns * inner), dtype, (-2, 2)),
            self.tensor((columns, turns * inner), dtype, (-2, 2)),
        )
        out = self.result((rounds * rows, columns), "float32")
        a_ring, b_ring, ring, slot, total, k, part = (self.name(letter) for letter in "sseufkk")
        number, both = f"{part} * {turns} + {k}", ', scope="cluster"' if self.cluster and self.chance(0.7) else ""
        kept = self.pick((("", ""), (", registers=208", ", registers=88")))
        loops = [f"        for {part} in T.serial({rounds}):", f"            for {k} in T.serial({turns}):"]
        self.emit(
            f'{a_ring} = T.alloc_shared(({slots}, {rows}, {inner}), "{dtype}")', f'{b_ring} = T.alloc_shared(({slots}, {columns}, {inner}), "{dtype}")',
            f'{ring} = T.channel({a_ring}, {b_ring}, writers="brings", readers="works"{both})', "with T.roles():",
            f'    with T.role("works", warps=8{kept[0]}):', f'        {total} = T.alloc_fragment(({rows}, {columns}), "float32")', loops[0],
            f"            T.clear({total})", loops[1], f"                {slot} = {ring}.receive({number})", f"                T.take_turn({number} == 0)",
            f"                T.wgmma_gemm({a_ring}[{slot}, :, :], {b_ring}[{slot}, :, :], {total}, transpose_B=True)", "                T.pass_turn()",
            "                T.wait_wgmma(0)", f"                {ring}.release({number})", f"            T.copy({total}, {out.name}[{self.block_place()}, {part} * {rows}, 0])",
            "        T.end_turns()", f'    with T.role("brings", warps=4{kept[1]}):', *loops, f"                {slot} = {ring}.acquire({number})",
            f"                T.copy({a.name}[{part} * {rows}, {k} * {inner}], {a_ring}[{slot}, :, :])",
            f"                T.copy({b.name}[0, {k} * {inner}], {b_ring}[{slot}, :, :]{', multicast=True' if both else ''})", f"                {ring}.publish({number})",
        )  # fmt: skip
        self.feature("meeting", "turns", dtype, both)

    # Barriers ----------------------------------------------------------------------------------------

    def arrived(self) -> None:
        """All threads write, arrive at a barrier, and wait for one another, several times."""
        if not self.hopper:
            return
        bar, tile, k, total = self.name("e"), self.name("s"), self.name("k"), self.name("y")
        arrive = self.pick((
            (f"T.mbarrier_arrive({bar})",), (f"T.mbarrier_arrive_expect_tx({bar}, 0)",), (f"T.ptx_arrive_barrier_expect_tx({bar}, 0)",),
            (f"T.mbarrier_expect_tx({bar}, 0)", f"T.mbarrier_arrive({bar})"),
        ))  # fmt: skip
        one = self.brought_back(self.number(), 9)
        self.emit(
            f"{bar} = T.alloc_barrier({self.threads})",
            f'{tile} = T.alloc_shared((3, {self.threads}), "int32")',
            f'{total} = T.alloc_var("int32", init=0)',
        )
        self.emit(
            f"for {k} in T.serial(3):", f"    {tile}[{k}, tx] = {one.text} + {k}", *(f"    {part}" for part in arrive)
        )
        self.emit(
            f"    T.mbarrier_wait_parity({bar}, {k} % 2)",
            f"    {total} = {total} + {tile}[{k}, {self.threads - 1} - tx]",
        )
        self.numbers_of_threads.append(Number(total, 0, 33))
        self.feature("meeting", "arrived")

    def brought_by_threads(self) -> None:
        """Each thread begins a copy of its own; they arrive at a barrier, or are waited for as a group."""
        count, dtype = self.pick(((4, "float32"), (8, "float16"), (1, "int32"), (2, "float32"), (16, "int8")))
        source, tile = self.tensor((self.threads, count), dtype, (-4, 4)), self.name("s")
        self.emit(f'{tile} = T.alloc_shared(({self.threads}, {count}), "{dtype}")')
        test = f", {self.test()}" if self.chance(0.3) else ""
        self.emit(f"T.ptx_cp_async({tile}[tx, 0], {source.name}[tx, 0], {count}{test})")
        if self.chance(0.5):
            bar = self.name("e")
            self.lines.insert(
                len(self.lines) - 1, "    " * self.context.depth + f"{bar} = T.alloc_barrier({self.threads})"
            )
            self.emit(f"T.cp_async_barrier_noinc({bar})", f"T.mbarrier_wait_parity({bar}, 0)")
        else:
            self.emit("T.ptx_commit_group()", "T.ptx_wait_group(0)", "T.sync_threads()")
        self.give(
            f'T.cast({tile}[{self.threads - 1} - tx, {self.between(0, count - 1)}], "int32")', -4, 4, variable=1.0
        )
        self.feature("meeting", "brought by threads", dtype)

    def left_by_engine(self) -> None:
        """Tiles that the engine stores, some of them in groups that the author closes, and waits for as he likes."""
        tile = self.handed()
        if tile is None or len(tile.shape) != 2:
            return
        out = self.result(tile.shape, tile.dtype)
        self.emit("T.fence_proxy_async()", "T.sync_threads()") if self.chance(0.3) else None
        self.emit(f"T.tma_copy({tile.name}, {out.name}[{self.block_place()}, 0, 0])")
        self.emit(
            *self.pick(((), ("T.tma_store_arrive()",))),
            self.pick(("T.tma_store_wait(0)", "T.tma_store_wait(0, read=False)", "T.tma_store_wait()")),
        )
        self.feature("meeting", "left by engine", tile.dtype)

    def started(self) -> None:
        """A product that is started and waited for, with work between."""
        if self.threads % 128:
            return
        m, n, k, dtype = (
            64 * self.pick((1, 2)),
            self.pick((8, 32, 64)),
            self.pick((32, 64)),
            self.pick(("float16", "bfloat16", "float8_e4m3fn", "int8")),
        )
        a, b = self.operand(dtype, (m, k)), self.operand(dtype, (n, k))
        if (
            a.scope != "shared"
            or b.scope != "shared"
            or a.range is None
            or b.range is None
            or max(map(abs, (*a.range, *b.range))) > 8
            or a.holder is b.holder
        ):
            return
        out = self.new_tile((m, n), "int32" if dtype == "int8" else "float32", "fragment")
        if out.holder.sums_in:
            return
        if self.chance(0.4):
            self.emit(f"T.clear({out.name})", f"T.warpgroup_fence_operand({out.name})")
            drop = ""
        else:
            drop = ", clear_accum=True"
        self.emit(f"T.wgmma_gemm({a.name}, {b.name}, {out.name}, transpose_B=True{drop})")
        if self.chance(0.6):
            self.worked_out()
        self.emit(self.pick(("T.wait_wgmma(0)", "T.warpgroup_wait(0)")))
        bound = k * max(map(abs, (*a.range, 1))) * max(map(abs, (*b.range, 1)))
        self.wrote(out, (-bound, bound))
        self.feature("meeting", "started", dtype)

    # Clusters ----------------------------------------------------------------------------------------

    def rank(self) -> str:
        """Another block of the cluster, or this one, in the other's view and in this one's."""
        step = self.between(1, self.size - 1)
        return self.pick((f"(T.block_rank_in_cluster() + {step}) % {self.size}", f"T.block_rank_in_cluster() ^ {step}"))

    def handed(self) -> Tile | None:
        """A shared tile of whole pieces of 16 bytes that is full."""
        tiles = [
            one for one in self.usable(("shared",))
            if one.base is None and one not in self.annotated and one.dtype in WHOLE_ROWS and one.elements * ALL[one.dtype].bits % 128 == 0
        ]  # fmt: skip
        if tiles and self.chance(0.7):
            return self.pick(tiles)
        made = self.new_tile(self.pick(((16,), (8, 16), (16, 32))), self.pick(WHOLE_ROWS), "shared")
        return (
            made
            if made.scope == "shared" and made.range is not None and made.base is None and made not in self.annotated
            else None
        )

    def exchanged(self) -> None:
        """Each block gives its tile to another one, several times; it comes by the engine and arrives at a barrier."""
        mine = self.handed()
        if mine is None or mine.elements * ALL[mine.dtype].bits % 128:
            return
        assert mine.range is not None
        theirs, bar, k = self.name("s"), self.name("e"), self.name("k")
        total = self.new_tile(mine.shape, "int32", self.pick(("fragment", "shared")))
        turns = self.between(1, 3)
        bound = turns * max(map(abs, mine.range))
        if total.holder.sums_in or bound > 2**20:
            return
        self.emit(
            f'{theirs} = T.alloc_shared({mine.shape}, "{mine.dtype}")',
            f"{bar} = T.alloc_cluster_barrier([1])",
            f"T.clear({total.name})",
        )
        self.emit(f"for {k} in T.serial({turns}):", "    T.cluster_sync()")
        self.emit(
            f"    T.copy_cluster({mine.name}, {theirs}, dst_block={self.rank()}, remote_barrier={bar}[0])",
            f"    T.mbarrier_wait_parity({bar}[0], {k} % 2)",
        )
        names = "ijlq"[: len(mine.shape)]
        at = ", ".join(names)
        self.emit(
            f"    for {at} in T.Parallel({', '.join(map(str, mine.shape))}):",
            f'        {total.name}[{at}] = {total.name}[{at}] + T.cast({theirs}[{at}], "int32")',
        )
        self.emit("T.cluster_sync()")
        self.wrote(total, (-bound, bound))
        self.feature("meeting", "exchanged", mine.dtype)

    def of_another(self) -> None:
        """What stands in another block's tile, while all of the cluster leave theirs alone."""
        mine = self.handed()
        if mine is None:
            return
        assert mine.range is not None
        other = self.new_tile(mine.shape, self.pick((mine.dtype, "float32")), "fragment")
        if other.holder is mine.holder or other.holder.sums_in or not self.takes(other, mine.range):
            return
        self.emit(
            "T.cluster_sync()",
            f"T.copy({mine.name}, {other.name}, rank={self.rank()})",
            *self.pick((("T.cluster_sync()",), ("T.cluster_arrive()", "T.cluster_wait()"))),
        )
        self.wrote(other, mine.range)
        self.feature("meeting", "of another", mine.dtype)

    def loaded_once(self) -> None:
        """A box of a tensor for several blocks of the cluster; the others load it for themselves."""
        rows, columns, dtype = self.pick((8, 16, 64)), self.pick((16, 32, 64)), self.pick(WHOLE_ROWS)
        source = self.tensor((rows + self.pick((0, 8, -3)), columns), dtype, (-4, 4))
        tile, bar = self.new_tile((rows, columns), dtype, "shared"), self.name("e")
        if tile.scope != "shared" or tile.holder.sums_in or tile in self.annotated or not self.takes(tile, (-4, 4)):
            return
        mask = self.between(1, 2**self.size - 1)
        name = self.pick(self.scalars)[0] if self.scalars else "0"
        drawn = self.pick(self.context.indices)[0]  # which row it is all blocks of the cluster say alike
        row = self.pick(("0", "0", name, f"{drawn} % 4" if drawn in {one for one, _, _ in self.scalars} else "0"))
        word = self.pick(
            (
                f"T.tma_copy({{}}, {tile.name}, barrier={bar}[0], cluster_mask={mask})",
                f"T.copy_cluster({{}}, {tile.name}, remote_barrier={bar}[0], cluster_mask={mask})",
            )
        )
        self.emit(
            f"{bar} = T.alloc_cluster_barrier([{self.threads}])",
            "T.cluster_sync()",
            word.format(f"{source.name}[{row}, 0]"),
            f"T.mbarrier_arrive({bar}[0])",
        )
        self.emit(f"T.mbarrier_wait_parity({bar}[0], 0)", f"T.cluster_sync({self.pick(('', 'ordered=False'))})")
        self.wrote(tile, (-4, 4))
        self.feature("meeting", "loaded once", dtype, str(mask))

    def cluster_meets(self) -> None:
        """Threads arrive at another block's barrier, and wait at their own."""
        bar = self.name("e")
        arrive = self.pick(
            (f"T.mbarrier_arrive({bar}[0], {self.rank()})", f"T.ptx_arrive_cluster_barrier({bar}[0], {self.rank()})")
        )
        self.emit(
            f"{bar} = T.alloc_cluster_barrier([{self.threads}])",
            "T.cluster_sync()",
            arrive,
            f"T.mbarrier_wait_parity({bar}[0], 0)",
            "T.cluster_arrive()",
        )
        self.statements(1) if self.chance(0.3) else None
        self.emit("T.cluster_wait()")
        self.feature("meeting", "cluster barrier")
