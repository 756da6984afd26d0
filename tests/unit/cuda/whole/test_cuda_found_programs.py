"""What random tile programs found (`tests/fuzz/tile_fuzz.py`): each small program once gave other numbers, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import InvalidLayout, MissingCapability
from tilewright.language.mistakes import MisplacedRole
from tilewright.runtime import arguments


def compiled(function: Callable[..., Any], machine: str, *given: Any) -> Any:
    return tilewright.jit(target=f"cuda -arch={machine}")(function).compile(*given)


def agree(function: Callable[..., Any], machine: str, *given: Any) -> None:
    kernel = compiled(function, machine, *given)
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))


@pytest.mark.parametrize("dtype", ["int32", "float32", "int8"])
def test_two_signs_in_a_row_negate_twice(dtype: str) -> None:
    """They were printed as ``--count``, which counts down."""

    def program(X):
        X: T.Tensor((33,), dtype)
        Y = T.empty((33,), dtype)
        with T.Kernel(1, threads=64):
            for i in T.Parallel(33):
                Y[i] = -(-X[i]) + -T.cast(-3, dtype)  # noqa: B002
        return Y

    agree(program, "sm_80", np.arange(-16, 17).astype(dtype))


def test_bits_of_narrow_literals_and_of_choices_of_them() -> None:
    """Both are ints in C++, of which no byte is made by their bits."""

    def program(X):
        X: T.Tensor((33,), "int16")
        Y = T.empty((33,), "int8")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(33):
                first = T.reinterpret(T.cast(200, "uint8"), "int8")
                Y[i] = first + T.reinterpret(T.if_then_else(X[i] > 3, T.cast(255, "uint8"), T.cast(7, "uint8")), "int8")
        return Y

    agree(program, "sm_80", np.arange(-16, 17).astype(np.int16))


@pytest.mark.parametrize(("dtype", "other"), [("uint8", "int8"), ("int16", "uint16")])
def test_bits_of_what_is_computed_of_narrow_integers(dtype: str, other: str) -> None:
    """C++ computes ints of them, whatever the operation: `bit_cast needs types of one size`."""

    def program(X):
        X: T.Tensor((64,), dtype)
        Y = T.empty((24, 64), other)
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                x, y = X[i], T.cast(i % 7 + 1, dtype)
                values = [x % y, x // y, x & y, x | y, x ^ y, x + y, x - y, x * y, x >> y, T.min(x, y), T.max(x, y), ~x]
                values += [x % 2, x // 2, x & 7, x | 7, x ^ 7, x + 7, x - 7, x * 3, x >> 1, T.min(x, 5), T.max(x, 5), x]
                for row in list(range(24)):
                    Y[row, i] = T.reinterpret(values[row], other)
        return Y

    edges = np.random.default_rng(0).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 64, endpoint=True).astype(dtype)
    agree(program, "sm_80", edges)


@pytest.mark.parametrize(("rows", "columns"), [(5, 32), (1, 16), (4, 32)])
def test_slots_that_follow_each_other_begin_where_the_copy_engine_may_write(rows: int, columns: int) -> None:
    """Slots of 320 or 16 bytes: every second one began at a misaligned address, and the GPU stopped."""

    def program(X):
        X: T.Tensor((4, rows + 1, 2 * columns), "int8" if rows == 1 else "float16")
        Y = T.empty((columns,), "float32")
        with T.Kernel(1, threads=256):
            tile, total = T.alloc_shared((rows, columns), X.dtype), T.alloc_fragment((columns,), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2, specialize=True):
                T.copy(X[k, 0, 0], tile)
                for row in T.serial(rows):
                    for j in T.Parallel(columns):
                        total[j] += T.cast(tile[row, j], "float32")
            T.copy(total, Y)
        return Y

    values = np.random.default_rng(0).integers(-4, 4, (4, rows + 1, 2 * columns))
    agree(program, "sm_90a", values.astype(np.int8 if rows == 1 else np.float16))


def test_a_copy_that_nobody_waits_for_keeps_its_bytes() -> None:
    """Tiles that nobody reads shared their bytes while cp.async was at them."""

    def program(A, B):
        A: T.Tensor((32, 32), "float16")
        B: T.Tensor((32, 8), "int8")
        C = T.empty((1,), "int32")
        with T.Kernel(1, threads=64):
            first, second = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 8), "int8")
            T.copy(A, first)
            T.copy(B, second)
            C[0] = 1
        return C

    agree(program, "sm_80", np.ones((32, 32), np.float16), np.ones((32, 8), np.int8))


def test_outputs_decide_which_variant_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One was chosen for outputs at other addresses than those that were written then, multiples of 16 alone."""

    def program(X):
        X: T.Tensor((64, 64), "float32")
        Y = T.empty((64, 64), "float32")
        with T.Kernel(1, threads=64):
            T.copy(X, Y)
        return Y

    def placed(offset: int) -> np.ndarray:
        room = np.empty(64 * 64 * 4 + 128, np.uint8)
        start = -room.ctypes.data % 64 + offset
        return room[start : start + 64 * 64 * 4].view(np.float32).reshape(64, 64)

    x = placed(0)
    x[...] = 1
    kernel = compiled(program, "sm_100", x)
    offsets = iter((0, 16, 0, 16))
    monkeypatch.setattr(arguments, "allocator_like", lambda example: lambda shape, dtype: placed(next(offsets)))
    for _ in range(2):
        assert (kernel.emulate(x) == 1).all()


