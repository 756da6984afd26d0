"""Tables of pointers: arrays that lie anywhere, found in the kernel; what is said where an entry points to something else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from word_programs import grouped_by_pointers

import tilewright
import tilewright.language as T
from tilewright.errors import EmulationFailed, WrongArgumentKind, WrongPointer
from tilewright.interpreter import interpret
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.language.mistakes import NumberExpected
from tilewright.targets.cuda.compiler import compile_text


def check(arguments, expected):
    for found, wanted in zip(arguments[-2], expected, strict=True):
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "arch, block, options",
    [
        ("sm_80", (32, 32, 32), {}),
        ("sm_90a", (64, 64, 32), {}),
        ("sm_90a", (64, 32, 48), {"persistent": True, "cluster_dims": (2, 1, 1)}),
        ("sm_120a", (48, 64, 32), {"stages": 0}),
    ],
)
def test_grouped_products(arch, block, options):
    function, arguments, expected = grouped_by_pointers(block=block, **options)
    kernel = tilewright.compile(function, target=f"cuda -arch={arch}")
    for schedule in ("late", "early", "random"):
        given = copy.deepcopy(arguments)
        kernel.emulate(*given, schedule=schedule)
        check(given, expected)
    given = copy.deepcopy(arguments)
    kernel.interpret(*given)
    check(given, expected)
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert binary.warnings == ()
    assert "STG" in binary.sass() and " ST." not in binary.sass()


def test_producers_copy_by_threads_and_say_why():
    kernel = tilewright.compile(grouped_by_pointers(block=(64, 64, 32))[0], target="cuda -arch=sm_90a")
    reason = "only the kernel knows where a lies, and the host describes tensors to the engine"
    assert f"cp_async into a_tile_ring (not tma_load: {reason})" in kernel.explain()
    assert "wgmma_ss" in kernel.explain()


def test_on_this_machine():
    """Lists of arrays, and tensors of addresses."""
    function, arguments, expected = grouped_by_pointers()
    kernel = tilewright.compile(function, target="cpu")
    given = copy.deepcopy(arguments)
    for _ in range(2):
        kernel(*given)
        check(given, expected)
    given = copy.deepcopy(arguments)
    tables = [np.array([x.ctypes.data for x in one], kind) for one, kind in zip(given[:2], (np.int64, np.uint64))]
    outputs = np.array([x.ctypes.data for x in given[3]], np.uint64)
    kernel(*tables, given[2], outputs, given[4])
    check(given, expected)


def test_text_of_the_program_and_its_last_stage():
    function, arguments, expected = grouped_by_pointers()
    text = print_program(function.function)
    assert "a = tensor(float16[extent, 96], placed=True, initial=A[g])" in text
    assert print_program(parse(text)) == text
    given = copy.deepcopy(arguments)
    interpret(tilewright.compile(function, target="cuda -arch=sm_80").program.final, given)
    check(given, expected)


@T.prim_func
def row(A: T.Tensor((2,), T.ptr), C: T.Tensor((64,), "float32"), skip: T.int32):
    with T.Kernel(1, threads=64):
        tensor = T.make_tensor(A[1] + T.cast(skip, "uint64"), (64,), "float32")
        T.copy(tensor, C)


@pytest.mark.parametrize(
    "size, skip, message",
    [
        (64, 4, "the address of tensor is no multiple of 16 bytes"),
        (60, 0, "tensor needs 256 bytes, and the tensor pointed to has 240 from there"),
        (64, 4096, "the address of tensor lies in none of the tensors given"),
    ],
)
def test_wrong_entries(size, skip, message):
    arrays = [np.zeros(1, np.float32), np.arange(size, dtype=np.float32)]
    with pytest.raises(WrongPointer) as caught:
        tilewright.compile(row, target="cpu").interpret(arrays, np.zeros(64, np.float32), skip)
    assert str(caught.value).startswith(message) and "T.make_tensor(" in str(caught.value)


def test_addresses_alone_do_not_say_how_much_is_there():
    kernel = tilewright.compile(row, target="cuda -arch=sm_80")
    arguments = np.zeros(2, np.uint64), np.zeros(64, np.float32), 0
    with pytest.raises(EmulationFailed, match="argument 'A' is a tensor of addresses"):
        kernel.emulate(*arguments)
    with pytest.raises(WrongArgumentKind, match="argument A should be a list of arrays"):
        kernel.interpret(*arguments)
    with pytest.raises(WrongArgumentKind, match=r"argument 'A\[1\]' is a int, expected a tensor"):
        tilewright.compile(row, target="cpu")([arguments[1], 3], arguments[1], 0)


def test_what_is_no_address():
    with pytest.raises(NumberExpected, match=r"the pointer of T\.make_tensor is a symbolic float32"):

        @T.prim_func
        def main(A: T.Tensor((2,), "float32"), C: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                T.copy(T.make_tensor(A[1], (64,), "float32"), C)


def test_each_thread_may_not_have_its_own():
    @T.prim_func
    def main(A: T.Tensor((64,), T.ptr), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            C[tx] = T.make_tensor(A[tx], (1,), "float32")[0]

    arrays = [np.zeros(1, np.float32) for _ in range(64)]
    with pytest.raises(tilewright.errors.TilewrightError, match="differs between threads"):
        tilewright.compile(main, target="cpu").interpret(arrays, np.zeros(64, np.float32))
