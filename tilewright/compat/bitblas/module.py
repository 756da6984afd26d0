"""BitBLAS's ``Linear``, loaded when it is first asked for: torch comes with it."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "Linear":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilewright.compat.bitblas.nn import Linear

    return Linear
