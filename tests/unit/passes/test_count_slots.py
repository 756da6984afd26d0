"""`count_slots` as a pass: slots and phases of rings are carried from step to step where finding them would be a division."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_pass import changed_text, made, result_of

from tilewright.interpreter import interpret
from tilewright.ir.parser import parse
from tilewright.passes.thread.count_slots import count_slots

BEFORE = """\
@stage("threaded")
def steps(A: float32[32], iteration: int32):
    with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
        tile = shared(float32[7, 32])
        full = barrier(uint64[7])
        empty = barrier(uint64[7])
        for step in range(24):
            signal_wait(full[uint32(iteration * 24 + step) % 7 : +1], uint32(iteration * 24 + step) // 7 & 1, dtype=bool)
            A[tx] = tile[(iteration * 3 + step) % 7, tx]
            if step > 0:
                signal_arrive(empty[uint32(iteration * 24 + step - 1) % 7 : +1], dtype=bool)
"""

AFTER = """\
@stage("threaded")
def steps(A: float32[32], iteration: int32):
    with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
        tile = shared(float32[7, 32])
        full = barrier(uint64[7])
        empty = barrier(uint64[7])
        slot = scalar(uint32[()], initial=uint32(iteration * 3 % 7))
        phase = scalar(uint32[()], initial=uint32(iteration * 24) // 7 & 1)
        slot_1 = scalar(uint32[()], initial=uint32((iteration * 3 + 6) % 7))
        for step in range(24):
            signal_wait(full[slot[()] : +1], phase[()], dtype=bool)
            A[tx] = tile[int32(slot[()]), tx]
            if step > 0:
                signal_arrive(empty[slot_1[()] : +1], dtype=bool)
            slot_1[()] = slot[()]
            slot[()] = slot[()] + 1
            if slot[()] == 7:
                slot[()] = 0
                phase[()] = phase[()] ^ 1
"""


def test_slots_and_phases_are_carried_on() -> None:
    assert made(count_slots, BEFORE) == AFTER


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("% 7", "% 8"), ("// 7", "// 8"), ("[7", "[8")], id="slots that are bits of a number"),
        pytest.param([("range(24)", "range(0, 24, 2)")], id="steps of two"),
        pytest.param([("            if step > 0:", "            if step == 5:\n                continue\n            if step > 0:")],
                     id="iterations that end early"),
        pytest.param([("iteration * 24 + step", "iteration * 24 + step * 2"), ("iteration * 3 + step", "iteration * 3 + step * 2")], id="two slots a step"),
    ],
)  # fmt: skip
def test_what_is_left_alone(changes: list[tuple[str, str]]) -> None:
    text = changed_text(BEFORE, *changes)
    assert made(count_slots, text) == text


def test_a_loop_above_another_one_divides() -> None:
    """What is found once for all iterations of a loop below costs little."""
    lines = BEFORE.splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if "for step" in line)
    inner = ["    " + line for line in lines[at:]]
    last = "            signal_arrive(empty[uint32(iteration * 24 + again * 24 + 23) % 7 : +1], dtype=bool)\n"
    text = "".join([*lines[:at], "        for again in range(3):\n", *inner, last])
    result = made(count_slots, text)
    assert last in result and "slot = scalar" in result[result.index("for again") :]


PLACES = """\
@stage("threaded")
def places(A: int32[512], iteration: int32):
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
        ring = barrier(uint64[{size}])
        for step in range({start}, {stop}):
            number: int32 = iteration * {factor} + step
            A[(step - {start}) * 2] = (number + {distance}) % {size}
            A[(step - {start}) * 2 + 1] = (number + {distance} - 1) % {size}
            if step < 0:
                signal_arrive(ring[uint32(number) % {size} : +1], dtype=bool)
"""


@given(
    size=st.sampled_from([3, 5, 6, 7, 9, 11, 12]), start=st.integers(0, 9), count=st.integers(0, 40), iteration=st.integers(0, 99),
    factor=st.integers(0, 30), distance=st.integers(-20, 20),
)  # fmt: skip
def test_counted_places_are_those_that_are_divided_for(
    size: int, start: int, count: int, iteration: int, factor: int, distance: int
) -> None:
    text = PLACES.format(size=size, start=start, stop=start + count, factor=factor, distance=distance)
    program, result = parse(text), result_of(count_slots, text)
    found = []
    for one in (program, result):
        A = np.full(512, -1, np.int32)
        interpret(one, (A, iteration))
        found.append(A)
    assert (found[0] == found[1]).all()
    expected = [
        (iteration * factor + start + step + distance - back) % size for step in range(count) for back in (0, 1)
    ]
    assert found[1][: 2 * count].tolist() == expected and (found[1][2 * count :] == -1).all()


PHASES = """\
@stage("threaded")
def phases(A: int32[512], iteration: int32):
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
        ring = barrier(uint64[{size}])
        for step in range(0, {count}):
            number: int32 = iteration * {factor} + step
            A[step * 2] = (number + {near}) // {size} & 1
            A[step * 2 + 1] = (number + {far}) // {size} & 1
            if step < 0:
                signal_arrive(ring[uint32(number) % {size} : +1], dtype=bool)
"""


@given(
    size=st.sampled_from([3, 5, 6, 7, 9, 11, 12]), count=st.integers(0, 40), iteration=st.integers(0, 99), factor=st.integers(0, 30),
    near=st.integers(0, 20), apart=st.integers(0, 3), more=st.integers(0, 2),
)  # fmt: skip
def test_numbers_of_one_slot_may_have_different_phases(
    size: int, count: int, iteration: int, factor: int, near: int, apart: int, more: int
) -> None:
    """A whole ring ahead is the same slot in its other phase."""
    far = near + apart * size + more
    result = result_of(count_slots, PHASES.format(size=size, count=count, factor=factor, near=near, far=far))
    A = np.full(512, -1, np.int32)
    interpret(result, (A, iteration))
    expected = [(iteration * factor + step + ahead) // size & 1 for step in range(count) for ahead in (near, far)]
    assert A[: 2 * count].tolist() == expected
