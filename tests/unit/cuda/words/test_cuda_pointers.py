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
    assert "STG" in binary.machine_code() and " ST." not in binary.machine_code()


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
    with pytest.raises(WrongArgumentKind, match=r"argument 'A\[1\]' is an int, expected a tensor"):
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


def products_of_any_size(A, B, C, rows, depths, columns=64):
    """Products of tensors that nobody declares: extents known to the kernel alone, rows at no known multiple of bytes."""
    groups = T.dynamic("groups")
    A: T.Tensor((groups,), T.ptr)
    B: T.Tensor((groups,), T.ptr)
    C: T.Tensor((groups,), T.ptr)
    rows: T.Tensor((groups,), "int32")
    depths: T.Tensor((groups,), "int32")
    with T.Kernel(T.ceildiv(128, 64), groups, threads=128) as (block, group):
        left = T.make_tensor(A[group], (rows[group], depths[group]), "float16")
        right = T.make_tensor(B[group], (depths[group], columns), "float16")
        product = T.make_tensor(C[group], (rows[group], columns), "float32")
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, columns), "float16")
        c = T.alloc_fragment((64, columns), "float32")
        if block * 64 < rows[group]:
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(depths[group], 32), num_stages=3):
                T.copy(left[block * 64, k * 32], a)
                T.copy(right[k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, product[block * 64, 0])


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_lists_of_tensors_in_the_direct_style(target):
    """And NVRTC comes to an end: of guarded elements of a class it once did not, see `CudaExpressions.expression_Select`."""
    rng = np.random.default_rng(0)
    rows, depths = np.array([40, 70, 5], np.int32), np.array([64, 93, 161], np.int32)
    a = [rng.integers(-3, 4, (m, k)).astype(np.float16) for m, k in zip(rows, depths)]
    b = [rng.integers(-3, 4, (k, 64)).astype(np.float16) for k in depths]
    kernel = tilewright.jit(target=target)(products_of_any_size).compile(a, b, a, rows, depths)
    for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
        c = [np.full((m, 64), np.nan, np.float32) for m in rows]
        run(a, b, c, rows, depths)
        assert all(np.array_equal(got, x.astype(int) @ y.astype(int)) for got, x, y in zip(c, a, b))
    if target == "cpu":
        c = [np.full((m, 64), np.nan, np.float32) for m in rows]
        tilewright.jit(target=target)(products_of_any_size)(a, b, c, rows, depths)
        assert all(np.array_equal(got, x.astype(int) @ y.astype(int)) for got, x, y in zip(c, a, b))
    else:
        assert kernel.resources()["products_of_any_size_kernel"]["spill_store_bytes"] == 0


@pytest.mark.parametrize("initial", [0, 2])
def test_roles_find_the_tensor_by_scalars_that_are_set_in_a_loop(initial):
    """The producer computes what the address depends on, the scalar that a loop sets among it."""
    groups, rows, columns, depth = 3, 64, 64, 96

    @T.prim_func
    def grouped(
        A: T.Tensor((groups,), T.ptr), first: T.Tensor((groups,), "int32"), sizes: T.Tensor((groups,), "int32"),
        B: T.Tensor((depth, columns), "float16"), C: T.Tensor((groups * rows, columns), "float32"),
    ):  # fmt: skip
        with T.Kernel(groups, threads=128) as bx:
            which = T.alloc_var("int32", init=initial)
            for i in T.serial(groups):
                which = T.if_then_else(bx >= first[i], i, which)
            height = T.alloc_var("int32", init=0)
            height = sizes[which]
            a = T.make_tensor(A[which], (height, depth), "float16")
            a_tile, b_tile = T.alloc_shared((rows, 32), "float16"), T.alloc_shared((32, columns), "float16")
            total = T.alloc_fragment((rows, columns), "float32")
            T.clear(total)
            for k in T.Pipelined(depth // 32, num_stages=2):
                T.copy(a[0, k * 32], a_tile)
                T.copy(B[k * 32, 0], b_tile)
                T.gemm(a_tile, b_tile, total)
            T.copy(total, C[bx * rows, 0])

    rng = np.random.default_rng(initial)
    sizes = np.array([64, 33, 7], np.int32)
    a = [rng.standard_normal((m, depth)).astype(np.float16) for m in sizes]
    b = rng.standard_normal((depth, columns)).astype(np.float16)
    kernel = tilewright.compile(grouped, target="cuda -arch=sm_90a")
    assert "loads_full" in kernel.get_kernel_source()
    for schedule in ("late", "early", "random"):
        c = np.full((groups * rows, columns), np.nan, np.float32)
        kernel.emulate(a, np.arange(groups, dtype=np.int32), sizes, b, c, schedule=schedule)
        for number, one in enumerate(a):
            expected = np.zeros((rows, columns))
            expected[: len(one)] = one.astype(np.float64) @ b.astype(np.float64)
            np.testing.assert_allclose(c[number * rows : (number + 1) * rows], expected, atol=2e-3)
