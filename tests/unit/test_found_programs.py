"""What programs of many features at once found (`tests/fuzz/mixed_writer.py`), of copies in `test_found_copies.py`: each was wrong on some machine, or ended in a compiler's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T

NVIDIA, AMPERE, AMD, APPLE = "cuda -arch=sm_90a", "cuda -arch=sm_80", "hip -arch=gfx942", "metal -arch=apple7"
GPUS = (AMPERE, NVIDIA, AMD, APPLE)


def agree(function: Callable[..., Any], target: str, *given: Any) -> None:
    kernel = tilewright.jit(target=target)(function).compile(*given)
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(dtype)


@pytest.mark.filterwarnings("ignore:.*not pipelined")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("target", GPUS)
def test_a_tile_of_a_pipeline_is_read_behind_it(target: str, around: bool, first: bool) -> None:
    """A tile that was filled before the loop too got slots, and behind the loop (or in the next turn around it) the old numbers were read."""

    def program(A, B):
        A: T.Tensor((16, 32), "float32")
        B: T.Tensor((3, 16, 32), "float32")
        O = T.empty((2, 16, 32), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), "float32")
            total = T.alloc_fragment((16, 32), "float32")
            T.clear(total)
            if first:
                T.copy(A, s)
            for _ in T.serial(2 if around else 1):
                if around:
                    for i, j in T.Parallel(16, 32):
                        total[i, j] += A[i, j] if not first else s[i, j]
                for k in T.Pipelined(3, num_stages=2):
                    T.copy(B[k, 0, 0], s)
                    for i, j in T.Parallel(16, 32):
                        total[i, j] += s[i, j]
            T.copy(s, O[0, :, :])
            T.copy(total, O[1, :, :])
        return O

    agree(program, target, numbers(16, 32), numbers(3, 16, 32))


@pytest.mark.parametrize("target", GPUS)
def test_absolute_values_of_64_bits_computed_with_literals(target: str) -> None:
    """Where int64_t is a long, a literal's long long was neither of the types of `abs`."""

    def program(A):
        A: T.Tensor((33,), "int64")
        O = T.empty((33,), "int64")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(33):
                O[i] = T.abs(A[i] - T.cast(3, "int64")) + T.abs(T.cast(-2, "int64"))
        return O

    agree(program, target, numbers(33, dtype="int64"))


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("way", ["choice", "branch", "short circuit", "two choices"])
def test_what_single_elements_ask_for_is_read_by_them_alone(way: str, target: str) -> None:
    """Neighbours were loaded together before any was asked whether it reads at all: outside of the tile, and what others store."""

    def program(A):
        A: T.Tensor((16, 32), "int32")
        O = T.empty((16, 32), "int32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((2, 16, 32), "int32")
            T.copy(A, s[0, :, :])
            for t in T.serial(3):
                for i, j in T.Parallel(16, 32):
                    if way == "choice":
                        s[1 - t % 2, i, j] = T.if_then_else(
                            (i > 0) & (j % 3 != 1), s[t % 2, i, j] + s[t % 2, i - 1, j], -s[t % 2, i, j]
                        )
                    elif way == "branch":
                        if (i < 15) & (j > t):
                            s[1 - t % 2, i, j] = s[t % 2, i, j] + s[t % 2, i + 1, j]
                        else:
                            s[1 - t % 2, i, j] = 7
                    elif way == "short circuit":
                        odd = T.if_then_else(j % 2 == 1 and i > 0 and s[t % 2, i - 1, j] > 0, 1, 0)
                        s[1 - t % 2, i, j] = s[t % 2, i, j] + odd
                    else:
                        above = T.if_then_else(i > 0, s[t % 2, i - 1, j], 0)
                        s[1 - t % 2, i, j] = s[t % 2, i, j] + above + T.if_then_else(i > 1, s[t % 2, i - 1, j], 0)
            T.copy(s[1, :, :], O)
        return O

    agree(program, target, numbers(16, 32, dtype="int32"))


@pytest.mark.parametrize("bits", [1, 4])
def test_packed_fragments_that_pass_through_memory_on_apple(bits: int) -> None:
    """Single elements were set by the word around them: beyond the tile's end, and with what nobody had written."""

    def program(A):
        A: T.Tensor((16,), "int32")
        O = T.empty((3, 16), "int32")
        with T.Kernel(1, threads=64):
            codes = T.alloc_fragment((100,), f"uint{bits}")
            T.fill(codes, 1)
            for i, j in T.Parallel(3, 16):
                O[i, j] = T.cast(codes[j], "int32") + A[j]
        return O

    agree(program, APPLE, numbers(16, dtype="int32"))


@pytest.mark.parametrize("target", [NVIDIA])
def test_loops_that_loading_warps_have_no_part_in_are_not_theirs_to_leave(target: str) -> None:
    """They ran such loops for their breaks, and asked conditions whose variables only the others set."""

    def program(A, B):
        A: T.Tensor((48, 32), "float16")
        B: T.Tensor((4,), "int32")
        O = T.empty((16, 32), "float16")
        with T.Kernel(1, threads=128):
            total = T.alloc_fragment((16, 32), "float16")
            T.clear(total)
            s = T.alloc_shared((16, 32), "float16")
            for k in T.Pipelined(3, num_stages=2, specialize=True):
                T.copy(A[k * 16, 0], s)
                for i, j in T.Parallel(16, 32):
                    total[i, j] += s[i, j]
            for _ in T.serial(2):
                count = T.alloc_var("int32")
                count = B[3]
                for q in T.serial(3):
                    count = count + B[q]
                    if count > 2:
                        T.loop_break()
                for i, j in T.Parallel(16, 32):
                    total[i, j] += T.cast(count, "float16")
            T.copy(total, O)
        return O

    agree(program, target, numbers(48, 32, dtype="float16"), np.array([1, 0, 1, 1], np.int32))


@pytest.mark.parametrize("target", [AMPERE, NVIDIA])
def test_what_stays_before_roles_may_change_fragments_and_tiles_at_once(target: str) -> None:
    """A loop that no role has a part in was refused, because what stands behind the roles reads a fragment that it changes."""

    def program(A):
        A: T.Tensor((32, 16), "int32")
        O = T.empty((3, 32, 16), "int32")
        with T.Kernel(1, threads=256):
            f = T.alloc_fragment((32, 16), "int32")
            s = T.alloc_shared((32, 16), "int32")
            T.copy(A, f)
            for k in T.serial(2):
                T.copy(A[k, 0], s)
                T.cummax(f, dim=1)
            with T.ws(0):
                own = T.alloc_fragment((32, 16), "int32")
                T.copy(s, own)
                T.copy(own, O[0, :, :])
            with T.ws(1):
                T.copy(s, O[1, :, :])
            T.copy(f, O[2, :, :])
        return O

    agree(program, target, numbers(32, 16, dtype="int32"))


@pytest.mark.parametrize("target", GPUS)
def test_memory_that_tiles_pass_through_where_threads_are_spoken_of_elsewhere(target: str) -> None:
    """No barrier stood between whole-tile statements on a workspace once the kernel used its thread's index anywhere."""

    def program(A, B):
        A: T.Tensor((32, 32), "int8")
        B: T.Tensor((96,), "int32")
        O = T.empty((2, 32, 32), "int8")
        P = T.empty((96,), "int32")
        with T.Kernel(2, threads=96) as bx:
            tx = T.get_thread_binding()
            s = T.alloc_shared((32, 32), "int8")
            T.copy(A, s)
            work = T.alloc_global((2, 32, 32), "int8")
            T.copy(s, work[bx, :, :])
            for i, j in T.Parallel(32, 32):
                O[bx, i, j] = work[bx, j, 31 - i]
            own = T.alloc_local((1,), "int32")
            own[0] = B[tx]
            if own[0] > 0:
                own[0] = -own[0]
            P[tx] = own[0]
        return O, P

    given = numbers(32, 32, dtype="int8"), numbers(96, dtype="int32")
    kernel = tilewright.jit(target=target)(program).compile(*given)
    for found, expected in zip(kernel.emulate(*given), kernel.interpret(*given)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", [AMPERE, NVIDIA])
def test_what_follows_roles_waits_for_what_they_read_before_barriers_of_their_own(target: str) -> None:
    """A barrier among some warps counted as one of the block: others wrote the tile that these still read."""

    def program(A, B):
        A: T.Tensor((32, 32), "float32")
        B: T.Tensor((32, 32), "float32")
        O = T.empty((2, 32, 32), "float32")
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((32, 32), "float32")
            T.copy(A, s)
            with T.ws(1):
                t = T.alloc_shared((32, 32), "float32")
                for i, j in T.Parallel(32, 32):
                    t[i, j] = s[j, i]
                for i, j in T.Parallel(32, 32):
                    O[0, i, j] = t[j, i] + t[i, j]
            T.copy(B, s)
            T.copy(s, O[1, :, :])
        return O

    agree(program, target, numbers(32, 32), numbers(32, 32) + 1)


def test_loops_of_a_processor_that_write_one_element_further() -> None:
    """A loop of 32 elements a step and one of 8 were joined, and the second's last element overwritten by the first's next step."""

    def program(A, n: T.int32):
        A: T.Tensor((100,), "float16")
        O = T.empty((100,), "float16")
        with T.Kernel(1, threads=128):
            row = T.alloc_fragment((100,), "float16")
            T.copy(A, row)
            for i in T.Parallel(97):
                row[i + 1] = T.cast(T.cast(n, "float64") + 1, "float16")
            T.copy(row, O)
        return O

    given = numbers(100, dtype="float16"), 7
    kernel = tilewright.jit(target="cpu")(program).compile(*given)
    np.testing.assert_array_equal(kernel(*given), kernel.interpret(*given))


@pytest.mark.parametrize("target", [AMPERE, NVIDIA])
def test_neighbouring_warps_that_hand_tiles_on_without_barriers_do_so_in_order(target: str) -> None:
    """They ran at once: what the second read, the first was still writing."""

    def program(A):
        A: T.Tensor((32, 32), "float32")
        O = T.empty((32, 32), "float32")
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            s = T.alloc_shared((32, 32), "float32")
            T.copy(A, s)
            if tx // 32 == 0:
                for i, j in T.Parallel(32, 31):
                    s[i, j] = s[i, j] + 1
            if tx // 32 == 6:
                for i, j in T.Parallel(32, 32):
                    s[i, j] = s[i, j] * 2
            with T.ws(0):
                for i, j in T.Parallel(32, 16):
                    s[i, j] = s[i, j] + 3
            with T.ws(1):
                T.copy(s, O)
        return O

    agree(program, target, numbers(32, 32))


@pytest.mark.parametrize("target", GPUS)
def test_turns_that_write_across_what_the_turn_before_wrote(target: str) -> None:
    """Different threads wrote the same places of a tensor in neighbouring turns, and no barrier said which came last."""

    def program(A, B):
        A: T.Tensor((64, 32), "int8")
        B: T.Tensor((64, 37), "int8")
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((64, 32), "int8")
            T.copy(A, tile)
            for k in T.serial(3):
                T.copy(tile, B[0, k])

    given = numbers(64, 32, dtype="int8"), numbers(64, 37, dtype="int8")
    kernel = tilewright.jit(target=target)(program).compile(*given)
    found, expected = given[1].copy(), given[1].copy()
    kernel.emulate(given[0], found)
    kernel.interpret(given[0], expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("way", ["beside their bytes", "columns first", "a thread each", "some threads"])
def test_threads_that_change_elements_of_one_byte(way: str, bits: int, target: str) -> None:
    """Each reads and sets bits of its own; the emulator took the byte for what they share."""
    dtype = f"uint{bits}"

    def program(A):
        A: T.Tensor((16, 32), dtype)
        O = T.empty((16, 32), dtype)
        with T.Kernel(1, threads=96):
            tx = T.get_thread_binding()
            s = T.alloc_shared((16, 32), dtype)
            T.copy(A[0, 0], s)
            if way == "beside their bytes":
                for i, j in T.Parallel(16, 31):
                    s[i, j + 1] = T.cast(T.cast(s[i, j + 1], "int32") ^ 1, dtype)
            if way == "columns first":
                for j, i in T.Parallel(32, 16):
                    s[i, j] = T.cast(T.cast(s[i, j], "int32") ^ 1, dtype)
            if way == "a thread each" and tx < 32:
                s[3, tx] = T.cast(T.cast(s[3, tx], "int32") ^ 1, dtype)
            if way == "some threads" and tx < 48:
                for i, j in T.Parallel(16, 32):
                    s[i, j] = T.cast(T.cast(s[i, j], "int32") ^ 1, dtype)
            T.copy(s, O)
        return O

    agree(program, target, np.random.default_rng(0).integers(0, 256, (16, 4 * bits)).astype(np.uint8))


@pytest.mark.parametrize("target", GPUS)
def test_a_thread_that_reads_the_element_of_another_reads_first(target: str) -> None:
    def program(A):
        A: T.Tensor((64,), "uint4")
        O = T.empty((64,), "uint4")
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "uint4")
            T.copy(A, s)
            s[2 * tx] = T.cast(T.cast(s[2 * tx ^ 2], "int32") ^ 1, "uint4")
            T.sync_threads()
            T.copy(s, O)
        return O

    given = np.arange(32, dtype=np.uint8)
    agree(program, target, given)


@pytest.mark.parametrize("target", GPUS)
def test_a_thread_or_a_block_that_returns(target: str) -> None:
    """Metal's header had no word for it."""

    def program(A, n: T.int32):
        A: T.Tensor((3, 64), "int32")
        with T.Kernel(3, threads=64) as bx:
            tx = T.get_thread_binding()
            if bx >= n:
                T.thread_return()
            if tx > 40:
                T.thread_return()
            A[bx, tx] = A[bx, tx] + 1

    given = numbers(3, 64, dtype="int32")
    kernel = tilewright.jit(target=target)(program).compile(given, 2)
    emulated, interpreted, expected = given.copy(), given.copy(), given.copy()
    kernel.emulate(emulated, 2)
    kernel.interpret(interpreted, 2)
    expected[:2, :41] += 1
    np.testing.assert_array_equal(emulated, expected)
    np.testing.assert_array_equal(interpreted, expected)


@pytest.mark.parametrize("target", [NVIDIA, "cuda -arch=sm_80", "hip -arch=gfx942"])
def test_warps_that_count_by_atomics_hand_tiles_on_in_order(target: str) -> None:
    """Fuzz seed 10030203: an atomic anywhere in what warps do was taken for the author's own way to tell others."""

    def program(A):
        A: T.Tensor((16,), "int32")
        O = T.empty((32, 32), "float32")
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((32, 32), "float32")
            with T.ws(0):
                for i, j in T.Parallel(32, 32):
                    tile[i, j] = i % 4
                for i in T.Parallel(16):
                    T.atomic_add(A[i], 1)
            with T.ws(1):
                for i, j in T.Parallel(32, 32):
                    tile[i, j] = tile[i, j] + 1
            T.copy(tile, O)
        return O

    kernel = tilewright.jit(target=target)(program).compile(np.zeros(16, np.int32))
    for schedule in ("late", "early", "random"):
        given = np.zeros(16, np.int32)
        found = kernel.emulate(given, schedule=schedule)
        assert (found == np.arange(32)[:, None] % 4 + 1).all() and (given == 1).all()


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("operand", ["left", "right", "sum"])
def test_loops_over_parts_of_operands(operand: str, target: str) -> None:
    """Fuzz seed 3230090: a part's registers do not follow one another, and the loop wrote to those between them."""
    shape = {"left": (32, 32), "right": (32, 16), "sum": (32, 16)}[operand]
    down, across = (list(range(0, extent, 8)) for extent in shape)

    def program():
        O = T.empty(shape, "int32")
        with T.Kernel(1, threads=64):
            tiles = {
                "left": T.alloc_fragment((32, 32), "float16"),
                "right": T.alloc_fragment((32, 16), "float16"),
                "sum": T.alloc_fragment((32, 16), "float32"),
            }
            for tile in tiles.values():
                T.clear(tile)
            T.gemm(tiles["left"], tiles["right"], tiles["sum"])
            found = tiles[operand]
            for first in down:
                for i, j in T.Parallel(8, shape[1]):
                    found[first + i, j] = first * 7 + i * 2 + 1
            for first in across:
                for i, j in T.Parallel(shape[0], 8):
                    found[i, first + j] = found[i, first + j] * 2 + first + j
            T.copy(found, O)
        return O

    row, column = np.indices(shape)
    expected = (row // 8 * 56 + row % 8 * 2 + 1) * 2 + column
    np.testing.assert_array_equal(tilewright.jit(target=target)(program).compile().emulate(), expected)


@pytest.mark.parametrize("target", GPUS)
def test_loops_and_branches_around_nothing(target: str) -> None:
    """What a decided condition leaves of a loop was a body without statements, at which passes stopped with an error of Python's."""

    def program(A):
        A: T.Tensor((16, 16), "int32")
        O = T.empty((2, 16, 16), "int32")
        with T.Kernel(2, threads=32) as block:
            blocks = T.get_block_extent(0)
            s, f = T.alloc_shared((16, 16), "int32"), T.alloc_fragment((16, 16), "int32")
            for _i, _j in T.Parallel(16, 16):
                pass
            T.copy(A, s)
            T.clear(f)
            for i, j in T.Parallel(1, 16):
                if blocks < 0 and block != 0:
                    T.atomic_max(A[i, j], s[i, j])
            for _ in T.Pipelined(3, num_stages=2):
                if blocks < 0:
                    T.copy(A, s)
            for k in T.serial(3):
                if k > 3:
                    T.copy(A, s)
                else:
                    pass
            for i, j in T.Parallel(16, 16):
                if block > 0:
                    if blocks < 0:
                        f[i, j] = s[j, i]
                    T.assume(blocks > 0)
            for i, j in T.Parallel(16, 16):
                O[block, i, j] = s[i, j] + f[i, j]
        return O

    agree(program, target, numbers(16, 16, dtype="int32"))


@pytest.mark.parametrize("kept", ["tensor", "tile"])
@pytest.mark.parametrize("target", [AMPERE, AMD])
def test_what_a_name_of_a_pipelined_loop_chooses_is_read_in_each_iteration(target: str, kept: str) -> None:
    """Fuzz seed 9509001: AMD's loops took it for the same in all, and read it before the loop, where the name is not known."""

    def program(A, F):
        A: T.Tensor((2, 16), "float32")
        F: T.Tensor((8,), "int32")
        O = T.empty((4, 16), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((8,), "int32")
            T.copy(F, s)
            for k in T.Pipelined(4, num_stages=2):
                row = F[k] if kept == "tensor" else s[F[k]]
                f = T.alloc_fragment((16,), "float32")
                for i in T.Parallel(16):
                    f[i] = A[row, i] + k
                T.copy(f, O[k, 0])
        return O

    agree(program, target, numbers(2, 16), np.array([1, 0, 0, 1, 1, 0, 1, 0], np.int32))
