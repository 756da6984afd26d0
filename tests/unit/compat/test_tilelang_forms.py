"""Forms of TileLang's language: random numbers, loops that are kernels, slices assigned to, copies in fragments, who is elected."""

import numpy as np
import pytest

import tilewright
import tilewright.compat.tilelang as tilelang
import tilewright.language as T
from tilewright.errors import TilewrightError

TARGETS = ["cpu", "cuda -arch=sm_90a"]


def call(kernel, *arguments):
    return kernel.emulate(*arguments) if kernel.arch.has_threads else kernel(*arguments)


def philox(counter, key):
    """Philox 4x32 with ten rounds, of Python's integers."""
    mask = 2**32 - 1
    for number in range(10):
        keys = [(key[0] + 0x9E3779B9 * number) & mask, (key[1] + 0xBB67AE85 * number) & mask]
        one, other = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(other >> 32) ^ counter[1] ^ keys[0], other & mask, (one >> 32) ^ counter[3] ^ keys[1], one & mask]
    return counter


def test_the_generator_is_philox():
    # Known answers of the generator's authors.
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**32 - 1
    assert philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("target", TARGETS)
def test_random_numbers_are_those_of_the_generator(target):
    seed = 0x1234567890ABC

    @T.prim_func
    def main(A: T.Tensor((4, 3), "uint32"), B: T.Tensor((4,), "uint32"), C: T.Tensor((4, 8), "uint32")):
        with T.Kernel(2, threads=2) as bx:
            tx = T.get_thread_binding()
            T.rng_init(seed, bx * 2 + tx, 5)
            for j in T.serial(3):
                A[bx * 2 + tx, j] = T.rng_rand()
            B[bx * 2 + tx] = T.rng_rand()
            T.rng_init(seed)
            C[bx * 2 + tx, 0] = T.rng_rand()
            for i in T.Parallel(2):
                if bx == 0:
                    C[i, 1] = 1

    a, b, c = np.zeros((4, 3), np.uint32), np.zeros(4, np.uint32), np.zeros((4, 8), np.uint32)
    call(tilewright.compile(main, target=target), a, b, c)
    key = [seed & (2**32 - 1), seed >> 32]
    for row in range(4):
        assert a[row].tolist() == [philox([5, j, row, 0], key)[0] for j in range(3)]
        assert b[row] == philox([6, 0, row, 0], key)[0] and c[row, 0] == philox([0, 0, row, 0], key)[0]


@pytest.mark.parametrize("target", TARGETS)
def test_random_floats(target):
    @T.prim_func
    def main(U: T.Tensor((4096,), "float32"), D: T.Tensor((4096,), "float64"), N: T.Tensor((4096,), "float32")):
        with T.Kernel(4096 // 256, threads=64) as bx:
            T.rng_init(7, bx, generator="curandStateXORWOW_t")
            for i in T.Parallel(256):
                U[bx * 256 + i] = T.rng_rand_float()
                D[bx * 256 + i] = T.rng_rand_float(bit=64)
                N[bx * 256 + i] = T.rng_rand_float(dist="normal")

    u, d, n = np.zeros(4096, np.float32), np.zeros(4096), np.zeros(4096, np.float32)
    call(tilewright.compile(main, target=target), u, d, n)
    for uniform in (u, d):
        assert 0 < uniform.min() < 0.002 and 0.998 < uniform.max() <= 1 and abs(uniform.mean() - 0.5) < 0.02
    assert len(set(u.tolist())) > 4090 and len(set(d.tolist())) == 4096
    assert abs(n.mean()) < 0.06 and abs(n.std() - 1) < 0.05 and abs((n**4).mean() - 3) < 0.6


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("target", [*TARGETS, "cuda -arch=sm_80", "hip -arch=gfx942", "metal"])
def test_iterations_that_threads_share_have_a_number_each(target, own):
    @T.prim_func
    def main(C: T.Tensor((3, 100), "uint32"), D: T.Tensor((3, 4, 8), "uint32")):
        with T.Kernel(3, threads=64) as bx:
            T.rng_init(42, bx * 64 + T.get_thread_binding() if own else None)
            for i in T.Parallel(100):
                C[bx, i] = T.rng_rand()
            for k in T.serial(4):
                for i in T.Parallel(8):
                    D[bx, k, i] = T.rng_rand()

    kernel = tilewright.compile(main, target=target)
    for run in (kernel.interpret, lambda *given: call(kernel, *given)):
        c, d = np.zeros((3, 100), np.uint32), np.zeros((3, 4, 8), np.uint32)
        run(c, d)
        assert c.tolist() == [[philox([0, i, block * 64, 0], [42, 0])[0] for i in range(100)] for block in range(3)]
        assert len({*c.flat, *d.flat}) == c.size + d.size


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda: T.rng_rand(), "requires a preceding `T.rng_init"),
        (lambda: T.rng_init(1, generator="mt19937"), "mt19937"),
        (lambda: (T.rng_init(1), T.rng_rand_float(bit=16)), "bit 32 or 64"),
    ],
)
def test_mistakes_with_random_numbers(write, message):
    with pytest.raises(TilewrightError, match=message):

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                write()


