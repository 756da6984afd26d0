"""A program may be traced before any target is loaded: no word needs what only a target makes known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import word_examples

import tilewright
import tilewright.language as T
from tilewright.errors import InternalError, MissingCapability, TilewrightError
from tilewright.language.mistakes import TileExpected

EVERY_EXAMPLE = """
import sys
sys.path.insert(0, sys.argv[1])
import tilewright.language as T
import word_examples
names = [name for name in dir(T) if not name.startswith("_") and word_examples.lines_of(getattr(T, name))]
for name in names:
    word_examples.program(name)
print(len(names), *(name for name in sys.modules if name.startswith("tilewright.targets")))
"""


def test_examples_of_words_are_traced_where_no_target_is_loaded() -> None:
    """`T.ptx_mma` and `T.ptx_ldmatrix` were unknown functions there."""
    ran = subprocess.run(
        [sys.executable, "-c", EVERY_EXAMPLE, str(Path(__file__).parent)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    count, *loaded = ran.stdout.splitlines()[-1].split()
    assert int(count) > 250 and not loaded


@pytest.mark.parametrize("loop", ["T.Parallel(64)", "T.vectorized(4)"])
def test_no_word_in_a_loop_over_elements_is_an_internal_error(loop: str) -> None:
    """Shuffles, votes and matrix instructions were."""
    refused = []
    for name in (name for name in dir(T) if not name.startswith("_")):
        lines = word_examples.lines_of(getattr(T, name))
        if not lines or any("def example(" in line for line in lines):
            continue
        last = max(place for place, line in enumerate(lines) if not line.startswith(" "))
        inside = [*lines[:last], f"for q in {loop}:", *(f"    {line}" for line in lines[last:])]
        try:
            word_examples.traced(f"{name} in {loop}", inside)
        except TilewrightError as error:
            assert not isinstance(error, InternalError), name
            refused.append(name)
    assert "copy" in refused and ("shfl_xor" in refused) == (loop == "T.Parallel(64)")


def multiplied(shape: str, sizes: tuple[int, int, int]) -> T.PrimFunc:
    @T.prim_func
    def program(A: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=32):
            kinds = ("float16", "float16", "float32")
            a, b, c = (T.alloc_local((size,), kind) for size, kind in zip(sizes, kinds))
            T.ptx_mma("float32", shape, "row", "col", "fp16", "fp16", "fp32", a, 0, b, 0, c, 0)

    return program


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "hip -arch=gfx942", "cpu"])
def test_a_shape_that_no_machine_multiplies_is_refused_with_a_sentence(target: str) -> None:
    """It was an internal error."""
    with pytest.raises(MissingCapability, match="has no instruction m16n8k24 of float16 and float16"):
        tilewright.compile(multiplied("m16n8k24", (12, 6, 4)), target=target)


def test_arrays_that_are_too_small_are_named() -> None:
    """Their elements behind the last one were an internal error."""
    with pytest.raises(TileExpected, match=r"multiplicand_b of T\.ptx_mma is an array of 3 elements") as refused:
        multiplied("m16n8k16", (8, 3, 4))
    assert "4 elements from index 0 on" in str(refused.value)
