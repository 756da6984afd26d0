"""`Contestant`: something the demo measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that multiplies by the weight, in one form of it.

    Attributes
    ----------
    label, activations : as the table names it.
    weight : what its form of the weight stands for, ``[N, K]`` float32: its products are compared with this one's.
    megabytes : size of its form.
    prepare : activations ``[M, K]`` to a call that gives ``[M, N]``.
    """

    label: str
    activations: str
    weight: np.ndarray
    megabytes: float
    prepare: Callable[[np.ndarray], Callable[[], object]]
