"""What programs of many features at once found of copies and operands (`tests/fuzz/mixed_writer.py`): where a region begins, and what lies beyond a tensor's end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_found_programs import AMD, AMPERE, GPUS, NVIDIA, agree, numbers

import tilewright
import tilewright.language as T
from tilewright.errors import NotAsynchronous
from tilewright.ir.dtypes import ALL
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.options import override

STARTS = {
    "a multiple of 16 bytes": (lambda n, k: n * 8 + k * 64, True),
    "any column": (lambda n, k: n, False),
    "steps of 60": (lambda n, k: k * 60, False),
    "columns before the tensor": (lambda n, k: k * 64 - 8, True),
}


@pytest.mark.parametrize("shape", [(2, 1, 4, 8), (2, 1, 1, 8), (1, 1, 4, 8), (3, 1, 5)])
def test_matrices_are_turned_one_by_one_whatever_stands_before_them(shape: tuple[int, ...]) -> None:
    """Tiles with an extent of 1 were taken for single matrices, and refused."""
    turned = (*shape[:-2], shape[-1], shape[-2])

    def program(A):
        A: T.Tensor(shape, "int32")
        O = T.empty(turned, "int32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared(shape, "int32")
            T.copy(A, s)
            T.transpose(s, O)
        return O

    given = numbers(*shape, dtype="int32")
    agree(program, AMPERE, given)
    np.testing.assert_array_equal(
        tilewright.jit(target="cpu")(program).compile(given).interpret(given), np.swapaxes(given, -1, -2)
    )


@pytest.mark.parametrize("target", [AMPERE, AMD])
@pytest.mark.parametrize("where", ["variable", "element"])
def test_copies_from_where_a_variable_says_run_over_the_end(target: str, where: str) -> None:
    """The guard of a whole vector was asked for again at its load, where a variable's value is no fact that the engine keeps."""

    def program(A, B):
        A: T.Tensor((24, 64), "float16")
        B: T.Tensor((4,), "int32")
        O = T.empty((16, 64), "float16")
        with T.Kernel(1, threads=32) as bx:
            at = T.alloc_var("int32", init=B[1])
            tile = T.alloc_fragment((16, 64), "float16")
            if where == "variable":
                T.copy(A[0:16, at * 2 : at * 2 + 64], tile)
            else:
                T.copy(A[0:16, B[bx] * 2 : B[bx] * 2 + 64], tile)
            T.copy(tile, O)
        return O

    agree(program, target, numbers(24, 64, dtype="float16"), np.array([3, -5, 1, 1], np.int32))


@pytest.mark.parametrize("target", [AMPERE, NVIDIA, AMD])
def test_tensors_by_pointer_that_each_turn_of_a_pipeline_finds(target: str) -> None:
    """Their declaration left the loop, and the loop's variable did not."""

    def program(P, M):
        P: T.Tensor((3,), T.ptr)
        M: T.Tensor((3,), "int32")
        O = T.empty((4, 32), "int32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((4, 32), "int32")
            total = T.alloc_fragment((4, 32), "int32")
            T.clear(total)
            for k in T.Pipelined(3, num_stages=2):
                which = (k + 1) % 3
                A = T.make_tensor(P[which], (M[k], 32), "int32")
                T.copy(A[1, 0], s)
                for i, j in T.Parallel(4, 32):
                    total[i, j] += s[i, j]
            T.copy(total, O)
        return O

    agree(program, target, [numbers(rows, 32, dtype="int32") for rows in (5, 3, 1)], np.array([3, 1, 5], np.int32))


@pytest.mark.parametrize("target", [AMPERE, AMD])
@pytest.mark.parametrize("columns", [2, 22])
def test_bytes_of_rows_of_even_lengths_run_over_both_ends(target: str, columns: int) -> None:
    """Of the 32 bounds of a vector in pairs the engine kept too few to know that its parts are inside."""

    def program(A, n: T.int32):
        m = T.dynamic("m")
        A: T.Tensor((16, m), "int8")
        O = T.empty((16, 64), "int8")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 64), "int8")
            T.copy(A[0:16, n * 8 : n * 8 + 64], s)
            T.copy(s, O)
        return O

    agree(program, target, numbers(16, columns, dtype="int8"), -1)


