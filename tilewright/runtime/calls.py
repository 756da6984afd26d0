"""Calls that have run, by what their arguments are: a later one of the same kind runs what is left of it.

One memory serves kernels (`plans`), functions that are compiled on demand (`specialization`), and products
(`matmul.known_calls`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.call_keys import MISSED, CallPlan, guarded, key_function, kind_of, missed, no_key


@dataclass(frozen=True, slots=True)
class Known:
    """What calls of one kind run.

    Attributes
    ----------
    plan : a function of those arguments that it takes.
    again : the same of all arguments.
    guard : runs it for arguments like those of the call that was kept; None where only their key tells.
    others : plans of the same kind for other addresses, as who keeps them tells them apart.
    """

    plan: CallPlan
    again: CallPlan
    guard: Callable[..., object] | None
    others: dict[Any, Any]


_NUMBERS = itertools.count()
"""Of kinds of arguments: no two have the same, whichever threads meet them."""

_PROMOTES = itertools.cycle([*[False] * 16, True])
"""Whether what a look-up finds is tried first from then on: where each was, two kinds in turn would always miss the
other's guard."""


class Calls:
    """Calls with as many arguments each, by what these are; a guard tells those like one of the last without a look-up.

    Parameters
    ----------
    strided : positions of tensors whose strides count even where their order is row-major.
    most : kinds that are remembered before all begins anew.

    Attributes
    ----------
    run : what is left of a call with these arguments; answers `MISSED` where it must be checked in full.
    in_modes : whether plans hold in one of torch's modes of inference only.
    """

    run: Callable[..., Any]  # as what the plans run
    in_modes = False

    def __init__(self, strided: Collection[int] = (), most: int = 1024) -> None:
        self._strided, self._most = strided, most
        self._otherwise: Callable[..., object] = self.find
        self.clear()

    def clear(self) -> None:
        """Forget all: something else than the arguments has changed."""
        self.run = functools.partial(_guard_of_none, otherwise=self._otherwise)
        self._known: dict[object, Known] = {}
        self._met: set[object] = set()
        self._keys: dict[tuple[str | None, ...], Callable[..., object]] = {}
        self._key: Callable[..., object] = no_key

    def __len__(self) -> int:
        return len(self._known)

    def at(self, arguments: Sequence[object]) -> Known | None:
        """What is known of calls with arguments like these."""
        key = self._key(*arguments)
        if key is None and self._keys:
            function = self._keys.get(tuple(map(kind_of, arguments)), no_key)
            key = function(*arguments)
            if key is not None:
                self._key = function
        return self._known.get(key)

    def find(self, *arguments: object) -> object:
        """What runs where the guard does not tell."""
        known = self._known.get(self._key(*arguments)) or self.at(arguments)
        if known is None:
            return MISSED
        if next(_PROMOTES) and known.guard is not None:
            self.run = known.guard
        return known.again(*arguments)

    def is_second(self, arguments: Sequence[object]) -> bool:
        """Whether a call with arguments like these has run once before, and nothing is known of it."""
        key = self.key_of(arguments, ())
        if key is None or key in self._known:
            return False
        if key in self._met:
            return True
        if len(self._met) >= self._most:
            self.clear()
            key = self.key_of(arguments, ())  # of a number that no kind had before
        self._met.add(key)
        return False

    def keep(
        self,
        arguments: Sequence[object],
        plan: CallPlan,
        passed: Sequence[int] | None = None,
        free: Collection[int] = (),
        compares: bool = False,
        others: dict[Any, Any] | None = None,
    ) -> None:
        """Keep what later calls with arguments like these run.

        Parameters
        ----------
        passed : positions of those that the plan takes; None for all.
        free : positions of scalars whose value does not count.
        compares : whether the plan compares the arrays of NumPy itself, and answers `MISSED` for others.
        others : see `Known`.
        """
        if len(self._known) >= self._most:
            self.clear()
        key = self.key_of(arguments, free)
        if key is None:
            return
        everything, guard = range(len(arguments)), None
        passed = everything if passed is None else passed
        if plan is not missed:
            also, names = self._condition(arguments)
            guard = guarded(arguments, passed, plan, free, self._otherwise, also, compares, **names)
        again = plan if list(passed) == [*everything] else _of(plan, passed)
        self._known[key] = Known(plan, again, guard, {} if others is None else others)
        self.run = guard or self.run

    def key_of(self, arguments: Sequence[object], free: Collection[int]) -> object:
        """The key of a call, of kinds that need not have been met; None where it can have none."""
        kinds = tuple(map(kind_of, arguments))
        if None in kinds:
            return None
        function = self._keys.get(kinds)
        if function is None:
            function = self._keys[kinds] = key_function(kinds, next(_NUMBERS), self._strided, free, self.in_modes)
        return function(*arguments)

    def _condition(self, arguments: Sequence[object]) -> tuple[str, dict[str, object]]:
        """What a guard tests before it compares arguments with these, and what that mentions."""
        return "", {}


def _guard_of_none(*arguments: object, otherwise: Callable[..., object]) -> object:
    return otherwise(*arguments)


def _of(plan: CallPlan, passed: Sequence[int]) -> CallPlan:
    return lambda *arguments: plan(*[arguments[i] for i in passed])
