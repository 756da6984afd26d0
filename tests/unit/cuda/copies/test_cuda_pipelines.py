"""Software pipelines of cp.async: the same bits as before, no race under any schedule, one barrier an iteration."""

import re

import numpy as np
import pytest
from cuda_gemm import matmul, on, operands, product

import tilewright
import tilewright.language as T
from tilewright.errors import PipelinePlanError
from tilewright.interpreter import interpret
from tilewright.ir.walking import kernels
from tilewright.targets.cuda.compiler import compile_text

SCHEDULES = [("late", 0), ("early", 0), ("random", 1)]


def matrix(*shape, dtype=np.float16, seed=0):
    """Small integers: every order of sums gives the same bits."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def around(kernel, name):
    """The program before and after a pass."""
    names = [trace.name for trace in kernel.program.traces]
    position = names.index(name)
    return kernel.program.traces[position - 1].function, kernel.program.traces[position].function


def outputs(function, arrays):
    """What the interpreter makes of a program's outputs, zeros where it wrote nothing."""
    result = interpret(function, [array.copy() if isinstance(array, np.ndarray) else array for array in arrays])
    return result if isinstance(result, tuple) else (result,)


def check(kernel, *arrays, expected, schedules=SCHEDULES):
    """Interpreted before and after pipelining alike, bit by bit, and emulated under several schedules."""
    before, after = (outputs(program, arrays) for program in around(kernel.variant(*arrays), "inject_pipeline"))
    for one, other in zip(before, after, strict=True):
        assert one.tobytes() == other.tobytes()
    assert np.array_equal(before[0], expected)
    for schedule, seed in schedules:
        assert np.array_equal(kernel.emulate(*arrays, schedule=schedule, seed=seed), expected)


def warnings(kernel):
    return [str(diagnostic) for diagnostic in kernel.program.diagnostics]


def main_loop(kernel):
    """The text of the pipelined loop: from its wait to the end of the iteration."""
    text = kernel.get_kernel_source()
    start = text.index("tw::cp_async_wait")
    return text[start : text.index("\n  }\n", start)]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_every_depth_with_tails_in_every_dimension(stages):
    a, b = matrix(70, 200), matrix(90, 200, seed=1)
    kernel = on("sm_80", matmul).compile(a, b, num_stages=stages)
    schedules = SCHEDULES if stages == 3 else [("random", stages)]
    check(kernel, a, b, expected=product(a, b)[0].astype(np.float32), schedules=schedules)
    assert not warnings(kernel)


@pytest.mark.parametrize("k", [0, 8, 40])
def test_loops_shorter_than_the_pipeline(k):
    a, b = matrix(33, k), matrix(40, k, seed=1)
    kernel = on("sm_80", matmul).compile(a, b, num_stages=4)
    check(kernel, a, b, expected=product(a, b)[0].astype(np.float32), schedules=[("random", k)])


def test_one_barrier_an_iteration_and_the_right_wait():
    a, b = matrix(64, 256), matrix(64, 256, seed=1)
    for stages in (2, 3, 4):
        loop = main_loop(on("sm_80", matmul).compile(a, b, num_stages=stages))
        assert loop.count("tw::sync_threads();") == 1
        assert loop.startswith(f"tw::cp_async_wait<{stages - 2}>();")
        assert loop.count("tw::cp_async_commit();") == 1


def dynamic(A, B, count: T.int32, num_stages=3):
    """The first `count` blocks of k, from block 1 on, with sizes known at launch only."""
    M, N = T.dynamic("M, N")
    A: T.Tensor((M, 64), "float16")
    B: T.Tensor((N, 64), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(1, count, num_stages=num_stages):
            T.copy(A[by * 32, k * 16], a)
            T.copy(B[bx * 32, k * 16], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 32, bx * 32])
    return C


@pytest.mark.parametrize("count", [0, 2, 4])
def test_trip_counts_and_rows_known_at_launch(count):
    a, b = matrix(37, 64), matrix(50, 64, seed=1)
    kernel = on("sm_80", dynamic).compile(a, b, count)
    expected = a[:, 16 : 16 * max(count, 1)].astype(np.float32) @ b[:, 16 : 16 * max(count, 1)].T.astype(np.float32)
    check(kernel, a, b, count, expected=expected, schedules=[("random", count)])
    assert "cp_async_zfill<16>" in kernel.get_kernel_source()


