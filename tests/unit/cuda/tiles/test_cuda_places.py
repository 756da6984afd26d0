"""Places in fragments that several variables count together, or that lie at a distance: registers that threads have."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright
import tilewright.language as T
from tilewright.ir.walking import kernels
from tilewright.passes.thread.plan_shared_memory import shared_places
from tilewright.targets.cuda.compiler import compile_text


def whole(*shape, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def shared_names(kernel):
    return {name for _, _, name in shared_places(kernels(kernel.program.final)[0])}


def check(kernel, expected, *arguments):
    for schedule, seed in (("late", 0), ("random", 3)):
        assert np.array_equal(kernel.emulate(*arguments, schedule=schedule, seed=seed), expected)
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert all(use.stack_bytes == 0 for use in binary.resources.values())


def heads(K, Q, W, H, view, threads):
    """Products of keys with all heads of some queries, weighted and added up for each query."""
    N, R, D = T.const("N, R, D")
    K: T.Tensor((N, D), "float16")
    Q: T.Tensor((R, D), "float16")
    W: T.Tensor((R // H, H), "float32")
    C = T.empty((N, R // H), "float32")
    with T.Kernel(1, threads=threads):
        k, q = T.alloc_shared((N, D), "float16"), T.alloc_shared((R, D), "float16")
        s = T.alloc_fragment((N, R), "float32")
        seen = T.reshape(s, (N, R // H, H))
        weights, total = T.alloc_fragment((R // H, H), "float32"), T.alloc_fragment((N, R // H), "float32")
        T.copy(K, k)
        T.copy(Q, q)
        T.copy(W, weights)
        T.gemm(k, q, s, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullCol)
        for n, r, h in T.Parallel(N, R // H, H):
            if view:
                seen[n, r, h] = T.max(seen[n, r, h], 0) * weights[r, h]
            else:
                s[n, r * H + h] = T.max(s[n, r * H + h], 0) * weights[r, h]
        T.reduce_sum(seen, total, dim=-1)
        for r, n in T.Parallel(R // H, N):
            C[n, r] = total[n, r]
    return C


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("N, R, H, threads", [(128, 64, 32, 128), (64, 128, 16, 256), (64, 48, 8, 128)])
def test_a_row_of_heads(N, R, H, threads, view, arch):
    k, q, w = whole(N, 32), whole(R, 32, seed=1), whole(R // H, H, seed=2, dtype=np.float32)
    kernel = on(arch, heads).compile(k, q, w, H=H, view=view, threads=threads)
    products = np.maximum(k.astype(float) @ q.astype(float).T, 0).reshape(N, R // H, H)
    check(kernel, (products * w).sum(2), k, q, w)
    assert not [name for name in shared_names(kernel) if name.startswith(("s_", "seen"))]


def in_parts(A, B, parts, threads):
    """A product leaves in parts of its rows through a tile that holds one of them."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    rows = M // parts
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_shared((M, K), "float16"), T.alloc_shared((N, K), "float16")
        c, part = T.alloc_fragment((M, N), "float32"), T.alloc_shared((rows, N), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullCol)
        for s in range(parts):
            for i, j in T.Parallel(M, N):
                if i < rows:
                    part[i, j] = c[i + s * rows, j]
            for i, j in T.Parallel(rows, N):
                C[s * rows + i, j] = part[i, j] + 1.0
    return C


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("M, parts, threads, apart", [(32, 2, 128, False), (64, 4, 128, True), (64, 16, 128, True)])
def test_parts_of_rows(M, parts, threads, apart, arch):
    """Where other threads hold the parts, they pass through shared memory."""
    a, b = whole(M, 32), whole(64, 32, seed=1)
    kernel = on(arch, in_parts).compile(a, b, parts=parts, threads=threads)
    check(kernel, a.astype(float) @ b.astype(float).T + 1, a, b)
    assert apart or "c_shared" not in shared_names(kernel)


