"""What a seed from eleven hundred thousand on becomes: loops in loops, ways to load, roles and grids of every kind.

Beside what `fuzz_writer` draws: tails of K, tiles that are no powers of two, 8-bit floats, sparse operands, codes that
are decoded on the way, the author's layouts and orders, loads made by threads, blocks that stay for many tiles, ragged rows of
loops, early exits, loops whose bounds depend on the block, clusters, and epilogues through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz_writer import Writer
from program_texts import from_text
from tile_programs import TileProgram

from tilewright.formats.sparse import compress, prune
from tilewright.ir.dtypes import ALL

SETTLED = 50_000
"""Seeds of a family below this keep the programs that they had, some of which once failed."""


class BoldWriter(Writer):
    """Writes one program; every choice is drawn from the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        pick = self.random.choice
        self.architecture = pick(("sm_80", "sm_90a", "sm_90a", "sm_90a"))
        self.dtype = pick(("float16", "float16", "bfloat16", "int8", "float8_e4m3fn", "float32"))
        self.total = "int32" if self.dtype == "int8" else "float32"
        narrow = ALL[self.dtype].bits == 8
        self.bm, self.bn = pick((16, 32, 48, 64, 64, 128)), pick((16, 24, 32, 64, 96, 128))
        self.bk = pick((32, 64, 96, 128) if narrow else (16, 32, 48, 64))
        if self.architecture == "sm_90a" and self.random.random() < 0.6:
            self.bm = pick((64, 64, 128))
        self.threads = pick((64, 128, 128, 256, 256, 384)) if self.bm * self.bn >= 1024 else pick((32, 64, 96))
        self.rows = pick((1, 2, 3)) * self.bm - pick((0, 0, 3, 8))
        self.columns = pick((1, 2)) * self.bn - pick((0, 0, 8, 5))
        self.settled = seed % 100_000 < SETTLED
        self.steps = self.random.randint(0, 6) if self.settled else pick((0, 1, 2, 3, 4, 5, 6, 13))
        self.tail = pick((0, 0, 0, 8, 3)) if self.steps else 0
        self.dynamic = pick((None, None, "M", "MN", "MNK"))
        self.shape = pick(("plain", "plain", "plain", "stays", "ragged", "nested", "leaves", "counts"))
        self.sparse = (
            self.dtype in ("float16", "bfloat16", "int8") and self.bk % 64 == 0 and self.random.random() < 0.15
        )
        self.transposed = (pick((False, False, True)), pick((True, True, False)))
        if narrow:
            self.transposed = (False, True)
        if self.sparse:
            self.transposed = (False, self.transposed[1])
        self.layouts: list[str] = []
        self.finish: list[Callable[[int], None]] = []
        self.step = "k"

    # The program ---------------------------------------------------------------------------------

    def write(self) -> TileProgram:
        """The block's body first; declarations stand before it once it is known what they need."""
        self.c = self.tile("(BM, BN)", self.total, "fragment")
        getattr(self, f"_{self.shape}")()
        body, self.lines = self.lines, []
        sizes = {"M": self.rows, "N": self.columns, "K": f"STEPS * BK - {self.tail}" if self.tail else "STEPS * BK"}
        head = ["def program(" + ", ".join([*self.tensors, "count: T.int32"]) + "):"]
        head += [f"    BM, BN, BK, STEPS, GROUPS = {self.bm}, {self.bn}, {self.bk}, {self.steps}, 3"]
        for letter, value in sizes.items():
            bound = any(
                letter in shape for shape, _ in self.tensors.values()
            )  # by itself, so that the size can be told
            symbolic = self.dynamic and letter in self.dynamic and bound
            head.append(f"    {letter} = T.dynamic('{letter}')" if symbolic else f"    {letter} = {value}")
        head += [
            f'    {name}: T.Tensor({self.shape_text(name)}, "{dtype}")' for name, (_, dtype) in self.tensors.items()
        ]
        head += [f'    {name} = T.empty({shape}, "{dtype}")' for name, (shape, dtype) in self.outputs.items()]
        head += [f"    with T.Kernel({self.grid()}, threads={self.threads}{self.options()}) as {self.blocks()}:"]
        head += [f"        {text}" for text in (*self.tiles, *self.layouts)]
        text = "\n".join([*head, *body, f"    return {', '.join(self.outputs)}"]) + "\n"
        return from_text(self.seed, text, self.arguments(), self.architecture)

    def grid(self) -> str:
        return "2" if self.shape == "stays" else "T.ceildiv(N, BN), T.ceildiv(M, BM)"

    def blocks(self) -> str:
        return "block" if self.shape == "stays" else "(bx, by)"

    def options(self) -> str:
        """Of the kernel, where the author has a word in how blocks are dealt."""
        pick = self.random.choice
        if self.architecture != "sm_90a":
            return ""
        chosen = [pick(("", "", "", ", specialize=True", ", specialize=False"))]
        if self.shape == "plain":
            chosen.append(pick(("", "", ", persistent=True", ", persistent=False")))
            chosen.append(
                pick(("", "", "", ", cluster_dims=(2, 1, 1)", ", cluster_dims=(1, 2, 1)", ", cluster_dims=(1, 1, 1)"))
            )
        return "".join(chosen)

    def arguments(self) -> tuple[Any, ...]:
        """Small integers, and what lists and masks may hold."""
        depth = max(self.steps * self.bk - self.tail, 0)
        sizes = {
            "M": self.rows, "N": self.columns, "K": depth, "STEPS": self.steps, "BK": self.bk, "BM": self.bm, "BN": self.bn,
            "GROUPS": 3, "T": _Ceildiv,
        }  # fmt: skip
        values: list[Any] = []
        for number, (name, (shape, dtype)) in enumerate(self.tensors.items()):
            extents = [int(eval(str(part), {}, sizes)) for part in shape]
            rng = np.random.default_rng([self.seed, number])
            kind = ALL[dtype].numpy
            if name.startswith("S"):  # what is kept of a sparse tensor, and where it stood
                dense = prune(
                    np.random.default_rng([self.seed, 77]).integers(-2, 3, (extents[0], extents[1] * 2))
                ).astype(kind)
                kept, self.metadata = compress(dense)
                values.append(kept)
            elif name.startswith("E"):
                values.append(self.metadata)
            else:
                low, high = self.limits(name)
                values.append(rng.integers(low, high, extents).astype(kind))
        return (*values, self.random.randint(0, self.steps))

    def limits(self, name: str) -> tuple[int, int]:
        """The least element of a tensor, and one more than the largest."""
        if self.tensors[name][1] == "uint8":  # codes, two a byte
            return 0, 256
        lists = {"mask": (0, 2), "rows": (0, max(self.steps, 1)), "lengths": (0, self.steps + 1), "stop": (0, 3)}
        return lists.get(name, (-2, 3))

    # What a block does ----------------------------------------------------------------------------

    def _start(self, depth: int) -> None:
        self.line(depth, f"T.clear({self.c})")

    def _end(self, depth: int, place: str = "") -> None:
        """Sums and products leave the block, the accumulator in one of several ways."""
        pick = self.random.choice
        for leave in self.finish:
            leave(depth)
        shape = f"({place and 'GROUPS, '}M, N)"
        at = f"{place}by * BM, bx * BN"
        way = pick(("plain", "plain", "rounded", "shared", "positive", "turned"))
        if way == "rounded":
            out = pick(("float16", "bfloat16")) if self.total == "float32" else "int8"
            self.outputs["C"] = (shape, out)
            self.line(depth, f"T.copy({self.c}, C[{at}])")
        elif way == "shared":
            self.outputs["C"] = (shape, self.total)
            through = self.tile("(BM, BN)", self.total)
            self.line(depth, f"T.copy({self.c}, {through})")
            self.line(depth, f"T.copy({through}, C[{at}])")
        elif way == "positive":
            self.outputs["C"] = (shape, self.total)
            self.line(depth, "for i, j in T.Parallel(BM, BN):")
            self.line(depth + 1, f'{self.c}[i, j] = T.max({self.c}[i, j], T.cast(0, "{self.total}"))')
            self.line(depth, f"T.copy({self.c}, C[{at}])")
        elif way == "turned":
            self.outputs["C"] = (f"({place and 'GROUPS, '}N, M)", self.total)
            self.line(depth, "for i, j in T.Parallel(BM, BN):")
            self.line(depth + 1, "if by * BM + i < M and bx * BN + j < N:")
            self.line(depth + 2, f"C[{place}bx * BN + j, by * BM + i] = {self.c}[i, j]")
        else:
            self.outputs["C"] = (shape, self.total)
            self.line(depth, f"T.copy({self.c}, C[{at}])")

    def _plain(self, depth: int = 2) -> None:
        self._start(depth)
        mark = len(self.lines)
        for number in range(self.random.choice((1, 1, 2, 3))):
            self.loop(depth, self.c, number)
        self._before(mark, depth)
        self._end(depth)

    def _before(self, mark: int, depth: int) -> None:
        """Clears of what loops add up stand in front of them."""
        self.lines[mark:mark] = ["    " * depth + text for text in getattr(self, "clears", [])]

    def _stays(self) -> None:
        """Blocks take tile after tile."""
        self.line(2, "for turn in T.serial(T.ceildiv(T.ceildiv(M, BM) * T.ceildiv(N, BN), 2)):")
        self.line(3, "place = turn * 2 + block")
        self.line(3, "if place < T.ceildiv(M, BM) * T.ceildiv(N, BN):")
        self.line(4, "by = place // T.ceildiv(N, BN)")
        self.line(4, "bx = place % T.ceildiv(N, BN)")
        self._plain(4)

    def _ragged(self) -> None:
        """Rows of loops, each of a length of its own."""
        self.need("lengths", ("GROUPS",), "int32")
        self.line(2, "for r in T.serial(GROUPS):")
        self._start(3)
        mark = len(self.lines)
        self.loop(3, self.c, 0, "lengths[r]")
        self._before(mark, 3)
        self._end(3, "r, ")

    def _nested(self) -> None:
        """A pipelined loop in a pipelined loop, each with loads of its own."""
        self._start(2)
        mark = len(self.lines)
        name, bias = self.need("Z", ("GROUPS", "BN"), self.total), self.tile("(BN,)", self.total)
        self.line(2, f"for o in T.Pipelined(GROUPS, num_stages={self.random.choice((0, 1, 2, 3))}):")
        self.line(3, f"T.copy({name}[o, 0], {bias})")
        self.loop(3, self.c, 0)
        self.line(3, "for i, j in T.Parallel(BM, BN):")
        self.line(4, f"{self.c}[i, j] = {self.c}[i, j] + {bias}[j]")
        self._before(mark, 2)
        self._end(2)

    def _leaves(self) -> None:
        """Blocks that a list sends home, rows that it leaves out."""
        self.need("stop", ("64",), "int32")
        self.outputs["L"] = ("(T.ceildiv(M, BM), T.ceildiv(N, BN))", "int32")
        self.line(2, "for i in T.Parallel(1):")
        self.line(3, "L[by, bx] = stop[by]")
        self.line(2, "for i, j in T.Parallel(BM, BN):")
        self.line(3, "if by * BM + i < M and bx * BN + j < N:")
        self.outputs["C"] = ("(M, N)", self.total)
        self.line(4, f'C[by * BM + i, bx * BN + j] = T.cast(-1, "{self.total}")')
        self.line(2, "if stop[by] == 2:")
        self.line(3, "T.thread_return()")
        self.line(2, "for r in T.serial(GROUPS):")
        self.line(3, f"if stop[r + bx] == {self.random.choice((1, 2))}:")
        self.line(4, self.random.choice(("continue", "break")))
        self._start(3)
        mark = len(self.lines)
        self.loop(3, self.c, 0)
        self._before(mark, 3)
        self.finish.clear()
        self.line(3, f"T.copy({self.c}, C[by * BM, bx * BN])")

    def _counts(self) -> None:
        """A loop whose length a scalar of the block's own counts up to, and one that goes down."""
        self._start(2)
        self.line(2, 'turns = T.alloc_var("int32", init=0)')
        mark = len(self.lines)
        self.line(2, f"while turns < {self.random.choice(('2', 'count', 'by + 1'))}:")
        self.loop(3, self.c, 0)
        self.line(3, "turns += 1")
        self._before(mark, 2)
        self._end(2)

    # A pipelined loop ----------------------------------------------------------------------------

    def loop(self, depth: int, c: str, number: int, extent: str | None = None) -> None:
        pick = self.random.choice
        bounds = extent or pick(
            ("STEPS", "STEPS", "count", "T.min(count, STEPS)", "T.min(by + 1, STEPS)", "1, STEPS", "count, STEPS")
        )
        stages = pick((0, 1, 2, 3, 4))
        options = [f"num_stages={stages}"]
        specialize = pick((None, None, None, True, False))
        if specialize is not None:
            options.append(f"specialize={specialize}")
        statements = self.random.choice((0, 0, 1, 1, 2, 3))
        planned = statements == 0 and not self.sparse and stages > 1 and self.random.random() < 0.2
        if planned:
            options += [
                "order=[1, 2, 0]" if pick((True, False)) else "order=[0, 1, 2]",
                f"stage=[0, {pick((0, 1))}, {pick((1, 2))}]",
            ]
        self.line(depth, f"for k in T.Pipelined({bounds}, {', '.join(options)}):")
        depth += 1
        self.step = "k"
        loads_first = not planned and not self.settled and self.random.random() < 0.35
        if not planned and not loads_first:
            depth = self._condition(depth)
        a, b = self._left(depth, number, planned), self._right(depth, number, planned)
        if loads_first:  # what is loaded whatever happens, and used or not
            step = self.step
            depth = self._condition(depth)
            self.step = step
        work: list[Callable[[], None]] = [lambda: self._product(depth, a, b, c)]
        more = [
            lambda: self.row_sums(depth, a), lambda: self._column_sums(depth, b), lambda: self.counted(depth, a),
            lambda: self.carried(depth, b), lambda: self._guarded(depth, a, b, c), lambda: self._scanned(depth, a),
        ]  # fmt: skip
        if not self.sparse:
            more += [
                lambda: self.scaled(depth, a, b, c), lambda: self.beside(depth, a, b, c), lambda: self.from_registers(depth, a, b, c),
                lambda: self.overwritten(depth, a, b, c), lambda: self._in_slices(depth, a, b, c), lambda: self._delayed(depth, a, b, c),
            ]  # fmt: skip
            if self.dtype in ("float16", "bfloat16"):
                more += [lambda: self._chain(depth, a, b), lambda: self._chain(depth, a, b)]
        work += self.random.sample(more, statements)
        self.random.shuffle(work)
        for one in work:
            one()

    def _condition(self, depth: int) -> int:
        """What the body stands under, and names on the way; the depth below."""
        condition = self.random.choice(("", "", "", "", "mask", "kept", "even", "block", "chain"))
        if condition in ("mask", "chain", "kept"):
            self.need("mask", ("max(STEPS, 1)",), "int32")
        if condition == "mask":
            self.line(depth, "if mask[k] != 0:")
        elif condition == "kept":
            kept = self.tile("(max(STEPS, 1),)", "int32")
            self.clears = [
                *getattr(self, "clears", []),
                "for i in T.Parallel(max(STEPS, 1)):",
                f"    {kept}[i] = mask[i]",
            ]
            self.line(depth, f"if {kept}[k] != 0:")
        elif condition == "even":
            self.line(depth, "if k % 2 == 0:")
        elif condition == "block":
            self.line(depth, "if k >= by:")
        elif condition == "chain":
            wanted, more = self.name("wanted"), self.name("more")
            self.line(depth, f"{wanted} = mask[k]")
            self.line(depth, f"{more} = {wanted} + k")
            self.line(depth, f"if {wanted} > 0:")
            self.line(depth + 1, f"if {more} < STEPS + 1:")
            depth += 1
        depth += bool(condition)
        if self.random.random() < 0.2:
            self.need("rows", ("max(STEPS, 1)",), "int32")
            self.step = self.name("row")
            self.line(depth, f"{self.step} = rows[k]")
        return depth

    # Ways to load --------------------------------------------------------------------------------

    def _left(self, depth: int, number: int, plain: bool) -> str:
        if self.sparse:
            kept, places = f"S{number}", f"E{number}"
            self.need(kept, ("M", "STEPS * BK // 2"), self.dtype)
            self.need(places, ("M", "STEPS * BK // 8"), "uint8")
            a, e = self.tile("(BM, BK // 2)"), self.tile("(BM, BK // 8)", "uint8")
            self.line(depth, f"T.copy({kept}[by * BM, {self.step} * (BK // 2)], {a})")
            self.line(depth, f"T.copy({places}[by * BM, {self.step} * (BK // 8)], {e})")
            self.places = e
            return a
        return self._load(depth, f"A{number}", "M", "BM", "by * BM", self.transposed[0], plain)

    def _right(self, depth: int, number: int, plain: bool) -> str:
        return self._load(depth, f"B{number}", "N", "BN", "bx * BN", not self.transposed[1], plain)

    def _load(self, depth: int, tensor: str, rows: str, block: str, place: str, transposed: bool, plain: bool) -> str:
        """A tile of an operand, by one of the ways to bring it."""
        depth_of = "STEPS * BK" if self.sparse else "K"
        shape = ("BK", block) if transposed else (block, "BK")
        tile = self.tile("(" + ", ".join(shape) + ")")
        first, second = (f"{self.step} * BK", place) if transposed else (place, f"{self.step} * BK")
        small = self.dtype in ("float16", "bfloat16", "float32")
        ways = ["copy", "copy", "copy", "copy"] + ([] if plain else ["halves", "parallel", "registers"])
        if small and not plain:
            ways += ["wide", "codes"]
        way = self.random.choice(ways)
        if way == "codes" and (transposed or (self.steps * self.bk - self.tail) % 2):
            way = "copy"
        limits = (depth_of, rows) if transposed else (rows, depth_of)
        if way == "codes":
            tensor = f"W4{tensor}"
            self.need(tensor, (rows, f"({depth_of}) // 2"), "uint8")
            packed = self.tile(f"({block}, BK // 2)", "uint8")
            self.line(depth, f"T.copy({tensor}[{place}, {self.step} * (BK // 2)], {packed})")
            self.line(depth, f"for i, j in T.Parallel({block}, BK):")
            self.line(
                depth + 1,
                f'{tile}[i, j] = T.cast(T.cast(({packed}[i, j // 2] >> T.cast(j % 2 * 4, "uint8")) & T.cast(15, "uint8"), "int32") - 8, "{self.dtype}")',
            )
            return tile
        if way == "wide":
            self.need(f"{tensor}w", limits, "int8")
            tensor = f"{tensor}w"
        else:
            self.need(tensor, limits, self.dtype)
        if way == "halves" and self.bk % 32 == 0:
            half = "BK // 2"
            for part in (0, 1):
                if transposed:
                    self.line(
                        depth,
                        f"T.copy({tensor}[{first} + {part} * ({half}), {second}], {tile}[{part} * ({half}):{part + 1} * ({half}), 0:{block}])",
                    )
                else:
                    self.line(
                        depth,
                        f"T.copy({tensor}[{first}, {second} + {part} * ({half})], {tile}[0:{block}, {part} * ({half}):{part + 1} * ({half})])",
                    )
        elif way == "parallel":
            self.line(depth, f"for i, j in T.Parallel({', '.join(shape)}):")
            inside = f"{first} + i < {limits[0]} and {second} + j < {limits[1]}"
            self.line(
                depth + 1,
                f'{tile}[i, j] = T.if_then_else({inside}, {tensor}[{first} + i, {second} + j], T.cast(0, "{self.dtype}"))',
            )
        elif way == "registers":
            held = self.tile("(" + ", ".join(shape) + ")", self.dtype, "fragment")
            self.line(depth, f"T.copy({tensor}[{first}, {second}], {held})")
            self.line(depth, f"T.copy({held}, {tile})")
        else:
            self.line(depth, f"T.copy({tensor}[{first}, {second}], {tile})")
        run = {"BK": self.bk, "BM": self.bm, "BN": self.bn}[shape[1]]
        if self.random.random() < 0.1 and run in (32, 64) and self.dtype in ("float16", "bfloat16"):
            swizzle = "(j ^ (i % 8 * 8))" if run == 64 else "(j ^ (i // 2 % 4 * 8))"
            self.layouts.append(
                f"T.annotate_layout({{{tile}: T.Layout(({', '.join(shape)}), lambda i, j: i * {run} + {swizzle})}})"
            )
        return tile

    # Work on loaded tiles ------------------------------------------------------------------------

    def _product(self, depth: int, a: str, b: str, c: str) -> None:
        if self.sparse:
            self.line(depth, f"T.gemm_sp({a}, {self.places}, {b}, {c}, transpose_B={self.transposed[1]})")
        else:
            self.gemm(depth, a, b, c)

    def _numbers(self, tile: str) -> list[str]:
        return [part.strip() for part in self.shape_of(tile)]

    def row_sums(self, depth: int, a: str) -> None:
        """A fold of the loaded tile's rows, carried over the iterations in a fragment."""
        self._folded(depth, a, 1)

    def _column_sums(self, depth: int, b: str) -> None:
        self._folded(depth, b, 0)

    def _folded(self, depth: int, tile: str, dim: int) -> None:
        shape = self._numbers(tile)
        kept = shape[1 - dim]
        wide = self.tile(f"({', '.join(shape)})", self.total, "fragment")
        sums = self.tile(f"({kept},)", self.total, "fragment")
        self.line(depth, f"T.copy({tile}, {wide})")
        kind = self.random.choice(("sum", "max", "min", "absmax"))
        self.line(depth, f"T.reduce_{kind}({wide}, {sums}, dim={dim}, clear=False)")
        self._leaves_block(sums, kept)

    def _leaves_block(self, vector: str, length: str) -> None:
        """A vector that a block adds up and gives to the output of its place."""
        output = self.name("R")
        self.outputs[output] = (f"(T.ceildiv(M, BM), T.ceildiv(N, BN), {length})", self.total)
        self.clears = [*getattr(self, "clears", []), f"T.clear({vector})"]
        if self.shape == "ragged":
            self.outputs[output] = (f"(GROUPS, T.ceildiv(M, BM), T.ceildiv(N, BN), {length})", self.total)

        def leave(depth: int) -> None:
            where = "r, by, bx" if self.shape == "ragged" else "by, bx"
            self.line(depth, f"for i in T.Parallel({length}):")
            self.line(depth + 1, f"{output}[{where}, i] = {vector}[i]")

        if self.shape == "leaves":
            del self.outputs[output]
        else:
            self.finish.append(leave)

    def carried(self, depth: int, b: str) -> None:
        """A tile in shared memory that one iteration leaves to the next."""
        columns = self._numbers(b)[1]
        before = self.tile(f"({columns},)", self.total)
        self.line(depth, f"for j in T.Parallel({columns}):")
        self.line(depth + 1, f'{before}[j] = {before}[j] + T.cast({b}[0, j], "{self.total}")')
        self._leaves_block(before, columns)

    def _guarded(self, depth: int, a: str, b: str, c: str) -> None:
        """Work under a condition of its own, and other work otherwise."""
        self.line(depth, f"if {self.random.choice(('k > 0', 'k % 3 == 1', 'bx == 0', 'k + by < 3'))}:")
        self._product(depth + 1, a, b, c)
        if self.random.random() < 0.5:
            self.line(depth, "else:")
            self.line(depth + 1, "for i, j in T.Parallel(BM, BN):")
            self.line(depth + 2, f'{c}[i, j] = {c}[i, j] - T.cast(1, "{self.total}")')

    def _scanned(self, depth: int, a: str) -> None:
        """Running sums of a tile, the last of which are added up."""
        rows, columns = self._numbers(a)
        wide, vector = self.tile(f"({rows}, {columns})", self.total), self.tile(f"({rows},)", self.total, "fragment")
        self.line(depth, f"T.copy({a}, {wide})")
        self.line(depth, f"T.cumsum({wide}, dim=1)")
        self.line(depth, f"for i in T.Parallel({rows}):")
        self.line(depth + 1, f"{vector}[i] = {vector}[i] + {wide}[i, {columns} // 2]")
        self._leaves_block(vector, rows)

    def _in_slices(self, depth: int, a: str, b: str, c: str) -> None:
        """The product once more, a part of k at a time."""
        part = 32 if ALL[self.dtype].bits == 8 else 16
        if self.bk % part:
            return
        left, right = self.transposed
        word = self.random.choice(("T.serial", "T.unroll"))
        self.line(depth, f"for kk in {word}(BK // {part}):")
        a_part = (
            f"{a}[kk * {part}:kk * {part} + {part}, 0:BM]" if left else f"{a}[0:BM, kk * {part}:kk * {part} + {part}]"
        )
        b_part = (
            f"{b}[0:BN, kk * {part}:kk * {part} + {part}]" if right else f"{b}[kk * {part}:kk * {part} + {part}, 0:BN]"
        )
        self.line(depth + 1, f"T.gemm({a_part}, {b_part}, {c}, transpose_A={left}, transpose_B={right})")

    def _delayed(self, depth: int, a: str, b: str, c: str) -> None:
        """The product with the tile of the iteration before, which stays in a shared tile of its own."""
        shape = self._numbers(a)
        before = self.tile(f"({', '.join(shape)})")
        self.clears = [*getattr(self, "clears", []), f"T.clear({before})"]
        self.gemm(depth, before, b, c)
        self.line(depth, f"for i, j in T.Parallel({', '.join(shape)}):")
        self.line(depth + 1, f"{before}[i, j] = {a}[i, j]")

    def _chain(self, depth: int, a: str, b: str) -> None:
        """Scores, their largest, weights and a second product, as in attention, with integers."""
        name = self.need(self.name("W"), ("max(STEPS, 1)", "BN", 32), self.dtype)
        scores, weights = self.tile("(BM, BN)", self.total, "fragment"), self.tile("(BM, BN)", self.dtype, "fragment")
        right, result = self.tile("(BN, 32)"), self.tile("(BM, 32)", self.total, "fragment")
        top = self.tile("(BM,)", self.total, "fragment")
        output = self.name("O")
        if self.shape != "leaves":
            self.outputs[output] = ("(T.ceildiv(M, BM), T.ceildiv(N, BN), BM, 32)", self.total)
        self.clears = [*getattr(self, "clears", []), f"T.clear({result})", f"T.clear({top})"]
        self.line(depth, f"T.copy({name}[{self.step}, 0, 0], {right})")
        self.line(
            depth,
            f"T.gemm({a}, {b}, {scores}, transpose_A={self.transposed[0]}, transpose_B={self.transposed[1]}, clear_accum=True)",
        )
        if self.random.random() < 0.6:
            self.line(depth, f"T.reduce_max({scores}, {top}, dim=1, clear=False)")
            self.line(depth, "for i, j in T.Parallel(BM, BN):")
            self.line(depth + 1, f"{scores}[i, j] = T.max({scores}[i, j] - {top}[i], -64.0)")
        self.line(depth, f"T.copy({scores}, {weights})")
        self.line(depth, f"T.gemm({weights}, {right}, {result})")
        if self.shape != "leaves":
            self.finish.append(lambda at: self.line(at, f"T.copy({result}, {output}[by, bx, 0, 0])"))


class _Ceildiv:
    """What shapes say as ``T.ceildiv``, for the sizes of arguments."""

    @staticmethod
    def ceildiv(a: int, b: int) -> int:
        return -(-a // b)
