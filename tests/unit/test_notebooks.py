"""What notebooks show of kernels, layouts and weights: well-formed HTML with what they are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.layout import Layout
from tilewright.quant import quantize


def shown(value: object) -> ElementTree.Element:
    """Its HTML, read strictly: every tag is closed, and what is no tag is escaped."""
    return ElementTree.fromstring(f"<div>{value._repr_html_()}</div>")  # type: ignore[attr-defined]


def test_kernels() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(64):
                if A[i] < 3 and A[i] > 1:
                    A[i] = 0

    made = tilewright.compile(kernel, target="cuda -arch=sm_80")
    program, source = (element.text for element in shown(made).iter("pre"))
    assert program == made.show_program() and source == made.get_kernel_source()


def test_layouts() -> None:
    layout = Layout.parse("layout(shape=(16, 8), digits=('8:t4 2:r2', '2:r1 4:t1'))")
    page = shown(layout)
    rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert len(rows) == 16 and {len(row) for row in rows} == {8}
    for row, column in ((0, 0), (9, 5), (15, 7)):
        place = layout.locate(row, column)
        assert rows[row][column] == " ".join(f"{name}{number}" for name, number in place.items())
    line = Layout.parse("layout(shape=(40,), digits=('40:m1',))")
    assert [len(row) for row in shown(line).iter("tr")] == [16]


def test_weights() -> None:
    weight = tilewright.PackedWeight.pack(quantize(np.ones((16, 128), np.float32), "int4"))
    assert next(cell.text for cell in shown(weight).iter("td")) == "16 x 128"
