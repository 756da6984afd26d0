"""The grid of matrix products: types, orders, tiles, threads and tails, each a case that a seed can draw."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from cuda_gemm import matmul, on, product

from tilewright.ir.dtypes import dtype as dtype_of

ACCUMULATORS = {"int8": "int32", "uint8": "int32", "float64": "float64"}
TYPES = ("float16", "bfloat16", "tfloat32", "float64", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
ROWS, COLUMNS, DEPTHS = (16, 48, 64, 80, 96, 128, 192), (16, 48, 64, 80, 96, 128, 192), (16, 32, 48, 64, 96)
THREADS = (32, 64, 128, 256)
SIZES = ((64, 64, 64), (200, 264, 192), (130, 136, 200), (33, 67, 35), (1, 8, 640), (77, 130, 66), (192, 96, 33))
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
MOST_REGISTERS = 128
"""Of a thread's accumulator: larger ones spill, which is no case of this grid."""


@dataclass(frozen=True)
class Case:
    """One product."""

    architecture: str
    dtype: str
    transpose_A: bool
    transpose_B: bool
    block: tuple[int, int, int]
    threads: int
    stages: int
    size: tuple[int, int, int]

    @property
    def accumulator(self) -> str:
        return ACCUMULATORS.get(self.dtype, "float32")

    def __str__(self) -> str:
        orders = ("t" if self.transpose_A else "n") + ("t" if self.transpose_B else "n")
        block, size = ("x".join(map(str, numbers)) for numbers in (self.block, self.size))
        return f"{self.architecture}-{self.dtype}-{orders}-{block}-{self.threads}x{self.stages}-{size}"

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """Random operands; integers over their whole range."""
        m, n, k = self.size
        rng = np.random.default_rng(sum(self.size))
        record = dtype_of(self.dtype)
        kind = np.float32 if self.dtype == "tfloat32" else record.numpy

        def make(rows: int, columns: int) -> np.ndarray:
            if record.is_integer:
                return rng.integers(int(record.minimum), int(record.maximum), (rows, columns), endpoint=True).astype(
                    kind
                )
            return rng.standard_normal((rows, columns)).astype(kind)

        return make(*((k, m) if self.transpose_A else (m, k))), make(*((n, k) if self.transpose_B else (k, n)))

    def kernel(self, a, b):
        """The kernel, compiled for these operands."""
        return on(self.architecture, matmul).compile(
            a, b, dtype=self.dtype, accumulator=self.accumulator, out=self.accumulator, block=self.block,
            transpose_A=self.transpose_A, transpose_B=self.transpose_B, threads=self.threads, num_stages=self.stages,
        )  # fmt: skip

    def wrong(self, a, b, result) -> str | None:
        """Why a result is not the product; None where it is."""
        exact, size = product(a, b, self.transpose_A, self.transpose_B)
        if self.accumulator == "int32":
            return None if np.array_equal(result, exact.astype(np.int64).astype(np.int32)) else "integers differ"
        k = self.size[2]
        operand = {"tfloat32": 2.0**-10}.get(self.dtype, 0.0)  # what the matrix unit drops of each factor
        unit = 2.0**-52 if self.accumulator == "float64" else 2.0**-23
        if self.dtype.startswith("float8") and self.architecture == "sm_90a":
            unit = 2.0**-13  # the matrix unit keeps about 14 bits of a sum
        bound = ((k + 2) * unit + 2 * operand) * size
        error = np.abs(result.astype(np.float64) - exact)
        return None if (error <= bound * 1.001 + 1e-30).all() else f"off by {np.nanmax(error - bound)}"


def fits(case: Case) -> bool:
    """Whether the case asks for no more than there is."""
    rows, columns, depth = case.block
    size = {"tfloat32": 4}.get(case.dtype, dtype_of(case.dtype).bits // 8)
    width = 2 if case.accumulator == "float64" else 1
    shared = (rows + columns) * depth * size * max(1, case.stages)
    return rows * columns * width // case.threads <= MOST_REGISTERS and shared <= 90 << 10


def cases(seed: int, count: int, architectures: tuple[str, ...] = ARCHITECTURES) -> list[Case]:
    """So many cases, every type and order in turn, the rest drawn."""
    rng = random.Random(seed)
    kinds = list(itertools.product(architectures, TYPES, (False, True), (False, True)))
    rng.shuffle(kinds)
    found: list[Case] = []
    for architecture, dtype, transpose_A, transpose_B in itertools.islice(itertools.cycle(kinds), count):
        while True:
            block = (rng.choice(ROWS), rng.choice(COLUMNS), rng.choice(DEPTHS))
            case = Case(
                architecture, dtype, transpose_A, transpose_B, block, rng.choice(THREADS), rng.choice((0, 1, 2, 3, 4)),
                rng.choice(SIZES),
            )  # fmt: skip
            if fits(case):
                break
        found.append(case)
    return found


def opcodes(kernel) -> Counter[str]:
    """Machine instructions by name, of the families that tell how a product is made."""
    words = r"\b(HGMMA|IGMMA|QGMMA|HMMA|IMMA|QMMA|DMMA|UTMALDG|UTMASTG|LDGSTS|LDSM|STL|LDL)\b"
    return Counter(re.findall(words, kernel.sass()))
