"""Words for single threads, warps and the grid: interpreted, emulated, compiled; and what is said where they do not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest
import word_programs as programs
from manual_programs import cluster
from word_programs import PROGRAMS

import tilewright
import tilewright.language as T
from tilewright.errors import (
    CompilerNotFound,
    EmulationFailed,
    ForeignFunction,
    GridTooLarge,
    LaunchFailed,
    LayoutConflict,
    MissingCapability,
    TilewrightError,
)
from tilewright.language.mistakes import NumberExpected, OperatorMismatch, TileExpected
from tilewright.targets.cuda.compiler import compile_text
from tilewright.targets.cuda.toolkit import include_directory


def on(function, arch):
    return tilewright.compile(function, target=f"cuda -arch={arch}")


@pytest.mark.parametrize("program", [programs.copied_by_layout, programs.laid_out_by_author])
def test_layouts_of_the_author_decide_who_works(program):
    assert "const int32_t i = tx" in on(program()[0], "sm_90a").get_kernel_source()


def test_a_layout_of_other_threads():
    with pytest.raises(LayoutConflict) as caught:
        on(programs.laid_out_by_author(threads=48)[0], "sm_90a")
    message = str(caught.value)
    assert (
        message.startswith("this layout is one of 32 threads, but 48 work here")
        and "for i, j in T.Parallel(32, 8, loop_layout" in message
    )


def test_a_layout_that_no_arithmetic_says():
    """It ended in an AttributeError of the compiler's own."""

    def program(A):
        A: T.Tensor((12, 7), "float32")
        C = T.empty((12, 7), "float32")
        with T.Kernel(1, threads=12):
            rows = T.alloc_fragment((12, 7), "float32")
            T.annotate_layout({rows: T.Fragment((12, 7), lambda i, j: ((i * 7 + j) % 12, (i * 7 + j) // 12))})
            T.copy(A, rows)
            T.copy(rows, C)
        return C

    with pytest.raises(LayoutConflict) as caught:
        tilewright.jit(target="cuda -arch=sm_90a")(program).compile(np.zeros((12, 7), np.float32))
    assert caught.value.message == (
        "no arithmetic says which thread holds which elements of this layout: they are not sums of digits of the indices"
    )
    assert "rows = T.alloc_fragment" in str(caught.value) and "with //, % and one exclusive-or" in str(caught.value)


DIFFERENT = [programs.added_accumulators, programs.added_floats, programs.whole_grid]
"""Programs whose forms differ between architectures."""
FORMS = [(program, "sm_90a") for program in PROGRAMS] + [(program, "sm_80") for program in DIFFERENT]


@pytest.mark.parametrize("program, arch", FORMS, ids=lambda one: getattr(one, "__name__", one))
def test_program(program, arch):
    function, arguments, expected = program()
    kernel = on(function, arch)
    for run in (kernel.interpret, kernel.emulate):
        if run == kernel.interpret and program is programs.foreign_functions:
            continue
        copies = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
        run(*copies)
        assert np.array_equal(copies[-1].astype(np.float64), expected)

    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert binary.warnings == ()


@pytest.mark.parametrize(
    "program, arch, found",
    [
        (programs.added_accumulators, "sm_80", "atomic_add_fragment<2>"),
        (programs.added_floats, "sm_80", "tw::atomic_add("),
        (programs.added_floats, "sm_90a", "atomic_add_fragment<2>"),
        (programs.added_odd_rows, "sm_90a", "tw::atomic_add("),
        (programs.added_quads, "sm_90a", "atomic_add_fragment<4>"),
        (programs.sums_of_rows, "sm_80", "tw::warp_add("),
        (programs.sums_of_rows, "sm_80", "tw::warp_max("),
        (programs.handed_over, "sm_80", "tw::load_acquire("),
        (programs.handed_over, "sm_80", "tw::store_release("),
    ],
)
def test_which_instruction(program, arch, found):
    assert found in on(program()[0], arch).get_kernel_source()


def test_redux_in_machine_code():
    kernel = on(programs.sums_of_rows()[0], "sm_80")
    sass = compile_text(kernel.get_kernel_source(), kernel.arch).machine_code()
    assert "REDUX" in sass and "SHFL.BFLY" not in sass


def test_floats_are_added_by_shuffles():
    assert "tw::warp_add" not in on(programs.sums_of_rows("float32")[0], "sm_80").get_kernel_source()


def test_hints_to_the_cache():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A, tile, eviction_policy="evict_first", prefer_instruction="cp_async")
            T.copy(tile, C)

    kernel = on(main, "sm_80")
    assert re.search(r"cp_async_hint<16>\(.*tw::POLICY_EVICT_FIRST\)", kernel.get_kernel_source())
    compile_text(kernel.get_kernel_source(), kernel.arch)
    a = np.arange(4096).astype(np.float16).reshape(64, 64)
    c = np.zeros_like(a)
    kernel.emulate(a, c)
    assert np.array_equal(a, c)
    assert "tma_load_multicast_hint" in on(cluster()[0], "sm_90a").get_kernel_source()


@pytest.mark.parametrize("rows", [64, 50])
def test_advice_to_the_cache(rows):
    @T.prim_func
    def main(A: T.Tensor((rows, 64), "float16"), C: T.Tensor((rows, 64), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A[0, 0], tile, l2_prefetch=128, prefer_instruction="cp_async")
            T.copy(tile, C[0, 0])

    kernel = on(main, "sm_80")
    assert re.search(r"cp_async(_zfill)?<16, 128>\(", kernel.get_kernel_source())
    compile_text(kernel.get_kernel_source(), kernel.arch)
    a = np.arange(rows * 64).astype(np.float16).reshape(rows, 64)
    for run in (kernel.interpret, kernel.emulate):
        c = np.zeros_like(a)
        run(a, c)
        assert np.array_equal(a, c)


def test_what_asynchronous_copies_read_is_constant():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A, tile, prefer_instruction="cp_async")
            T.copy(tile, C)

    text = on(main, "sm_80").get_kernel_source()
    assert "const tw::half* TW_RESTRICT A" in text and ", tw::half* TW_RESTRICT C" in text


# Mistakes -----------------------------------------------------------------------------------------


def test_a_grid_that_no_such_machine_holds():
    with pytest.raises(GridTooLarge, match="needs all 100000 blocks to be resident"):
        on(programs.whole_grid(100000)[0], "sm_90a")
    assert not issubclass(GridTooLarge, LaunchFailed)


def test_foreign_functions_need_a_device():
    function, arguments, _ = programs.foreign_functions()
    with pytest.raises(ForeignFunction, match="twice is a function of the device's own language"):
        on(function, "sm_80").interpret(*arguments)
    with pytest.raises(MissingCapability, match="functions of a GPU's own language"):
        tilewright.compile(function, target="cpu")


def test_a_cpu_lacks_a_barrier_of_the_grid():
    with pytest.raises(MissingCapability):
        tilewright.compile(programs.whole_grid()[0], target="cpu")


def test_registers_of_roles_that_the_compiler_makes():
    def text(say):
        tune = T.macro(say)

        @T.prim_func
        def main(
            A: T.Tensor((256, 512), "float16"), B: T.Tensor((256, 512), "float16"), C: T.Tensor((256, 256), "float16")
        ):
            with T.Kernel(2, 2, threads=256) as (bx, by):
                tune()
                a = T.alloc_shared((128, 64), "float16")
                b = T.alloc_shared((128, 64), "float16")
                c = T.alloc_fragment((128, 128), "float32")
                T.clear(c)
                for k in T.Pipelined(8, num_stages=3):
                    T.copy(A[by * 128, k * 64], a)
                    T.copy(B[bx * 128, k * 64], b)
                    T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C[by * 128, bx * 128])

        return on(main, "sm_90a").get_kernel_source()

    def by_author():
        T.annotate_producer_reg_dealloc(24)
        T.annotate_consumer_reg_alloc(200)

    def left_alone():
        T.no_set_max_nreg()

    def nothing():
        pass

    assert "setmaxnreg_dec<24>" in text(by_author) and "setmaxnreg_inc<200>" in text(by_author)
    assert "setmaxnreg" in text(nothing) and "setmaxnreg" not in text(left_alone)


def wrong(word):
    tune = T.macro(word)

    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            own = T.alloc_local((4,), "float32")
            tile = T.alloc_fragment((64,), "float32")
            tune(A, own, tile)

    return main


def not_bytes(A, own, tile):
    T.dp4a(own, own, own[0])


def no_memory(A, own, tile):
    T.call_extern("handle", "f", tile)


def too_many(A, own, tile):
    for i in T.thread_binding(0, 65, "threadIdx.x"):
        A[i] = 0.0


def no_axis(A, own, tile):
    for i in T.thread_binding(0, 64, "blockIdx.x"):
        A[i] = 0.0


def no_index(A, own, tile):
    T.tvm_thread_allreduce(1, own[0], True, own[1], own[2])


@pytest.mark.parametrize(
    "word, error, message",
    [
        (not_bytes, NumberExpected, "T.dp4a is float32, float32 and float32"),
        (no_memory, TileExpected, "an argument of f"),
        (too_many, NumberExpected, "T.thread_binding is 65"),
        (no_axis, NumberExpected, "thread of T.thread_binding is 'blockIdx.x'"),
        (no_index, NumberExpected, "T.tvm_thread_allreduce is a symbolic float32"),
    ],
)
def test_misused_words(word, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _ = wrong(word).function


def added_by_the_engine(dtype="float32", N=60):
    """Parts of a product that the copy engine adds to a tensor, whose rows end within a box."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, N), "float16"), C: T.Tensor((50, N), dtype)):
        with T.Kernel(2, threads=128) as part:
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            sums = T.alloc_shared((64, 64), dtype)
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A[0, part * 32], a)
            T.copy(B[part * 32, 0], b)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, sums)
            T.atomic_add(C[0, 0], sums, use_tma=True)
            T.fill(sums, 7.0)  # the tile is free again

    return main


@pytest.mark.parametrize("dtype, N", [("float32", 60), ("float16", 56), ("bfloat16", 64), ("int32", 60)])
def test_the_engine_adds(dtype, N):
    kernel = on(added_by_the_engine(dtype, N), "sm_90a")
    a, b = programs.whole(64, 64), programs.whole(64, N)
    expected = (a.astype(float) @ b.astype(float))[:50] + 1
    kind = programs.NUMPY.get(dtype, np.int32)
    for run in (
        kernel.interpret,
        *(lambda *x, s=s: kernel.emulate(*x, schedule=s) for s in ("late", "early", "random")),
    ):
        c = np.ones((50, N), kind)
        run(a, b, c)
        assert np.array_equal(c.astype(np.float64), expected)
    assert "UTMAREDG" in kernel.sass() and "tma_reduce_add from sums" in kernel.explain()


@pytest.mark.parametrize(
    "dtype, N, arch, message",
    [
        (
            "float32",
            61,
            "cuda -arch=sm_90a",
            "the stride of dimension 0 of C is not known to be a multiple of 16 bytes",
        ),
        ("float32", 60, "cuda -arch=sm_80", "sm_80 has no copy engine"),
    ],
)
def test_the_engine_cannot_add(dtype, N, arch, message):
    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(added_by_the_engine(dtype, N), target=arch)
    assert message in str(caught.value) and "T.atomic_add without use_tma" in str(caught.value)
    assert "T.atomic_add(C[0, 0], sums, use_tma=True)" in str(caught.value)


def test_the_engine_adds_no_doubles():
    with pytest.raises(OperatorMismatch, match="the copy engine adds no float64"):
        added_by_the_engine("float64")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_blocks_that_a_multiprocessor_shall_hold(arch):
    """Roles then keep their share of the registers: what one gives, another may not get."""

    def product(blocks):
        @T.prim_func
        def main(
            A: T.Tensor((64, 256), "float16"), B: T.Tensor((256, 128), "float16"), C: T.Tensor((64, 128), "float32")
        ):
            with T.Kernel(1, threads=128):
                T.annotate_min_blocks_per_sm(blocks)
                a = T.alloc_shared((64, 32), "float16")
                b = T.alloc_shared((32, 128), "float16")
                c = T.alloc_fragment((64, 128), "float32")
                T.clear(c)
                for k in T.Pipelined(8, num_stages=2):
                    T.copy(A[0, k * 32], a)
                    T.copy(B[k * 32, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, C)

        return main

    one, two = on(product(1), arch), on(product(2), arch)
    assert ".minnctapersm 2" in two.ptx() and ".minnctapersm 1" in one.ptx()
    assert "setmaxnreg" not in two.ptx()
    threads = 128 if arch == "sm_80" else 256
    assert two.resources()["main_kernel"]["registers"] * threads * 2 <= 65536
    a, b = programs.whole(64, 256), programs.whole(256, 128)
    c = np.full((64, 128), np.nan, np.float32)
    two.emulate(a, b, c)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    with pytest.raises(NumberExpected, match="is 33"):
        product(33)


def test_a_loop_that_changes_what_its_condition_reads():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            row = T.alloc_fragment((64,), "float32")
            T.copy(A, row)
            while row[3] > 0:
                for i in T.Parallel(64):
                    row[i] -= 1.0
            T.copy(row, A)

    with pytest.raises(LayoutConflict, match="the condition of this loop reads a fragment that the loop changes"):
        on(main, "sm_80")


def test_a_block_of_too_many_threads():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=(64, 32)):
            T.fill(A, 0.0)

    with pytest.raises(MissingCapability, match="a block of sm_80 has at most 1024 threads, not 2048"):
        on(main, "sm_80")
    tilewright.compile(main, target="cpu")


def test_elements_of_a_loop_cannot_ask_about_other_threads():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            row = T.alloc_fragment((64,), "float32")
            T.copy(A, row)
            for i in T.Parallel(64):
                A[i] = T.if_then_else(T.any_of(row), 1.0, 2.0)

    with pytest.raises(MissingCapability, match="cannot ask about the fragment 'row'"):
        on(main, "sm_80")


TOOLKIT = """
template <typename T1, typename T2>
__device__ void spread(T1 *codes, T2 *out, const int N = 4) {
  uint word = *reinterpret_cast<const uint *>(codes);
  ushort *bits = reinterpret_cast<ushort *>(out);
  for (int i = 0; i < N; i++) bits[i] = ushort(0x3c00 | ((word >> (8 * i)) & 255) << 2);
}
__device__ half_t twice(half_t x) { ushort bits = *reinterpret_cast<ushort *>(&x); bits += 0x400; return *reinterpret_cast<half_t *>(&bits); }
__device__ void flip(const half *x, __half *y) { *reinterpret_cast<ushort *>(y) = *reinterpret_cast<const ushort *>(x) ^ 0x8000; }
"""


def toolkit_functions(source):
    @T.prim_func
    def main(A: T.Tensor((64, 4), "uint8"), X: T.Tensor((64,), "float16"), C: T.Tensor((64, 6), "float16")):
        with T.Kernel(1, threads=64):
            T.import_source(source)
            tx = T.get_thread_binding()
            codes, made = T.alloc_local((4,), "uint8"), T.alloc_local((4,), "float16")
            turned = T.alloc_local((1,), "float16")
            for i in T.vectorized(4):
                codes[i] = A[tx, i]
            T.call_extern("spread", T.address_of(codes[0]), T.access_ptr(made, "w"), 4, dtype="handle")
            for i in T.serial(4):
                C[tx, i] = made[i]
            C[tx, 4] = T.call_extern("float16", "twice", X[tx])
            T.call_extern("handle", "flip", T.access_ptr(X[tx], "r"), turned)
            C[tx, 5] = turned[0]

    return main


def compiled(kernel):
    """Compile a text that needs the toolkit's headers, where they are."""
    try:
        include_directory()
    except CompilerNotFound:
        pytest.skip("CUDA's headers are not here")
    compile_text(kernel.get_kernel_source(), kernel.arch)


def test_texts_that_speak_the_toolkits_names():
    kernel = tilewright.compile(toolkit_functions(TOOLKIT), target="cuda -arch=sm_90a")
    rng = np.random.default_rng(0)
    a, x = rng.integers(0, 256, (64, 4), dtype=np.uint8), rng.uniform(1, 2, 64).astype(np.float16)
    c = np.zeros((64, 6), np.float16)
    kernel.emulate(a, x, c)
    np.testing.assert_array_equal(c[:, :4], 1 + a.astype(np.float16) / 256)
    np.testing.assert_array_equal(c[:, 4:], np.stack([2 * x, -x], 1))
    compiled(kernel)


def test_texts_with_functions_of_the_toolkit_run_on_a_device_alone():
    text = (
        TOOLKIT.replace("template", "#include <cuda_fp16.h>\ntemplate", 1)
        + "__device__ half one() { return __float2half(1.0f); }"
    )
    kernel = tilewright.compile(toolkit_functions(text), target="cuda -arch=sm_90a")
    with pytest.raises(EmulationFailed, match="cuda_fp16"):
        kernel.emulate(np.zeros((64, 4), np.uint8), np.zeros(64, np.float16), np.zeros((64, 6), np.float16))
    compiled(kernel)


def test_templates_compute_with_small_floats():
    """No name of the toolkit's stands in the text: its parameters' types decide, which were ours and do not convert."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float16"), C: T.Tensor((64,), "bfloat16")):
        with T.Kernel(1, threads=64):
            T.import_source(
                "template <typename A, typename B> __device__ void add(A *to, const B *from) { *to = (A)((float)*from + 1.f); }"
            )
            tx = T.get_thread_binding()
            own = T.alloc_local((1,), "bfloat16")
            T.call_extern("handle", "add", T.address_of(own[0]), T.address_of(A[tx]))
            C[tx] = own[0]

    compiled(tilewright.compile(main, target="cuda -arch=sm_90a"))


SOURCE_KERNEL = """
#define TIMES 3
extern "C" __global__ void __launch_bounds__(64) scaled(const float* a, float* b, int extra, int n) {
  __shared__ float tile[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? a[i] : 0;
  __syncthreads();
  if (i < n) b[i] = TIMES * tile[threadIdx.x] + extra;
}
"""


@pytest.mark.parametrize("as_file", [False, True])
def test_kernels_of_the_authors_own_text(tmp_path, as_file):
    plain = re.sub(r".*(__shared__|__syncthreads).*\n", "", SOURCE_KERNEL)
    source, n = re.sub(r".*tile.threadIdx.x. = .*\n", "", plain).replace("tile[threadIdx.x]", "a[i]"), T.dynamic("n")
    if as_file:
        (tmp_path / "scaled.cu").write_text(source)
        source = tmp_path / "scaled.cu"

    def program(source):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), extra: T.int32):
            T.CUDASourceCodeKernel(T.ceildiv(n, 64), threads=64, source_code_or_path=source, entry_name="scaled")

        return main

    kernel = on(program(source), "sm_90a")
    a, b = np.arange(150, dtype=np.float32), np.zeros(150, np.float32)
    kernel.emulate(a, b, 5)
    np.testing.assert_array_equal(b, 3 * a + 5)
    compile_text(on(program(SOURCE_KERNEL), "sm_90a").get_kernel_source(), kernel.arch)


def test_mistakes_in_kernels_of_the_authors_own_text():
    def made(source, entry="scaled"):
        @T.prim_func
        def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
            T.CUDASourceCodeKernel(1, threads=64, source_code_or_path=source, entry_name=entry)

    for arguments, message in (
        ((SOURCE_KERNEL, "other"), "entry_name of T.CUDASourceCodeKernel is 'other'"),
        ((SOURCE_KERNEL,), "scaled of T.CUDASourceCodeKernel is one with 4"),
        (("absent.cu",), "source_code_or_path of T.CUDASourceCodeKernel is 'absent.cu'"),
        ((3,), "source_code_or_path of T.CUDASourceCodeKernel is 3"),
    ):
        with pytest.raises(NumberExpected, match=re.escape(message)):
            made(*arguments)
