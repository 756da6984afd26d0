"""What a program of the `familiar_*` files is, and the arrays that they begin with."""

from dataclasses import dataclass
from typing import Any

import numpy as np


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
