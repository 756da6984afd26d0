"""Variants for sizes known only at launch: rows that start at multiples of the widest access."""

import numpy as np
import pytest

from tilewright.errors import MisalignedArgument
from tilewright.ir.printer import print_program
from tilewright.kernels.softmax import softmax_of_long_rows
from tilewright.runtime.arguments import Binder
from tilewright.runtime.facts import assuming, holds, stride_sizes
from tilewright.specialization import JITFunction

SOFTMAX = JITFunction(softmax_of_long_rows.direct.function, "cuda -arch=sm_80", None)


def rows(columns):
    return np.random.default_rng(0).standard_normal((5, columns)).astype(np.float32)


def test_only_sizes_that_step_between_rows_count():
    function = SOFTMAX.compile(rows(10)).function
    (size,) = stride_sizes(function)
    assert size.name == "N"
    assert holds(function, (size,), [0, 0, 5, 32]) and not holds(function, (size,), [0, 0, 16, 33])
    assert "N % 16 == 0" in print_program(assuming(function, (size,)))


@pytest.mark.parametrize("columns, vectors", [(1040, True), (1041, False)])
def test_aligned_rows_move_in_vectors(columns, vectors):
    x = rows(columns)
    kernel = SOFTMAX.compile(x)
    shifted = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(kernel.emulate(x), shifted / shifted.sum(1, keepdims=True), rtol=1e-5, atol=1e-12)
    assert ("load_fragment<4>" in kernel._variant([0, 0, 5, columns]).get_kernel_source()) == vectors
    assert "load_fragment<4>" not in kernel.get_kernel_source()


def test_addresses_that_vectors_cannot_start_at_are_refused():
    memory = np.zeros(4 * 16 + 4, np.float32)
    start = (-memory.ctypes.data // 4) % 4 + 1
    kernel = SOFTMAX.compile(rows(16))
    with pytest.raises(MisalignedArgument, match="'X' starts at an address that is no multiple of 16 bytes"):
        Binder(kernel.function, "cpu", None, 16).bind([memory[start : start + 64].reshape(4, 16)], {})
