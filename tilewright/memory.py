"""The host's memory: what tensors call it, and that what is let go of goes back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

HOST = ("cpu", 0)
"""The device of arrays of NumPy's, as frameworks say it: kind and index."""


@functools.cache
def _trim() -> Callable[[int], Any] | None:
    found: Callable[[int], Any] | None = None
    if sys.platform == "linux":
        found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


def give_back() -> None:
    """Give the system what was let go of: GNU's library keeps what lies below anything that lives longer.

    Work on one weight after the other, with results that stay, would come to hold several times what is in use.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
