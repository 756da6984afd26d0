"""Work that makes many objects and few cycles goes without Python's search for cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Python looks for no cycles meanwhile.

    Programs and modules are many small objects that stay: looking for cycles among them costs a third of the time of
    lowering, and a quarter of that of an import, because everything that other libraries made is looked through as
    well.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
