"""Roles for loops of every shape: interpreted and emulated alike under every schedule, the copies asynchronous."""

import re
from collections import Counter

import numpy as np
import pytest
from cuda_gemm import on
from specialized_base import integers, product
from specialized_loads import plain
from specialized_programs import PROGRAMS
from specialized_views import overlapped, overlapped_expected

import tilewright.language as T
from tilewright.errors import PipelinePlanError
from tilewright.interpreter import interpret
from tilewright.kernels.attention import flash_attention
from tilewright.targets.cuda.compiler import compile_text

SCHEDULES = (("late", 0), ("early", 0), ("random", 1))


def compiled(program):
    return on("sm_90a", program.kernel).compile(*program.inputs, **program.options)


def close(program, result):
    expected = program.expected(*program.inputs)
    (result,) = result if isinstance(result, tuple) else (result,)
    if program.tolerance:
        return np.allclose(result, expected, rtol=program.tolerance, atol=program.tolerance)
    return np.array_equal(result, expected)


QUICK = ("masked", "cp.async alone", "loops in a row")
"""Programs of every run; the others are long proofs."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(one, id=one.name, marks=() if one.name in QUICK else pytest.mark.proof) for one in PROGRAMS],
)
def test_program(program):
    kernel = compiled(program)
    source = kernel.get_kernel_source()
    assert "_full" in source, kernel.explain()
    for trace in kernel.program.traces:
        if trace.name == "lower_channels":
            break
        if trace.changed:
            arrays = [one.copy() if isinstance(one, np.ndarray) else one for one in program.inputs]
            assert close(program, interpret(trace.function, arrays)), trace.name
    for schedule, seed in SCHEDULES:
        assert close(program, kernel.emulate(*program.inputs, schedule=schedule, seed=seed)), schedule
    text = compile_text(source, kernel.arch).machine_code()
    assert all(re.search(rf"\b{name}\b", text) for name in program.instructions)
    assert not re.search(r"\b(LDL|STL)\b", text)


def is_specialised(kernel):
    return "loads_full" in kernel.get_kernel_source()


def warnings(kernel):
    return [diagnostic.message for diagnostic in kernel.program.diagnostics]


@pytest.mark.parametrize("loop, block, expected", [
    (None, None, True), (False, None, False), (None, False, False), (True, False, True), (False, True, False),
])  # fmt: skip
def test_the_switches(loop, block, expected):
    a, b = integers(70, 128), integers(128, 64, seed=1)
    kernel = on("sm_90a", plain).compile(a, b, specialize=loop, kernel_specialize=block)
    assert is_specialised(kernel) == expected
    assert np.array_equal(kernel.emulate(a, b, schedule="random", seed=2), product(a, b))


def test_no_stages_no_roles():
    a, b = integers(70, 128), integers(128, 64, seed=1)
    kernel = on("sm_90a", plain).compile(a, b, stages=0)
    assert not is_specialised(kernel)
    assert np.array_equal(kernel.emulate(a, b, schedule="late"), product(a, b))


def test_threads_load_where_the_author_insists():
    """Rows of odd length: neither the copy engine nor cp.async; by itself the compiler pipelines in one role."""
    a, b = integers(70, 129), integers(129, 65, seed=1)
    by_itself = on("sm_90a", plain).compile(a, b)
    assert not is_specialised(by_itself)
    assert "the stride of dimension 0 of A is not known to be a multiple of 16 bytes" in by_itself.explain()
    asked = on("sm_90a", plain).compile(a, b, specialize=True)
    assert is_specialised(asked) and not warnings(asked)
    for schedule, seed in SCHEDULES:
        assert np.array_equal(asked.emulate(a, b, schedule=schedule, seed=seed), product(a, b))


def planned(A, B, stage=None, order=None, specialize=True, rounds=1):
    A: T.Tensor((64, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        rows = T.alloc_fragment((64,), "float32")
        T.clear(c)
        T.clear(rows)
        for _ in T.serial(rounds):
            for k in T.Pipelined(4, num_stages=3, stage=stage, order=order, specialize=specialize):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
                for i in T.Parallel(64):
                    rows[i] = rows[i] + T.cast(a[i, 0], "float32")
        for i, j in T.Parallel(64, 64):
            C[i, j] = c[i, j] + rows[i]
    return C


@pytest.mark.parametrize("stage, order, specialize, rounds", [
    ((0, 0, 2, 2), (0, 1, 2, 3), True, 1), ((0, 1, 2, 2), (1, 0, 2, 3), None, 1), ((0, 0, 2, 2), (0, 1, 3, 2), None, 1),
    ((0, 0, 2, 0), (0, 1, 2, 3), None, 1), ((0, 0, 1, 3), (0, 1, 3, 2), None, 1), ((0, 0, 0, 2), (0, 1, 3, 2), None, 2),
])  # fmt: skip
def test_the_authors_plan_in_roles(stage, order, specialize, rounds):
    a, b = integers(64, 256), integers(64, 256, seed=1)
    kernel = on("sm_90a", planned).compile(a, b, stage=stage, order=order, specialize=specialize, rounds=rounds)
    assert is_specialised(kernel) and not warnings(kernel)
    expected = rounds * (product(a, b.T) + a[:, ::64].astype(np.float32).sum(1)[:, None])
    for schedule, seed in SCHEDULES:
        assert np.array_equal(kernel.emulate(a, b, schedule=schedule, seed=seed), expected)


@pytest.mark.parametrize("stage, order", [
    ((0, 1, 1, 1, 0, 1), (0, 2, 3, 4, 1, 5)), ((0, 0, 0, 0, 0, 1), (0, 2, 3, 4, 1, 5)), ((0, 0, 0, 0, 1, 2), (1, 2, 3, 4, 0, 5)),
])  # fmt: skip
def test_tiles_of_the_work_get_stages_by_the_authors_plan(stage, order):
    """Where products run ahead of those that need them, the tile between them has a copy for each iteration in flight."""
    q, k, v = (integers(*shape, seed=seed) for seed, shape in enumerate([(64, 64), (256, 64), (256, 64)]))
    kernel = on("sm_90a", overlapped).compile(q, k, v, stage=stage, order=order)
    assert is_specialised(kernel) and not warnings(kernel)
    expected = overlapped_expected(q, k, v)
    for schedule, seed in SCHEDULES:
        assert np.array_equal(kernel.emulate(q, k, v, schedule=schedule, seed=seed), expected)


def test_a_plan_that_cannot_be():
    a, b = integers(64, 256), integers(64, 256, seed=1)
    with pytest.raises(PipelinePlanError, match="on which it depends"):
        on("sm_90a", planned).compile(a, b, stage=(0, 2, 1, 1), order=(0, 1, 2, 3))


def dependent(A, B, stages=2):
    """Where an iteration loads from depends on what the last one computed."""
    A: T.Tensor((64, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        place = T.alloc_shared((1,), "int32")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        T.clear(place)
        for k in T.Pipelined(4, num_stages=stages, specialize=True):
            at = place[0]
            T.copy(A[0, at * 64], a)
            T.copy(B[0, at * 64], b)
            T.gemm(a, b, c, transpose_B=True)
            for i in T.Parallel(1):
                place[i] = (k + 1) % 4
        T.copy(c, C)
    return C


def test_loads_that_depend_on_the_work_stay_and_say_so():
    a, b = integers(64, 256), integers(64, 256, seed=1)
    kernel = on("sm_90a", dependent).compile(a, b)
    assert not is_specialised(kernel)
    reason = "it depends on place, which is filled on the way"
    assert any(
        message.startswith("this loop has no warps of its own") and reason in message for message in warnings(kernel)
    )
    assert np.array_equal(kernel.emulate(a, b, schedule="random", seed=1), product(a, b.T))


def written(A, C, stages=2):
    """Reads what the kernel itself writes."""
    A: T.Tensor((64, 64), "float16")
    C: T.Tensor((64, 256), "float16")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for k in T.Pipelined(3, num_stages=stages):
            T.copy(A, a)
            T.copy(C[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C[0, k * 64 + 64])


def test_loads_of_what_is_written_stay_and_say_so():
    kernel = on("sm_90a", written).compile(integers(64, 64), integers(64, 256))
    assert not is_specialised(kernel)
    assert "writes b from more than tensors that the kernel only reads" in kernel.explain()


def static(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "int8")
    B: T.Tensor((N, K), "int8")
    C = T.empty((M, N), "int32")
    _int8(A, B, C, M, N, K)
    return C


def dynamic_rows(A, B):
    M = T.dynamic("M")
    N, K = T.const("N, K")
    A: T.Tensor((M, K), "int8")
    B: T.Tensor((N, K), "int8")
    C = T.empty((M, N), "int32")
    _int8(A, B, C, M, N, K)
    return C


def dynamic_all(A, B):
    M, N, K = T.dynamic("M, N, K")
    A: T.Tensor((M, K), "int8")
    B: T.Tensor((N, K), "int8")
    C = T.empty((M, N), "int32")
    _int8(A, B, C, M, N, K)
    return C


@T.macro
def _int8(A, B, C, M, N, K):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        a = T.alloc_shared((128, 128), "int8")
        b = T.alloc_shared((128, 128), "int8")
        c = T.alloc_fragment((128, 128), "int32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 128), num_stages=3):
            T.copy(A[by * 128, k * 128], a)
            T.copy(B[bx * 128, k * 128], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 128, bx * 128])


def test_sizes_known_at_launch_keep_the_asynchronous_instructions():
    a, b = np.zeros((1024, 3200), np.int8), np.zeros((17280, 3200), np.int8)
    counts = []
    for function in (static, dynamic_rows, dynamic_all):
        kernel = on("sm_90a", function).compile(a, b).variant(a, b)
        text = compile_text(kernel.get_kernel_source(), kernel.arch).machine_code()
        counts.append(Counter(re.findall(r"\b(UTMALDG|IGMMA|SYNCS\.PHASECHK\S*|LDGSTS|LDG|WARPGROUP\.ARRIVE)\b", text)))
    of_loops = [{name: count[name] for name in ("UTMALDG", "IGMMA", "LDGSTS", "WARPGROUP.ARRIVE")} for count in counts]
    assert of_loops[0] == of_loops[1] == of_loops[2] and of_loops[0]["UTMALDG"] and of_loops[0]["IGMMA"]


@pytest.mark.proof
@pytest.mark.parametrize("depth, instruction, reason", [
    (3204, "LDGSTS", "cp_async into a_ring (not tma_load: "),
    (3201, None, "not cp_async: rows do not consist of pieces of 4 bytes"),
])  # fmt: skip
def test_rows_of_fewer_bytes_known_at_launch(depth, instruction, reason):
    """Rows at multiples of 4 bytes are cp.async as those of known sizes are; beyond that it is said why threads load."""
    a, b = np.zeros((256, depth), np.int8), np.zeros((256, depth), np.int8)
    kernels = [on("sm_90a", function).compile(a, b).variant(a, b) for function in (static, dynamic_all)]
    for kernel in kernels:
        text = compile_text(kernel.get_kernel_source(), kernel.arch).machine_code()
        assert "UTMALDG" not in text and ("LDGSTS" in text) == (instruction == "LDGSTS") and "IGMMA" in text
        assert reason in kernel.explain()


def test_softmax_runs_beside_the_second_product():
    """The next scores and the last weighted sum are both under way before either is waited for."""
    heads = tuple(np.zeros((1, 1, 512, 128), np.float16) for _ in range(3))
    function = flash_attention.direct.function
    kernel = on("sm_90a", function).compile(*heads, dtype="float16", expected=(4096, 4096))
    loop = kernel.get_kernel_source().split("for (int32_t n = 1;")[1]
    events = re.findall(r"wgmma_(ss|rs|commit|wait<\d>)|fast_exp2", loop)
    runs = [one for one, before in zip(events, ["", *events], strict=False) if one != before]
    assert runs[:8] == ["ss", "commit", "rs", "commit", "wait<1>", "", "wait<0>", "rs"]
    # The second warpgroup starts its products when the first has started its own.
    assert (
        loop.index("named_barrier_sync")
        < loop.index("wgmma_ss")
        < loop.index("named_barrier_arrive")
        < loop.index("wgmma_wait")
    )
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert binary.warnings == ()  # where the compiler puts asynchronous products in sequence it says so


def filled_before(A, B, filled=True):
    """Rows that threads store first and products of half of them afterwards."""
    A: T.Tensor((128, 128), "float16")
    B: T.Tensor((64, 128), "float16")
    C = T.empty((128, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        if filled:
            for i, j in T.Parallel(128, 64):
                C[i, j] = -1.0
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[64, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[64, 0])
    return C


def test_rows_that_threads_store_as_well_leave_by_threads():
    """The copy engine would store behind the threads' backs: nothing between the two is fenced."""
    a, b = integers(128, 128), integers(64, 128, seed=1)
    alone = on("sm_90a", filled_before).compile(a, b, filled=False)
    assert "tma_store(" in alone.get_kernel_source()
    kernel = on("sm_90a", filled_before).compile(a, b)
    assert "not tma_store: threads store to C as well" in kernel.explain()
    expected = np.concatenate([np.full((64, 64), -1, np.float32), product(a[64:], b.T)])
    for schedule, seed in SCHEDULES:
        assert np.array_equal(kernel.emulate(a, b, schedule=schedule, seed=seed), expected)


