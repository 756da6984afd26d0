"""Dealing tiles to threads, and how the layout of a loop relates to that of the fragments it touches."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.layout import (
    MEMORY,
    REGISTER,
    THREAD,
    Digit,
    Layout,
    holds,
    reduced,
    register_of,
    repeat,
    replicate,
    row_major,
    spread,
    swizzled,
    vector_width,
)
from tilewright.layout.algebra import permuted
from tilewright.layout.threads import relate, shared_rows

SEEDS = st.integers(0, 1 << 40)


@pytest.mark.parametrize("threads", [32, 128, 384])
@pytest.mark.parametrize("shape", [(64, 32), (128, 128), (16, 8), (4, 16, 64), (96, 48), (4096,)])
@pytest.mark.parametrize("width", [1, 4, 8])
def test_tiles_are_dealt_out_whole(shape: tuple[int, ...], threads: int, width: int) -> None:
    layout = spread(shape, threads, width)
    assert all(covered >= extent for covered, extent in zip(layout.shape, shape, strict=True))
    assert layout.shape[1:] == shape[1:] or len(shape) == 1
    assert layout.is_bijective and layout.extent(THREAD) <= threads
    if layout.shape == shape and math.prod(shape) >= threads * width and len(shape) > 1:
        assert vector_width(layout, 16, place=REGISTER) >= math.gcd(width, shape[-1])


@pytest.mark.parametrize("threads", [32, 96, 128, 256])
@pytest.mark.parametrize("shape", [(7, 11, 13), (1, 33, 64), (1, 100, 100), (3, 5, 7, 3), (12, 100), (2, 1, 33, 11)])
def test_no_thread_has_many_pieces_where_over_half_have_none(shape: tuple[int, ...], threads: int) -> None:
    layout = spread(shape, threads, 4)
    assert layout.is_bijective and layout.extent(THREAD) <= threads
    assert all(covered >= extent for covered, extent in zip(layout.shape, shape, strict=True))
    idle = threads - np.unique([threads_of(layout, point).pop() for point in np.ndindex(shape)]).size
    pieces = layout.extent(REGISTER) // math.gcd(4, shape[-1])
    assert pieces <= 8 or 4 * idle <= 3 * threads, (layout, idle)
    assert pieces <= 8 + 4 * math.prod(shape) // (threads * math.gcd(4, shape[-1])), layout


def test_neighbouring_threads_take_neighbouring_vectors() -> None:
    layout = spread((64, 32), threads=128, width=8)
    assert str(layout) == "layout(shape=(64, 32), digits=('32:t4 2:r8', '8:r1 4:t1'))"
    assert layout.coordinates(thread=5, register=3) == (1, 11)


def random_fragment(pick: random.Random, rank: int = 2) -> Layout:
    """Digits of threads and registers in random order; every location holds one element."""
    slots = [(axis, k) for axis in range(rank) for k in range(pick.randint(1, 3))]
    reached = {THREAD: 1, REGISTER: 1}
    made: dict[tuple[int, int], Digit] = {}
    for slot in pick.sample(slots, len(slots)):
        place, extent = pick.choice([THREAD, REGISTER]), pick.choice([2, 2, 3, 4])
        made[slot] = Digit(extent, place, reached[place])
        reached[place] *= extent
    layout = Layout(tuple(tuple(made[slot] for slot in slots if slot[0] == axis) for axis in range(rank)))
    return replicate(layout, 2) if pick.random() < 0.3 else layout


def threads_of(layout: Layout, point: tuple[int, ...]) -> set[int]:
    first = np.array([layout.offset(THREAD, *point)])
    for one in layout.replicas:
        first = (first[:, None] + np.arange(one.extent) * one.stride).reshape(-1)
    return set(first.tolist())


@settings(max_examples=120, deadline=None)
@given(SEEDS)
def test_a_reader_finds_what_it_reads_in_its_own_registers(seed: int) -> None:
    pick = random.Random(seed)
    owner = random_fragment(pick)
    axes: list[int | None] = [0, 1]
    kind = pick.randrange(5)
    if kind == 0:  # the same order
        reader = replicate(owner, 1)
    elif kind == 1:  # registers numbered otherwise
        digits = tuple(
            tuple(replace(one, stride=one.stride * 3) if one.place == REGISTER else one for one in dimension)
            for dimension in owner.digits
        )
        reader = replace(owner, digits=digits)
    elif kind == 2:  # a row statistic read along its row
        along = pick.randrange(2)
        reader, axes = owner, [along]
        owner = reduced(owner, 1 - along)
    elif kind == 3:  # transposed
        reader, axes = permuted(owner, [1, 0]), [1, 0]
    else:  # unrelated
        reader = random_fragment(pick)
    if kind < 4 and not (kind == 2 and any(one.place == REGISTER for one in reader.replicas)):
        assert holds(owner, reader, axes)
    if any(reader.shape[axis] > extent for axis, extent in zip(axes, owner.shape) if axis is not None):
        return
    if not holds(owner, reader, axes):
        return
    terms = register_of(owner, reader, axes)
    for point in np.ndindex(reader.shape):
        element = tuple(0 if axis is None else point[axis] for axis in axes)
        assert threads_of(reader, point) <= threads_of(owner, element)
        register = reader.offset(REGISTER, *point)
        assert sum(register // divisor % modulus * stride for divisor, modulus, stride in terms) == owner.offset(
            REGISTER, *element
        )


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_relating_two_ways_to_split_a_dimension(seed: int) -> None:
    pick = random.Random(seed)
    first = [Digit(pick.choice([2, 3, 4]), THREAD, 7 * k + 1) for k in range(3)]
    second = [Digit(pick.choice([2, 3, 4, 6]), REGISTER, 5 * k + 1) for k in range(3)]
    pairs = relate(first, second)
    if pairs is None:
        return
    covered = math.prod(pair.extent for pair in pairs)
    for value in range(covered):
        rest, a, b = value, 0, 0
        for pair in pairs:
            rest, digit = divmod(rest, pair.extent)
            a, b = a + digit * pair.source.stride, b + digit * pair.target.stride
        assert a == Layout((tuple(first),)).offset(THREAD, value)
        assert b == Layout((tuple(second),)).offset(REGISTER, value)


def test_tiles_side_by_side() -> None:
    atom = Layout.of([(8, THREAD, 4), (2, REGISTER, 2)], [(2, REGISTER, 1), (4, THREAD, 1)])
    wide = repeat(repeat(atom, 1, 2, REGISTER), 0, 4, THREAD)
    assert wide.shape == (64, 16) and wide.extent(THREAD) == 128 and wide.extent(REGISTER) == 8 and wide.is_bijective
    assert (wide.table(THREAD)[16:32, 8:] == atom.table(THREAD) + 32).all()


def test_shared_tiles() -> None:
    assert shared_rows((64, 64), 16, 128) == swizzled((64, 64), 16)
    assert shared_rows((64, 128), 16, 128) == swizzled((64, 128), 16)
    assert shared_rows((4, 8, 3), 16) == row_major((4, 8, 3))
    staged = shared_rows((3, 16, 128), 16, 128)
    one = shared_rows((16, 128), 16, 128)
    for stage in range(3):
        assert (staged.table(MEMORY)[stage] == one.table(MEMORY) + stage * 16 * 128).all()