def test_the_copy_engine_reads_nothing_of_a_tensor_without_elements() -> None:
    """Its map said one element, at an address where there is none."""

    def program(A, B):
        m = T.dynamic("m")
        A: T.Tensor((m, 64), "float16")
        B: T.Tensor((64, 64), "float16")
        C = T.empty((64, 64), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(2, num_stages=2, specialize=True):
                T.copy(A[k * 64, 0], a)
                T.copy(B, b)
                T.gemm(a, b, total)
            T.copy(total, C)
        return C

    kernel = tilewright.jit(target=NVIDIA)(program).compile(
        numbers(8, 64, dtype="float16"), numbers(64, 64, dtype="float16")
    )
    for rows in (0, 1, 100):
        given = numbers(rows, 64, dtype="float16"), numbers(64, 64, dtype="float16")
        np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))
    assert "tma_load" in kernel.get_kernel_source()


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(
    ("columns", "first", "way"), [(20, 0, ""), (40, 4, ""), (16, 0, "columns"), (16, 0, "longer"), (40, 8, "")]
)
def test_matrices_are_loaded_whole_where_their_rows_lie_so(columns: int, first: int, way: str, turned: bool) -> None:
    """``ldmatrix`` read rows of 16 bytes of tiles in any layout, and from any column on: misaligned on the GPU, or other elements."""
    shape = (64, columns) if turned else (32, columns)

    def program(A, B):
        A: T.Tensor(shape, "float16")
        B: T.Tensor((16, 64) if turned else (16, 16), "float16")
        C = T.empty((16, 16) if turned else (32, 16), "float32")
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(shape, "float16")
            if way == "columns":
                T.annotate_layout({a: T.Layout(shape, lambda i, j: j * shape[0] + i)})
            if way == "longer":
                T.annotate_layout({a: T.Layout(shape, lambda i, j: i * (columns + 4) + j)})
            T.copy(A, a)
            b = T.alloc_shared((16, 64) if turned else (16, 16), "float16")
            T.copy(B, b)
            total = T.alloc_fragment((16, 16) if turned else (32, 16), "float32")
            T.clear(total)
            T.gemm(a[:, first : first + 16], b, total, transpose_A=turned, transpose_B=True)
            T.copy(total, C)
        return C

    given = numbers(*shape, dtype="float16"), numbers(16, 64 if turned else 16, dtype="float16")
    agree(program, AMPERE, *given)


@pytest.mark.parametrize("shape", [(2, 1, 4, 8), (2, 1, 1, 8), (1, 5, 1), (1, 1)])
@pytest.mark.parametrize("kept", [True, False])
def test_positions_in_tiles_with_extents_of_one(shape: tuple[int, ...], kept: bool) -> None:
    """Dimensions of extent 1 were counted on one side only: results stood in other places, or nowhere."""
    for dim in range(-len(shape), len(shape)):
        left = list(shape)
        left[dim] = 1
        if not kept and len(shape) > 1:
            del left[dim]

        def program(A):
            A: T.Tensor(shape, "float32")
            O = T.empty(tuple(left), "int32")  # noqa: B023
            with T.Kernel(1, threads=64):
                tile = T.alloc_fragment(shape, "float32")
                places = T.alloc_fragment(tuple(left), "int32")  # noqa: B023
                T.copy(A, tile)
                T.reduce_argmax(tile, places, dim=dim)  # noqa: B023
                T.copy(places, O)
            return O

        given = numbers(*shape)
        expected = np.argmax(given, axis=dim).reshape(left)
        kernel = tilewright.jit(target="cpu")(program).compile(given)
        np.testing.assert_array_equal(kernel.interpret(given), expected)
        if dim == 0:
            np.testing.assert_array_equal(kernel(given), expected)


