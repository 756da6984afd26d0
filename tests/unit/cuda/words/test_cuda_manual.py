"""Barriers, copies and warpgroups that the author orders: interpreted, emulated, compiled; and what mistakes in them say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hopper_gemm import roles_matmul
from manual_programs import (
    EVERYWHERE,
    HOPPER,
    ROUNDED,
    decoded_by_threads,
    engine_stores,
    gathered_attention,
    named_barriers,
    warp_groups,
)

import tilewright
import tilewright.language as T
from tilewright.errors import (
    BarrierMisuse,
    EmulationError,
    MissingCapability,
    NotAsynchronous,
    RegistersExceeded,
    RolesDeadlocked,
)
from tilewright.ir import Role, walk
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.language.mistakes import MisplacedRole, NumberExpected, TileExpected
from tilewright.targets.cuda.compiler import compile_text

PROGRAMS = [(program, "sm_90a") for program in HOPPER + EVERYWHERE] + [(program, "sm_80") for program in EVERYWHERE]
by_name = [f"{program.__name__}-{arch}" for program, arch in PROGRAMS]


def on(function: Any, arch: str = "sm_90a") -> Any:
    return tilewright.compile(function, target=f"cuda -arch={arch}")


def result(run: Callable[..., Any], arguments: tuple[np.ndarray, ...], **options: Any) -> np.ndarray:
    copies = [argument.copy() for argument in arguments]
    run(*copies, **options)
    return copies[-1]


@pytest.mark.parametrize("program, arch", PROGRAMS, ids=by_name)
def test_program(program, arch):
    function, arguments, expected = program()
    kernel = on(function, arch)
    assert np.array_equal(result(kernel.interpret, arguments), expected)
    for schedule, seed in (("late", 0), ("random", 3)):
        assert np.array_equal(result(kernel.emulate, arguments, schedule=schedule, seed=seed), expected)
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert binary.warnings == ()
    assert all(use.spill_store_bytes == use.stack_bytes == 0 for use in binary.resources.values())
    text = print_program(function.function)
    assert print_program(parse(text)) == text


@pytest.mark.parametrize("program", ROUNDED, ids=lambda one: one.__name__)
def test_attention_by_three_warpgroups(program):
    function, arguments, expected = program()
    kernel = on(function)
    interpreted = result(kernel.interpret, arguments)
    assert np.abs(interpreted - expected).max() < 0.01
    for schedule in ("late", "early"):
        assert np.abs(result(kernel.emulate, arguments, schedule=schedule) - interpreted).max() < 0.005
    found = opcodes(kernel)
    gathered = re.findall(r"tw::cp_async<16>\(tw::shared_address\(&(K_s|left|right)\[", kernel.get_kernel_source())
    assert found["HGMMA"] and not found["STL"] and len(gathered) == (3 if program is gathered_attention else 0)


def opcodes(kernel: Any) -> Counter[str]:
    sass = compile_text(kernel.get_kernel_source(), kernel.arch).machine_code()
    return Counter(re.findall(r"\b(HGMMA|WARPGROUP\.ARRIVE|UTMALDG|UTMASTG|STSM|STL|LDL)\b", sass))


def test_machine_code_is_that_of_roles_and_channels():
    block = {"block": (128, 256, 64), "stages": 4}
    operands = [np.zeros(shape, np.float16) for shape in ((256, 8192), (512, 8192))]
    kernel = on(warp_groups(256, 512, 8192, **block)[0])
    assert opcodes(kernel) == opcodes(
        tilewright.jit(target="cuda -arch=sm_90a")(roles_matmul.direct.function).compile(
            *operands, dtype="float16", out="float16", **block
        )
    )


@pytest.mark.parametrize("in_flight, elect, registers, stages", [(0, False, None, 1), (1, False, (24, 240), 2)])
def test_other_ways_to_hand_over(in_flight, elect, registers, stages):
    function, arguments, expected = warp_groups(
        70, 72, 200, (64, 64, 64), stages, consumers=1, in_flight=in_flight, elect=elect, registers=registers
    )
    assert np.array_equal(result(on(function).emulate, arguments), expected)


# Mistakes -----------------------------------------------------------------------------------------

SMALL = {"M": 64, "N": 64, "K": 640, "block": (64, 64, 64), "stages": 2, "consumers": 1}


@pytest.mark.parametrize("wrong", ["arrive", "parity", "bytes"])
def test_who_waits_for_ever_is_told(wrong):
    function, arguments, _ = warp_groups(**SMALL, wrong=wrong)
    with pytest.raises(RolesDeadlocked, match="the roles warps_0_3, warps_4_7 wait for one another for ever") as error:
        result(on(function).interpret, arguments)
    missing = {"arrive": "empty[0], whose phase 0 lacks 1 of 1 arrivals", "parity": "parity 0 of empty[0]",
               "bytes": "full[0], whose phase 0 lacks 8192 bytes"}  # fmt: skip
    assert missing[wrong] in str(error.value)
    with pytest.raises(EmulationError, match="deadlock"):
        result(on(function).emulate, arguments)


def test_more_arrivals_than_counted():
    function, arguments, _ = warp_groups(**SMALL, wrong="count", elect=False)
    with pytest.raises(
        BarrierMisuse, match=r"128 threads arrive at empty\[0\] at once, but its phase waits for 1 of 1"
    ):
        result(on(function).interpret, arguments)
    with pytest.raises(EmulationError):
        result(on(function).emulate, arguments)


@pytest.mark.parametrize("program", [decoded_by_threads, engine_stores])
def test_a_fence_that_is_missing_is_seen(program):
    function, arguments, _ = program()
    kernel = on(function)
    text = kernel.get_kernel_source()
    without = text.replace("tw::fence_proxy_async();", "").replace("tw::fence_proxy_async_shared();", "")
    assert without != text
    from tilewright.runtime import emulation

    original = emulation.with_lines
    emulation.with_lines = lambda source: without
    try:
        with pytest.raises(EmulationError, match="fence"):
            result(kernel.emulate, arguments)
    finally:
        emulation.with_lines = original


def test_named_barriers_of_another_number():
    @T.prim_func
    def main(A: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            with T.ws(0):
                A[tx] = 1.0
                T.sync_threads(1, 256)
            with T.ws(1):
                T.sync_threads(2, 256)

    array = np.zeros(256, np.float32)
    with pytest.raises(RolesDeadlocked, match="the named barrier 1, to which 128 of 256 threads came"):
        on(main).interpret(array)
    with pytest.raises(EmulationError, match="deadlock"):
        on(main).emulate(array)


def test_barriers_of_the_author_and_of_roles_do_not_meet():
    text = on(named_barriers()[0]).get_kernel_source()
    assert "named_barrier_sync(2, 256)" in text and "named_barrier_sync(3, 128)" in text


@pytest.mark.parametrize(
    "program, message",
    [
        (warp_groups, "sm_80 has no barriers that copies signal"),
        (engine_stores, "sm_80 has no barriers that copies signal"),
    ],
)
def test_machines_below(program, message):
    with pytest.raises(MissingCapability, match=re.escape(message)):
        on(program()[0], "sm_80")


def test_a_cpu_has_no_barriers():
    with pytest.raises(MissingCapability, match="has no warps that do different things at once"):
        tilewright.compile(named_barriers()[0], target="cpu")


def wrong_kernel(words: Callable[[Any, Any], None], threads: int = 256) -> Any:
    tune = T.macro(words)

    @T.prim_func
    def main(A: T.Tensor((64, 50), "float16")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_shared((64, 50), "float16")
            tune(A, tile)

    return main


def scattered(A, tile):
    T.alloc_barrier(1)
    tx = T.get_thread_binding()
    if (tx < 64) | (tx >= 192):
        T.copy(A, tile)


def late_registers(A, tile):
    with T.ws(0):
        T.copy(A, tile)
        T.set_max_nreg(240)


def uneven_registers(A, tile):
    tx = T.get_thread_binding()
    if tx < 32:
        T.set_max_nreg(240)
        T.copy(A, tile)


def within_a_group(A, tile):
    tx = T.get_thread_binding()
    with T.ws(1):
        if tx < 144:
            T.copy(A, tile)


def of_everyone(A, tile):
    T.set_max_nreg(240)


def whole_row(A, tile):
    row = T.alloc_barrier([1, 1])
    T.mbarrier_arrive(row)


def no_barrier(A, tile):
    T.tma_copy(A, tile)


def no_group(A, tile):
    with T.ws(2):
        T.copy(A, tile)


def number(A, tile):
    T.sync_threads(16, 64)


def odd_count(A, tile):
    T.sync_threads(3, 40)


@pytest.mark.parametrize(
    "words, error, message",
    [
        (scattered, MisplacedRole, "warps that do not lie side by side do this together"),
        (late_registers, MisplacedRole, "T.set_max_nreg stands in the middle of what its warpgroups do"),
        (uneven_registers, MisplacedRole, "some warps of a warpgroup set their registers, and others do not"),
        (within_a_group, MisplacedRole, "only some of the threads of warps_4_7 come here"),
        (of_everyone, MisplacedRole, "T.set_max_nreg stands outside of any warpgroup's work"),
        (whole_row, TileExpected, "the barrier of T.mbarrier_arrive"),
        (no_barrier, TileExpected, "the barrier of T.tma_copy"),
        (no_group, NumberExpected, "T.ws is (2,)"),
        (number, NumberExpected, "barrier_id of T.sync_threads is 16"),
        (odd_count, NumberExpected, "arrive_count of T.sync_threads is 40"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_misplaced_words(words, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _ = wrong_kernel(words).function


@pytest.mark.parametrize(
    "registers, blocks, message",
    [
        ((80, 240), 1, "keep 71680 registers (240 x 256, 80 x 128 threads), but a block of 384 threads has 64512"),
        ((24, 112), 2, "keep 31744 registers (112 x 256, 24 x 128 threads), but a block of 384 threads of which 2 share a multiprocessor has 30720"),
    ],
)  # fmt: skip
def test_more_registers_than_a_block_has(registers, blocks, message):
    """Such a kernel would wait for ever."""
    with pytest.raises(RegistersExceeded, match=re.escape(message)) as error:
        on(warp_groups(registers=registers, blocks=blocks)[0])
    assert "a thread starts with" in str(error.value)
    on(warp_groups(registers=(24, registers[1] - 8 * blocks), blocks=blocks)[0])


def test_a_tile_that_the_engine_cannot_load():
    def load(A, tile):
        ready = T.alloc_barrier(256)
        T.tma_copy(A[0:64, 0:48], tile[:, 2:50], barrier=ready)

    with pytest.raises(NotAsynchronous, match="cannot move this tile from A: it fills a part of the rows of tile"):
        on(wrong_kernel(load))


def test_a_tile_that_cp_async_cannot_load():
    def load(A, tile):
        T.async_copy(A[0:64, 1:50], tile[:, 0:49])

    with pytest.raises(
        NotAsynchronous, match=r"this copy cannot be cp\.async: rows do not consist of pieces of 4 bytes"
    ):
        on(wrong_kernel(load))


@pytest.mark.parametrize("arch, step", [("sm_80", 1), ("sm_90a", 1), ("sm_80", 3)])
def test_loops_in_async_scope(arch, step):
    """Rows of a list come by cp.async; a loop whose elements are no neighbours comes as it can, and that is said."""

    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16"), rows: T.Tensor((40,), "int32"), C: T.Tensor((40, 8), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((40, 8), "float16")
            count = T.alloc_local((1,), "int32")
            count[0] = rows[0]
            with T.attr("default", "async_scope", 1):
                for i, j in T.Parallel(40, 8):
                    tile[i, j] = T.if_then_else(i < count[0], A[rows[i], j * step], 0)
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.sync_threads()
            T.copy(tile, C)

    with nullcontext() if step == 1 else pytest.warns(match=r"cannot be cp\.async: rows do not consist of pieces"):
        kernel = tilewright.compile(main, target=f"cuda -arch={arch}")
    assert ("cp_async of 16 bytes" in kernel.explain()) == (step == 1)
    a, rows = np.arange(2048).reshape(64, 32).astype(np.float16), np.arange(33, 73, dtype=np.int32) % 64
    expected = np.where(np.arange(40)[:, None] < rows[0], a[rows, : 8 * step : step], 0)
    for schedule in ("late", "random"):
        found = np.zeros((40, 8), np.float16)
        kernel.emulate(a, rows, found, schedule=schedule)
        assert np.array_equal(found, expected)
    found = np.zeros((40, 8), np.float16)
    tilewright.compile(main, target="cpu")(a, rows, found)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "dtype, columns, width, moved, bytes",
    [
        ("float16", 36, 8, 8, 8), ("float16", 32, 16, 12, 8), ("float16", 34, 8, 8, 4), ("float16", 32, 8, 6, 4),
        ("float64", 9, 4, 4, 8),
    ],
)  # fmt: skip
def test_gathered_rows_come_by_the_widest_pieces_that_divide_them(dtype, columns, width, moved, bytes):
    """The tensor's rows, the tile's and what is moved of each consist of pieces, none of which is less than a number."""

    @T.prim_func
    def main(A: T.Tensor((9, columns), dtype), rows: T.Tensor((8,), "int32"), C: T.Tensor((8, moved), dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, width), dtype)
            with T.attr("default", "async_scope", 1):
                for i, j in T.Parallel(8, moved):
                    tile[i, j] = A[rows[i], j]
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.sync_threads()
            T.copy(tile[:, :moved], C)

    kernel = tilewright.compile(main, target="cuda -arch=sm_80")
    assert f"cp_async of {bytes} bytes" in kernel.explain()
    a, rows = np.arange(9 * columns).reshape(9, columns).astype(dtype), np.arange(3, 11, dtype=np.int32) % 9
    found = np.zeros((8, moved), dtype)
    kernel.emulate(a, rows, found, schedule="late")
    assert np.array_equal(found, a[rows, :moved])


def test_what_warps_prepare_for_themselves():
    """Names, scalars and arrays made before the warps part belong to those who use them."""

    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            lane = T.get_lane_idx()
            own = T.alloc_local((2,), "float32")
            turns = T.alloc_var("int32", 3)
            turns = turns + 1
            own[0] = A[tx]
            with T.ws(0):
                for _ in T.serial(2):
                    turns = turns + 1
                own[1] = own[0] * turns
                T.sync_threads()
                C[tx] = own[1] + lane
            with T.ws(1):
                turns = turns * 2
                own[1] = own[0] * turns
                T.sync_threads()
                C[tx] = own[1] - lane

    a = np.arange(256, dtype=np.float32)
    lane = np.arange(256) % 32
    expected = np.where(np.arange(256) < 128, a * 6 + lane, a * 8 - lane).astype(np.float32)
    assert len([node for node in walk(main.function) if isinstance(node, Role)]) == 2
    kernel = on(main)
    for run in (kernel.interpret, kernel.emulate):
        assert np.array_equal(result(run, (a, np.zeros(256, np.float32))), expected)


@pytest.mark.parametrize(
    "target", ["cuda -arch=sm_80", "cuda -arch=sm_90", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal"]
)
def test_numbers_of_registers_are_kept_where_warps_can_change_them(target):
    @T.prim_func
    def main(C: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=256):
            with T.ws(0):
                T.set_max_nreg(240, 1)
                C[0] = 1.0
            with T.ws(1):
                T.set_max_nreg(24, 0)
                C[1] = 2.0

    kernel = tilewright.compile(main, target=target)
    assert ("setmaxnreg" in kernel.get_kernel_source()) == target.endswith("sm_90a")
    found = np.zeros(2, np.float32)
    kernel.emulate(found)
    assert found.tolist() == [1, 2]


def test_warpgroups_are_those_of_a_block_of_one_dimension():
    def program(A):
        A: T.Tensor((64,), "float32")
        with T.Kernel(1, threads=(64, 2)), T.ws(0):
            for i in T.Parallel(64):
                A[i] = 1

    with pytest.raises(NumberExpected, match=r"threads= of a kernel with T.ws is \(64, 2, 1\)") as error:
        tilewright.jit(target="cuda -arch=sm_90a")(program).compile(np.zeros(64, np.float32))
    assert "threads=128" in str(error.value)
