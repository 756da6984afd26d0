"""What programs that say whatever the language has words for found (`tests/fuzz/word_writer.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.language.mistakes import SliceStep

NVIDIA, AMD, APPLE = "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"


def numbers(*shape: int, dtype: str = "float16") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("persistent", [True, "claim"])
def test_tiles_of_blocks_that_stay_lie_where_their_author_says(persistent: bool | str, inside: bool) -> None:
    """The tiles of a role's loop over tiles of the grid were new ones, of which the kernel no longer said where they lie: an internal error."""

    def program(A: Any, B: Any) -> Any:
        A: T.Tensor((256, 64), "float16")
        B: T.Tensor((32, 32), "float16")
        C = T.empty((256, 32), "float32")
        with T.Kernel(4, threads=128, persistent=persistent) as bx:
            s, w = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 32), "float16")
            f, c = T.alloc_fragment((64, 32), "float32"), T.alloc_fragment((64, 32), "float32")
            number = lambda i, j: i * 32 + j  # noqa: E731
            T.annotate_layout(
                {
                    f: T.Fragment(
                        (64, 32), lambda i, j: (number(i, j) // 4 % 128, number(i, j) // 512 * 4 + number(i, j) % 4)
                    )
                }
            )
            T.clear(f)
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2, specialize=True):
                T.copy(A[bx * 64, k * 32], s)
                T.copy(B, w)
                if inside:
                    u = T.alloc_shared((64, 32), "float16")
                    T.annotate_layout({u: T.Layout((64, 32), lambda i, j: i * 40 + j)})
                    T.copy(s, u)
                    T.gemm(u, w, c)
                else:
                    T.gemm(s, w, c)
                for i, j in T.Parallel(64, 32):
                    f[i, j] = f[i, j] + s[i, j]
            for i, j in T.Parallel(64, 32):
                c[i, j] = c[i, j] + f[i, j]
            T.copy(c, C[bx * 64, 0])
        return C

    a, b = numbers(256, 64), numbers(32, 32)
    kernel = tilewright.jit(target=NVIDIA)(program).compile(a, b)
    right = sum(a[:, k : k + 32].astype(np.float32) @ b.astype(np.float32) + a[:, k : k + 32] for k in (0, 32))
    for found in (kernel.emulate(a, b), kernel.interpret(a, b)):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("form", ["variable", "constant", "array", "name"])
def test_roles_leave_alone_what_threads_of_others_have(form: str) -> None:
    """In kernels whose warps are divided, the interpreter stored what the last role did into the variables of all threads; what
    differed among threads it refused with an error of NumPy's."""

    def program(A: Any, B: Any) -> Any:
        A: T.Tensor((256,), "int32")
        B: T.Tensor((16, 16), "int32")
        C = T.empty((2, 256), "int32")
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            own = T.alloc_var("int32", init=A[tx] if form != "constant" else 7)
            parts = T.alloc_local((2,), "int32")
            parts[1] = A[tx] * 2
            y = A[tx] + 1
            s, u = T.alloc_shared((16, 16), "int32"), T.alloc_shared((16, 16), "int32")
            with T.ws(1):
                T.fill(s, 3)
            if tx < 192:
                T.copy(B, u)
            else:
                T.copy(B, s)
                own = 5
                if form == "array":
                    parts[1] = s[tx % 16, 3]
                if form == "name":
                    own = y * s[1, tx % 16]
            C[0, tx] = own
            C[1, tx] = parts[1] + y
        return C

    a, b = numbers(256, dtype="int32"), numbers(16, 16, dtype="int32")
    tx, late = np.arange(256), np.arange(256) >= 192
    own = np.where(late, (a + 1) * b[1, tx % 16] if form == "name" else 5, 7 if form == "constant" else a)
    parts = np.where(late & (form == "array"), b[tx % 16, 3], 2 * a)
    kernel = tilewright.jit(target=NVIDIA)(program).compile(a, b)
    for found in (kernel.emulate(a, b), kernel.interpret(a, b)):
        np.testing.assert_array_equal(found, np.stack([own, parts + a + 1]))


@pytest.mark.parametrize("form", ["changed", "read before", "met"])
def test_what_all_threads_have_alike_changes_once_for_each(form: str) -> None:
    """On processors a statement that threads run one by one changed a variable that they have alike as often as there are threads."""

    def program(A: Any) -> Any:
        A: T.Tensor((96,), "int32")
        C = T.empty((2, 96), "int32")
        with T.Kernel(1, threads=96):
            tx = T.get_thread_binding()
            o, y = T.alloc_var("int32", init=1), T.alloc_var("int32", init=0)
            if form == "read before":
                C[0, tx] = o
            for _ in T.serial(2):
                if form == "met":
                    T.sync_threads()
                    if A[tx] > 0:
                        y += 1
                o -= 6
                y += A[tx]
            if form != "read before":
                C[0, tx] = o
            C[1, tx] = y
        return C

    a = numbers(96, dtype="int32")
    kernel = tilewright.jit(target="cpu")(program).compile(a)
    right = np.stack([np.full(96, 1 if form == "read before" else -11), 2 * a + 2 * ((a > 0) & (form == "met"))])
    for found in (kernel(a), kernel.interpret(a)):
        np.testing.assert_array_equal(found, right)