def siblings(A, B):
    """Two loops of different depths over the same tiles, the second one inside a serial loop."""
    A: T.Tensor((32, 128), "float16")
    B: T.Tensor((32, 128), "float16")
    C = T.empty((32, 32), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[0, k * 16], a)
            T.copy(B[0, k * 16], b)
            T.gemm(a, b, c, transpose_B=True)
        for j in T.serial(2):
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, j * 64 + k * 16], a)
                T.copy(B[0, j * 64 + k * 16], b)
                T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def test_sibling_and_nested_loops():
    a, b = matrix(32, 128), matrix(32, 128, seed=1)
    kernel = on("sm_80", siblings).compile(a, b)
    check(kernel, a, b, expected=2 * product(a, b)[0].astype(np.float32))
    assert not warnings(kernel)
    # The tiles of the two loops share their bytes: 2 x 2 and 3 x 2 tiles of 1 KB, one after the other.
    assert dict(kernel.program.source.metadata)["shared_bytes"] == (6144,)


def nested(A, B):
    """A pipeline inside a pipeline: the outer one loads what the inner one multiplies with."""
    A: T.Tensor((32, 64), "float16")
    B: T.Tensor((4, 16, 64), "float16")
    C = T.empty((32, 16), "float32")
    with T.Kernel(1, threads=32):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((16, 64), "float16")
        c = T.alloc_fragment((32, 16), "float32")
        T.clear(c)
        for j in T.Pipelined(4, num_stages=2):
            T.copy(B[j, 0, 0], b)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, k * 16], a)
                T.gemm(a, b[:, k * 16 : k * 16 + 16], c, transpose_B=True)
        T.copy(c, C)
    return C


def test_a_pipeline_inside_a_pipeline():
    a, b = matrix(32, 64), matrix(4, 16, 64, seed=1)
    kernel = on("sm_80", nested).compile(a, b)
    check(kernel, a, b, expected=sum(a.astype(np.float32) @ one.T.astype(np.float32) for one in b))


def carried(A):
    """Each iteration adds what the one before it left in a tile, then overwrites the tile it has loaded."""
    A: T.Tensor((8, 64), "float32")
    C = T.empty((8, 64), "float32")
    with T.Kernel(1, threads=64):
        loaded = T.alloc_shared((64,), "float32")
        before = T.alloc_shared((64,), "float32")
        T.clear(before)
        for k in T.Pipelined(8, num_stages=3):
            T.copy(A[k, 0], loaded)
            for i in T.Parallel(64):
                loaded[i] = loaded[i] * 2.0 + before[63 - i]
            for i in T.Parallel(64):
                C[k, i] = loaded[63 - i]
            for i in T.Parallel(64):
                before[i] = loaded[i]
    return C


def test_values_carried_and_tiles_overwritten_in_the_body():
    a = matrix(8, 64, dtype=np.float32)
    expected, before = np.empty_like(a), np.zeros(64, np.float32)
    for k in range(8):
        before = a[k] * 2 + before[::-1]
        expected[k] = before[::-1]
    kernel = on("sm_80", carried).compile(a)
    check(kernel, a, expected=expected)
    assert "loaded_stages" in kernel.get_kernel_source() and "before_stages" not in kernel.get_kernel_source()


