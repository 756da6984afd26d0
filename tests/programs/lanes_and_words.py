"""A thread's own work: lanes that exchange values, packed vectors, bits, breaks and dynamic loops."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[1])
def hadamard(rows, n=256, dtype=T.float32):
    """A row a warp: stages inside threads, then between lanes."""
    per = n // 32

    @T.prim_func
    def main(A: T.Tensor((rows, n), dtype), B: T.Tensor((rows, n), dtype)):
        with T.Kernel(rows, threads=32) as bx:
            own = T.alloc_local((per,), dtype)
            other = T.alloc_local((per,), dtype)
            tx = T.get_thread_binding(0)
            for i in T.vectorized(per):
                own[i] = A[bx, tx * per + i]
            for s in T.unroll(per.bit_length() - 1):
                for i in T.unroll(per // 2):
                    lo = (i // (1 << s)) * (1 << (s + 1)) + i % (1 << s)
                    hi = lo + (1 << s)
                    x = T.alloc_var(dtype)
                    x = own[lo]
                    own[lo] = x + own[hi]
                    own[hi] = x - own[hi]
            for s in T.unroll(5):
                for i in T.unroll(per):
                    other[i] = T.tvm_warp_shuffle(0xFFFFFFFF, own[i], tx ^ (1 << s), 32, 32)
                for i in T.unroll(per):
                    own[i] = T.if_then_else((tx >> s) & 1 == 0, own[i] + other[i], other[i] - own[i])
            for i in T.vectorized(per):
                B[bx, tx * per + i] = own[i]

    return main


@tilelang.jit(out_idx=[2, 3])
def searches(N, M, dtype=T.int32):
    """Lower bounds in a sorted row by halving, and lengths of runs by breaks."""

    @T.prim_func
    def main(
        keys: T.Tensor((N,), dtype),
        wanted: T.Tensor((M,), dtype),
        found: T.Tensor((M,), dtype),
        runs: T.Tensor((M,), dtype),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=64) as bx:
            i = bx * 64 + T.get_thread_binding()
            lo, hi = T.alloc_var(dtype), T.alloc_var(dtype)
            count = T.alloc_var(dtype, init=0)
            if i < M:
                lo = 0
                hi = N
                while lo < hi:
                    mid = (lo + hi) // 2
                    if keys[mid] < wanted[i]:
                        lo = mid + 1
                    else:
                        hi = mid
                found[i] = lo
                for j in range(N):
                    if lo + j >= N or keys[lo + j] != wanted[i]:
                        break
                    if j > 5:
                        continue
                    count += 1
                runs[i] = count

    return main


@tilelang.jit(out_idx=[1])
def counted_bits(N, threads=128):
    @T.prim_func
    def main(A: T.Tensor((N,), T.uint32), out: T.Tensor((N, 4), T.int32)):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            for i in T.Parallel(threads):
                v = A[bx * threads + i]
                out[bx * threads + i, 0] = T.cast(T.popcount(v), "int32")
                out[bx * threads + i, 1] = T.cast((v >> 3) & 0x7, "int32")
                out[bx * threads + i, 2] = T.cast(
                    T.bitwise_xor(v, T.shift_left(v, T.uint32(1))) & T.uint32(255), "int32"
                )
                out[bx * threads + i, 3] = T.cast(~v & T.uint32(15), "int32")

    return main


@tilelang.jit(out_idx=[1])
def scan_rows(M, N, threads=128):
    """Inclusive sums of a row by a warp-wide scan and carries."""

    @T.prim_func
    def main(A: T.Tensor((M, N), T.float32), B: T.Tensor((M, N), T.float32)):
        with T.Kernel(M, threads=threads) as bx:
            tx = T.get_thread_binding()
            sums = T.alloc_shared((threads // 32,), T.float32)
            carry, v, up = T.alloc_var(T.float32), T.alloc_var(T.float32), T.alloc_var(T.float32)
            before = T.alloc_var(T.float32)
            carry = 0
            for c in T.serial(T.ceildiv(N, threads)):
                v = T.if_then_else(c * threads + tx < N, A[bx, T.min(c * threads + tx, N - 1)], 0)
                for s in T.unroll(5):
                    up = T.shfl_up(v, 1 << s)
                    v = T.if_then_else(tx % 32 >= (1 << s), v + up, v)
                if tx % 32 == 31:
                    sums[tx // 32] = v
                T.sync_threads()
                before = carry
                for w in T.serial(threads // 32):
                    if w < tx // 32:
                        before += sums[w]
                    carry += sums[w]
                if c * threads + tx < N:
                    B[bx, c * threads + tx] = v + before
                T.sync_threads()

    return main


REAL_SIZES = [
    ("hadamard", lambda: hadamard(4096, 1024)),
    ("searches", lambda: searches(100000, 4096)),
    ("scan", lambda: scan_rows(4096, 8192, 1024)),
]

if __name__ == "__main__":
    x = torch.randn(3, 256, device=dev)
    h = torch.ones(1, 1)
    while h.shape[0] < 256:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    torch.testing.assert_close(hadamard(3)(x), x @ h.to(dev).T, rtol=1e-4, atol=1e-3)
    keys = torch.randint(0, 50, (200,), dtype=torch.int32, device=dev).sort().values.contiguous()
    wanted = torch.randint(-1, 52, (70,), dtype=torch.int32, device=dev)
    found, runs = searches(200, 70)(keys, wanted)
    assert torch.equal(found, torch.searchsorted(keys, wanted).int())
    counts = (keys[None] == wanted[:, None]).sum(1)
    assert torch.equal(runs, counts.clamp(max=6).int()), (runs, counts)
    a = torch.randint(0, 1 << 31, (200,), device=dev).to(torch.uint32)
    out = counted_bits(200)(a)
    v = a.long()
    assert torch.equal(out[:, 0].long(), torch.tensor([bin(int(one)).count("1") for one in v], device=dev))
    assert torch.equal(out[:, 1].long(), (v >> 3) & 7) and torch.equal(out[:, 3].long(), ~v & 15)
    assert torch.equal(out[:, 2].long(), (v ^ (v << 1)) & 255)
    m = torch.randn(2, 300, device=dev)
    torch.testing.assert_close(scan_rows(2, 300)(m), m.cumsum(1), rtol=1e-4, atol=1e-3)
    print("ok")
