"""Words of tiles that other families do not say: instructions by hand, layouts, schedulers, windows, products with scales."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tile_programs import Param
from word_numbers import NumberWords

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tilewright.formats.sparse import compress
from tilewright.ir.dtypes import ALL


class TileWords(NumberWords):
    """Statements of tiles, the warps that fill them, and products."""

    def matrix_by_hand(self) -> None:
        """A matrix instruction of each warp, whose operands its threads load by matrices of 8 rows, or one by one."""
        a, b, own_a, own_b, own_c = (self.name(letter) for letter in "sswww")
        left, right = self.tensor((16, 16), "float16", (-3, 3)), self.tensor((8, 16), "float16", (-3, 3))
        out, first = self.result((self.threads // 32, 16, 8), "float32"), self.between(0, 3)
        self.emit(
            f'{a}, {b} = T.alloc_shared((16, 16), "float16"), T.alloc_shared((8, 16), "float16")', f"T.copy({left.name}, {a})", f"T.copy({right.name}, {b})",
            f'{own_a}, {own_b}, {own_c} = T.alloc_local((8,), "float16"), T.alloc_local((4,), "float16"), T.alloc_local((4,), "float32")',
            "for i in T.serial(4):", f"    {own_c}[i] = {first} + i", "T.sync_threads()",
        )  # fmt: skip
        if self.chance(0.6):
            self.emit(
                f'T.ptx_ldmatrix(False, 4, T.access_ptr({a}[tx % 16, 8 * (tx % 32 // 16)], "r"), {own_a})',
                f'T.ptx_ldmatrix(False, 2, T.access_ptr({b}[tx % 8, 8 * (tx // 8 % 2)], "r"), {own_b})',
            )
        else:
            self.emit(
                "for r in T.serial(4):", "    for e in T.serial(2):",
                f"        {own_a}[r * 2 + e] = {a}[tx % 32 // 4 + 8 * (r % 2), 2 * (tx % 4) + e + 8 * (r // 2)]",
                "for r in T.serial(2):", "    for e in T.serial(2):", f"        {own_b}[r * 2 + e] = {b}[tx % 32 // 4, 2 * (tx % 4) + e + 8 * r]",
            )  # fmt: skip
        self.emit(
            f'T.ptx_mma("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", {own_a}, 0, {own_b}, 0, {own_c}, 0)', "for i in T.serial(4):",
            f"    {out.name}[{self.block_place()}, tx // 32, tx % 32 // 4 + 8 * (i // 2), 2 * (tx % 4) + i % 2] = {own_c}[i]",
        )  # fmt: skip
        self.emit("T.sync_threads()")
        self.feature("word", "matrix by hand")

    def half_of_it(self) -> None:
        """A product of which one operand has two of every four numbers, and says which; it may be turned."""
        m, n, k, dtype = 64, self.pick((16, 32, 64)), self.pick((64, 128)), self.pick(("float16", "bfloat16"))
        dense = self.random.integers(-2, 3, (m, k // 4, 4))
        dense[np.arange(m)[:, None], np.arange(k // 4)[None], self.random.integers(0, 4, (m, k // 4))] = 0
        first = self.random.integers(0, 4, (m, k // 4))
        np.put_along_axis(dense, first[..., None], 0, 2)
        np.put_along_axis(dense, (first[..., None] + 1 + self.random.integers(0, 3, (m, k // 4, 1))) % 4, 0, 2)
        kept, places = compress(dense.reshape(m, k).astype(ALL[dtype].numpy))
        turned_a, turned_e = self.chance(0.25), self.chance(0.25)
        tiles = []
        for values, kind, turned in ((kept, dtype, turned_a), (places, "uint8", turned_e)):
            given = np.ascontiguousarray(values.T) if turned else values
            tensor, tile = self.name("A"), self.name("s")
            self.params.append(Param(tensor, f'T.Tensor({given.shape}, "{kind}")', given))
            self.emit(f'{tile} = T.alloc_shared({given.shape}, "{kind}")', f"T.copy({tensor}, {tile})")
            tiles.append(tile)
        turned = self.chance(0.5)
        other = self.operand(dtype, (n, k) if turned else (k, n))
        out = self.new_tile((m, n), "float32", "fragment")
        if other.scope != "shared" or other.range is None or max(map(abs, other.range)) > 8 or out.holder.sums_in:
            return
        words = [", transpose_A=True"] * turned_a + [", transpose_E=True"] * turned_e + [", transpose_B=True"] * turned
        word = self.pick(("gemm_sp", "wgmma_gemm_sp")) if self.threads % 128 == 0 else "gemm_sp"
        more = self.pick(("", f", policy=T.GemmWarpPolicy.{self.pick(('FullRow', 'FullCol'))}"))
        self.emit(f"T.{word}({tiles[0]}, {tiles[1]}, {other.name}, {out.name}{''.join(words)}{more}, clear_accum=True)")
        self.emit("T.wait_wgmma(0)") if word != "gemm_sp" else None
        bound = k * 2 * max(map(abs, (*other.range, 1)))
        self.wrote(out, (-bound, bound))
        self.feature("word", "half of it", dtype)

    def laid_in_parts(self) -> None:
        """Sums of parts that threads hold, whose places the author says."""
        rows, columns, name = self.pick((8, 16, 32)), self.pick((16, 24)), self.name("r")
        out = self.new_tile((rows,), self.pick(("int32", "float32")), "fragment")
        if out.holder.sums_in:
            return
        start = self.pick(("", "", ", 3"))
        self.emit(f'{name} = T.alloc_reducer(({rows},), "{out.dtype}", op="sum")')
        self.emit(
            f"T.annotate_layout({{{name}: T.PartialFragment(({rows},), forward_fn=lambda i, copy: (copy, i), replicate={self.threads})}})"
        )
        self.emit(f"T.reducer_init({name}{start})")
        indices = self.loop((rows, columns))
        text, *_ = self.term(indices, out, "int32", 1)
        self.emit(
            f'    T.reducer_update({name}[i], T.cast(T.clamp({text}, -4, 4), "{out.dtype}"))',
            f"T.finalize_reducer({name}, {out.name})",
        )
        self.wrote(out, (-4 * columns - 3, 4 * columns + 3))
        self.feature("word", "laid in parts")

    def suited_to(self) -> None:
        """A width that suits a size of the call, or the machine, and changes no result."""
        tile = self.new_tile((self.pick((16, 32)),), None, "shared")
        if tile.holder.sums_in or ALL[tile.dtype].is_packed:
            return
        width, k = self.name("u"), self.name("k")
        said = 'T.machine() is not None and T.machine().has("wgmma")'
        size = next((size for size, _ in self.dynamic), None)
        if size is not None and self.chance(0.7):
            said = f"T.suited(lambda m: m > {self.between(0, 9)}, {size})"
        self.emit(f"{width} = {self.pick((4, 8))} if {said} else {self.pick((2, 16))}")
        top = min(self.room(tile)[1], 5)
        self.emit(f"for {k} in T.serial({tile.shape[0]} // {width}):", f"    for i in T.Parallel({width}):")
        self.emit(f'        {tile.name}[{k} * {width} + i] = T.cast(({k} * {width} + i) % {top + 1}, "{tile.dtype}")')
        self.wrote(tile, (0, top))
        self.feature("word", "suited")

    def dealt_out(self) -> None:
        """Tiles of a matrix that blocks are dealt, by the language's order or one of the author's."""
        rows, columns, name = self.pick((1, 3, 4, 7)), self.pick((2, 5)), self.name("T")
        out = self.tensor((rows, columns), "int32", (0, 2))
        if self.cluster or self.grid_y > 1:
            return
        if self.chance(0.6):
            self.emit(
                f'{name} = T.PersistentTileScheduler({rows}, {columns}, swizzle_size={self.pick((1, 2, 4))}, '
                f'column_major={self.chance(0.5)}, name="{name}")', f"{name}.init(bx)",
            )  # fmt: skip
            step = ""
        else:
            kind, step = self.name("M"), f"{self.blocks}"
            self.helpers += [
                f"class {kind}(T.BaseTileScheduler):", "    def __init__(self, name):", "        super().__init__(name=name)",
                f"        self._total_tiles = {rows * columns}", "    def update_current_idx(self, linear_idx):",
                f"        self._m_idx[0] = linear_idx % {rows}", f"        self._n_idx[0] = linear_idx // {rows}",
            ]  # fmt: skip
            self.emit(f'{name} = {kind}("{name}")', f"{name}.init(bx)")
        self.emit(
            f"while {name}.valid():",
            "    if tx == 0:",
            f"        T.atomic_add({out.name}[{name}.m_idx, {name}.n_idx], {name}.current_iter + 1)",
        )
        self.emit(f"    {name}.next_tile({step})")
        self.feature("word", "dealt out")

    def windows(self) -> None:
        """Windows of an image as rows of a tile."""
        images, height, width, channels = self.pick((1, 2)), self.pick((5, 8)), self.pick((4, 7)), self.pick((4, 8, 16))
        kernel, stride, dilation, pad = (
            self.pick((1, 2, 3)),
            self.pick((1, 1, 2)),
            self.pick((1, 1, 2)),
            self.pick((0, 1, 2)),
        )
        if dilation * (kernel - 1) >= min(height, width) + 2 * pad:  # no window is inside
            kernel = 1
        dtype = self.pick(("float32", "float16", "int32", "int8", "bfloat16"))
        image = self.tensor((images, height, width, channels), dtype, (-4, 4))
        tile = self.new_tile((self.pick((8, 16, 32)), self.pick((8, 16, 24))), dtype)
        if tile.holder.sums_in or not self.takes(tile, (-4, 4)):
            return
        word = f"T.im2col({image.name}, {tile.name}, {self.index(0, 2)}, {self.index(0, 1)}, {kernel}, {stride}, {dilation}, {pad})"
        self.emit(word)
        self.wrote(tile, (-4, 4))
        self.feature("word", "windows", dtype)

    def combined(self) -> None:
        """Numbers of all threads, or of a row of them, combined by the author's function."""
        total, one = self.name("w"), self.number(-(2**7), 2**7)
        function, identity, low, high = self.pick((
            ("x + y", "T.int32(0)", self.threads * min(one.low, 0), self.threads * max(one.high, 0)),
            ("T.max(x, y)", f"T.int32({one.low})", one.low, one.high),
            ("T.min(x, y)", f"T.int32({one.high})", one.low, one.high),
        ))  # fmt: skip
        threads = "tx" if not self.rows else self.pick(("t0", "t1"))
        brings = "True" if self.chance(0.4) or self.rows else self.test()
        self.emit(f'{total} = T.alloc_local((1,), "int32")')
        self.emit(
            f'with T.attr(T.comm_reducer(lambda x, y: {function}, [{identity}]), "reduce_scope", T.reinterpret(T.uint64(0), "handle")):'
        )
        self.emit(f'    T.tvm_thread_allreduce(1, {one.text}, {brings}, {total}[0], {threads}, dtype="handle")')
        self.give(f"{total}[0]", low, high, variable=1.0)
        self.feature("word", "combined", function)

    def reduced_by_name(self) -> None:
        """A reduction whose kind is a text."""
        tiles = [
            one
            for one in self.usable()
            if one.dtype in ("int32", "float32") and max(map(abs, one.range)) < 2**10 and len(one.shape) > 1
        ]
        if not tiles:
            return
        tile, dim = self.pick(tiles), self.pick((0, -1))
        kept = tile.shape[1:] if dim == 0 else tile.shape[:-1]
        kind = (
            self.pick(("max", "min", "absmax", "any", "all"))
            if tile.dtype == "float32"
            else self.pick(("max", "min", "any", "all", "bitor"))
        )
        out = self.new_tile(kept, tile.dtype)
        bound = 2 ** max(map(abs, (*tile.range, 1))).bit_length()
        if out.holder.sums_in or out.holder is tile.holder or not self.takes(out, (-bound, bound)):
            return
        self.emit(f'T.reduce({tile.name}, {out.name}, "{kind}", dim={dim})')
        self.wrote(out, (-bound, bound))
        self.feature("word", "reduced", kind)

    def scaled_blocks(self) -> None:
        """A product whose operands have scales: of rows and columns, of blocks along k, of groups with a shift and its factors."""
        dtype = self.pick(("float16", "bfloat16", "int8", "float8_e4m3fn", "float32"))
        m, n, k = self.pick((16, 32, 64)), self.pick((16, 32, 64)), self.pick((32, 64))
        turned = self.chance(0.7)
        a, b = self.operand(dtype, (m, k)), self.operand(dtype, (n, k) if turned else (k, n))
        if a.range is None or b.range is None or max(map(abs, (*a.range, *b.range))) > 8 or a.holder is b.holder:
            return
        out = self.new_tile((m, n), "float32", "fragment")
        if out.holder.sums_in or self.context.pipelined:
            return
        self.emit(f"T.clear({out.name})")
        words, bound = (
            ["transpose_B=True"] if turned else [],
            k * max(map(abs, (*a.range, 1))) * max(map(abs, (*b.range, 1))),
        )
        way = self.pick(("lines", "blocks", "groups", "groups"))
        if way == "lines":
            words += [f"scale_A={self.vector(m, 'float32', 2)}"] + [
                f"scale_B={self.vector(n, self.pick(('float32', 'float16')), 2)}"
            ] * self.chance(0.6)
        elif way == "blocks":
            parts = self.pick((1, 2, 4))
            words += [f"scale_A={self.matrix((m // self.pick((1, 8, 16)), parts), 'float32', 2)}"] * self.chance(0.7)
            columns = n // self.pick((1, 8, 16))
            words += [f"scale_B={self.matrix((columns, parts) if turned else (parts, columns), 'float32', 2)}"]
        else:
            groups = self.pick((1, 2, 4))
            words += [f"groups={groups}", f"scale_B={self.matrix((groups, n), 'float32', 2)}"]
            if self.chance(0.5):
                words.append(f"scale_A={self.matrix((groups, m), 'float32', 2)}")
            if self.chance(0.6):
                words.append(f"shift={self.matrix((groups, m), 'float32', 3)}")
                words += [f"shift_B={self.matrix((groups, n), self.pick(('float32', 'float16')), 3)}"] * self.chance(
                    0.5
                )
                bound += 9 * groups
        bound *= 4
        if bound > 2**22:
            return
        self.emit(f"T.gemm({', '.join([a.name, b.name, out.name, *words])})")
        self.feature("word", "scaled blocks", way, dtype)
        self.wrote(out, (-bound, bound))

    def matrix(self, shape: tuple[int, int], dtype: str, most: int) -> str:
        """A shared tile of small numbers, loaded."""
        source, tile = self.tensor(shape, dtype, (0, most)), self.new_tile(shape, dtype, "shared")
        self.emit(f"T.copy({source.name}, {tile.name})")
        self.wrote(tile, (0, most))
        return tile.name
