"""What a seed from a million on becomes: pipelined loops over two operands, with work around their products."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np
from program_texts import from_text
from tile_programs import TileProgram


class Writer:
    """Writes one program; every choice is drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        pick = self.random.choice
        self.architecture = pick(("sm_80", "sm_90a", "sm_90a"))
        self.dtype = pick(("float16", "float16", "bfloat16", "int8"))
        self.total = "int32" if self.dtype == "int8" else "float32"
        self.bm, self.bn, self.bk = (
            pick((16, 32, 64)),
            pick((16, 32, 64)),
            pick((32, 64) if self.dtype == "int8" else (16, 32, 64)),
        )
        if self.architecture == "sm_90a" and self.random.random() < 0.6:
            self.bm = 64
        self.threads = pick((64, 128, 128, 256)) if self.bm * self.bn >= 1024 else pick((32, 64))
        self.rows, self.columns = (
            pick((1, 2)) * self.bm - pick((0, 0, 3, 8)),
            pick((1, 2)) * self.bn - pick((0, 0, 8, 5)),
        )
        self.steps = self.random.randint(0, 7)
        self.dynamic = pick((False, False, "M", "MN"))
        self.lines: list[str] = []
        self.tensors: dict[str, tuple[tuple[Any, ...], str]] = {}
        self.outputs: dict[str, tuple[str, str]] = {}
        self.tiles: list[str] = []
        self.made = 0

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def tile(self, shape: str, dtype: str | None = None, kind: str = "shared") -> str:
        name = self.name("s" if kind == "shared" else "f")
        self.tiles.append(f'{name} = T.alloc_{kind}({shape}, "{dtype or self.dtype}")')
        return name

    # The program ---------------------------------------------------------------------------------

    def write(self) -> TileProgram:
        """Loops first; declarations stand before them once it is known what they need."""
        loops = self.random.choice((1, 1, 1, 2))
        c = self.tile("(BM, BN)", self.total, "fragment")
        body_start = len(self.lines)
        for number in range(loops):
            self.loop(2, c, number)
        body = self.lines[body_start:]
        after = self.after(c)
        head = ["def program(" + ", ".join([*self.tensors, "count: T.int32"]) + "):"]
        sizes = {"M": self.rows, "N": self.columns}
        for letter, value in sizes.items():
            head.append(
                f"    {letter} = T.dynamic('{letter}')"
                if self.dynamic and letter in self.dynamic
                else f"    {letter} = {value}"
            )
        head += [f"    BM, BN, BK, STEPS = {self.bm}, {self.bn}, {self.bk}, {self.steps}"]
        head += [
            f'    {name}: T.Tensor({self.shape_text(name)}, "{dtype}")' for name, (_, dtype) in self.tensors.items()
        ]
        head += [f'    {name} = T.empty({shape}, "{dtype}")' for name, (shape, dtype) in self.outputs.items()]
        head += [f"    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads={self.threads}) as (bx, by):"]
        head += [f"        {tile}" for tile in self.tiles]
        head += [f"        T.clear({c})"]
        text = "\n".join([*head, *body, *after, f"    return {', '.join(self.outputs)}"]) + "\n"
        return from_text(self.seed, text, self.arguments(), self.architecture)

    def shape_text(self, name: str) -> str:
        parts = [str(part) for part in self.tensors[name][0]]
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"

    def arguments(self) -> tuple[Any, ...]:
        """Small integers of every tensor, and how many steps a loop of unknown length takes."""
        sizes = {"M": self.rows, "N": self.columns, "STEPS": self.steps, "BK": self.bk, "BM": self.bm, "BN": self.bn}
        values: list[Any] = []
        for number, (name, (shape, dtype)) in enumerate(self.tensors.items()):
            extents = [eval(str(part), {}, sizes) for part in shape]
            rng = np.random.default_rng([self.seed, number])
            low, high = {"mask": (0, 2), "rows": (0, max(self.steps, 1))}.get(name, (-2, 3))
            values.append(rng.integers(low, high, extents).astype(dtype))
        return (*values, self.random.randint(0, self.steps))

    # A pipelined loop ----------------------------------------------------------------------------

    def loop(self, depth: int, c: str, number: int) -> None:
        pick = self.random.choice
        self.transposed = (pick((False, False, True)), pick((True, True, False)))
        if self.dtype == "int8":
            self.transposed = (False, True)
        if pick((False, False, False, True)):
            self.line(depth, f"for outer in T.serial({pick((1, 2, 3))}):")
            depth += 1
        extent = pick(("STEPS", "STEPS", "count", "count"))
        options = [f"num_stages={pick((0, 1, 2, 3, 4))}"]
        specialize = pick((None, None, None, True, False))
        if specialize is not None:
            options.append(f"specialize={specialize}")
        self.line(depth, f"for k in T.Pipelined({extent}, {', '.join(options)}):")
        depth += 1
        condition = pick((None, None, None, "mask", "even"))
        step = "k"
        if condition == "mask":
            self.need("mask", ("max(STEPS, 1)",), "int32")
            self.line(depth, "if mask[k] != 0:")
            depth += 1
        elif condition == "even":
            self.line(depth, "if k % 2 == 0:")
            depth += 1
        if pick((False, False, False, True)):
            self.need("rows", ("max(STEPS, 1)",), "int32")
            step = self.name("row")
            self.line(depth, f"{step} = rows[k]")
        a, b = self.operand(depth, "A", number, step), self.operand(depth, "B", number, step)
        statements = [
            lambda: self.gemm(depth, a, b, c),
            *self.random.sample(
                [
                    lambda: self.scaled(depth, a, b, c),
                    lambda: self.row_sums(depth, a),
                    lambda: self.history(depth, b),
                    lambda: self.counted(depth, a),
                    lambda: self.vector(depth, a, b, c, step),
                    lambda: self.carried(depth, b),
                    lambda: self.beside(depth, a, b, c),
                    lambda: self.from_registers(depth, a, b, c),
                    lambda: self.chained(depth, a, b, step),
                    lambda: self.overwritten(depth, a, b, c),
                ],
                self.random.choice((0, 0, 1, 1, 2, 3)),
            ),
        ]
        self.random.shuffle(statements)
        for statement in statements:
            statement()

    def need(self, name: str, shape: tuple[Any, ...], dtype: str) -> str:
        self.tensors.setdefault(name, (shape, dtype))
        return name

    def operand(self, depth: int, name: str, number: int, step: str) -> str:
        """A tile of A or B, loaded as it lies or through a tile of another kind."""
        transposed = self.transposed[0] if name == "A" else not self.transposed[1]
        rows, block, place = ("M", "BM", "by * BM") if name == "A" else ("N", "BN", "bx * BN")
        tensor = f"{name}{number}"
        self.need(tensor, ("STEPS * BK", rows) if transposed else (rows, "STEPS * BK"), self.dtype)
        shape = f"(BK, {block})" if transposed else f"({block}, BK)"
        tile = self.tile(shape)
        where = f"{step} * BK, {place}" if transposed else f"{place}, {step} * BK"
        self.line(depth, f"T.copy({tensor}[{where}], {tile})")
        return tile

    def gemm(self, depth: int, a: str, b: str, c: str) -> None:
        self.line(depth, f"T.gemm({a}, {b}, {c}, transpose_A={self.transposed[0]}, transpose_B={self.transposed[1]})")

    def shape_of(self, tile: str) -> list[str]:
        declared = next(text for text in self.tiles if text.startswith(f"{tile} = "))
        return declared[declared.index("((") + 2 : declared.index(")")].split(", ")

    def scaled(self, depth: int, a: str, b: str, c: str) -> None:
        """A tile computed by threads, multiplied as well."""
        made = self.tile("(" + ", ".join(self.shape_of(a)) + ")")
        self.line(depth, f"for i, j in T.Parallel({', '.join(self.shape_of(a))}):")
        self.line(depth + 1, f'{made}[i, j] = {a}[i, j] * T.cast({self.random.choice((2, -1))}, "{self.dtype}")')
        self.gemm(depth, made, b, c)

    def row_sums(self, depth: int, a: str) -> None:
        """Sums of the loaded tile's rows, added up over the iterations in a fragment."""
        rows, columns = self.shape_of(a)
        wide, sums = (
            self.tile(f"({rows}, {columns})", self.total, "fragment"),
            self.tile(f"({rows},)", self.total, "fragment"),
        )
        output = self.name("R")
        self.outputs[output] = (f"(T.ceildiv(N, BN), T.ceildiv(M, BM), {rows})", self.total)
        self.line(depth, f"T.copy({a}, {wide})")
        self.line(depth, f"T.reduce_{self.random.choice(('sum', 'max'))}({wide}, {sums}, dim=1, clear=False)")
        self.sums = [*getattr(self, "sums", []), (output, sums, rows)]

    def history(self, depth: int, b: str) -> None:
        """Every iteration leaves something in global memory."""
        rows, columns = self.shape_of(b)
        output = self.name("H")
        self.outputs[output] = (f"(T.ceildiv(M, BM), T.ceildiv(N, BN), max(STEPS, 1), {columns})", self.dtype)
        self.line(depth, f"for j in T.Parallel({columns}):")
        self.line(depth + 1, f"{output}[by, bx, k, j] = {b}[{rows} - 1, {columns} - 1 - j]")
        self.cleared = [*getattr(self, "cleared", []), (output, columns)]

    def counted(self, depth: int, a: str) -> None:
        """Atomics on a tensor that all blocks share."""
        rows, columns = self.shape_of(a)
        name = self.need(self.name("D"), (columns,), self.total)
        self.line(depth, f"for i, j in T.Parallel({rows}, {columns}):")
        self.line(depth + 1, f'T.atomic_add({name}[j], T.cast({a}[i, j], "{self.total}"))')

    def vector(self, depth: int, a: str, b: str, c: str, step: str) -> None:
        """A short row beside the tiles, which scales one of them."""
        name = self.need(self.name("V"), ("max(STEPS, 1)", "BK"), self.dtype)
        tile = self.tile("(BK,)")
        self.line(depth, f"T.copy({name}[{step}, 0], {tile})")
        made = self.tile("(" + ", ".join(self.shape_of(a)) + ")")
        self.line(depth, f"for i, j in T.Parallel({', '.join(self.shape_of(a))}):")
        self.line(depth + 1, f"{made}[i, j] = {a}[i, j] * {tile}[{'i' if self.shape_of(a)[0] == 'BK' else 'j'}]")
        self.gemm(depth, made, b, c)

    def carried(self, depth: int, b: str) -> None:
        """A tile that one iteration leaves to the next."""
        columns = self.shape_of(b)[1]
        before = self.tile(f"({columns},)", self.total)
        output = self.name("P")
        self.outputs[output] = (f"(T.ceildiv(M, BM), T.ceildiv(N, BN), {columns})", self.total)
        self.line(depth, f"for j in T.Parallel({columns}):")
        self.line(depth + 1, f'{before}[j] = {before}[j] + T.cast({b}[0, j], "{self.total}")')
        self.kept = [*getattr(self, "kept", []), (output, before, columns)]

    def beside(self, depth: int, a: str, b: str, c: str) -> None:
        """A product of its own in every iteration, added by threads."""
        other = self.tile("(BM, BN)", self.total, "fragment")
        self.line(
            depth,
            f"T.gemm({a}, {b}, {other}, transpose_A={self.transposed[0]}, transpose_B={self.transposed[1]}, clear_accum=True)",
        )
        self.line(depth, "for i, j in T.Parallel(BM, BN):")
        self.line(depth + 1, f'{c}[i, j] = {c}[i, j] + {other}[i, j] * T.cast(2, "{self.total}")')

    def from_registers(self, depth: int, a: str, b: str, c: str) -> None:
        """The left operand goes through registers."""
        if self.transposed[0]:
            return self.gemm(depth, a, b, c)
        left = self.tile("(BM, BK)", self.dtype, "fragment")
        self.line(depth, f"T.copy({a}, {left})")
        self.line(depth, "for i, j in T.Parallel(BM, BK):")
        self.line(depth + 1, f'{left}[i, j] = {left}[i, j] * T.cast(-1, "{self.dtype}")')
        self.gemm(depth, left, b, c)

    def chained(self, depth: int, a: str, b: str, step: str) -> None:
        """One product is the left operand of the next, as in attention."""
        if self.dtype == "int8" or self.bn < 16:
            return self.beside(depth, a, b, "f1")
        name = self.need(self.name("W"), ("max(STEPS, 1)", "BN", 32), self.dtype)
        scores, weights = self.tile("(BM, BN)", self.total, "fragment"), self.tile("(BM, BN)", self.dtype, "fragment")
        right, result = self.tile("(BN, 32)"), self.tile("(BM, 32)", self.total, "fragment")
        output = self.name("O")
        self.outputs[output] = ("(T.ceildiv(M, BM), T.ceildiv(N, BN), BM, 32)", self.total)
        self.line(depth, f"T.copy({name}[{step}, 0, 0], {right})")
        self.line(
            depth,
            f"T.gemm({a}, {b}, {scores}, transpose_A={self.transposed[0]}, transpose_B={self.transposed[1]}, clear_accum=True)",
        )
        self.line(depth, f"T.copy({scores}, {weights})")
        self.line(depth, f"T.gemm({weights}, {right}, {result})")
        self.chains = [*getattr(self, "chains", []), (output, result)]

    def overwritten(self, depth: int, a: str, b: str, c: str) -> None:
        """The loaded tile is changed in place before it is multiplied once more."""
        shape = ", ".join(self.shape_of(b))
        self.line(depth, f"for i, j in T.Parallel({shape}):")
        self.line(depth + 1, f'{b}[i, j] = {b}[i, j] + T.cast(1, "{self.dtype}")')
        self.gemm(depth, a, b, c)

    def after(self, c: str) -> list[str]:
        """Clears before the loops go into `tiles`; what the loops have left goes out."""
        lines: list[str] = []
        self.outputs["C"] = ("(M, N)", self.total)
        for output, columns in getattr(self, "cleared", []):
            self.tiles.append(f"for k, j in T.Parallel(max(STEPS, 1), {columns}):")
            self.tiles.append(f'    {output}[by, bx, k, j] = T.cast(0, "{self.dtype}")')
        for output, before, columns in getattr(self, "kept", []):
            self.tiles.append(f"T.clear({before})")
            lines += [
                f"        for j in T.Parallel({columns}):",
                f"            {output}[by, bx, j] = {before}[{columns} - 1 - j]",
            ]
        for output, sums, rows in getattr(self, "sums", []):
            self.tiles.append(f"T.clear({sums})")
            lines += [f"        for i in T.Parallel({rows}):", f"            {output}[bx, by, i] = {sums}[i]"]
        for output, result in getattr(self, "chains", []):
            self.tiles.append(f"T.clear({result})")
            lines.append(f"        T.copy({result}, {output}[by, bx, 0, 0])")
        lines.append(f"        T.copy({c}, C[by * BM, bx * BN])")
        return lines
