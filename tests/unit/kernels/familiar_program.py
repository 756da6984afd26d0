"""What a program of the `familiar_*` files is, the arrays that they begin with, and what several of them say alike."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright.language as T


@dataclass(frozen=True)
class Familiar:
    """A program with arguments for it, and what it leaves in some of them.

    Attributes
    ----------
    expected : what the arguments of these numbers hold afterwards, in float64.
    tolerance : how far they may be from it, relative to one more than its size.
    instructions : what the machine code of sm_90a must hold: how its data moves, and by what its products are made.
    """

    function: Any
    arguments: tuple[Any, ...]
    expected: dict[int, np.ndarray]
    tolerance: float = 0.0
    instructions: tuple[str, ...] = ()

    def fresh(self) -> list[Any]:
        """The arguments, arrays copied."""
        return [one.copy() if isinstance(one, np.ndarray) else one for one in self.arguments]

    def mistakes(self, arguments: list[Any]) -> list[str]:
        """Where arguments that the program has worked on are not what they should be."""
        found = []
        for number, expected in self.expected.items():
            got, wanted = np.asarray(arguments[number]).astype(np.float64), np.asarray(expected, np.float64)
            wrong = ~(np.abs(got - wanted) <= self.tolerance * (1 + np.abs(wanted)))
            if wrong.any():
                place = tuple(int(index) for index in np.argwhere(wrong)[0])
                found.append(
                    f"argument {number}: {wrong.sum()} of {wrong.size}, at {place} {got[place]}, not {wanted[place]}"
                )
        return found


def normal(*shape, dtype=np.float16, scale=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def nan(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


def drawn(seed):
    """A function that draws arrays for one program, and its generator: the same in every run."""
    rng = np.random.default_rng(seed)

    def draw(*shape, dtype=np.float16, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(dtype)

    return draw, rng


def softmax(scores, wanted=True):
    """Weights of the last dimension, those of scores that are not wanted 0."""
    e = np.where(wanted, np.exp(scores - np.where(wanted, scores, -np.inf).max(-1, keepdims=True)), 0)
    return e / e.sum(-1, keepdims=True)


def log2_sums(scores):
    """Logarithms to base 2 of the sums of exponents, as backward passes take them."""
    largest = scores.max(-1)
    return (np.log(np.exp(scores - largest[..., None]).sum(-1)) + largest) * 1.44269504


def statistics(rows):
    """Fragments of what `weigh` keeps of some rows: the largest now and before, the factor, the sum of a tile, the total."""
    return tuple(T.alloc_fragment((rows,), "float32") for _ in range(5))


@T.macro
def begin(out, largest, before, factor, added, total):
    T.fill(out, 0)
    T.fill(total, 0)
    T.fill(largest, -T.infinity("float32"))


@T.macro
def weigh(scores, weights, out, largest, before, factor, added, total, scale):
    """One tile of a running softmax: `weights` of its scores, what was summed before made smaller."""
    rows, columns = scores.shape
    T.copy(largest, before)
    T.fill(largest, -T.infinity("float32"))
    T.reduce_max(scores, largest, dim=1, clear=False)
    for i in T.Parallel(rows):
        largest[i] = T.max(largest[i], before[i])
    for i in T.Parallel(rows):
        factor[i] = T.exp2(before[i] * scale - largest[i] * scale)
    for i, j in T.Parallel(rows, columns):
        scores[i, j] = T.exp2(scores[i, j] * scale - largest[i] * scale)
    T.reduce_sum(scores, added, dim=1)
    T.copy(scores, weights)
    for i in T.Parallel(rows):
        total[i] = total[i] * factor[i] + added[i]
    for i, j in T.Parallel(rows, out.shape[1]):
        out[i, j] *= factor[i]


def gradient_tiles(rows, columns, width, dtype):
    """Tiles of a block that makes the gradients of some keys: shared ones of keys, values, queries, dO, lse and delta; four fragments."""
    keys = [T.alloc_shared([rows, width], dtype) for _ in range(2)]
    queries = [T.alloc_shared([columns, width], dtype) for _ in range(2)]
    numbers = [T.alloc_shared([columns], "float32") for _ in range(2)]
    products = [T.alloc_fragment([rows, columns], "float32") for _ in range(2)]
    sums = [T.alloc_fragment([rows, width], "float32") for _ in range(2)]
    return (*keys, *queries, *numbers, *products, *sums)
