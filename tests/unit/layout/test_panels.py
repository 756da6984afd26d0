"""Panel layouts: a place for every element, no two alike, and the same by formula and by enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.arith import Analyzer
from tilewright.ir.nodes import Const, const
from tilewright.layout.panels import PanelLayout

LAYOUTS = st.builds(
    PanelLayout,
    columns=st.integers(1, 50),
    depth=st.integers(1, 70),
    transposed=st.booleans(),
    lanes=st.sampled_from((4, 8, 16)),
    run=st.sampled_from((1, 2, 4)),
    share=st.sampled_from((1, 2, 4)),
    beside=st.integers(1, 4),
)


@settings(deadline=None, max_examples=60)
@given(LAYOUTS)
def test_every_element_has_a_place_of_its_own(layout: PanelLayout) -> None:
    places = layout.permutation()
    assert places.shape == ((layout.columns, layout.depth) if layout.transposed else (layout.depth, layout.columns))
    assert places.min() >= 0
    assert places.max() < layout.size
    assert np.unique(places).size == places.size


@settings(deadline=None, max_examples=60)
@given(LAYOUTS, st.data())
def test_the_formula_is_the_permutation(layout: PanelLayout, data: st.DataObject) -> None:
    places = layout.permutation()
    row, column = (data.draw(st.integers(0, extent - 1)) for extent in places.shape)
    found = Analyzer().simplify(layout.position(const(row), const(column)))
    assert isinstance(found, Const)
    assert found.value == places[row, column]


def test_codes_of_one_load_are_consecutive() -> None:
    """An int4 load of 16 columns: low nibbles are k = 0..3 of every column, high ones k = 4..7."""
    layout = PanelLayout(columns=16, depth=8, transposed=True, lanes=16, run=4, share=2)
    elements = np.empty(layout.size, object)
    for n in range(16):
        for k in range(8):
            elements[layout.permutation()[n, k]] = (n, k)
    low, high = elements[0::2], elements[1::2]
    assert list(low) == [(n, k) for n in range(16) for k in range(4)]
    assert list(high) == [(n, k) for n in range(16) for k in range(4, 8)]


def test_sizes_are_padded_to_whole_loads() -> None:
    layout = PanelLayout(columns=17, depth=9, transposed=True, lanes=16, run=4, share=2)
    assert (layout.panels, layout.loads, layout.load_size, layout.size) == (2, 2, 128, 512)
    assert str(layout) == "panels1[nk 17x9: 16 lanes, run 4, share 2]"
    beside = replace(layout, beside=3)
    assert (beside.panels, beside.size) == (2, 768)
    assert str(beside) == "panels1[nk 17x9: 16 lanes, run 4, share 2, 3 beside]"
