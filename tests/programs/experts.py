"""A mixture of experts: gate and up in one kernel with SiLU between, down in another, rows found through a table."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(pass_configs={"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True})
def shared_expert(tokens, hidden, inner, dtype, block=32, threads=64, num_stages=1):
    scale, accum = 1.44269504, T.float32

    @T.prim_func
    def kernel(
        X: T.Tensor((tokens, hidden), dtype), Gate: T.Tensor((inner, hidden), dtype), Up: T.Tensor((inner, hidden), dtype),
        Down: T.Tensor((hidden, inner), dtype), Between: T.Tensor((tokens, inner), dtype), Out: T.Tensor((tokens, hidden), dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(tokens, block), T.ceildiv(inner, block), threads=threads) as (bx, by):
            x, g, u = (
                T.alloc_fragment((block, block), dtype=dtype)
                if which == 9
                else T.alloc_shared((block, block), dtype=dtype)
                for which in range(3)
            )
            gate, up = T.alloc_fragment((block, block), dtype=accum), T.alloc_fragment((block, block), dtype=accum)
            T.use_swizzle(10, enable=True)
            T.clear(gate)
            T.clear(up)
            for k in T.Pipelined(T.ceildiv(hidden, block), num_stages=num_stages):
                T.copy(X[bx * block, k * block], x)
                T.copy(Gate[by * block, k * block], g)
                T.copy(Up[by * block, k * block], u)
                T.gemm(x, g, gate, k_pack=1, transpose_B=True)
                T.gemm(x, u, up, k_pack=1, transpose_B=True)
            for i, j in T.Parallel(block, block):
                gate[i, j] = gate[i, j] * (1.0 / (1.0 + T.exp2(-gate[i, j] * scale)))
                up[i, j] = up[i, j] * gate[i, j]
            T.copy(up, Between[bx * block, by * block])
        with T.Kernel(T.ceildiv(tokens, block), T.ceildiv(hidden, block), threads=threads) as (bx, by):
            m, d = T.alloc_shared((block, block), dtype=dtype), T.alloc_shared((block, block), dtype=dtype)
            out = T.alloc_fragment((block, block), dtype=accum)
            T.clear(out)
            for k in T.Pipelined(T.ceildiv(inner, block), num_stages=num_stages):
                T.copy(Between[bx * block, k * block], m)
                T.copy(Down[by * block, k * block], d)
                T.gemm(m, d, out, transpose_B=True)
            T.copy(out, Out[bx * block, by * block])

    return kernel


@tilelang.jit(out_idx=[-1])
def routed(tokens, rows, experts, hidden, inner, block=16, threads=32):
    blocks = rows // block

    @T.prim_func
    def kernel(
        X: T.Tensor((tokens, hidden), "float16"), W: T.Tensor((experts, inner, hidden), "float16"), Sorted: T.Tensor((rows,), "int32"),
        Expert: T.Tensor((blocks,), "int32"), Weight: T.Tensor((rows,), "float32"), Out: T.Tensor((rows, inner), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(inner, 32), blocks, threads=threads) as (bx, by):
            x, w = T.alloc_shared((block, 32), "float16"), T.alloc_shared((32, 32), "float16")
            c, row = T.alloc_fragment((block, 32), "float"), T.alloc_shared((block,), "int32")
            expert = Expert[by]
            T.copy(Sorted[by * block : (by + 1) * block], row)
            T.clear(c)
            for k in T.Pipelined(hidden // 32, num_stages=2):
                for i, j in T.Parallel(block, 32):
                    x[i, j] = T.if_then_else(row[i] < tokens, X[T.min(row[i], tokens - 1), k * 32 + j], T.float16(0))
                T.copy(W[expert, bx * 32, k * 32], w)
                T.gemm(x, w, c, transpose_B=True)
            for i, j in T.Parallel(block, 32):
                Out[by * block + i, bx * 32 + j] = c[i, j] * Weight[by * block + i]

    return kernel


x = (torch.randn(32, 64, device=device) / 4).half()
gate, up, down = (torch.randn(shape, device=device).half() / 4 for shape in ((96, 64), (96, 64), (64, 96)))
between, out = torch.empty(32, 96, device=device).half(), torch.empty(32, 64, device=device).half()
shared_expert(32, 64, 96, T.float16)(x, gate, up, down, between, out)
wanted = (torch.nn.functional.silu(x.float() @ gate.float().T) * (x.float() @ up.float().T)) @ down.float().T
torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=5e-2)

experts, inner = 3, 64
choice = torch.randint(0, experts, (32,))
order, expert = [], []
for e in range(experts):
    mine = (choice == e).nonzero().flatten().tolist()
    mine += [32] * (-len(mine) % 16)
    order += mine
    expert += [e] * (len(mine) // 16)
rows = torch.tensor(order, dtype=torch.int32, device=device)
w, weight = (torch.randn(experts, inner, 64, device=device) / 4).half(), torch.rand(len(order), device=device)
found = routed(32, len(order), experts, 64, inner)(
    x, w, rows, torch.tensor(expert, dtype=torch.int32, device=device), weight
)
for i, t in enumerate(order):
    wanted = x[t].float() @ w[choice[t]].float().T * weight[i] if t < 32 else torch.zeros(inner, device=device)
    torch.testing.assert_close(found[i].float(), wanted, rtol=2e-2, atol=2e-2)
