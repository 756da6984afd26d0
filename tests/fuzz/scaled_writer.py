"""What a seed from five million on becomes: loops around `T.fp8_scaled_matmul`, with every kind of scale, operand, offset and sum.

Numbers are small integers and scales powers of two, so that all sums are exact and every machine gives the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from program_texts import sizes_told
from tile_programs import Param, TileProgram

from tilewright.ir.dtypes import ALL

OPERANDS = ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
POWERS = ("float8_e8m0fnu", "uint8")
SCALES = ("float32", "float32", "float16", "bfloat16", *POWERS)


@dataclass(frozen=True)
class Operand:
    """One of the two: its tensor, how long it is, the lines of a tile, the first of them, and its type."""

    name: str
    limit: str
    block: int
    first: str
    dtype: str
    across: bool
    """Whether it lies as ``[K, lines]``."""


@dataclass(frozen=True)
class Scale:
    """What is passed as an operand's scales, and that of the element of a row or column ``LINE`` at ``k``."""

    given: str
    element: str
    run: int
    """Columns of K that one of them serves."""


def _number(element: str, dtype: str) -> str:
    """A scale as a float32."""
    wide = f'T.cast({element}, "float32")'
    return f"T.exp2({wide} - 127)" if dtype == "uint8" else wide


class ScaledWriter:
    """Writes the program of a seed; `plain`: with loops over elements in the place of the word, which say what it means."""

    def __init__(self, seed: int, plain: bool = False) -> None:
        self.seed, self.random, self.numbers = seed, random.Random(seed), np.random.default_rng(seed)
        self.plain = plain
        pick = self.random.choice
        wide = pick((False, True))
        self.BM, self.BN = pick((64, 64, 128) if wide else (1, 8, 16, 24, 32)), pick((8, 16, 32, 40, 64))
        self.BK = pick((32, 64, 128, 192) if wide else (8, 16, 24, 32, 64, 96))
        self.threads = 128 if wide else pick((32, 64, 128, 128))
        self.M, self.N = self._size(self.BM), self._size(self.BN)
        self.K = pick((0, 1, self.BK, 2 * self.BK, 3 * self.BK, self.BK + 16, 2 * self.BK - 3, 2 * self.BK - 16))
        self.dynamic = "".join(letter for letter in "MNK" if self.random.random() < 0.25)
        self.params: dict[str, Param] = {}
        self.body: list[str] = []
        self.tiles: list[str] = []
        self.names = 0
        self.features: set[tuple[str, ...]] = set()

    def _size(self, block: int) -> int:
        return max(0, self.random.choice((0, 1, block, block, block, block - 3, block + 1, 2 * block - 8)))

    def write(self) -> TileProgram:
        """The whole program: a sum, loops that add products to it, and where it goes."""
        pick = self.random.choice
        kind = pick(("float32", "float32", "float32", "float32", "float16", "bfloat16"))
        scope = pick(("fragment", "fragment", "fragment", "shared", "global"))
        down, right = (
            (pick((0, 8, 16)), pick((0, 8, 32))) if scope != "global" and self.random.random() < 0.25 else (0, 0)
        )
        if scope == "global":
            self._tensor("C", ("M", "N"), kind, self._integers)
            into = "C[by * BM : by * BM + BM, bx * BN : bx * BN + BN]"
        else:
            into = self._tile("c", (self.BM + down, self.BN + right), kind, scope)
            self.tiles.append(f"T.clear({into})" if pick((True, True, False)) else f"T.fill({into}, 3)")
        for number in range(pick((1, 1, 1, 2))):
            self._loop(into, number, down, right)
        outputs = []
        if scope != "global":
            outputs = [("Y", "(M, N)", pick((kind, "float32")))]
            part = f"{into}[{down} : {down + self.BM}, {right} : {right + self.BN}]" if down or right else into
            self.body.append(f"T.copy({part}, Y[by * BM, bx * BN])")
        self.features.add(("scaled", "sum", kind, scope))
        sizes = [
            f"{letter} = T.dynamic('{letter}')" if letter in self.dynamic else f"{letter} = {getattr(self, letter)}"
            for letter in "MNK"
        ]
        sizes.append(f"BM, BN, BK = {self.BM}, {self.BN}, {self.BK}")
        kernel = f"with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads={self.threads}) as (bx, by):"
        return TileProgram(
            self.seed, tuple(sizes), self._told(), tuple(outputs), kernel, (*self.tiles, *self.body),
            features=frozenset(self.features),
        )  # fmt: skip

    def _told(self) -> tuple[Param, ...]:
        """Parameters: sizes that nobody else tells are told by tensors of their own."""
        told = {letter for param in self.params.values() for letter in param.tells}
        for letter in self.dynamic:
            if letter not in told:
                self._tensor(f"L{letter}", (letter,), "int32", self._integers)
        return tuple(self.params.values())

    # Loops ---------------------------------------------------------------------------------------

    def _loop(self, into: str, number: int, down: int, right: int) -> None:
        pick = self.random.choice
        steps, step = "T.ceildiv(K, BK)", f"k{number}"
        if pick((False, False, True)):
            steps = "count"
            self.params.setdefault(
                "count", Param("count", "T.int32", self.random.randint(0, -(-self.K // self.BK)), True)
            )
        stages = pick((0, 1, 2, 2, 3, 4))
        loop = f"T.Pipelined({steps}, num_stages={stages})" if pick((True, True, True, False)) else f"T.serial({steps})"
        self.body.append(f"for {step} in {loop}:")
        lines: list[str] = []
        self._product(lines, step, into, down, right)
        if pick((False, False, False, True)):
            lines = self._conditional(lines, step, into, down, right)
        self.body += [f"    {line}" for line in lines]
        self.features.add(("scaled", "loop", loop.split("(")[0], str(stages)))

    def _conditional(self, lines: list[str], step: str, into: str, down: int, right: int) -> list[str]:
        """The product of some steps, or blocks, alone; another one, or none, in the others."""
        condition = self.random.choice((f"{step} % 2 == 0", f"flags[{step}] > 0", "by == 0", f"{step} > 0"))
        if "flags" in condition:
            self._tensor("flags", ("16",), "int32", lambda shape, _: self.numbers.integers(0, 2, shape))
        made = [f"if {condition}:", *(f"    {line}" for line in lines)]
        if self.random.random() < 0.4:
            other: list[str] = []
            self._product(other, step, into, down, right)
            made += ["else:", *(f"    {line}" for line in other)]
        self.features.add(("scaled", "condition", condition.split("[")[0]))
        return made

    # One product ---------------------------------------------------------------------------------

    def _product(self, lines: list[str], step: str, into: str, down: int, right: int) -> None:
        pick = self.random.choice
        transposed = pick((True, False))
        types = pick(OPERANDS), pick(OPERANDS)
        if pick((True, True, False)):
            types = types[0], types[0]
        left = Operand(self._name("A"), "M", self.BM, "by * BM", types[0], False)
        other = Operand(self._name("B"), "N", self.BN, "bx * BN", types[1], not transposed)
        options: list[str] = [*(["transpose_B=True"] if transposed else [])]
        powers = pick((True, False, False))
        scales = [self._scale(lines, one, step, powers, options) for one in (left, other)]
        operands = [self._operand(lines, one, step) for one in (left, other)]
        if self.plain:
            lines += self._loops(into, (left, other), operands, scales, step, down, right)
        if any(f'"{POWERS[1]}"' in param.declared for param in self.params.values()):
            options.append('scale_format="e8m0"')
        elif powers and len({one.run for one in scales}) == 1 and pick((True, False)):
            run = scales[0].run
            said = [
                f'block_scale_layout=T.BlockScaledLayout("e8m0", {run})',
                f'scale_block_size={run}, scale_format="e8m0"',
            ]
            options.append(pick([*said, "block_scale_layout=T.BlockScaledLayout.e8m0_k32()"] if run == 32 else said))
        options += pick(([], [], ["exact=True"], ["fast=True"]))
        if down or right:
            options += [f"c_row_offset={down}", f"c_col_offset={right}"]
        words = [operands[0], scales[0].given, operands[1], scales[1].given, into, *options]
        if not self.plain:
            lines.append(f"T.fp8_scaled_matmul({', '.join(words)})")
        self.features.add(("scaled", "types", *types, "N, K" if transposed else "K, N"))

    def _loops(
        self, into: str, pair: tuple[Operand, Operand], operands: list[str], scales: list[Scale], step: str, down: int, right: int
    ) -> list[str]:  # fmt: skip
        """The product in loops over elements."""
        factors = []
        for one, tile, line in zip(pair, operands, "ij", strict=True):
            at = ["k", line] if one.across else [line, "k"]
            if "[" in tile:  # a region of the tensor
                begins = [f"{step} * BK", one.first] if one.across else [one.first, f"{step} * BK"]
                at = [f"{begin} + {index}" for begin, index in zip(begins, at, strict=True)]
            factors.append(f'T.cast({tile.partition("[")[0]}[{", ".join(at)}], "float32")')
        factors += [scale.element.replace("LINE", line) for scale, line in zip(scales, "ij", strict=True)]
        place = f"i + {down}, j + {right}"
        if "[" in into:
            place = "by * BM + i, bx * BN + j"
        sum_ = f"{into.partition('[')[0]}[{place}]"
        return [
            "for i, j in T.Parallel(BM, BN):",
            "    for k in T.serial(BK):",
            f"        {sum_} += {' * '.join(factors)}",
        ]

    def _operand(self, lines: list[str], one: Operand, step: str) -> str:
        """A tile that is loaded, and masked; or a region of the tensor."""
        pick = self.random.choice
        self._tensor(one.name, ("K", one.limit) if one.across else (one.limit, "K"), one.dtype, self._integers)
        places = [(one.first, one.block), (f"{step} * BK", self.BK)]
        if one.across:
            places.reverse()
        way = pick(("shared", "shared", "shared", "masked", "fragment", "region"))
        self.features.add(("scaled", "operand", one.name[0], way))
        if way == "region":
            return f"{one.name}[{', '.join(f'{first} : {first} + {size}' for first, size in places)}]"
        shape = tuple(size for _, size in places)
        tile = self._tile(one.name.lower(), shape, one.dtype, "fragment" if way == "fragment" else "shared")
        lines.append(f"T.copy({one.name}[{', '.join(first for first, _ in places)}], {tile})")
        if way == "masked":
            condition = pick((f"{places[0][0]} + i < {places[1][0]} + j", "(i + j) % 3 > 0", "i > j"))
            lines.append(f"for i, j in T.Parallel({shape[0]}, {shape[1]}):")
            zero = f'T.cast(0, "{one.dtype}")'
            if pick((True, False)):
                lines += [f"    if {condition}:", f"        {tile}[i, j] = {zero}"]
            else:
                lines.append(f"    {tile}[i, j] = T.if_then_else({condition}, {tile}[i, j], {zero})")
        return tile

    # Scales --------------------------------------------------------------------------------------

    def _scale(self, lines: list[str], one: Operand, step: str, powers: bool, options: list[str]) -> Scale:
        """A region of a tensor of scales, that region as a tile, or the tensor and an offset."""
        pick = self.random.choice
        name, dtype = f"S{one.name}", pick(POWERS if powers else SCALES)
        runs = [run for run in (8, 16, 32, 64, 128) if self.BK % run == 0 and self.BK // run <= 4]
        kinds = ["one", "lines", "lines", "column", *(["groups", "groups", "blocks"] if runs else [])]
        kind = pick([*kinds, *(["shared"] if dtype in POWERS and runs else [])])
        parts = self.BK // pick(runs) if runs else 1
        if kind == "shared" and parts in (1, one.block):
            kind = "one"
        columns = -(-self.K // self.BK) * parts
        self.features.add(("scaled", "scale", kind, dtype))
        if kind == "one":
            self._tensor(name, ("1",), dtype, self._powers)
            return Scale(pick((name, f"{name}[0:1]")), _number(f"{name}[0]", dtype), self.BK)
        along, of_k = f"{step} * {parts} : {step} * {parts} + {parts}", f"{step} * {parts} + k // {self.BK // parts}"
        if kind == "shared":
            self._tensor(name, (str(columns),), dtype, self._powers)
            return Scale(f"{name}[{along}]", _number(f"{name}[{of_k}]", dtype), self.BK // parts)
        each = pick([size for size in (8, 16, one.block) if one.block % size == 0]) if kind == "blocks" else 1
        rows, first = one.block // each, one.first if each == 1 else f"{one.first} // {each}"
        limit = one.limit if each == 1 else f"T.ceildiv({one.limit}, {each})"
        if each > 1 and one.limit in self.dynamic:
            limit = str(-(-getattr(self, one.limit) // each))
        if kind == "lines":
            self._tensor(name, (limit,), dtype, self._powers)
        else:
            self._tensor(name, (limit, "1" if kind == "column" else str(columns)), dtype, self._powers)
        tail = {"lines": "", "column": ", 0:1"}.get(kind, f", {along}")
        region = f"{name}[{first} : {first} + {rows}{tail}]"
        second = {"lines": "", "column": ", 0"}.get(kind, f", {of_k}")
        element = _number(f"{name}[{first} + LINE // {each}{second}]", dtype)
        way, run = (
            pick(("region", "region", "tile", "offset")),
            self.BK // (parts if kind in ("groups", "blocks") else 1),
        )
        if way == "offset" and kind == "lines":
            options.append(f"{one.name[0].lower()}_scale_offset={first}")
            return Scale(name, element, run)
        if way == "tile":
            shape = (rows, *({"lines": (), "column": (1,)}.get(kind, (parts,))))
            tile = self._tile(name.lower(), shape, dtype, pick(("shared", "fragment")))
            lines.append(f"T.copy({region}, {tile})")
            return Scale(tile, element, run)
        return Scale(region, element, run)

    # What is declared ----------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def _tile(self, name: str, shape: Sequence[int], dtype: str, scope: str) -> str:
        named = self._name(f"{name}_")
        self.tiles.append(f'{named} = T.alloc_{scope}({tuple(shape)}, "{dtype}")')
        return named

    def _tensor(self, name: str, shape: tuple[str, ...], dtype: str, values: Any) -> None:
        space = {"M": self.M, "N": self.N, "K": self.K, "T": _Rounded}
        extents = [eval(one, {}, space) for one in shape]
        declared = f'T.Tensor(({", ".join(shape)},), "{dtype}")'
        made = np.asarray(values(extents, dtype)).astype(ALL[dtype].numpy)
        plain = "".join(one for one in shape if one.isalpha())
        self.params[name] = Param(name, declared, made, tells=frozenset(sizes_told(plain and f"({', '.join(shape)})")))

    def _integers(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return self.numbers.integers(-2, 3, shape)

    def _powers(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        exponents = self.numbers.integers(-2, 2, shape)
        return exponents + 127 if dtype == "uint8" else np.exp2(exponents)


class _Rounded:
    """What sizes of tensors are reckoned with."""

    @staticmethod
    def ceildiv(count: int, size: int) -> int:
        return -(-count // size)
