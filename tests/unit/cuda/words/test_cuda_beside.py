"""Kernels that begin beside the end of the one before them (`T.Kernel(beside=True)`)."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright.language as T
from tilewright.errors import EmulationError


def twice_and_thrice(A, reads_first=False, writes_first=False, waits=False):
    """Two kernels: rows of B are A's twice, rows of C thrice, or what one of them makes of the other's."""
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B, C = T.empty((N,), "float32"), T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 128), threads=128) as x:
        if waits:
            T.pdl_sync()
        for i in T.Parallel(128):
            B[x * 128 + i] = A[x * 128 + i] * 2.0
            if writes_first:
                C[x * 128 + i] = 1.0
    with T.Kernel(T.ceildiv(N, 128), threads=128, beside=True) as x:
        for i in T.Parallel(128):
            C[x * 128 + i] = (B if reads_first else A)[x * 128 + i] * 3.0
    return B, C


def compiled(architecture="sm_90a", **named):
    a = np.arange(300, dtype=np.float32)
    return a, on(architecture, twice_and_thrice).compile(a, **named)


def test_it_begins_early_and_ends_behind_the_other():
    a, kernel = compiled()
    first, second = kernel.get_kernel_source().split("TW_KERNEL(")[1:]
    assert "launch_dependents" in first and "griddepcontrol_wait" not in first
    assert second.rstrip().endswith("tw::griddepcontrol_wait();\n}") and "launch_dependents" not in second
    for found, factor in zip(kernel.emulate(a), (2, 3)):
        assert np.array_equal(found, factor * a)
    for found, factor in zip(kernel.interpret(a), (2, 3)):
        assert np.array_equal(found, factor * a)


def test_machines_without_such_launches_run_one_after_the_other():
    a, kernel = compiled("sm_80")
    assert "griddepcontrol" not in kernel.get_kernel_source()
    assert np.array_equal(kernel.emulate(a)[1], 3 * a)


def test_what_waits_for_others_is_not_left_early():
    """Whoever begins beside it would not wait for them."""
    a, kernel = compiled(waits=True)
    assert kernel.get_kernel_source().count("griddepcontrol") == 1
    assert "the kernel begins when the one before it has ended" in kernel.explain()
    assert np.array_equal(kernel.emulate(a)[1], 3 * a)


@pytest.mark.parametrize("named", [{"reads_first": True}, {"writes_first": True}], ids=str)
def test_kernels_that_use_one_anothers_memory_are_reported(named):
    a, kernel = compiled(**named)
    with pytest.raises(EmulationError, match="beside"):
        kernel.emulate(a)
