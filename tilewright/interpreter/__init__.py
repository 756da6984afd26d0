"""Runs programs of every stage on NumPy: the meaning of a program, element by element, checked as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

import tilewright.ops  # noqa: F401  (registers the operators)
from tilewright.interpreter.arguments import bind_arguments
from tilewright.interpreter.execute import Executor
from tilewright.interpreter.poison import poison, poisoned
from tilewright.ir import WARP, Function, counted_workspaces
from tilewright.tracebacks import without_our_frames

__all__ = ["interpret", "poison", "poisoned"]


@without_our_frames
def interpret(
    function: Function,
    arguments: Sequence[object],
    *,
    seed: int = 0,
    together: int = WARP,
    report: Callable[[str], None] = print,
    debug: Callable[[dict[str, object]], None] | None = None,  # values by name
) -> tuple[np.ndarray, ...]:
    """Run a program.

    Parameters
    ----------
    function : a program of any stage.
    arguments : NumPy arrays and numbers for ``function.inputs`` (its parameters without its outputs), in the
        author's order; the sizes of `signature.size_variables` may follow, else they are bound from shapes.
        Types below eight bits come as uint8, the last dimension packed.  Arrays are written in place.
    seed : 0 runs blocks in order; another number runs them in an order drawn from it.
    together : lanes that the machine runs together, of which `T.simdgroup_reduce_sum` speaks.
    report : called with each line that the program prints.
    debug : called with the values named in ``breakpoint()``; None opens Python's debugger.

    Returns
    -------
    The arrays of ``function.outputs``, which were poisoned before the program ran; empty where it has none.

    Raises
    ------
    ArgumentError : arguments that do not fit the parameters.
    ExecutionError : what the program does wrong: `UninitializedRead`, `OutOfBounds`, `ConflictingWrites`,
        `AssertionFailed`, `WrongAssumption`, `DivergentThreads`; with the place in the author's file.
    """
    final = function.stage == "final"
    executor = _Run(
        report=report, together=together, debug=debug, strict=final, flat=final, counted=counted_workspaces(function)
    )
    executor.random = np.random.default_rng(seed) if seed else None
    with np.errstate(all="ignore"):
        outputs = bind_arguments(executor, function, arguments)
        for _ in executor.run(function.body):
            pass
    return outputs


class _Run(Executor):
    """An executor with its own order of blocks."""

    random: np.random.Generator | None = None

    def block_order(self, count: int) -> Iterator[int]:
        return iter(range(count)) if self.random is None else iter(self.random.permutation(count).tolist())