@pytest.mark.parametrize("whole", [False, True])
def test_atomics_of_types_that_no_gpu_combines_are_refused_by_name(whole: bool) -> None:
    """They ended as an error of the machine's compiler."""

    def program(X, D):
        X: T.Tensor((32,), "int8")
        D: T.Tensor((32,), "int8")
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32,), "int8")
            T.copy(X, tile)
            if whole:
                T.atomic_add(D, tile)
            else:
                for i in T.Parallel(32):
                    T.atomic_add(D[i], tile[i])

    given = (np.ones(32, np.int8), np.zeros(32, np.int8))
    with pytest.raises(MissingCapability, match=r"sm_80 has no T\.atomic_add of int8, only of int32, uint32"):
        compiled(program, "sm_80", *given).program
    here = tilewright.jit(target="cpu")(program).compile(*given)
    here(*given)
    assert (given[1] == 1).all()


def test_a_layout_of_one_element_is_a_layout() -> None:
    """An index of one element kept its dimensions where others were laid in a row."""

    def program():
        Y = T.empty((1, 1), "int32")
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((1, 1), "int32")
            T.annotate_layout({tile: T.Layout((1, 1), lambda i, j: i + (j + i) % 1)})
            T.fill(tile, 3)
            T.copy(tile, Y)
        return Y

    agree(program, "sm_80")


def test_parts_of_a_fragment_of_one_row_pass_through_shared_memory() -> None:
    """The loop that cleared the fragment beforehand had a layout of two dimensions, and one dimension."""

    def program(X):
        X: T.Tensor((1, 4), "float32")
        Y = T.empty((1, 4), "float32")
        with T.Kernel(1, threads=64):
            s, f = T.alloc_shared((1, 4), "float32"), T.alloc_fragment((1, 4), "float32")
            T.copy(X, s)
            T.copy(s[:, 0:2], f[:, 2:4])
            T.copy(s[:, 2:4], f[:, 0:2])
            T.copy(f, Y)
        return Y

    agree(program, "sm_80", np.arange(4, dtype=np.float32)[None])


