"""Mixture of experts: gates with the best k, tokens sorted by expert with counts and running sums, the grouped product on them, and the gather back."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[1, 2])
def topk_gate(num_tokens, num_experts, topk, blk_m=32, threads=64):
    dtype = T.float32

    @T.prim_func
    def topk_gate_kernel(
        logits: T.Tensor([num_tokens, num_experts], dtype),
        topk_gates: T.Tensor([num_tokens, topk], dtype),
        topk_indices: T.Tensor([num_tokens, topk], T.int32),
    ):
        with T.Kernel(T.ceildiv(num_tokens, blk_m), threads=threads) as bx:
            logits_frag = T.alloc_fragment([blk_m, num_experts], dtype=dtype)
            max_val = T.alloc_fragment([blk_m], dtype=dtype)
            expand_max_idx = T.alloc_fragment([blk_m, num_experts], T.int32)
            max_idx = T.alloc_fragment([blk_m], T.int32)
            T.copy(logits[bx * blk_m, 0], logits_frag)
            for k in T.serial(topk):
                T.fill(expand_max_idx, -1)
                T.reduce_max(logits_frag, max_val, dim=1, clear=True)
                for i, j in T.Parallel(blk_m, num_experts):
                    expand_max_idx[i, j] = T.if_then_else(max_val[i] == logits_frag[i, j], j, expand_max_idx[i, j])
                T.reduce_max(expand_max_idx, max_idx, dim=1, clear=True)
                for i, j in T.Parallel(blk_m, num_experts):
                    logits_frag[i, j] = T.if_then_else(max_val[i] == logits_frag[i, j], -10000.0, logits_frag[i, j])
                for i in T.Parallel(blk_m):
                    topk_gates[bx * blk_m + i, k] = max_val[i]
                    topk_indices[bx * blk_m + i, k] = max_idx[i]

    return topk_gate_kernel


@tilelang.jit
def align_tokens(num_experts, block_size, numel, max_padded, threads=128):
    @T.prim_func
    def main(
        ids: T.Tensor((numel,), T.int32),
        sorted_ids: T.Tensor((max_padded,), T.int32),
        expert_ids: T.Tensor((max_padded // block_size,), T.int32),
        total: T.Tensor((1,), T.int32),
    ):
        with T.Kernel(1, threads=threads) as _:
            tx = T.get_thread_binding(0)
            counts = T.alloc_shared((num_experts,), T.int32)
            padded = T.alloc_shared((num_experts,), T.int32)
            ends = T.alloc_shared((num_experts,), T.int32)
            place = T.alloc_var(T.int32)
            if tx < num_experts:
                counts[tx] = 0
            T.sync_threads()
            for i in T.serial(T.ceildiv(numel, threads)):
                if i * threads + tx < numel:
                    T.atomic_add(counts[ids[i * threads + tx]], 1)
            T.sync_threads()
            if tx < num_experts:
                padded[tx] = T.ceildiv(counts[tx], block_size) * block_size
            T.sync_threads()
            T.cumsum(padded, ends)
            if tx == 0:
                total[0] = ends[num_experts - 1]
            if tx < num_experts:
                for b in T.serial(padded[tx] // block_size):
                    expert_ids[(ends[tx] - padded[tx]) // block_size + b] = tx
                counts[tx] = ends[tx] - padded[tx]
            T.sync_threads()
            for i in T.serial(T.ceildiv(numel, threads)):
                if i * threads + tx < numel:
                    place = T.atomic_add(counts[ids[i * threads + tx]], 1, return_prev=True)
                    sorted_ids[place] = i * threads + tx

    return main


@tilelang.jit
def fused_experts(
    num_tokens, topk, num_experts, hidden, inter, max_padded, block_token=32, block_n=64, block_k=32, dtype=T.float16
):
    @T.prim_func
    def main(
        X: T.Tensor((num_tokens, hidden), dtype),
        W: T.Tensor((num_experts, inter, hidden), dtype),
        sorted_ids: T.Tensor((max_padded,), T.int32),
        expert_ids: T.Tensor((max_padded // block_token,), T.int32),
        total: T.Tensor((1,), T.int32),
        weights: T.Tensor((num_tokens * topk,), T.float32),
        out: T.Tensor((num_tokens, inter), T.float32),
    ):
        with T.Kernel(T.ceildiv(max_padded, block_token), T.ceildiv(inter, block_n), threads=128) as (bx, by):
            x_shared = T.alloc_shared((block_token, block_k), dtype)
            w_shared = T.alloc_shared((block_n, block_k), dtype)
            acc = T.alloc_fragment((block_token, block_n), T.float32)
            rows = T.alloc_shared((block_token,), T.int32)
            if bx * block_token >= total[0]:
                T.thread_return()
            expert = expert_ids[bx]
            for i in T.Parallel(block_token):
                rows[i] = sorted_ids[bx * block_token + i]
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(hidden, block_k), num_stages=2):
                for i, j in T.Parallel(block_token, block_k):
                    x_shared[i, j] = T.if_then_else(rows[i] >= 0, X[rows[i] // topk, k * block_k + j], 0)
                T.copy(W[expert, by * block_n : (by + 1) * block_n, k * block_k : (k + 1) * block_k], w_shared)
                T.gemm(x_shared, w_shared, acc, transpose_B=True)
            for i, j in T.Parallel(block_token, block_n):
                if rows[i] >= 0:
                    T.atomic_add(out[rows[i] // topk, by * block_n + j], acc[i, j] * weights[rows[i]])

    return main


REAL_SIZES = [
    ("gate", lambda: topk_gate(4096, 128, 6)),
    ("align", lambda: align_tokens(64, 64, 4096 * 6, 4096 * 6 + 64 * 64, 1024)),
    ("experts", lambda: fused_experts(4096, 6, 64, 4096, 1408, 4096 * 6 + 64 * 64, 64, 128, 64)),
]

if __name__ == "__main__":
    tokens, experts, topk, hidden, inter, block = 50, 8, 2, 96, 128, 32
    logits = torch.randn(tokens, experts, device=dev).softmax(-1)
    gates, ids = topk_gate(tokens, experts, topk)(logits)
    want, want_ids = torch.topk(logits, topk, dim=1)
    torch.testing.assert_close(gates, want)
    assert torch.equal(ids.long(), want_ids)
    flat = ids.flatten().contiguous()
    max_padded = (tokens * topk + experts * (block - 1) + block - 1) // block * block
    sorted_ids = torch.full((max_padded,), -1, dtype=torch.int32, device=dev)
    expert_ids = torch.zeros(max_padded // block, dtype=torch.int32, device=dev)
    total = torch.zeros(1, dtype=torch.int32, device=dev)
    align_tokens(experts, block, tokens * topk, max_padded)(flat, sorted_ids, expert_ids, total)
    kept = sorted_ids[sorted_ids >= 0].sort().values
    assert torch.equal(kept, torch.arange(tokens * topk, dtype=torch.int32, device=dev)), kept
    for b in range(int(total) // block):
        rows = sorted_ids[b * block : (b + 1) * block]
        assert (flat[rows[rows >= 0].long()] == expert_ids[b]).all()
    x, w = torch.randn(tokens, hidden, device=dev).half(), torch.randn(experts, inter, hidden, device=dev).half()
    out = torch.zeros(tokens, inter, device=dev)
    fused_experts(tokens, topk, experts, hidden, inter, max_padded)(
        x, w, sorted_ids, expert_ids, total, gates.flatten().contiguous(), out
    )
    ref = torch.einsum("th,tkih->tki", x.float(), w.float()[ids.long()]).mul(gates[..., None]).sum(1)
    torch.testing.assert_close(out, ref, rtol=1e-2, atol=5e-2)
    print("moe ok")
