"""Bytes that change hands while copies may be under way."""

import pytest
from one_pass import machine

import tilewright.targets.gpu.copies.copy_meanings  # noqa: F401  (registers the words of asynchronous copies)
from tilewright.ir import Call, Evaluate, kernels
from tilewright.ir.parser import parse
from tilewright.passes.thread.plan_shared_memory import plan_shared_memory, shared_places

HEAD = '@stage("thread")\ndef f(A: float32[64]):\n    with kernel(blocks={m: 1}, threads={tx: 64, ty: 1, tz: 1}):\n'
COPY = ["async_copy(a[tx : +1], A[tx : +1], dtype=bool)", "async_copy_commit(dtype=bool)"]
WAIT = "async_copy_wait(0, dtype=bool)"
BARRIER = "sync_threads(dtype=bool)"


def planned(*loop: str, behind: str) -> tuple[list[str], bool]:
    """Names of the calls behind the loop, and whether `b` has the bytes that `a` had."""
    lines = [
        "a = shared(float32[64])",
        "b = shared(float32[64])",
        "for k in range(4):",
        *(f"    {one}" for one in loop),
    ]
    lines += [behind, "b[tx] = A[tx]", "A[tx] = b[tx]"]
    function = parse(HEAD + "\n".join(" " * 8 + line for line in lines) + "\n")
    kernel = kernels(plan_shared_memory(function, machine("sm_80")))[0]
    calls = [one.value for one in kernel.body.statements if isinstance(one, Evaluate)]
    places = {first for first, _, _ in shared_places(kernel)}
    return [one.function for one in calls if isinstance(one, Call)], len(places) == 1


@pytest.mark.parametrize(
    ("loop", "behind", "calls"),
    [
        ([*COPY, WAIT], BARRIER, ["sync_threads"]),
        ([*COPY, WAIT], "A[tx] = A[tx]", ["sync_threads"]),
        ([WAIT, *COPY], BARRIER, ["async_copy_wait", "sync_threads"]),
        ([WAIT, *COPY], "A[tx] = A[tx]", ["async_copy_wait", "sync_threads"]),
    ],
    ids=["waited for", "and no barrier", "last iteration's copy", "last iteration's, and no barrier"],
)
def test_what_is_under_way_lands_before_bytes_change_hands(loop: list[str], behind: str, calls: list[str]) -> None:
    found, together = planned(*loop, behind=behind)
    assert together and found == calls
