"""`T.machine`: what a kernel is traced for, for authors who choose sizes by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.machine.arch import Arch

_MACHINE: ContextVar[Arch | None] = ContextVar("machine", default=None)


def machine() -> Arch | None:
    """The machine that a kernel is being compiled for; None where it is only traced.

    A kernel's sizes may depend on it, its results should not.

    Examples
    --------
    >>> block = 128 if T.machine() and T.machine().has("wgmma") else 64     # doctest: +SKIP
    """
    return _MACHINE.get()


@contextmanager
def traced_for(arch: Arch) -> Iterator[None]:
    """What is traced inside is for a machine."""
    token = _MACHINE.set(arch)
    try:
        yield
    finally:
        _MACHINE.reset(token)
