"""Tensor maps: every limit of the copy engine has its own message."""

from __future__ import annotations

import pytest

from tilewright.errors import DriverError, InvalidTensorMap
from tilewright.ir.dtypes import ALL
from tilewright.targets.cuda.driver import find_driver
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.cuda.tma import encoded
from tilewright.targets.gpu.copies.boxes import Swizzle
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor
from tilewright.targets.gpu.products.descriptors import WgmmaOperand

F16, U8 = ALL["float16"], ALL["uint8"]


def descriptor(**changes):
    facts = {
        "engine": ENGINE,
        "dtype": F16,
        "address": 4096,
        "extents": (1000, 300),
        "strides": (2048,),
        "box": (64, 128),
        "swizzle": Swizzle.B128,
    }
    return BoxDescriptor(**{**facts, **changes})


def test_a_good_tensor():
    found = descriptor()
    assert found.box_bytes == 64 * 128 * 2 and found.element_strides == (1, 1)
    assert descriptor(element_strides=(1, 3)).box_bytes == 64 * 43 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"address": 4104}, "address 0x1008 is not a multiple of 16"),
        ({"strides": (2040,)}, "stride of dimension 1, 2040 bytes"),
        ({"strides": (1 << 40,)}, "below 2\\^40"),
        ({"strides": ()}, "2 dimensions need 1 strides"),
        ({"extents": (0, 300)}, "dimension 0 has 0 elements"),
        ({"extents": (1,) * 6, "strides": (16,) * 5, "box": (8,) * 6}, "6 dimensions, and 1 to 5"),
        ({"box": (64, 257)}, "257 elements along dimension 1"),
        ({"box": (128, 8)}, "rows of 256 bytes are longer than the 128 bytes"),
        ({"box": (4, 8)}, "rows of 8 bytes are not a multiple of 16"),
        ({"box": (64,)}, "box has 1 dimensions"),
        ({"element_strides": (1, 9)}, "element strides"),
        ({"dtype": ALL["float4_e2m1fn"]}, "not an element type"),
        ({"dtype": U8, "nan_fill": True}, "no NaN"),
    ],
)  # fmt: skip
def test_limits(changes, message):
    with pytest.raises(InvalidTensorMap, match=message):
        descriptor(**changes)


@pytest.mark.parametrize(("mode", "mask"), [(Swizzle.B128, 7), (Swizzle.B64, 3), (Swizzle.B32, 1), (Swizzle.NONE, 0)])
def test_swizzles(mode, mask):
    for offset in range(0, 4096, 2):
        assert mode.apply(offset) == offset ^ ((offset >> 7 & mask) << 4)
        assert mode.apply(mode.apply(offset)) == offset
    field = {Swizzle.NONE: 0, Swizzle.B128: 1, Swizzle.B64: 2, Swizzle.B32: 3}[mode]
    assert WgmmaOperand("k", mode, 0, 0, ()).descriptor >> 62 == field
    assert mode.period == {Swizzle.NONE: 128, Swizzle.B128: 1024, Swizzle.B64: 512, Swizzle.B32: 256}[mode]


@pytest.mark.skipif(find_driver() is not None, reason="this machine has a GPU")
def test_encoding_says_that_it_needs_a_driver():
    with pytest.raises(DriverError, match="encoding a tensor map needs an NVIDIA GPU"):
        encoded(descriptor())
