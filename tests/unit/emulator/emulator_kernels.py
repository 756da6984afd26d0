"""Kernels in the device vocabulary for the emulator's tests: their texts, launches, arguments and expected results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.emulator import Emulation, TensorMap, run
from tilewright.targets.gpu.copies.boxes import Swizzle

TEXTS = Path(__file__).parent / "texts"


@dataclass(frozen=True)
class Problem:
    """One launch: arguments, the arrays that hold the result, what they should hold, and how far each may be off."""

    arguments: list[Any]
    outputs: list[np.ndarray]
    expected: list[np.ndarray]
    tolerance: list[np.ndarray | float]
    launch: dict[str, Any]


@dataclass(frozen=True)
class Kernel:
    """A text and how to make a problem for it."""

    name: str
    make: Callable[[np.random.Generator], Problem]

    @property
    def file(self) -> str:
        return str(TEXTS / f"{self.name}.cu")

    @property
    def text(self) -> str:
        return Path(self.file).read_text()

    def run(self, problem: Problem, text: str | None = None, **options: Any) -> Emulation:
        return run(
            text if text is not None else self.text,
            self.name,
            problem.arguments,
            file=self.file,
            **problem.launch,
            **options,
        )


def fresh(problem: Problem) -> Problem:
    """The same problem with arrays of its own, so that a run spoils nothing."""
    copies: dict[int, np.ndarray] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return copies.setdefault(id(value), value.copy())
        if isinstance(value, TensorMap):
            return dataclasses.replace(value, array=copy(value.array))
        return value

    arguments = [copy(argument) for argument in problem.arguments]
    return dataclasses.replace(problem, arguments=arguments, outputs=[copy(array) for array in problem.outputs])


def correct(problem: Problem) -> bool:
    """Whether the outputs are what they should be."""
    for got, wanted, tolerance in zip(problem.outputs, problem.expected, problem.tolerance):
        difference = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
        if not np.all(difference <= tolerance):
            return False
    return True


def _bound(a: np.ndarray, b: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """A B^T in float64, and the error that products of this length and an output of this precision may have."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = a @ b.T
    return exact, (a.shape[1] + 2) * 2.0**-24 * (np.abs(a) @ np.abs(b).T) + unit * np.abs(exact)


def cp_async_gemm(rng: np.random.Generator) -> Problem:
    m, n, k = 100, 72, 136
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)
    c = np.zeros((m, n), np.float16)
    exact, bound = _bound(a, b, 2.0**-11)
    return Problem(
        [a, b, c, m, n, k], [c], [exact], [bound], {"grid": (2, 2), "block": (128,), "shared_bytes": 3 * 8192}
    )


