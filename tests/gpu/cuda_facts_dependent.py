"""What griddepcontrol promises: a wait makes everything visible that the launches before have written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda_runner import Launch, Scalar, text


def facts(arch: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Every fact of this file that an architecture should confirm."""
    if arch.dependent_launch:
        yield "dependent launches see what is written after they were allowed to begin", check_chain


def check_chain(runner: Any) -> None:
    """Pairs of kernels, each launched as a dependent of the one before; now and then the writer takes its time."""
    pairs, blocks, n = runner.pairs, 16, 1 << 14
    values, counts = np.arange(n, dtype=np.int32), np.zeros(2, np.int32)
    launches = []
    for pair in range(pairs):
        late = 200_000 if pair % 5 == 0 else 5_000
        launches.append(Launch("primary", blocks, 256, [values, Scalar("i", n), Scalar("i", late if pairs > 4 else 0)]))
        launches.append(Launch("secondary", blocks, 256, [values, counts, Scalar("i", n), Scalar("i", pair + 1)]))
    runner.run_dependent(text("facts_dependent"), launches)
    assert counts.tolist() == [0, pairs * blocks]
    assert np.array_equal(values, np.arange(n) + pairs)