def test_a_layout_with_one_place_for_all_is_refused_with_a_sentence() -> None:
    """The refusal itself ended in a traceback."""

    def program(X):
        X: T.Tensor((2, 2), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((2, 2), "float32")
            T.annotate_layout({s: T.Layout((2, 2), lambda i, j: (i * 2 + j) * 8 % 4)})
            T.copy(X, s)

    with pytest.raises(InvalidLayout, match="puts all elements in one place"):
        compiled(program, "sm_80", np.zeros((2, 2), np.float32))


def test_bits_of_narrow_quotients() -> None:
    """A quotient of bytes is an int in C++, of which no byte is made by its bits."""

    def program(X):
        X: T.Tensor((33,), "uint8")
        Y = T.empty((33,), "int8")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(33):
                Y[i] = T.reinterpret(X[i] // 7, "int8") + T.reinterpret(X[i] % 7, "int8")
        return Y

    agree(program, "sm_80", np.arange(33, dtype=np.uint8) * 7)


def test_a_fragment_of_one_element_is_held_by_all_threads_that_its_loops_leave_out() -> None:
    """It took its layout from a longer neighbour, one thread's; passing it through shared memory then had no end."""

    def program(X, Z):
        X: T.Tensor((1, 1), "int64")
        Z: T.Tensor((16,), "float32")
        Y = T.empty((1, 1), "float64")
        with T.Kernel(1, threads=32):
            f, g, h = (T.alloc_fragment(s, t) for s, t in (((1, 1), "int64"), ((16,), "float32"), ((1, 1), "float64")))
            T.copy(X, f)
            T.copy(Z, g)
            for i, j in T.Parallel(1, 1):
                h[i, j] = T.cast(f[i, j], "float64") + T.cast(g[i], "float64")
            T.copy(h, Y)
        return Y

    agree(program, "sm_80", np.array([[40]], np.int64), np.arange(2, 18, dtype=np.float32))


def test_a_fragment_under_a_condition_that_is_not_the_threads_own() -> None:
    """It is allocated where the warps part; it lay in registers of other threads."""

    def program(X):
        X: T.Tensor((2, 8), "float32")
        Y = T.empty((2, 8), "float32")
        with T.Kernel(2, threads=128) as bx:
            f, t = T.alloc_fragment((2, 8), "float32"), T.get_thread_binding()
            if bx == 0:  # noqa: SIM102 (the division lies deeper)
                if t >= 64:
                    T.copy(X, f)
                    T.copy(f, Y)
        return Y

    agree(program, "sm_80", np.arange(16, dtype=np.float32).reshape(2, 8))


@pytest.mark.parametrize("beside", [False, True])
def test_a_fragment_of_the_block_in_one_roles_turn_of_a_loop(beside: bool) -> None:
    """The loop is those warps' own, but where the block does something in it, too."""

    def program(X):
        X: T.Tensor((2, 8), "float32")
        Y = T.empty((8,), "float32")
        with T.Kernel(1, threads=128):
            f, tile = T.alloc_fragment((8,), "float32"), T.alloc_shared((8,), "float32")
            for k in range(2):
                if beside:
                    T.copy(X[k, 0:8], tile)
                if T.get_thread_binding() >= 64:
                    T.copy(X[k, 0:8], f)
                    T.copy(f, Y)
        return Y

    if not beside:
        agree(program, "sm_80", np.arange(16, dtype=np.float32).reshape(2, 8))
        return
    with pytest.raises(MisplacedRole, match="the fragment f is held by all of the block"):
        compiled(program, "sm_80", np.zeros((2, 8), np.float32))


def test_a_fragment_of_one_element_that_is_not_filled_first_begins_with_zero() -> None:
    """The loop that clears it lost its dimension, since the fragment's one index is always 0 (fuzz seed 60242)."""

    def program(X):
        X: T.Tensor((64,), "uint32")
        Y = T.empty((1,), "float32")
        with T.Kernel(1, threads=128):
            f, one, s = (
                T.alloc_fragment((64,), "uint32"),
                T.alloc_fragment((1,), "uint32"),
                T.alloc_shared((1,), "float32"),
            )
            T.copy(X, f)
            for k in T.serial(2):
                if k > 0:
                    for i in T.Parallel(1):
                        s[i] = T.cast(f[i], "float32") - T.cast(f[i], "float32") - T.cast(one[i], "float32")
                else:
                    T.fill(one, 3)
            T.copy(s, Y)
        return Y

    agree(program, "sm_80", np.arange(64, dtype=np.uint32))


@pytest.mark.parametrize("patch", ["a part", "the whole", "by threads", "a loop", "the other half"])
def test_tiles_that_are_filled_twice_before_they_are_read(patch: str) -> None:
    """The warps that load wrote again where their own copy was under way (fuzz seeds 20401, 20726, 60010).  Halves stay copies ahead."""

    def program(X, Z):
        X: T.Tensor((4, 64, 16), "float32")
        Z: T.Tensor((4, 64, 16), "float32")
        Y = T.empty((4, 64, 16), "float32")
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 16), "float32")
            for k in T.Pipelined(4, num_stages=2, specialize=True):
                if patch == "the other half":
                    T.copy(X[k, 0:32, 0:16], s[0:32, :])
                    T.copy(Z[k, 32:64, 0:16], s[32:64, :])
                else:
                    T.copy(X[k, 0, 0], s)
                if patch == "a part":
                    T.copy(Z[k, 0:32, 0:16], s[16:48, :])
                elif patch == "the whole":
                    T.copy(Z[k, 0, 0], s)
                elif patch == "by threads":
                    T.copy(Z[k, 0:32, 0:16], s[16:48, :], disable_tma=True)
                elif patch == "a loop":
                    for i, j in T.Parallel(32, 16):
                        s[i + 5, j] = Z[k, i, j] * 2
                for i, j in T.Parallel(64, 16):
                    Y[k, i, j] = s[i, 15 - j]
        return Y

    given = np.random.default_rng(0).random((2, 4, 64, 16)).astype(np.float32)
    kernel = compiled(program, "sm_90a", *given)
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))
    assert ("s_ring" in kernel.get_kernel_source()) == (patch == "the other half")
