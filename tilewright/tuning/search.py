"""Builds candidates, in parallel if wished, measures those that could be built, and says what became of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.options import in_context

Candidate = Mapping[str, Any]
"""Options of a kernel's factory, by name."""


MOST_WORKERS = 16
"""Threads that build: the compilers of more would wait for kernels to be lowered."""


class NothingToChoose(TilewrightError):
    """No candidate could be built."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One candidate.

    Attributes
    ----------
    milliseconds : None where it could not be built.
    reason : why not.
    """

    options: Candidate
    milliseconds: float | None
    reason: str = ""


def search(
    candidates: Sequence[Candidate],
    build: Callable[[Candidate], object],
    measure: Callable[[Any], float],  # of what `build` has built
    *,
    topk: int = 20,
    parallel: bool = True,
) -> list[Outcome]:
    """Measure the first `topk` candidates; the fastest comes first, those that failed last.

    Parameters
    ----------
    candidates : the most promising first.
    build : from options to something to measure; may raise TilewrightError.
    measure : milliseconds; called for one candidate at a time.

    Raises
    ------
    NothingToChoose : all failed, and why the first one did; or none was to be measured.
    """
    if topk < 1:
        raise NothingToChoose(f"topk is {topk}: no candidate would be measured")
    chosen = list(candidates)[:topk]

    def attempt(options: Candidate) -> object:
        try:
            return build(options)
        except TilewrightError as error:
            return error

    if parallel and len(chosen) > 1:
        # Lowering takes turns, as Python's threads do; the device's compilers run beside it, one a processor.
        with ThreadPoolExecutor(max_workers=min(len(chosen), os.cpu_count() or 1, MOST_WORKERS)) as pool:
            built = list(pool.map(in_context(attempt), chosen))
    else:
        built = [attempt(options) for options in chosen]
    outcomes = [
        Outcome(options, None, made.message) if isinstance(made, TilewrightError) else Outcome(options, measure(made))
        for options, made in zip(chosen, built, strict=True)
    ]
    if not built:
        raise NothingToChoose("no candidate can be built: there is none")
    first = built[0]
    if isinstance(first, TilewrightError) and all(isinstance(made, TilewrightError) for made in built):
        raise NothingToChoose(f"no candidate can be built: {first.message}", span=first.span, hint=first.hint)
    return sorted(outcomes, key=lambda outcome: float("inf") if outcome.milliseconds is None else outcome.milliseconds)
