"""`viewed`: where the elements of a view of a tile lie."""

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.layout import shared_rows, viewed


@given(
    st.sampled_from([(64, 64), (8, 32), (3, 16, 64), (24, 128)]), st.sampled_from([8, 16, 32]), st.sampled_from([None, 32, 64, 128]),
    st.sampled_from([1, 2, 4]), st.booleans(), st.integers(0, 6),
)  # fmt: skip
def test_views_lie_where_their_tile_does(shape, bits, span, ratio, wider, cut):
    assume(span is None or shape[-1] * bits // 8 % span == 0)
    layout = shared_rows(shape, bits, span)
    view_bits = bits * ratio if wider else bits // ratio
    total = math.prod(shape) * bits // view_bits
    columns = math.gcd(total, 1 << cut)
    made = viewed(layout, bits, (total // columns, columns), view_bits)
    assume(made is not None)
    numbers = np.full(
        layout.extent("memory") * bits, -1
    )  # of the tile's bits in row-major order, where memory has them
    first = layout.table("memory").reshape(-1)
    for bit in range(bits):
        numbers[first * bits + bit] = np.arange(first.size) * bits + bit
    places = made.table("memory").reshape(-1)
    assert np.array_equal(numbers[places * view_bits], np.arange(total) * view_bits)


def test_views_that_no_digits_describe():
    assert viewed(shared_rows((64, 48), 16, 32), 16, (48, 64), 16) is None
    assert viewed(shared_rows((64, 64), 16, 128), 16, (32, 128), 16) is not None
    assert viewed(shared_rows((64, 64), 16, 128), 16, (64, 32), 32) is not None
    assert viewed(shared_rows((64, 64), 16, 128), 16, (64 * 4, 2), 256) is None