@pytest.mark.parametrize("start", STARTS)
def test_boxes_begin_at_multiples_of_16_bytes(start: str) -> None:
    """Fuzz seed 2000244, an illegal instruction on the H200: the copy engine takes no other innermost coordinate."""
    place, fits = STARTS[start]

    def program(A, B, n: T.int32):
        A: T.Tensor((64, 256), "float16")
        B: T.Tensor((256, 64), "float16")
        O = T.empty((64, 64), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, place(n, k)], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, total)
            T.copy(total, O)
        return O

    given = numbers(64, 256, dtype="float16"), numbers(256, 64, dtype="float16"), 3
    kernel = tilewright.jit(target=NVIDIA)(program).compile(*given)
    assert ("A_map" in kernel.get_kernel_source()) == fits
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))


def test_copies_by_hand_that_begin_within_16_bytes_are_refused() -> None:
    def program(A, n: T.int32):
        A: T.Tensor((64, 256), "float16")
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 64), "float16")
            T.clear(s)
            T.tma_copy(s, A[0, n])

    with pytest.raises(NotAsynchronous, match="rows of A are not known to be taken from a multiple of 16 bytes on"):
        tilewright.jit(target=NVIDIA)(program).compile(numbers(64, 256, dtype="float16"), 3)


@pytest.mark.parametrize("way", ["matrix instruction", "copy", "loop"])
def test_the_engine_fills_a_slot_again_when_its_loads_have_come_back(way: str) -> None:
    """An arrival overtook the loads before it, and the next tile came into rows that were still to be read: on a GPU alone."""
    size = 64  # by rows too few for a warpgroup's instruction

    def program(A, B, n: T.int32):
        A: T.Tensor((32, 256), "int8")
        B: T.Tensor((size, 256), "int8")
        O = T.empty((32, size), "int32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((32, 64), "int8"), T.alloc_shared((size, 64), "int8")
            held = T.alloc_fragment((size, 64), "int8")
            total = T.alloc_fragment((32, size), "int32")
            T.clear(total)
            for k in T.Pipelined(n, num_stages=1, specialize=True):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                if way == "matrix instruction":
                    T.gemm(a, b, total, transpose_B=True)
                if way == "copy":
                    T.copy(b, held)
                    T.gemm(a, held, total, transpose_B=True)
                if way == "loop":
                    for i, j in T.Parallel(32, size):
                        total[i, j] += T.cast(a[i, j], "int32") * T.cast(b[j, i], "int32")
            T.copy(total, O)
        return O

    given = numbers(32, 256, dtype="int8"), numbers(size, 256, dtype="int8"), 4
    kernel = tilewright.jit(target=NVIDIA)(program).compile(*given)
    assert "tma_load(" in kernel.get_kernel_source()
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("way", ["copy", "clear", "loop"])
def test_the_engine_fills_what_threads_wrote_before(way: str, again: bool, read: bool) -> None:
    """A load by hand was not fenced from threads' stores to its tile; what they read of it in between has a fence of its own."""

    def program(A, B):
        A: T.Tensor((64, 64), "float16")
        B: T.Tensor((64, 64), "float16")
        O = T.empty((64, 64), "float16")
        with T.Kernel(1, threads=128):
            full = T.alloc_barrier(128)
            s = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float16")
            T.clear(total)
            for k in T.serial(3 if again else 1):
                if way == "copy":
                    T.copy(B, s, disable_tma=True)
                if way == "clear":
                    T.clear(s)
                if way == "loop":
                    for i, j in T.Parallel(64, 64):
                        s[i, j] = B[j, i]
                for i, j in T.Parallel(64, 64):
                    total[i, j] += s[i, j] if read else 1
                T.sync_threads()
                T.tma_copy(A, s, barrier=full)
                T.mbarrier_arrive(full)
                T.mbarrier_wait_parity(full, k % 2)
                for i, j in T.Parallel(64, 64):
                    total[i, j] += s[i, j]
                T.sync_threads()
            T.copy(total, O)
        return O

    agree(program, NVIDIA, numbers(64, 64, dtype="float16"), numbers(64, 64, dtype="float16").T.copy())


@pytest.mark.parametrize("size", [3, 100, 9000])
@pytest.mark.parametrize("scope", ["fragment", "shared"])
def test_what_nobody_wrote_shows_where_it_is_asked_for(scope: str, size: int) -> None:
    """With the option poison tiles begin as NaN; without it they hold whatever was there."""

    def program(A):
        A: T.Tensor((size,), "float32")
        O = T.empty((size,), "float32")
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((size,), "float32") if scope == "fragment" else T.alloc_shared((size,), "float32")
            for i in T.Parallel(size):
                if A[i] > 0:
                    tile[i] = A[i]
            T.copy(tile, O)
        return O

    given = np.where(np.arange(size) % 3 == 1, 2.0, -1.0).astype(np.float32)
    with override(poison=True):
        found = tilewright.jit(target="cpu")(program)(given)
    np.testing.assert_array_equal(found, np.where(given > 0, given, np.nan))


@pytest.mark.parametrize("start", [0, 3, 60])
@pytest.mark.parametrize("value", [0, -3])
@pytest.mark.parametrize("target", GPUS)
def test_right_operands_in_registers_have_safe_values_beyond_the_tensor(target: str, value: int, start: int) -> None:
    """Fuzz seed 3000823: lanes that exchange words filled with zeros, whatever the author's safe value."""

    def program(A, B):
        A: T.Tensor((16, 64), "float16")
        B: T.Tensor((64, 64), "float16")
        O = T.empty((16, 64), "float32")
        P = T.empty((64, 64), "float16")
        with T.Kernel(1, threads=64):
            T.annotate_safe_value({B: value})
            a, b = T.alloc_shared((16, 64), "float16"), T.alloc_fragment((64, 64), "float16")
            total = T.alloc_fragment((16, 64), "float32")
            T.clear(total)
            T.copy(A, a)
            T.copy(B[start, 0], b)
            T.gemm(a, b, total, transpose_B=True)
            T.copy(total, O)
            T.copy(b, P)
        return O, P

    given = numbers(16, 64, dtype="float16"), numbers(64, 64, dtype="float16")
    kernel = tilewright.jit(target=target)(program).compile(*given)
    for found, expected in zip(kernel.emulate(*given), kernel.interpret(*given), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rows", [0, 1, 40, 64])
@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16"])
def test_products_read_what_the_author_calls_safe(dtype: str, rows: int) -> None:
    """Fuzz seed 10060212: processors count rows beyond a tensor's end as zeros in a product, whatever was said of them."""

    def program(A):
        m = T.dynamic("m")
        A: T.Tensor((m, 16), dtype)
        total = "int32" if dtype == "int8" else "float32"
        O = T.empty((64, 24), total)
        with T.Kernel(1, threads=32):
            left, right = T.alloc_shared((64, 16), dtype), T.alloc_shared((16, 24), dtype)
            T.annotate_safe_value({A: 2})
            T.copy(A[0:64, 0:16], left)
            T.fill(right, 1)
            product = T.alloc_fragment((64, 24), total)
            T.gemm(left, right, product, clear_accum=True)
            T.copy(product, O)
        return O

    given = np.full((rows, 16), 3, ALL[dtype].numpy)
    kernel = tilewright.jit(target="cpu")(program).compile(given)
    np.testing.assert_array_equal(kernel(given), np.where(np.arange(64)[:, None] < rows, 48, 32) + np.zeros((1, 24)))


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cpu -arch=x86_64"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_shift_is_added_to_rows_and_columns_that_do_not_exist(dtype: str, target: str, beside: bool) -> None:
    """Processors left c as it was where a tile hangs over the end of its tensor: products are zeros there, and their shift is not.
    Where the shift (or the columns' scales) comes to its end with the tensor, all are zeros."""
    rows, columns = (19, 30) if beside else (32, 64)

    def program(A, B, S, F):
        M, N = rows, columns
        A: T.Tensor((19, 64), dtype)
        B: T.Tensor((30, 64), dtype)
        S: T.Tensor((M,), "float32")
        F: T.Tensor((N,), "float32")
        O = T.empty((32, 64), "float32")
        with T.Kernel(2, 2, threads=64) as (bx, by):
            a, b = T.alloc_shared((16, 64), dtype), T.alloc_shared((32, 64), dtype)
            total = T.alloc_fragment((16, 32), "float32")
            T.copy(A[by * 16, 0], a)
            T.copy(B[bx * 32, 0], b)
            T.clear(total)
            shift, scale = S[by * 16 : by * 16 + 16], F[bx * 32 : bx * 32 + 32]
            T.gemm(a, b, total, transpose_B=True, shift=shift, scale_B=scale)
            T.copy(total, O[by * 16, bx * 32])
        return O

    given = (numbers(19, 64, dtype=dtype), numbers(30, 64, dtype=dtype), numbers(rows), numbers(columns))
    A, B = (np.pad(one.astype(np.float64), [(0, size - len(one)), (0, 0)]) for one, size in zip(given[:2], (32, 64)))
    S, F = (np.pad(one, (0, size - len(one))) for one, size in zip(given[2:], (32, 64)))
    kernel = tilewright.jit(target=target)(program).compile(*given)
    np.testing.assert_array_equal(kernel(*given), (A @ B.T + S[:, None]) * F)
    np.testing.assert_array_equal(kernel.interpret(*given), (A @ B.T + S[:, None]) * F)


def ran(program: Any, target: str, given: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> Any:
    """A kernel whose results are the expected ones: of the emulator or a processor, and of the interpreter."""
    kernel = tilewright.jit(target=target)(program).compile(*given)
    for found in ((kernel if target == "cpu" else kernel.emulate)(*given), kernel.interpret(*given)):
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, right)
    return kernel


@pytest.mark.filterwarnings("ignore:.*threads multiply", "ignore:.*not pipelined")
@pytest.mark.parametrize("target", [AMPERE, NVIDIA, AMD, "cpu"])
@pytest.mark.parametrize("way", ["left", "turned left", "right", "turned right"])
def test_a_fragment_lies_as_matrix_instructions_read_it(way: str, target: str) -> None:
    """Fuzz seed 10007181: a product of scalars had its rows as columns, so lanes exchanged words in it as they lie in such
    a right operand, but the matrix instructions behind the loop read it otherwise."""
    turned, is_left = way.startswith("turned"), way.endswith("left")
    rows, columns = (32, 64) if turned else (64, 32)
    beside = (columns, 32) if is_left else (32, rows)
    shape = (rows, 32) if is_left else (32, columns)

    def program(A, B, S, F):
        A: T.Tensor((40, 96), "float16")
        B: T.Tensor(beside, "float16")
        S: T.Tensor((32, 32), "float16")
        F: T.Tensor((32,), "float32")
        O, P, Q = T.empty((2, *shape), "float32"), T.empty((2, 64, 32), "float16"), T.empty((2, 32, 64), "float32")
        with T.Kernel(2, threads=128) as bx:
            s, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared(beside, "float16")
            f = T.alloc_fragment((64, 32), "float16")
            shifted, total = T.alloc_fragment((32, 64), "float32"), T.alloc_fragment(shape, "float32")
            T.clear(shifted)
            T.clear(total)
            T.copy(S, s)
            T.copy(B, b)
            for k in T.Pipelined(3, num_stages=3):
                T.copy(A[0, k * 32], f)
                T.gemm(s, f, shifted, transpose_B=True, shift=F)
            if bx % 2 == 0:
                if is_left:
                    T.gemm(f, b, total, transpose_A=turned)
                else:
                    T.gemm(b, f, total, transpose_B=turned)
            T.copy(total, O[bx, :, :])
            T.copy(f, P[bx, :, :])
            T.copy(shifted, Q[bx, :, :])
        return O, P, Q

    given = (*(numbers(*one, dtype="float16") for one in ((40, 96), beside, (32, 32))), numbers(32))
    wide = np.pad(given[0].astype(np.float64), [(0, 24), (0, 0)])
    last, B, S = wide[:, 64:], given[1].astype(np.float64), given[2].astype(np.float64)
    f = last.T if turned else last
    product = f @ B if is_left else B @ f
    shifted = S @ sum(wide[:, k * 32 : k * 32 + 32].T for k in range(3)) + 3 * given[3][:, None].astype(np.float64)
    ran(program, target, given, (np.stack([product, 0 * product]), np.stack([last] * 2), np.stack([shifted] * 2)))


@pytest.mark.parametrize("target", [AMPERE, NVIDIA])
@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("turned", [False, True])
def test_codes_that_are_read_turned_lie_otherwise_than_records(turned: bool, threads: int, target: str) -> None:
    """Words of records were put where a left operand has them, also where the product reads the codes turned."""
    form = FragmentRecords(4, ALL["float16"])
    codes = np.random.default_rng(0).integers(0, 16, (64, 128)).astype(np.uint8)
    records = form.pack({"codes": codes})

    def program(W, B):
        W: T.Tensor(records.shape, "uint32")
        B: T.Tensor((64, 64), "float16")
        O, P = T.empty((64, 64), "float32"), T.empty((64, 64), "float16")
        with T.Kernel(1, threads=threads):
            words = T.alloc_shared((records.shape[0], 1, records.shape[2]), "uint32")
            b, f = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            T.copy(W[0, 0, 0], words)
            T.copy(B, b)
            T.unpack(words[:, 0, :], form, f, first=0, offset=8)
            T.gemm(f, b, total, transpose_A=turned)
            T.copy(total, O)
            T.copy(f, P)
        return O, P

    given = records, numbers(64, 64, dtype="float16")
    weights = codes[:, :64].astype(np.float64) - 8
    product = (weights.T if turned else weights) @ given[1].astype(np.float64)
    ran(program, target, given, (product, weights))


@pytest.mark.parametrize("columns", [12, 24])
@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx950"])
def test_rows_that_end_are_brought_ahead_of_the_loop(target: str, columns: int) -> None:
    """Before the loop, where its range says nothing, no piece was found whole: a traceback from inside."""

    def program(count: T.int32, A, B):
        K = T.dynamic("K")
        A: T.Tensor((9, K), "float16")
        B: T.Tensor((8, 32), "float16")
        O = T.empty((8, 32), "float32")
        with T.Kernel(1, threads=128):
            s, t = T.alloc_shared((8, 8), "float16"), T.alloc_shared((8, 32), "float16")
            f = T.alloc_fragment((8, 32), "float32")
            T.clear(f)
            for k in T.Pipelined(T.min(count, T.ceildiv(K, 8)), num_stages=2, specialize=False):
                for i, j in T.Parallel(8, 8):
                    if k * 8 + j < K:
                        s[i, j] = A[i, k * 8 + j]
                    else:
                        s[i, j] = T.cast(0, "float16")
                for i, j in T.Parallel(8, 32):
                    t[i, j] = B[i, j]
                T.gemm(s, t, f)
            T.copy(f, O)
        return O

    rng = np.random.default_rng(columns)
    given = [rng.integers(-3, 4, shape).astype("float16") for shape in ((9, columns), (8, 32))]
    kernel = tilewright.jit(target=target)(program).compile(3, *given)
    rows = np.zeros((8, 24), np.float32)
    rows[:, :columns] = given[0][:8]
    expected = sum(rows[:, at : at + 8] @ given[1].astype(np.float32) for at in (0, 8, 16))
    np.testing.assert_array_equal(kernel.interpret(3, *given), expected)
    np.testing.assert_array_equal(kernel.emulate(3, *given), expected)