def wgmma_gemm(rng: np.random.Generator, blocks: int = 2, n: int = 256, k: int = 256) -> Problem:
    m = 256
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    c = np.zeros((m, n), ml_dtypes.bfloat16)
    exact, bound = _bound(a, b, 2.0**-8)
    maps = [
        TensorMap(a, (128, 64), Swizzle.B128),
        TensorMap(b, (64, 64), Swizzle.B128),
        TensorMap(c, (64, 64), Swizzle.B128),
    ]
    launch = {"grid": (blocks,), "block": (384,), "cluster": (2,), "shared_bytes": 3 * 32768 + 4 * 8192 + 48}
    return Problem([*maps, k // 64, m // 128, n // 128], [c], [exact], [bound], launch)


def peaked(rows: int, columns: int, plain: int, dtype: str = "float32") -> np.ndarray:
    """Rows for a softmax: plain ones, then such in which single elements stand far above one another, so that exponentials overflow where
    the largest is overlooked."""
    made, random = np.random.default_rng(0).standard_normal((rows, columns)).astype(dtype), np.random.default_rng(2)
    for row in made[plain:]:
        row[random.choice(columns, 8, replace=False)] += 100 * np.arange(1, 9, dtype=dtype)
    return made


def sharpened(queries: np.ndarray) -> np.ndarray:
    """Queries of which every other one has scores so far apart that half precision overflows where the largest is overlooked."""
    queries[..., 1::2, :] *= 100
    return queries


def row_softmax(rng: np.random.Generator) -> Problem:
    x = peaked(3, 203, plain=1)
    y = np.zeros_like(x)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact = e / e.sum(1, keepdims=True)
    return Problem([x, y, 203], [y], [exact], [1e-6], {"grid": (3,), "block": (128,), "shared_bytes": (8 + 203) * 4})


def bulk_ring(rng: np.random.Generator) -> Problem:
    x = rng.integers(-1000, 1000, (26, 512)).astype(np.int32)
    y = np.zeros(512, np.int32)
    return Problem([x, y, 13], [y], [x.sum(0)], [0], {"grid": (2,), "block": (160,), "shared_bytes": 4 * 2048 + 64})


def split_k(rng: np.random.Generator) -> Problem:
    m, n, k, splits = 32, 64, 160, 3
    a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (n, k)).astype(np.int8)
    c = np.zeros((m, n), np.int32)
    tiles = m // 16 * n // 32
    workspace, counters = np.full((tiles * splits, 16 * 32), 7, np.int32), np.zeros(tiles, np.uint32)
    expected = a.astype(np.int64) @ b.astype(np.int64).T
    launch = {"grid": (tiles, splits), "block": (128,), "shared_bytes": 16 * 32 + 32 * 32 + 16}
    return Problem([a, b, c, workspace, counters, n, k, splits], [c], [expected], [0], launch)


def cluster_sum(rng: np.random.Generator) -> Problem:
    x = rng.integers(-1000, 1000, (3, 4 * 150)).astype(np.int32)
    y = np.zeros(3, np.int32)
    return Problem(
        [x, y, 600], [y], [x.sum(1)], [0], {"grid": (12,), "block": (64,), "cluster": (4,), "shared_bytes": 32}
    )


def decode_wgmma(rng: np.random.Generator) -> Problem:
    n, m, k = 128, 64, 192
    codes = rng.integers(0, 16, (n, k)).astype(np.uint32)
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    # Field f of a word decodes with field f + 4 as one pair: pair p holds k = 2p, 2p + 1.
    fields = np.zeros((n, k // 8, 8), np.uint32)
    for pair in range(4):
        fields[:, :, pair], fields[:, :, pair + 4] = (
            codes.reshape(n, k // 8, 8)[:, :, 2 * pair],
            codes.reshape(n, k // 8, 8)[:, :, 2 * pair + 1],
        )
    assert sorted(order) == list(range(8))
    words = (fields << (4 * np.arange(8, dtype=np.uint32))).sum(2).astype(np.uint32)
    x = rng.standard_normal((m, k)).astype(np.float16)
    c = np.zeros((m, n), np.float32)
    exact, bound = _bound(x, codes.astype(np.float64) - 8, 0)
    launch = {"grid": (n // 64, m // 64), "block": (128,), "shared_bytes": 2 * (8192 + 2048) + 16}
    return Problem([words, TensorMap(x, (64, 64), Swizzle.B128), c, m, k], [c], [exact], [bound], launch)


def cp_async_wgmma(rng: np.random.Generator) -> Problem:
    m, n, k = 64, 128, 640
    a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (n, k)).astype(np.int8)
    c = np.zeros((m, n), np.int32)
    launch = {"grid": (n // 64, m // 64), "block": (256,), "shared_bytes": 2 * 16384 + 48}
    return Problem([a, b, c, n, k], [c], [a.astype(np.int64) @ b.astype(np.int64).T], [0], launch)


def attention(rng: np.random.Generator) -> Problem:
    heads, length = 1, 192
    q, k, v = (rng.standard_normal((heads, length, 64)).astype(np.float16) for _ in range(3))
    q = sharpened(q)
    o = np.zeros_like(q)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = (p / p.sum(-1, keepdims=True)) @ v.astype(np.float64)
    launch = {"grid": (length // 64, heads), "block": (128,), "shared_bytes": 5 * 8192}
    return Problem([q, k, v, o, length], [o], [exact], [3e-3], launch)


def transpose_tma(rng: np.random.Generator) -> Problem:
    m, n = 44, 72
    x = rng.standard_normal((m, n)).astype(np.float32)
    y = np.zeros((n, m), np.float32)
    maps = [TensorMap(x, (32, 32), Swizzle.B128), TensorMap(y, (32, 32), Swizzle.B128)]
    return Problem(maps, [y], [x.T], [0], {"grid": (3, 2), "block": (128,), "shared_bytes": 8192 + 8})


def ping_pong(rng: np.random.Generator) -> Problem:
    rounds = 6
    x = rng.integers(0, 1 << 32, (rounds, 128)).astype(np.uint32)
    y = np.zeros((2, 128), np.uint32)
    state = np.ones(128, np.uint32)
    for row in x:
        state = state * np.uint32(1664525) + row
        state = state ^ (state[::-1] >> np.uint32(3))
    return Problem(
        [x, y, rounds], [y], [np.stack([state, state])], [0], {"grid": (2,), "block": (256,), "shared_bytes": 512}
    )


def fp8_gemm(rng: np.random.Generator) -> Problem:
    m, n, k = 64, 64, 512
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.float8_e4m3fn) for rows in (m, n))
    c = np.zeros((m, n), np.float32)
    exact, _ = _bound(a, b, 0)
    # Each of the 32 + 1 terms of an instruction loses less than 2^-13 of the largest one.
    largest = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    maps = [TensorMap(a.view(np.uint8), (64, 128), Swizzle.B128), TensorMap(b.view(np.uint8), (64, 128), Swizzle.B128)]
    launch = {"grid": (n // 64, m // 64), "block": (128,), "shared_bytes": 3 * 16384 + 24}
    return Problem([*maps, c, n, k // 128], [c], [exact], [33 * 2.0**-13 * largest], launch)


KERNELS: Sequence[Kernel] = tuple(
    Kernel(make.__name__, make)
    for make in (
        cp_async_gemm, wgmma_gemm, row_softmax, bulk_ring, split_k, cluster_sum, decode_wgmma, cp_async_wgmma, attention,
        transpose_tma, ping_pong, fp8_gemm,
    )
)  # fmt: skip
"""A dozen kernels, one for each way in which device code synchronises."""