def test_a_product_is_waited_for_before_the_next_ones_sum_is_declared() -> None:
    """Every wait held the registers of all sums of its block, of those too that were declared below it: an internal error."""

    def program(A: Any, B: Any) -> Any:
        A: T.Tensor((64, 64), "float16")
        B: T.Tensor((32, 64), "float16")
        C = T.empty((2, 64, 32), "float32")
        with T.Kernel(1, threads=128):
            s, w = T.alloc_shared((64, 64), "float16"), T.alloc_shared((32, 64), "float16")
            T.copy(A, s)
            T.copy(B, w)
            for number in range(2):
                c = T.alloc_fragment((64, 32), "float32")
                T.wgmma_gemm(s, w, c, transpose_B=True, clear_accum=True)
                T.wait_wgmma(0)
                T.copy(c, C[number, :, :])
            one = T.alloc_fragment((64, 32), "float32")
            T.wgmma_gemm(s, w, one, transpose_B=True, clear_accum=True)
            T.wait_wgmma(0)
            other = T.alloc_fragment((64, 32), "float32")
            T.wgmma_gemm(s, w, other, transpose_B=True, clear_accum=True)
            T.wait_wgmma(0)
            for i, j in T.Parallel(64, 32):
                C[1, i, j] = C[1, i, j] + one[i, j] - other[i, j]
        return C

    a, b = numbers(64, 64), numbers(32, 64)
    kernel = tilewright.jit(target=NVIDIA)(program).compile(a, b)
    right = a.astype(np.float32) @ b.T.astype(np.float32)
    for found in (kernel.emulate(a, b), kernel.interpret(a, b)):
        np.testing.assert_array_equal(found, np.stack([right, right]))


@pytest.mark.parametrize("target, threads", [("cpu", 96), (NVIDIA, 32), (NVIDIA, 96), (AMD, 64), (APPLE, 32)])
def test_threads_bring_numbers_under_a_condition(target: str, threads: int) -> None:
    """The condition of `T.tvm_thread_allreduce` was compared with True while the kernel was traced: an error that spoke of macros."""

    def program(A: Any) -> Any:
        A: T.Tensor((threads,), "int32")
        C = T.empty((threads,), "int32")
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "int32")
            reducer = T.comm_reducer(lambda x, y: x + y, [T.int32(0)])
            with T.attr(reducer, "reduce_scope", T.reinterpret(T.uint64(0), "handle")):
                T.tvm_thread_allreduce(1, A[tx], A[tx] > 0, total[0], tx, dtype="handle")
            C[tx] = total[0]
        return C

    a = numbers(threads, dtype="int32")
    kernel = tilewright.jit(target=target)(program).compile(a)
    for found in ((kernel if target == "cpu" else kernel.emulate)(a), kernel.interpret(a)):
        assert (found == a[a > 0].sum()).all()


def asked(statement: Any) -> str:
    """What a kernel with a number that only a call knows is refused with."""

    def program(A: Any, n: T.int32) -> Any:
        A: T.Tensor((64,), "int32")
        C = T.empty((64,), "int32")
        with T.Kernel(1, threads=64):
            statement(A, n, T.get_thread_binding())
            T.copy(A, C)
        return C

    with pytest.raises(TilewrightError) as refused:
        tilewright.jit(target="cpu")(program).compile(numbers(64, dtype="int32"), 1)
    assert refused.value.span is not None
    return refused.value.message


def test_numbers_that_only_a_call_knows_are_asked_for_by_name() -> None:
    """They were compared with numbers while the kernel was traced, which told of a symbolic condition."""

    def allreduce(A: Any, n: Any, tx: Any) -> None:
        total = T.alloc_local((1,), "int32")
        T.tvm_thread_allreduce(n, A[tx], True, total[0], tx)

    def mma(A: Any, n: Any, tx: Any) -> None:
        a, b, c = T.alloc_local((8,), "float16"), T.alloc_local((4,), "float16"), T.alloc_local((4,), "float32")
        T.ptx_mma("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", a, 0, b, 0, c, 0, n)

    assert "the size of T.tvm_thread_allreduce" in asked(allreduce)
    assert asked(mma).startswith("T.ptx_mma is ")
    assert asked(lambda A, n, tx: T.clear(A[0:8:n])) == SliceStep().message