def delayed(A):
    """Reads the tile of the previous iteration before it loads the next."""
    A: T.Tensor((8, 64), "float32")
    C = T.empty((8, 64), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((64,), "float32")
        T.clear(tile)
        for k in T.Pipelined(8, num_stages=3):
            for i in T.Parallel(64):
                C[k, i] = tile[63 - i]
            T.copy(A[k, 0], tile)
    return C


def test_a_tile_that_carries_values_is_not_loaded_ahead():
    a = matrix(8, 64, dtype=np.float32)
    kernel = on("sm_80", delayed).compile(a)
    check(kernel, a, expected=np.concatenate([np.zeros((1, 64), np.float32), a[:-1, ::-1]]))
    (warning,) = warnings(kernel)
    assert (
        "this loop is not pipelined: copy" in warning
        and "tile carries values from one iteration to the next" in warning
    )


def masked(A, B, mask):
    """Blocks of k that a mask chooses."""
    A: T.Tensor((32, 64), "float16")
    B: T.Tensor((32, 64), "float16")
    mask: T.Tensor((4,), "int32")
    C = T.empty((32, 32), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3):
            if mask[k] != 0:
                T.copy(A[0, k * 16], a)
                T.copy(B[0, k * 16], b)
                T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def test_copies_under_a_condition_are_ahead():
    a, b, mask = matrix(32, 64), matrix(32, 64, seed=1), np.array([1, 0, 1, 1], np.int32)
    kernel = on("sm_80", masked).compile(a, b, mask)
    chosen = np.repeat(mask, 16).astype(np.float32)
    check(kernel, a, b, mask, expected=(a * chosen).astype(np.float32) @ b.T.astype(np.float32))
    assert not warnings(kernel)
    text = kernel.show_program("inject_pipeline")
    assert "a_stages = shared(float16[3, 32, 16])" in text
    assert "if mask[k + 2] != 0:" in text and "if mask[k] != 0:" in text


def changing(A, B, mask):
    """The condition asks for what an earlier iteration has left."""
    A: T.Tensor((32, 64), "float16")
    B: T.Tensor((32, 64), "float16")
    mask: T.Tensor((4,), "int32")
    C = T.empty((32, 32), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        seen = T.alloc_var("int32", init=0)
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3):
            if seen == 0:
                T.copy(A[0, k * 16], a)
                T.copy(B[0, k * 16], b)
                T.gemm(a, b, c, transpose_B=True)
                seen = mask[k]
        T.copy(c, C)
    return C


def test_copies_under_a_condition_that_changes_run_in_turn_and_say_so():
    a, b, mask = matrix(32, 64), matrix(32, 64, seed=1), np.array([0, 0, 1, 0], np.int32)
    kernel = on("sm_80", changing).compile(a, b, mask)
    check(kernel, a, b, mask, expected=a[:, :48].astype(np.float32) @ b[:, :48].T.astype(np.float32))
    (warning,) = warnings(kernel)
    assert "stands under a condition" in warning and "T.copy(A[0, k * 16], a)" not in warning.splitlines()[0]


def indexed(A, rows):
    """Rows chosen by a list, through a name."""
    A: T.Tensor((8, 64), "float32")
    rows: T.Tensor((6,), "int32")
    C = T.empty((6, 64), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((64,), "float32")
        for k in T.Pipelined(6, num_stages=3):
            row = rows[k]
            T.copy(A[row, 0], tile)
            for i in T.Parallel(64):
                C[k, i] = tile[63 - i] + T.cast(row, "float32")
    return C


def test_names_of_the_body_are_those_of_the_iteration():
    a, rows = matrix(8, 64, dtype=np.float32), np.array([3, 1, 7, 0, 3, 5], np.int32)
    kernel = on("sm_80", indexed).compile(a, rows)
    check(kernel, a, rows, expected=a[rows][:, ::-1] + rows[:, None].astype(np.float32))
    assert not warnings(kernel)


def converting(A, B):
    """One copy converts, so it cannot be asynchronous; it still fills its slot ahead."""
    A: T.Tensor((32, 64), "float32")
    B: T.Tensor((32, 64), "float16")
    C = T.empty((32, 32), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3):
            T.copy(A[0, k * 16], a)
            T.copy(B[0, k * 16], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def test_a_synchronous_copy_in_a_slot_of_its_own_needs_no_second_barrier():
    a, b = matrix(32, 64, dtype=np.float32), matrix(32, 64, seed=1)
    kernel = on("sm_80", converting).compile(a, b)
    check(kernel, a, b, expected=a @ b.T.astype(np.float32))
    assert "not cp_async: it converts float32 to float16" in kernel.explain()
    assert main_loop(kernel).count("tw::sync_threads();") == 1


def planned(A, B, stage=(0, 0, 2), order=(0, 1, 2)):
    A: T.Tensor((32, 64), "float16")
    B: T.Tensor((32, 64), "float16")
    C = T.empty((32, 32), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=3, stage=stage, order=order):
            T.copy(A[0, k * 16], a)
            T.copy(B[0, k * 16], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


@pytest.mark.parametrize("stage, order", [((0, 0, 2), (0, 1, 2)), ((0, 1, 2), (1, 2, 0)), ((0, 1, 1), (0, 1, 2)), ((0, 0, 1), (2, 1, 0))])  # fmt: skip
def test_the_authors_plan(stage, order):
    a, b = matrix(32, 64), matrix(32, 64, seed=1)
    kernel = on("sm_80", planned).compile(a, b, stage=stage, order=order)
    check(kernel, a, b, expected=product(a, b)[0].astype(np.float32), schedules=SCHEDULES[:3])


@pytest.mark.parametrize(
    "stage, order, message",
    [
        ((0, 0), (0, 1, 2), "stage= has 2 numbers, but the loop's body has 3 statements"),
        ((0, 2, 1), (0, 1, 2), "on which it depends"),
        ((0, 0, 0), (0, 2, 1), "on which it depends"),
        ((0, 0, 1), (0, 1, 1), "order= names two statements the same"),
    ],
)
def test_a_plan_that_cannot_be(stage, order, message):
    a = matrix(32, 64)
    with pytest.raises(PipelinePlanError) as error:
        on("sm_80", planned).compile(a, a, stage=stage, order=order)
    assert message in error.value.message


def laid_out(A, B, turned):
    """One tile lies in the author's own order."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((M, 32), "float16")
        b = T.alloc_shared((N, 32), "float16")
        c = T.alloc_fragment((M, N), "float32")
        if turned:
            T.annotate_layout({a: T.Layout((M, 32), lambda i, j: i * 32 + (j // 8 + i) % 4 * 8 + j % 8)})
        else:
            T.annotate_layout({a: T.Layout((M, 32), lambda i, j: i * 32 + (j ^ (i // 2 % 4 * 8)))})
        T.clear(c)
        for k in T.Pipelined(K // 32, num_stages=3):
            T.copy(A[0, k * 32], a)
            T.copy(B[0, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


@pytest.mark.parametrize("turned", [False, True])
def test_the_authors_layout_is_expanded_over_the_stages(turned):
    a, b = matrix(32, 256), matrix(48, 256, seed=1)
    kernel = on("sm_80", laid_out).compile(a, b, turned=turned)
    _, after = around(kernel, "inject_pipeline")
    (found,) = kernels(after)
    assert [(buffer.name, layout.shape) for buffer, layout in found.layouts] == [("a_stages", (3, 32, 32))]
    check(kernel, a, b, expected=product(a, b)[0].astype(np.float32), schedules=SCHEDULES[2:])
    assert [warning for warning in warnings(kernel) if "a_stages is not made of digits" in warning] == warnings(kernel)
    assert bool(warnings(kernel)) == turned


def test_machine_code_of_a_pipeline():
    a, b = operands(256, 256, 512, "float16")
    kernel = on("sm_80", matmul).compile(a, b, block=(128, 128, 32), num_stages=4)
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    (resources,) = binary.resources.values()
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0
    text = binary.machine_code()
    assert "LDGSTS.E.BYPASS.128" in text and "HMMA.16816.F32" in text and not re.search(r"\b(LDL|STL)\b", text)
    # Loads of the second step of k stand among the products of the first.
    loop = text[text.index("BAR.SYNC") :]
    kinds = re.findall(r"\b(LDSM|HMMA)\b", loop)
    assert "HMMA" in kinds[: len(kinds) - kinds[::-1].index("LDSM")]


@pytest.mark.parametrize("columns", [16, 20, 18, 17])
@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_rows_that_begin_anywhere_are_brought_by_pieces_that_fit(columns: int, target: str) -> None:
    """A piece of 16 bytes begins at a multiple of 16: rows of a tensor of 20 float32 do, those of 18 or 17 do not."""

    def program(A, rows):
        A: T.Tensor((40, columns), "float32")
        rows: T.Tensor((4, 16), "int32")
        O = T.empty((4, 16, 16), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 16), "float32")
            for k in T.Pipelined(4, num_stages=2):
                for i, j in T.Parallel(16, 16):
                    s[i, j] = A[rows[k, i], j]
                for i, j in T.Parallel(16, 16):
                    O[k, i, j] = s[15 - i, j] + 1
        return O

    random = np.random.default_rng(columns)
    given = random.integers(-9, 10, (40, columns)).astype(np.float32), random.integers(0, 40, (4, 16)).astype(np.int32)
    kernel = tilewright.jit(program, target=target).compile(*given)
    assert np.array_equal(kernel.emulate(*given), kernel.interpret(*given))
