"""Ends of rows, of which only some lanes of a vector exist: any length, any type, and nothing behind them is touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpu_programs import AVX2, check, compiled, program
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.interpreter import interpret
from tilewright.ir.dtypes import dtype
from tilewright.machine.arch import Arch
from tilewright.passes.context import Context
from tilewright.passes.manager import run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cpu.arch import arch, host, runs_here
from tilewright.targets.cpu.target import CPU

MACHINES = [machine for machine in (host(), AVX2) if runs_here(machine)]
SMALL = [
    replace(machine, l2_bytes=16, features=machine.features - {"ordered_streams"})
    for machine in (*MACHINES, *filter(runs_here, [arch({"arch": "x86_64"})]))
]
"""Machines with next to no cache: every result is large, and stored past it."""
TYPES = ("float32", "float64", "bfloat16", "int8")

TENSORS = ", ".join(f"X{i}: {kind}[n], Y{i}: {kind}[n]" for i, kind in enumerate(TYPES))
LOOPS = "".join(f"""
        for i in parallel(n):
            Y{i}[i] = X{i}[i] + X{i}[i] + X{i}[i]""" for i in range(len(TYPES)))  # fmt: skip
ELEMENTS = f"""
def f({TENSORS}, *, n: int32):
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):{LOOPS}
"""
FOLDS = """
def f(X: {type}[5, {n}], S: {type}[5], L: {type}[5]) -> (S, L):
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
        tile = shared({type}[5, {n}])
        total = fragment({type}[5])
        most = fragment({type}[5])
        copy(source=X, destination=tile)
        reduce(source=tile, destination=total, kind="sum", dim=1)
        reduce(source=tile, destination=most, kind="max", dim=1)
        copy(source=total, destination=S)
        copy(source=most, destination=L)
"""
CANARY = 8
"""Elements in front of a row and behind it that must stay what they are."""


@pytest.fixture(scope="module")
def elements() -> list[Kernel]:
    return [compiled(ELEMENTS, machine) for machine in (*MACHINES, *SMALL)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 140), st.integers(0, 3))
def test_any_length(elements: list[Kernel], length: int, first: int) -> None:
    rng = np.random.default_rng(length)
    row = slice(CANARY + first, CANARY + first + length)
    for kernel in elements:
        memory = [rng.integers(-9, 9, (2, length + 2 * CANARY + first)).astype(dtype(kind).numpy) for kind in TYPES]
        before = [both.copy() for both in memory]
        kernel(*(half[row] for both in memory for half in both))
        for both, old in zip(memory, before, strict=True):
            old[1, row] = old[0, row] + old[0, row] + old[0, row]
            np.testing.assert_array_equal(both.view(np.uint8), old.view(np.uint8))


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("length", [3, 13, 159])
def test_folds_of_any_length(kind: str, length: int) -> None:
    """Whole numbers, so that sums are exact in any order."""
    x = np.random.default_rng(length).integers(-3, 4, (5, length)).astype(dtype(kind).numpy)
    check(FOLDS.format(type=kind, n=length), x, machines=[AVX2], after_passes=length == 13)


APART = """
def f(X: {type}[3, {n}, {apart}], Y: {type}[3, {n}]) -> Y:
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
        for i, j in parallel(3, {n}):
            Y[i, j] = X[i, j, {first}] - X[i, j, {last}]
"""


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("apart", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 7, 16, 41])
def test_lanes_that_lie_apart(kind: str, apart: int, length: int) -> None:
    """Every second or fourth element: whole vectors are loaded, and nothing beyond the last row."""
    draw = np.random.default_rng(length)
    x = draw.integers(-9, 9, (3, length, apart)).astype(dtype(kind).numpy)
    first, last = draw.permutation(apart)[:2]
    text = APART.format(type=kind, n=length, apart=apart, first=first, last=last)
    check(text, x, machines=MACHINES, after_passes=True)
    if length == 41 and kind != "int8":
        source = compiled(text, host()).get_kernel_source()
        assert ("even_lanes" in source or "odd_lanes" in source) == (apart != 3)


def test_a_vector_is_loaded_and_stored_in_part() -> None:
    """Seventy floats: four vectors of sixteen, and six lanes of a fifth."""
    text = """
    def f(X: float32[70], Y: float32[70]) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(70):
                Y[i] = X[i] + X[i]
    """
    source = Kernel(program(text), CPU, arch({"arch": "avx512"})).get_kernel_source()
    assert "tw_store_first_f32x16(Y + 64" in source and "tw_load_first_f32x16(X + 64, 6)" in source


STREAMED = """
def f(X: float32[m, {n}], Y: float32[m, {n}], *, m: int32) -> Y:
    with kernel(blocks={{bx: m}}, threads={{tx: 1, ty: 1, tz: 1}}):
        row = fragment(float32[{n}])
        for i in parallel({n}):
            row[i] = X[bx, i] * 2.0
        for i in parallel({n}):
            Y[bx, i] = row[i] + 1.0
"""


@pytest.mark.parametrize("small", SMALL, ids=lambda one: f"{one.vector_bytes} bytes")
@pytest.mark.parametrize("length", [61, 150])
def test_streamed_rows_begin_with_a_line(length: int, small: Arch) -> None:
    """Interpreted and compiled. Before a line begins there are several vectors where these are shorter: of one of 32
    bytes 15 elements were stored, that is, none or any."""
    small = replace(small, l2_bytes=1 << 10)  # where a row has room
    x = np.random.default_rng(length).standard_normal((20, length)).astype(np.float32)
    expected = x * np.float32(2) + np.float32(1)
    text = STREAMED.format(n=length)
    final, _ = run_passes(program(text), PIPELINE, Context(small, overrides=CPU.overrides))
    np.testing.assert_array_equal(interpret(final, [x])[0], expected)
    kernel = compiled(text, small)
    assert "tw_stream_head" in kernel.get_kernel_source()
    memory = np.empty(x.size + 16, np.float32)
    given_out = replace(kernel.function, outputs=())
    into = compiled(given_out, small)
    for first in range(0, 16, 5):
        result = memory[first : first + x.size].reshape(x.shape)
        into(x, result)
        np.testing.assert_array_equal(result, expected)


END = """
def f(X: float32[{n}], C: float32[{n}]) -> C:
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
        tile = shared(float32[{n}])
        total = fragment(float32[1])
        for i in parallel({n}):
            tile[i] = exp2(X[i])
        reduce(source=tile, destination=total, kind="max", dim=0)
        for i in parallel({n}):
            C[i] = tile[i] - total[0]
"""


@pytest.mark.parametrize("length", [17, 35, 100])
def test_the_end_of_a_tile_is_stored_whole(length: int) -> None:
    """Part of a vector could be loaded again only once it has left for the cache; behind the tile there is room."""
    kernel = compiled(END.format(n=length))
    assert "tw_store_first_f32x16(tile" not in kernel.get_kernel_source()
    values = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    expected = np.exp2(values.astype(np.float64))
    np.testing.assert_allclose(kernel(values), expected - expected.max(), rtol=0, atol=1e-6)
