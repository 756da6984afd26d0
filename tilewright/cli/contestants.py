"""`Contestant`: something the demo measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.progress import Progress
from tilewright.quant import QuantizedWeight, quantize

FORMATS = (
    ("int4", "int4", "none"),
    ("uint4", "uint4", "middle"),
    ("uint4 + zeros", "uint4", "group"),
    ("int2", "int2", "none"),
)
"""Label, type of the codes and zero points of each row of the table."""

Prepare = Callable[[np.ndarray], Callable[[], object]]
"""Activations ``[M, K]`` to a call that gives ``[M, N]``."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that multiplies by the weight, in one form of it.

    Attributes
    ----------
    label, activations : as the table names it.
    weight : what its form of the weight stands for, ``[N, K]`` float32: its products are compared with this one's.
    megabytes : size of its form.
    """

    label: str
    activations: str
    weight: np.ndarray
    megabytes: float
    prepare: Prepare


def quantized(
    weight: np.ndarray,
    group: int,
    progress: Progress,
    activations: str,
    prepare: Callable[[QuantizedWeight], Prepare],
    scale_dtype: str | None = None,
) -> Iterator[Contestant]:
    """The weight in each of `FORMATS`, quantised, packed, and its kernel compiled."""
    for label, codes, zeros in FORMATS:
        progress.step(f"{label}: quantising")
        made = quantize(weight, codes, group=group, zeros=zeros, scale_dtype=scale_dtype)
        progress.step(f"{label}: packing and compiling")
        megabytes = made.bits_per_element * made.codes.size / 8 / (1 << 20)
        yield Contestant(label, activations, made.dequantize(), megabytes, prepare(made))
