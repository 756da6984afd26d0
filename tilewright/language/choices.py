"""What a kernel's compile-time values may depend on: `T.suited`, the sizes of a call, though the kernel serves any;
`T.machine`, what it is traced for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tilewright.ir.nodes import Var
from tilewright.language.mistakes_of_scopes import ChoiceNotKnown, ConstOutsideDirect
from tilewright.language.proxies import Scalar, describe
from tilewright.language.recording import current, word
from tilewright.machine.arch import Arch


@dataclass(frozen=True, slots=True)
class Choice:
    """One value that suits the sizes of a call.

    Attributes
    ----------
    choose : gives it.
    sizes : what `choose` is called with: names of dynamic sizes, and numbers.
    value : for the call that the function was traced for.
    """

    choose: Callable[..., Any]
    sizes: tuple[str | int, ...]
    value: Any

    def of(self, numbers: dict[str, int]) -> Any:  # what the author chooses
        """The value for other sizes."""
        return self.choose(*(numbers[one] if isinstance(one, str) else one for one in self.sizes))


@word
def suited(choose: Callable[..., object], *sizes: object) -> Any:
    """A compile-time value that depends on sizes known only at launch (direct style only).

    Each value is a specialisation, compiled at the first call that needs it; every one of them must be correct for any
    sizes. The choice for a shape is cached.

    Parameters
    ----------
    choose : called with the sizes of a call; its result must be hashable, and should be one of few values.
    sizes : symbols of `T.dynamic`, or numbers.

    Examples
    --------
    >>> rows = T.suited(lambda m: 64 if m <= 64 else 128, M)     # doctest: +SKIP
    """
    builder: Any = current("T.suited")
    if builder.style != "direct":
        raise ConstOutsideDirect("T.suited")
    named = tuple(_named(size) for size in sizes)
    unknown = [one for one in named if isinstance(one, str) and one not in builder.numbers]
    if unknown:
        raise ChoiceNotKnown(f"{unknown[0]} is no extent of a tensor")
    value = Choice(choose, named, None).of(builder.numbers)
    try:
        hash(value)
    except TypeError:
        raise ChoiceNotKnown(f"its choice is {describe(value)}, which is not hashable") from None
    builder.choices.append(Choice(choose, named, value))
    return value


def _named(size: object) -> str | int:
    if isinstance(size, Scalar) and isinstance(size.expr, Var):
        return size.expr.name
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    raise ChoiceNotKnown(f"a size is {describe(size)}, but should be a symbol of T.dynamic or a number")


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
