"""The lesser and the greater of numbers, where a NaN gives way to the other number: what ``min`` and ``max`` mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Extreme:
    """NumPy's ``fmin`` or ``fmax``, to which a signalling NaN is a NaN like any other.

    NumPy's own answer a signalling NaN with a quiet one, as IEEE 754-2008 has it; every machine's instruction takes the
    other number.
    """

    function: np.ufunc

    def __call__(self, left: object, right: object) -> Any:
        return self.function(_quiet(left), _quiet(right))

    def reduce(self, values: np.ndarray, axis: int = 0, **options: Any) -> Any:
        """All elements along `axis` folded into one."""
        return self.function.reduce(_quiet(values), axis=axis, **options)

    def accumulate(self, values: object, axis: int = 0) -> Any:
        """Each element folded with all before it along `axis`."""
        return self.function.accumulate(_quiet(values), axis=axis)


LEAST, GREATEST = Extreme(np.fmin), Extreme(np.fmax)


def _quiet(values: Any) -> Any:
    if getattr(values, "dtype", None) not in (np.float16, np.float32, np.float64):
        return values
    with np.errstate(invalid="ignore"):
        return values * values.dtype.type(1)