def test_a_while_has_no_index():
    with pytest.raises(TilewrightError, match="while"):

        @T.prim_func
        def main(A: T.Tensor((8,), "uint32")):
            with T.Kernel(1, threads=1):
                T.rng_init(1)
                i = T.alloc_var("int32", 0)
                while i < 8:
                    A[i] = T.rng_rand()
                    i += 1


@pytest.mark.parametrize("target", TARGETS)
def test_loops_over_blocks_and_threads_are_a_kernel(target):
    @T.prim_func
    def main(A: T.Tensor((4, 32), "int32"), B: T.Tensor((4, 32), "int32")):
        for i in T.thread_binding(4, thread="blockIdx.x"):
            for j in T.thread_binding(0, 32, thread="threadIdx.x"):
                B[i, j] = A[i, j] * 2

    @tilewright.jit(target=target)
    def direct(A: T.Tensor((4, 32), "int32")):
        for i in T.thread_binding(4, thread="blockIdx.x"):
            for j in T.thread_binding(32, thread="threadIdx.x"):
                A[i, j] += 1

    a, b = np.arange(128, dtype=np.int32).reshape(4, 32), np.zeros((4, 32), np.int32)
    call(tilewright.compile(main, target=target), a, b)
    assert np.array_equal(b, 2 * a)
    call(direct.compile(b), b)
    assert np.array_equal(b, 2 * a + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_slices_that_end_at_a_number_of_the_program(target):
    """Rows of one sequence of several, packed behind one another: refused, since their extent is no constant."""

    @T.prim_func
    def main(
        A: T.Tensor((T.dynamic("n"), 2, 16), "float32"),
        begins: T.Tensor((4,), "int32"),
        C: T.Tensor((3, 8, 16), "float32"),
        D: T.Tensor((T.dynamic("n"), 2, 16), "float32"),
    ):
        with T.Kernel(3, threads=64) as b:
            rows = T.alloc_shared((8, 16), "float32")
            end = T.min(begins[b] + 8, begins[b + 1])
            T.copy(A[begins[b] : end, 1, :], rows)
            T.copy(rows, C[b, :, :])
            T.copy(rows, D[begins[b] : end, 0, :])

    a, begins = np.random.default_rng(3).standard_normal((14, 2, 16), np.float32), np.array([0, 5, 5, 14], np.int32)
    c, d = np.full((3, 8, 16), 9, np.float32), np.full((14, 2, 16), 9, np.float32)
    call(tilewright.compile(main, target=target), a, begins, c, d)
    wanted, written = np.zeros_like(c), np.full_like(d, 9)
    wanted[0, :5], wanted[2] = a[:5, 1], a[5:13, 1]
    written[:13, 0] = a[:13, 1]
    assert np.array_equal(c, wanted) and np.array_equal(d, written)


@pytest.mark.parametrize("target", TARGETS)
def test_slices_are_assigned_to(target):
    @T.prim_func
    def main(A: T.Tensor((4, 16), "float32"), B: T.Tensor((16, 4), "float32")):
        with T.Kernel(4, threads=1) as row:
            part = A[row, 0:4]
            A[row, 4:8] = part
            A[row, 8:12] = T.Ramp(row, 2, 4)
            B[4:8, row] = A[row, 12:16]

    a = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    b, wanted = np.zeros((16, 4), np.float32), a.copy()
    wanted[:, 4:8], wanted[:, 8:12] = a[:, :4], np.arange(4)[:, None] + 2 * np.arange(4)
    call(tilewright.compile(main, target=target), a, b)
    assert np.array_equal(a, wanted) and np.array_equal(b[4:8], wanted[:, 12:].T) and not b[8:].any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_slice_before_the_first_turn(target, turns):
    """The rows before a loop's own are asked for behind its first turn only, also where that is all."""

    @T.prim_func
    def main(A: T.Tensor((4, 64), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            before = T.alloc_shared((1, 64), "float32")
            T.clear(before)
            for k in T.serial(turns):
                if k > 0:
                    T.copy(A[k - 1 : k, :], before)
            T.copy(before[0, :], C)

    a, c = np.arange(256, dtype=np.float32).reshape(4, 64), np.ones(64, np.float32)
    call(tilewright.compile(main, target=target), a, c)
    assert np.array_equal(c, a[turns - 2] if turns > 1 else np.zeros(64))


def test_a_number_is_not_assigned_to_a_slice():
    with pytest.raises(TilewrightError, match="cannot assign to a slice"):

        @T.prim_func
        def main(A: T.Tensor((4, 16), "float32")):
            with T.Kernel(1, threads=1):
                A[0, 0:4] = 1.0


@pytest.mark.parametrize("extent", [0, 32, 64, 128])
@pytest.mark.parametrize("target", TARGETS)
def test_who_is_elected(target, extent):
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            A[tx] = T.shuffle_elect(extent)

    a = np.full(128, -1, np.int32)
    call(tilelang.compile(main, target=target).kernel, a)
    assert np.flatnonzero(a).tolist() == list(range(0, 128, extent or 128)) and a.max() == 1


def test_copies_of_a_fragment_by_their_numbers():
    @T.prim_func
    def main(A: T.Tensor((4, 512), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=128):
            part, total = T.alloc_fragment((4, 512), "float32"), T.alloc_fragment((4,), "float32")
            T.annotate_layout(
                {
                    part: T.Fragment(part.shape, forward_fn=lambda i, j: (j // 8, i * 8 + j % 8)),
                    total: T.Fragment(total.shape, forward_fn=lambda i, copy: (copy, i), replicate=64),
                }
            )
            T.copy(A, part)
            T.reduce_sum(part, total, dim=1)
            T.copy(total, B)

    a, b = np.random.default_rng(0).random((4, 512)).astype(np.float32), np.zeros(4, np.float32)
    tilewright.compile(main, target="cuda -arch=sm_90a").emulate(a, b)
    np.testing.assert_allclose(b, a.sum(1, dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_of_a_block_adds(target):
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), B: T.Tensor((16,), "float32"), n: T.int32):
        with T.Kernel(2, threads=4):
            T.atomic_add(B[0], 1.0)
            T.atomic_addx4(B[4], A[0])
            if n > 3:
                T.atomic_addx2(B[8], A[2])
            for _ in T.serial(n):
                T.atomic_add(B[10], 1.0)
                for j in T.Parallel(2):
                    T.atomic_add(B[12 + j], 1.0)

    wanted = np.array([8, 0, 0, 0, 0, 8, 16, 24, 16, 24, 40, 0, 10, 10, 0, 0], np.float32)
    kernel = tilewright.compile(main, target=target)
    for run in (lambda *given: call(kernel, *given), kernel.interpret):
        b = np.zeros(16, np.float32)
        run(np.arange(4, dtype=np.float32), b, 5)
        assert np.array_equal(b, wanted)


def test_variables_are_declared_together():
    @T.prim_func
    def main(A: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=1):
            one, other = T.alloc_var("int32", 1), T.alloc_var("int32", 2)
            for i in T.serial(3):
                one, other = other, one + i
            A[0], A[1] = one, other

    a = np.zeros(2, np.int32)
    tilewright.compile(main, target="cpu")(a)
    one, other = 1, 2
    for i in range(3):
        one, other = other, one + i
    assert a.tolist() == [one, other]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", ["make_swizzled_layout", "make_linear_layout"])
def test_operands_with_layouts_of_the_authors(target, order):
    make = getattr(tilelang.layout, order)

    @T.prim_func
    def main(A: T.Tensor((16, 64), "float16"), B: T.Tensor((64, 32), "float16"), C: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=32):
            a, b = T.alloc_shared((16, 64), "float16"), T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((16, 32), "float32")
            T.annotate_layout({a: make(a), b: make(b)})
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((16, 64), (64, 32)))
    c = np.zeros((16, 32), np.float32)
    call(tilewright.compile(main, target=target), a, b, c)
    assert np.array_equal(c, a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_made_of_others(target, dtype):
    names = ("asin", "acos", "asinh", "acosh", "atanh", "hypot", "copysign")

    @T.prim_func
    def main(A: T.Tensor((3, 64), dtype), B: T.Tensor((7, 64), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[0, i] = T.asin(A[0, i])
                B[1, i] = T.acos(A[0, i])
                B[2, i] = T.asinh(A[1, i])
                B[3, i] = T.acosh(A[2, i])
                B[4, i] = T.atanh(A[0, i])
                B[5, i] = T.hypot(A[0, i], A[1, i])
                B[6, i] = T.copysign(A[2, i], A[1, i])

    rng = np.random.default_rng(0)
    unit, wide, above = (
        rng.uniform(-1, 1, 64),
        rng.standard_normal(64) * 10.0 ** rng.integers(-6, 6, 64),
        1 + rng.exponential(1, 64),
    )
    unit[:5], wide[:6], above[0] = [0, -0.0, 1, -1, 1e-5], [0, -0.0, 1e30, -1e18, 1e-5, -1e-5], 1
    a, b = np.stack([unit, wide, above]).astype(dtype), np.zeros((7, 64), dtype)
    call(tilewright.compile(main, target=target), a, b)
    x, y, z = a.astype(np.float64)
    with np.errstate(divide="ignore"):
        wanted = [
            np.arcsin(x),
            np.arccos(x),
            np.arcsinh(y),
            np.arccosh(z),
            np.arctanh(x),
            np.hypot(x, y),
            np.copysign(z, y),
        ]
    tolerance = 4e-6 if dtype == "float32" else 1e-14
    for name, found, one in zip(names, b, wanted, strict=True):
        np.testing.assert_allclose(found, one, rtol=tolerance, atol=tolerance / 10, err_msg=name)


@pytest.mark.parametrize("plan", [
    {"order": [-1, 0, 1], "stage": [-1, 0, 1]}, {"order": [-1, 0], "stage": [-1, 0], "group": [[0], [1, 2]]}, {"stage": [0, 1], "group": [[0], [1, 2]]},
])  # fmt: skip
def test_plans_for_warps_that_load_are_left_to_the_compiler(plan):
    """What the plan of producers and consumers, or of groups of statements, says is the compiler's business."""

    @T.prim_func
    def main(A: T.Tensor((64, 128), "float16"), B: T.Tensor((64, 128), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2, **plan):
                T.copy(A[0, k * 32], a)
                T.copy(B[0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 128)).astype(np.float16) for _ in range(2))
    for target, way in (("cuda -arch=sm_90a", "emulate"), ("cpu", "__call__")):
        c = np.zeros((64, 64), np.float32)
        getattr(tilewright.compile(main, target=target), way)(a, b, c)
        np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T)


def test_a_program_is_traced_without_its_tensors():
    """Whose sizes are numbers: `get_tir` asked for arrays."""

    @tilelang.jit(target="c")
    def doubled(A, block=None):
        A: T.Tensor((64,), "float32")
        C = T.empty((64,), "float32")
        with T.Kernel(64 // block, threads=32) as bx:
            for i in T.Parallel(block):
                C[bx * block + i] = A[bx * block + i] * 2
        return C

    assert "64" in doubled.get_tir(block=16).script()


def test_a_macro_opens_the_kernel():
    """Of a function whose signature declares its tensors; it was taken for one that makes kernels."""

    @T.macro
    def doubled(A, B):
        with T.Kernel(T.ceildiv(A.shape[0], 32), threads=32) as block:
            for i in T.Parallel(32):
                B[block * 32 + i] = A[block * 32 + i] * 2

    @tilelang.jit
    def declared(A: T.Tensor[[70], T.float32], B: T.Tensor[[70], T.float32]):
        doubled(A, B)

    a, b = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
    declared(a, b)
    assert np.array_equal(b, a * 2) and declared.mode == "eager"
