"""What of a traceback an author sees."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tilewright.errors import TilewrightError

P = ParamSpec("P")
R = TypeVar("R")


def without_our_frames(function: Callable[P, R]) -> Callable[P, R]:
    """A mistake that names the author's line leaves `function` without the frames inside: they are not the author's.
    ``python -X dev`` keeps them."""

    @functools.wraps(function)
    def shortened(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except TilewrightError as error:
            if error.span is None or sys.flags.dev_mode:
                raise
            raise error.with_traceback(None) from None

    return shortened