def decoded(A, B, per, threads):
    """Codes lie several to a byte; each is decoded where the product wants it."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K // per), "uint8")
    C = T.empty((N, M), "float32")
    bits = 8 // per
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_shared((M, 64), "float16"), T.alloc_shared((N, 64 // per), "uint8")
        codes, values = T.alloc_fragment((N, 64 // per), "uint8"), T.alloc_fragment((N, 64), "float16")
        c = T.alloc_fragment((N, M), "float32")
        T.clear(c)
        for k in T.Pipelined(K // 64, num_stages=2):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * (64 // per)], b)
            T.copy(b, codes)
            for i, j in T.Parallel(N, 64):
                values[i, j] = T.cast(
                    codes[i, j // per] >> T.cast(j % per * bits, "uint8") & T.uint8((1 << bits) - 1), "float16"
                )
            T.gemm(values, a, c, transpose_B=True)
        T.copy(c, C)
    return C


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("per, threads", [(2, 128), (4, 128), (2, 256)])
def test_codes_that_neighbours_share(per, threads, arch):
    """They passed through a shared tile from the threads that had copied them to those that decode them."""
    a, b = whole(32, 128), np.random.default_rng(1).integers(0, 256, (128, 128 // per)).astype(np.uint8)
    kernel = on(arch, decoded).compile(a, b, per=per, threads=threads)
    values = np.stack([b >> at * (8 // per) & (1 << 8 // per) - 1 for at in range(per)], -1).reshape(128, 128)
    check(kernel, values.astype(float) @ a.astype(float).T, a, b)
    assert "codes_shared" not in shared_names(kernel)


def halved(A, threads):
    """One of two neighbours writes what both share."""
    A: T.Tensor((8, 64), "float32")
    C = T.empty((8, 64), "float32")
    with T.Kernel(1, threads=threads):
        all, some = T.alloc_fragment((8, 64), "float32"), T.alloc_fragment((8, 32), "float32")
        T.copy(A, all)
        for i, j in T.Parallel(8, 64):
            if j % 2 == 1:
                some[i, j // 2] = all[i, j]
        for i, j in T.Parallel(8, 64):
            all[i, j] = some[i, j // 2] + A[i, j]
        T.copy(all, C)
    return C


@pytest.mark.parametrize("threads", [32, 128])
def test_an_element_that_one_of_two_neighbours_writes(threads):
    a = whole(8, 64, dtype=np.float32)
    kernel = on("sm_80", halved).compile(a, threads=threads)
    check(kernel, a + np.repeat(a[:, 1::2], 2, 1), a)


def crosswise(A):
    A: T.Tensor((4, 4), "float32")
    C = T.empty((4, 4), "float32")
    with T.Kernel(1, threads=32):
        a, b = T.alloc_fragment((4, 4), "float32"), T.alloc_fragment((4, 4), "float32")
        of_all = T.Fragment(
            (4, 4), forward_thread_fn=lambda i, j, rep: rep, forward_index_fn=lambda i, j: i * 4 + j, replicate=32
        )
        T.annotate_layout({a: of_all})
        T.copy(A, a)
        for i, j in T.Parallel(4, 4):
            b[i, j] = a[i, j] * 10 + a[j, i] + a[2, j]
        T.copy(b, C)
    return C


def test_a_tile_in_the_registers_of_all_is_read_at_two_places():
    """Both reads took the register of the one that stood last."""
    a = whole(4, 4, dtype=np.float32)
    kernel = on("sm_80", crosswise).compile(a)
    assert np.array_equal(kernel.emulate(a), a * 10 + a.T + a[2])


def left_behind(A, B):
    """The result leaves through a tile that may lie where the operands were; nobody uses another one."""
    A: T.Tensor((64, 512), "float16")
    B: T.Tensor((128, 512), "float16")
    C = T.empty((64, 128), "float16")
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 512), "float16"), T.alloc_shared((128, 512), "float16")
        T.alloc_shared((128, 512), "float16")
        c, out = T.alloc_fragment((64, 128), "float32"), T.alloc_shared((64, 128), "float16")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, transpose_B=True, clear_accum=True)
        T.copy(c, out)
        T.copy(out, C)
    return C


def test_a_result_lies_where_operands_were():
    a, b = whole(64, 512), whole(128, 512, seed=1)
    kernel = on("sm_90a", left_behind).compile(a, b)
    check(kernel, (a.astype(float) @ b.astype(float).T).astype(np.float16), a, b)
    (used,) = kernel.resources().values()
    assert used["shared_bytes"] < (64 + 128) * 512 * 2 + 1024


def named_threads(A):
    A: T.Tensor((8, 32), "float32")
    C = T.empty((8, 32), "float32")
    with T.Kernel(1, threads=(32, 8)):
        column = T.thread_binding(0, 32, thread="threadIdx.x")
        row = T.thread_binding(0, 8, thread="threadIdx.y")
        C[row, column] = A[row, column] * 2
        for i in T.thread_binding(0, 4, "threadIdx.y"):
            C[i, column] = 1.0
    return C


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cpu"])
def test_thread_binding_is_a_number_too(target):
    a = whole(8, 32, dtype=np.float32)
    kernel = tilewright.jit(named_threads, target=target).compile(a)
    expected = np.where(np.arange(8)[:, None] < 4, 1.0, a * 2)
    assert np.array_equal(kernel(a) if target == "cpu" else kernel.emulate(a), expected)
    assert np.array_equal(kernel.interpret(a), expected)