def last_one_adds(A, B, counts, parts=3):
    """Parts of K that blocks of their own work at; who comes last adds up what all have left, its own among it."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    counts: T.Tensor((M // 64, N // 64), "int32")
    C = T.empty((M, N), "float32")
    left = T.alloc_global((parts, M, N), "float32")
    with T.Kernel(N // 64, M // 64, parts, threads=128) as (bx, by, bz):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        last = T.alloc_shared((1,), "int32")
        T.clear(c)
        for k in T.Pipelined(K // 64 // parts, num_stages=2):
            T.copy(A[by * 64, (bz * (K // 64 // parts) + k) * 64], a)
            T.copy(B[bx * 64, (bz * (K // 64 // parts) + k) * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, left[bz, by * 64 : by * 64 + 64, bx * 64 : bx * 64 + 64])
        T.sync_threads()
        if T.get_thread_binding() == 0:
            last[0] = T.atomic_add(counts[by, bx], 1, memory_order="acq_rel", return_prev=True)
        T.sync_threads()
        if last[0] == parts - 1:
            for i, j in T.Parallel(64, 64):
                c[i, j] = 0
                for part in T.serial(parts):
                    c[i, j] += left[part, by * 64 + i, bx * 64 + j]
            T.copy(c, C[by * 64, bx * 64])
    return C


def test_what_the_kernel_reads_itself_leaves_by_threads():
    """Threads that meet and count know nothing of stores that the engine has yet to make."""
    a, b = integers(64, 384), integers(128, 384, seed=1)
    kernel = on("sm_90a", last_one_adds).compile(a, b, np.zeros((1, 2), np.int32))
    assert "not tma_store: the kernel reads left as well" in kernel.explain()
    for schedule, seed in SCHEDULES:
        found = kernel.emulate(a, b, np.zeros((1, 2), np.int32), schedule=schedule, seed=seed)
        assert np.array_equal(found, product(a, b.T))
