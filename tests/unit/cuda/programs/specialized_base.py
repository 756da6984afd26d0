"""What the programs of roles have in common: inputs of small integers, so that any order of sums gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Program:
    """A kernel, what it is called with, and what comes out.

    Attributes
    ----------
    kernel : the function to compile for `inputs` and the compile-time `options`.
    expected : of `inputs`, in NumPy.
    instructions : opcodes of the machine code that say how its loads and products are made.
    """

    name: str
    kernel: Any
    inputs: tuple[Any, ...]
    expected: Callable[..., np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    instructions: tuple[str, ...] = ("UTMALDG", "HGMMA")
    tolerance: float = 0.0


def integers(*shape, low=-3, high=4, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)
