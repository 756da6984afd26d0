"""Programs that users reported as silently wrong, as they reported them: each against the interpreter, on every machine that had them wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.compat.tilelang.layout import make_swizzled_layout
from tilewright.errors import InvalidLayout

MACHINES = ("cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7")


def agree(function: Callable[..., Any], *given: Any, machines: tuple[str, ...] = MACHINES, seeds: int = 1) -> None:
    """The same numbers on machines as the interpreter says, on the processor at hand too."""
    expected = None
    for target in ("cpu", *machines):
        kernel = tilewright.jit(target=target)(function).compile(*given)
        expected = kernel.interpret(*given) if expected is None else expected
        for seed in range(seeds):
            found = kernel(*given) if target == "cpu" else kernel.emulate(*given, schedule="random", seed=seed)
            np.testing.assert_array_equal(found, expected)


def numbers(*shape: int, dtype: str = "float32", bound: int = 9) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-bound, bound + 1, shape).astype(dtype)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("word", ["reduce_sum", "reduce_argmax", "cumsum"])
def test_line_1_dimensions_of_tiles_that_a_pipeline_stages(word: str, dim: int) -> None:
    left = 8 if dim == 0 else 4

    def program(A):
        A: T.Tensor((3, 4, 8), "int32")
        O = T.empty((3, 4, 8) if word == "cumsum" else (3, left), "int32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((4, 8), "int32")
            out = T.alloc_fragment((4, 8) if word == "cumsum" else (left,), "int32")
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[k, 0, 0], s)
                getattr(T, word)(s, out, dim=dim)
                if word == "cumsum":
                    T.copy(out, O[k, :, :])
                else:
                    T.copy(out, O[k, :])
        return O

    agree(program, numbers(3, 4, 8, dtype="int32"), machines=MACHINES[:2])


def test_line_2_work_that_some_threads_come_to() -> None:
    def program(A):
        A: T.Tensor((8, 256), "float32")
        O = T.empty((8, 256), "float32")
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((8, 256), "float32")
            if T.get_thread_binding() < 128:
                for i, j in T.Parallel(8, 256):
                    s[i, j] = A[i, j]
            T.sync_threads()
            T.copy(s, O)
        return O

    agree(program, numbers(8, 256), machines=MACHINES[:3])


@pytest.mark.parametrize("specialize", [None, True])  # True: the copy engine loads
@pytest.mark.parametrize("reader", ["elements", "product"])
def test_line_3_annotated_swizzles_of_what_lies_in_one_piece(reader: str, specialize: bool | None) -> None:
    def program(A):
        A: T.Tensor((128, 64), "float16")
        O = T.empty((64, 64), "float32")
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.annotate_layout({s: make_swizzled_layout(s).layout})
            T.clear(total)
            for k in T.Pipelined(2, num_stages=2, specialize=specialize):
                T.copy(A[k * 64, 0], s)
                if reader == "elements":
                    for i, j in T.Parallel(64, 64):
                        total[i, j] = total[i, j] + s[j, i]
                else:
                    T.gemm(s, s, total, transpose_B=True)
            T.copy(total, O)
        return O

    agree(program, numbers(128, 64, dtype="float16"), machines=MACHINES[:2])


def test_line_4_places_that_a_variable_chooses_in_specialised_loops() -> None:
    def program(P, sel, B):
        P: T.Tensor((3,), T.ptr)
        sel: T.Tensor((3,), "int32")
        B: T.Tensor((64, 64), "float16")
        O = T.empty((3, 64, 64), "float32")
        with T.Kernel(3, threads=128) as bx:
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            which = T.alloc_var("int32", init=0)
            for i in T.serial(3):
                which = T.if_then_else(bx >= sel[i], i, which)
            A = T.make_tensor(P[which], (64, 128), "float16")
            T.clear(total)
            for k in T.Pipelined(2, num_stages=2, specialize=True):
                T.copy(A[0, k * 64], a)
                T.copy(B, b)
                T.gemm(a, b, total)
            T.copy(total, O[bx, :, :])
        return O

    tables = [numbers(64, 128, dtype="float16", bound=3) + one for one in range(3)]
    kernel = tilewright.jit(target=MACHINES[1])(program).compile(
        tables, np.arange(3, dtype=np.int32), numbers(64, 64, dtype="float16")
    )
    given = tables, np.arange(3, dtype=np.int32), numbers(64, 64, dtype="float16")
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))


def test_line_6_layouts_that_give_two_elements_one_place() -> None:
    def program(A):
        A: T.Tensor((8, 16), "float32")
        O = T.empty((8, 16), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((8, 16), "float32")
            T.annotate_layout({s: T.Layout((8, 16), lambda i, j: i * 8 + j % 8)})
            T.copy(A, s)
            T.copy(s, O)
        return O

    with pytest.raises(InvalidLayout):
        tilewright.jit(target=MACHINES[0])(program).compile(numbers(8, 16))


def test_line_12_first_values_are_reads() -> None:
    def overlay(X):
        X: T.Tensor((16, 16), "float32")
        O = T.empty((16,), "float32")
        with T.Kernel(1, threads=64):
            s, o = T.alloc_shared((16, 16), "float32"), T.alloc_shared((16,), "float32")
            T.copy(X, s)
            T.clear(o)
            T.reduce_sum(s, o, dim=1)
            T.copy(o, O)
        return O

    def late(X):
        X: T.Tensor((2, 64), "float32")
        O = T.empty((2, 64), "float32")
        with T.Kernel(1, threads=64):
            s, o = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")
            T.copy(X[0, 0], s)
            T.copy(s, O[0, 0])
            T.copy(X[1, 0], o)
            v = T.alloc_var("float32", init=s[5])
            for i in T.Parallel(64):
                O[1, i] = o[63 - i] + v
        return O

    def ahead(X):
        X: T.Tensor((6, 16), "float32")
        O = T.empty((6, 16), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16,), "float32")
            for k in T.Pipelined(6, num_stages=3):
                T.copy(X[k, 0], s)
                v = T.alloc_var("float32", init=s[5])
                for i in T.Parallel(16):
                    O[k, i] = v + i
        return O

    agree(overlay, numbers(16, 16), machines=MACHINES[:3])
    agree(late, numbers(2, 64), machines=MACHINES[:3])
    agree(ahead, numbers(6, 16), machines=MACHINES[:3])


@pytest.mark.parametrize("mask", ["none", "half", "all"])
def test_line_13_products_under_masks_in_specialised_loops(mask: str) -> None:
    def program(A, B, Mk):
        A: T.Tensor((64, 512), "float16")
        B: T.Tensor((512, 64), "float16")
        Mk: T.Tensor((8,), "int32")
        O = T.empty((64, 64), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                if Mk[k] != 0:
                    T.gemm(a, b, total)
            T.copy(total, O)
        return O

    chosen = {"none": np.zeros(8), "half": np.arange(8) % 2, "all": np.ones(8)}[mask].astype(np.int32)
    given = numbers(64, 512, dtype="float16", bound=3), numbers(512, 64, dtype="float16", bound=3), chosen
    agree(program, *given, machines=MACHINES[1:2], seeds=4)


def test_line_14_narrow_integers_wrap_in_their_own_type() -> None:
    def program(U, I, W):
        U: T.Tensor((256,), "uint8")
        I: T.Tensor((256,), "int8")
        W: T.Tensor((256,), "int16")
        O = T.empty((6, 256), "int32")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(256):
                O[0, i] = T.cast(~U[i], "int32")
                O[1, i] = T.cast(-I[i], "int32")
                O[2, i] = T.cast(T.abs(W[i]), "int32")
                O[3, i] = T.cast(T.popcount(I[i]), "int32")
                O[4, i] = T.cast((~T.cast(W[i], "uint16")) >> T.cast(1, "uint16"), "int32")
                O[5, i] = T.cast(I[i] * I[i], "int32")
        return O

    whole = np.arange(256)
    wide = np.where(whole < 250, whole * 257 - 32768, 32767).astype(np.int16)
    agree(program, whole.astype(np.uint8), whole.astype(np.uint8).view(np.int8), wide)


@pytest.mark.parametrize(
    ("dtype", "count", "held"), [("int8", 5, 16), ("float16", 5, 8), ("float32", 3, 4), ("int64", 1, 2)]
)
def test_line_15_tiles_of_16_bytes_of_shorter_tensors(dtype: str, count: int, held: int) -> None:
    def whole(A):
        A: T.Tensor((count,), dtype)
        O = T.empty((held,), dtype)
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((held,), dtype)
            assert count < held
            T.copy(A[0], s)
            T.copy(s, O)
        return O

    agree(whole, numbers(count, dtype=dtype), machines=MACHINES[:3])


def test_line_16_halves_moved_crosswise() -> None:
    def program(A):
        A: T.Tensor((16, 8), "float32")
        O = T.empty((16, 8), "float32")
        with T.Kernel(1, threads=32):
            s, t = T.alloc_fragment((16, 8), "float32"), T.alloc_fragment((16, 8), "float32")
            T.copy(A, s)
            T.copy(s[0:8, :], t[8:16, :])
            T.copy(s[8:16, :], t[0:8, :])
            T.copy(t, O)
        return O

    agree(program, numbers(16, 8))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_line_17_sums_into_what_is_there_round_once(dtype: str) -> None:
    def program(A, B):
        A: T.Tensor((8, 64), dtype)
        B: T.Tensor((8,), dtype)
        O = T.empty((8,), dtype)
        with T.Kernel(1, threads=64):
            tile, out = T.alloc_fragment((8, 64), dtype), T.alloc_fragment((8,), dtype)
            T.copy(A, tile)
            T.copy(B, out)
            T.reduce_sum(tile, out, dim=1, clear=False)
            T.copy(out, O)
        return O

    # Every other whole number from 2048 on is no float16: a sum that is rounded before it is added is another one.
    agree(program, numbers(8, 64, dtype=dtype) + np.array(60, dtype), numbers(8, dtype=dtype))

    def remainder(A):
        A: T.Tensor((4,), "int32")
        O = T.empty((2, 4), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                O[0, i] = A[i] % A[3]
                O[1, i] = A[i] // A[3]
        return O

    agree(remainder, np.array([-(2**31), 5, -7, -1], np.int32))


def test_line_18_functions_of_every_type_compile() -> None:
    def program(H, B, I, U, X):
        H: T.Tensor((8,), "float16")
        B: T.Tensor((8,), "bfloat16")
        I: T.Tensor((8,), "int64")
        U: T.Tensor((8,), "uint8")
        X: T.Tensor((8,), "int64")
        O = T.empty((7, 8), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                O[0, i] = T.cast(T.isnan(H[i]), "int32") + 2 * T.cast(T.isinf(H[i]), "int32")
                O[1, i] = T.cast(T.isfinite(B[i]), "int32")
                O[2, i] = T.cast(T.abs(I[i] - 3), "int32")
                O[3, i] = T.cast(T.abs(U[i]), "int32")
                O[4, i] = T.cast(T.if_then_else(i > 2, i > 5, X[i] > 3), "int32")
                O[5, i] = T.cast(T.cast(3, "int64") << T.cast(i, "int64"), "int32")
                O[6, i] = T.cast(T.reinterpret(T.cast(T.popcount(U[i]), "uint8"), "float8_e4m3fn") > 0, "int32")
        return O

    import ml_dtypes

    halves = np.array([0, np.nan, np.inf, -np.inf, 1, -1, 65504, 6e-8], np.float16)
    given = halves, halves.astype(np.float32).astype(ml_dtypes.bfloat16)
    agree(program, *given, numbers(8, dtype="int64"), np.arange(248, 256).astype(np.uint8), numbers(8, dtype="int64"))


def test_line_18_scalars_of_half_precision_are_arguments() -> None:
    def program(A, h: T.float16):
        A: T.Tensor((8,), "float16")
        O = T.empty((8,), "float16")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                O[i] = A[i] + h
        return O

    agree(program, numbers(8, dtype="float16"), 1.5)


def test_line_18_rows_of_an_int8_product_fewer_than_its_tile() -> None:
    def program(A, B):
        A: T.Tensor((1, 20), "int8")
        B: T.Tensor((20, 40), "int8")
        O = T.empty((1, 40), "int32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((5, 20), "int8"), T.alloc_shared((20, 40), "int8")
            total = T.alloc_fragment((5, 40), "int32")
            T.copy(A[0, 0], a)
            T.copy(B, b)
            T.clear(total)
            T.gemm(a, b, total)
            T.copy(total, O[0, 0])
        return O

    agree(program, numbers(1, 20, dtype="int8"), numbers(20, 40, dtype="int8"), machines=())
