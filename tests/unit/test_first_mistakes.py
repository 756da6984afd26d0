"""What a stranger meets who mistypes a name: what was meant, and no frames of the compiler above the message."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import OutOfBounds, SharedMemoryExceeded, TilewrightError
from tilewright.targets.base import TARGETS, UnknownTarget
from tilewright.targets.registry import resolve


@tilewright.jit
def large(A):
    N = T.const("N")
    A: T.Tensor((N, N), "float32")
    C = T.empty((N, N), "float32")
    with T.Kernel(1):
        tile = T.alloc_shared((512, 512), "float32")
        T.copy(A[0, 0], tile)
        T.copy(tile, C[0, 0])
    return C


@tilewright.jit
def scattered(A, at):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    at: T.Tensor((N,), "int32")
    with T.Kernel(1):
        tile = T.alloc_shared((8,), "float32")
        T.clear(tile)
        for i in T.serial(N):
            tile[at[i]] = A[i]


NUMBERS, PLACES = np.ones(4, "float32"), np.full(4, 100, "int32")

CALLS: dict[str, tuple[Callable[[], object], type[TilewrightError]]] = {
    "compiled": (lambda: large.on("cuda -arch=sm_90a").compile(N=512), SharedMemoryExceeded),
    "interpreted": (lambda: scattered.interpret(NUMBERS, PLACES), OutOfBounds),
    "traced": (lambda: large(NUMBERS), TilewrightError),
}


@pytest.mark.parametrize("name", CALLS)
def test_mistakes_leave_without_the_frames_inside(name: str) -> None:
    call, kind = CALLS[name]
    with pytest.raises(kind) as caught:
        call()
    files = [Path(frame.filename) for frame in traceback.extract_tb(caught.value.__traceback__)]
    ours = [file for file in files if file.is_relative_to(Path(tilewright.__file__).parent)]
    assert len(ours) <= 5
    assert not any(file.parent.parent.name == "passes" or file.parent.name == "interpreter" for file in ours[:-1])


@pytest.mark.parametrize(
    "name, meant",
    [
        ("sm_90a", 'write "cuda -arch=sm_90a"'),
        ("gfx942", 'write "hip -arch=gfx942"'),
        ("apple7", 'write "metal -arch=apple7"'),
    ],
)
def test_an_architecture_alone_wants_its_target(name: str, meant: str) -> None:
    with pytest.raises(UnknownTarget) as caught:
        resolve(name)
    assert caught.value.hint == meant


def test_an_unknown_target_is_told_all_that_are_known() -> None:
    """A word that is near one of them, as gpu is near cpu, would be told the wrong one."""
    with pytest.raises(UnknownTarget) as caught:
        resolve("gpu")
    assert caught.value.hint == f"known: {', '.join(TARGETS)}"


def test_names_of_the_package_are_near_what_is_typed() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'quantise': did you mean 'quantize'"):
        _ = tilewright.quantise


def test_several_indices_are_passed_on_and_joined_as_tuples_are() -> None:
    def tail_of(index):
        return (index,)

    @T.prim_func
    def moved(A: T.Tensor((2, 4, 4), "float32"), B: T.Tensor((2, 4, 4), "float32")):
        with T.Kernel(2, 4) as at:
            for i in T.Parallel(4):
                B[at + tail_of(i)] = A[at[0], at[1], i]

    given = np.arange(32, dtype="float32").reshape(2, 4, 4)
    result = np.zeros_like(given)
    tilewright.compile(moved, target="cpu")(given, result)
    assert (result == given).all()