def test_slices_of_nothing_say_where_they_begin_and_end() -> None:
    """Both were called symbolic."""

    first = "index -7:9 is out of range in dimension 0 of "
    assert asked(lambda A, n, tx: T.clear(A[n * 0 - 7 : n * 0 + 9])).startswith(first)
    assert asked(lambda A, n, tx: T.clear(A[n : n - 2])).startswith(
        "index n:(n - 2) is out of range in dimension 0 of "
    )


@pytest.mark.parametrize("target", [NVIDIA, "cuda -arch=sm_80", AMD])
@pytest.mark.parametrize("form", ["name", "first value", "variable", "statement"])
def test_atomics_of_a_role_that_does_nothing_else_are_all_its_threads(form: str, target: str) -> None:
    """Fuzz seed 10005600: a role that changes only what its threads have was the work of one thread, and so was the atomic that gives it."""

    def program(A: Any, B: Any) -> Any:
        A: T.Tensor((128,), "int32")
        B: T.Tensor((64,), "int32")
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            if tx // 64 == 1:
                f = T.alloc_fragment((64,), "int32")
                T.copy(B, f)
            elif form == "name":
                y = T.atomic_add(A[tx], 1, return_prev=True)
            elif form == "first value":
                y = T.alloc_var("int32", init=T.atomic_add(A[tx], 1, return_prev=True))
            elif form == "variable":
                y = T.alloc_var("int32")
                y = T.atomic_add(A[tx], 1, return_prev=True)  # noqa: F841
            else:
                T.atomic_add(A[tx], 1)

    a, b = np.zeros(128, np.int32), np.zeros(64, np.int32)
    kernel = tilewright.jit(target=target)(program).compile(a, b)
    assert "with role(" in kernel.show_program("distribute_work")
    for run in (kernel.emulate, kernel.interpret):
        given = a.copy()
        run(given, b)
        np.testing.assert_array_equal(given, np.arange(128) < 64)


def test_a_statement_that_an_unrolled_loop_repeats_is_done_in_each_turn() -> None:
    """Fuzz seed 10000755: behind a product that is waited for later, what was the same in each turn was left out but once."""

    def program(A: Any) -> Any:
        A: T.Tensor((64, 32), "int32")
        O = T.empty((128,), "int32")
        with T.Kernel(1, threads=128):
            own, s, w = (
                T.alloc_var("int32", init=2),
                T.alloc_shared((64, 16), "float16"),
                T.alloc_shared((64, 16), "float16"),
            )
            tile, total = T.alloc_shared((64, 32), "int32"), T.alloc_fragment((64, 32), "int32")
            T.clear(total)
            for k in T.unroll(3):
                own -= 9
                T.fill(s, 0)
                T.fill(w, 4)
                product = T.alloc_fragment((64, 64), "float32")
                for i, j in T.Parallel(64, 64):
                    product[i, j] = T.cast(total[(i * 2 + 1) % 8, k], "float32")
                T.clear(product)
                T.gemm(s, w, product, transpose_B=True)
            for _ in T.Pipelined(1, num_stages=1, specialize=True):
                T.copy(A, tile)
                T.copy(tile, total)
            O[T.get_thread_binding()] = own
        return O

    a = numbers(64, 32, dtype="int32")
    kernel = tilewright.jit(target=NVIDIA)(program).compile(a)
    for found in (kernel.emulate(a), kernel.interpret(a)):
        np.testing.assert_array_equal(found, np.full(128, -25))


def test_a_tile_that_blocks_share_is_gone_with_its_layout() -> None:
    """A kernel still said where the tile lies that it no longer had: an internal error."""

    @T.prim_func
    def product(
        A: T.Tensor((256, 64), "float32"), B: T.Tensor((64, 128), "float32"), C: T.Tensor((256, 128), "float32")
    ):
        with T.Kernel(4, 4, threads=64) as (bx, by):
            a, b = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64, 32), "float32")
            c = T.alloc_fragment((64, 32), "float32")
            T.annotate_layout({b: T.Layout((64, 32), lambda i, j: (i, j ^ (i % 4)))})
            T.copy(A[by * 64, 0], a)
            T.copy(B[0, bx * 32], b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C[by * 64, bx * 32])

    a, b, c = numbers(256, 64, dtype="float32"), numbers(64, 128, dtype="float32"), np.zeros((256, 128), np.float32)
    tilewright.compile(product, target="cpu")(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_a_matrix_instruction_on_a_processor_is_refused_with_a_sentence() -> None:
    """Processors' records have no operands of fragments: a traceback."""

    def program(A: Any) -> Any:
        A: T.Tensor((8,), "float16")
        with T.Kernel(1, threads=32):
            a, b, c = (T.alloc_local((n,), kind) for n, kind in ((8, "float16"), (4, "float16"), (4, "float32")))
            T.ptx_mma("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", a, 0, b, 0, c, 0)

    with pytest.raises(TilewrightError, match="has no instruction m16n8k16 of float16"):
        tilewright.jit(target="cpu")(program).compile(numbers(8))
