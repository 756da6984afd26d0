"""Machines that run kernels one after the other need no words about kernels that begin before others have ended.

Before::

    with kernel(4) as (x,):
        grid_wait()
        B[x] = A[x]

After::

    with kernel(4) as (x,):
        B[x] = A[x]
"""

from __future__ import annotations

from tilewright.ir import Evaluate, Function, changed, performed
from tilewright.passes.context import Context

WORDS = ("grid_wait", "grid_launch")


def drop_dependent_launch(function: Function, context: Context) -> Function:
    """Remove waits for earlier kernels, and leave for later ones to begin."""
    return function.with_body(changed(function.body, Evaluate, by=lambda one: None if performed(one) in WORDS else one))
