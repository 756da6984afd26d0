"""Attention to keys that lists choose: whole blocks and single columns; latent keys in pages, the parts of a sequence in turn."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, begin, drawn, log2_sums, nan, softmax, statistics, weigh

import tilewright.language as T

bf = ml_dtypes.bfloat16


def blocks_and_columns():
    """Blocks in a pipeline, then columns by copies that the author starts and waits for, two tiles in turn."""
    draw, rng = drawn(0)
    H, S, D, B, most, wide = 2, 256, 64, 64, 3, 128
    scale = D**-0.5 * 1.44269504
    shape = [H, S, D]

    @T.macro
    def fetch(K, V, keys, values, chosen, count, first, head):
        for source, tile in ((K, keys), (V, values)):
            with T.attr("default", "async_scope", 1):
                for i, j in T.Parallel(B, D):
                    tile[i, j] = T.if_then_else(first + i < count, source[head, chosen[first + i], j], 0)
        T.ptx_commit_group()

    @T.macro
    def attend(queries, keys, values, s, p, out, rows, first, count):
        for i, j in T.Parallel(B, B):
            s[i, j] = T.if_then_else(first + j < count, 0, -T.infinity(s.dtype))
        T.gemm(queries, keys, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        weigh(s, p, out, *rows, scale)
        T.gemm(p, values, out, policy=T.GemmWarpPolicy.FullRow)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        blocks: T.Tensor([H, S // B, most], "int32"),
        block_count: T.Tensor([H, S // B], "int32"),
        columns: T.Tensor([H, S // B, wide], "int32"),
        column_count: T.Tensor([H, S // B], "int32"),
        O: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(S // B, H, threads=128) as (bx, head):
            queries = T.alloc_shared([B, D], "float16")
            K1, V1, K2, V2 = (T.alloc_shared([B, D], "float16") for _ in range(4))
            s = T.alloc_fragment([B, B], "float32")
            p = T.alloc_fragment([B, B], "float16")
            out = T.alloc_fragment([B, D], "float32")
            rows = statistics(B)
            count = T.alloc_local([1], "int32")
            chosen = T.alloc_shared([wide], "int32", scope="shared")
            count[0] = column_count[head, bx]
            T.copy(columns[head, bx, :], chosen)
            T.copy(Q[head, bx * B : (bx + 1) * B, :], queries)
            begin(out, *rows)
            for b in T.Pipelined(block_count[head, bx], num_stages=1):
                first = blocks[head, bx, b]
                T.copy(K[head, first : first + B, :], K1)
                T.copy(V[head, first : first + B, :], V1)
                attend(queries, K1, V1, s, p, out, rows, first, S)
            if count[0] != 0:
                steps = T.ceildiv(count[0], B)
                fetch(K, V, K1, V1, chosen, count[0], 0, head)
                for b in T.serial(steps - 1):
                    if b % 2 == 0:
                        fetch(K, V, K2, V2, chosen, count[0], (b + 1) * B, head)
                        T.ptx_wait_group(1)
                        T.sync_threads()
                        attend(queries, K1, V1, s, p, out, rows, b * B, count[0])
                    else:
                        fetch(K, V, K1, V1, chosen, count[0], (b + 1) * B, head)
                        T.ptx_wait_group(1)
                        T.sync_threads()
                        attend(queries, K2, V2, s, p, out, rows, b * B, count[0])
                T.ptx_wait_group(0)
                T.sync_threads()
                if steps % 2 == 0:
                    attend(queries, K2, V2, s, p, out, rows, steps * B - B, count[0])
                else:
                    attend(queries, K1, V1, s, p, out, rows, steps * B - B, count[0])
            for i, j in T.Parallel(B, D):
                out[i, j] /= rows[-1][i]
            T.copy(out, O[head, bx * B : (bx + 1) * B, :])

    q, k, v = (draw(*shape) for _ in range(3))
    numbers = [np.zeros((H, S // B, *rest), np.int32) for rest in ((most,), (), (wide,), ())]
    expected = np.zeros(shape)
    for head, b in np.ndindex(H, S // B):
        starts = np.sort(rng.permutation(S // B)[: 1 + (head + b) % most]) * B
        whole = np.concatenate([np.arange(start, start + B) for start in starts])
        single = np.sort(rng.permutation(np.setdiff1d(np.arange(S), whole))[: 40 * b])
        for listed, counted, found in ((*numbers[:2], starts), (*numbers[2:], single)):
            listed[head, b, : len(found)], counted[head, b] = found, len(found)
        keys, here = np.concatenate([whole, single]).astype(int), slice(b * B, (b + 1) * B)
        weights = softmax(q[head, here].astype(float) @ k[head, keys].astype(float).T / 8)
        expected[head, here] = weights @ v[head, keys].astype(float)
    return Familiar(main, (q, k, v, *numbers, nan(*shape, dtype=np.float16)), {7: expected}, 5e-3, ("HGMMA", "LDGSTS"))


def latent_pages(H=64, D=128, tail=64, page=64, splits=2):
    """Two warpgroups share the columns of every product, so that they meet in each step; weights go through shared memory."""
    draw, rng = drawn(1)
    batch, pages, block = 2, 4, 64
    total = batch * pages + 2
    scale = (D + tail) ** -0.5 * 1.44269504

    @T.prim_func
    def main(
        Q: T.Tensor((batch, H, D), "bfloat16"),
        Q_tail: T.Tensor((batch, H, tail), "bfloat16"),
        KV: T.Tensor((total * page, 1, D), "bfloat16"),
        K_tail: T.Tensor((total * page, 1, tail), "bfloat16"),
        table: T.Tensor((batch, pages), "int32"),
        lengths: T.Tensor((batch,), "int32"),
        sums: T.Tensor((batch, H, splits), "float32"),
        parts: T.Tensor((batch, H, splits, D), "float32"),
    ):
        with T.Kernel(batch, splits, threads=256) as (b, z):
            queries = T.alloc_shared([H, D], "bfloat16")
            queries_tail = T.alloc_shared([H, tail], "bfloat16")
            keys = T.alloc_shared([block, D], "bfloat16")
            keys_tail = T.alloc_shared([block, tail], "bfloat16")
            weights = T.alloc_shared([H, block], "bfloat16")
            s = T.alloc_fragment([H, block], "float32")
            out = T.alloc_fragment([H, D], "float32")
            rows = statistics(H)
            T.copy(Q[b, :, :], queries)
            T.copy(Q_tail[b, :, :], queries_tail)
            begin(out, *rows)
            blocks = T.ceildiv(lengths[b], block)
            each, left = T.floordiv(blocks, splits), T.floormod(blocks, splits)
            start = (each * z + T.min(z, left)) * block
            for k in T.Pipelined(each + T.if_then_else(z < left, 1, 0), num_stages=2):
                place = table[b, (start + k * block) // page] * page + (start + k * block) % page
                T.copy(KV[place : place + block, 0, :], keys)
                T.copy(K_tail[place : place + block, 0, :], keys_tail)
                T.clear(s)
                T.gemm(queries, keys, s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                T.gemm(queries_tail, keys_tail, s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                for i, j in T.Parallel(H, block):
                    s[i, j] = T.if_then_else(start + k * block + j >= lengths[b], -T.infinity("float32"), s[i, j])
                weigh(s, weights, out, *rows, scale)
                T.gemm(weights, keys, out, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(H, D):
                parts[b, i, z, j] = out[i, j] / rows[-1][i]
            for i in T.Parallel(H):
                sums[b, i, z] = T.log2(rows[-1][i]) + rows[0][i] * scale

    q, q_tail = draw(batch, H, D, dtype=bf), draw(batch, H, tail, dtype=bf)
    kv, k_tail = draw(total * page, 1, D, dtype=bf), draw(total * page, 1, tail, dtype=bf)
    table, lengths = rng.permutation(total)[: batch * pages].reshape(batch, pages), np.array([200, 130])
    expected_sums, expected = np.zeros((batch, H, splits)), np.zeros((batch, H, splits, D))
    for b in range(batch):
        places = (table[b][:, None] * page + np.arange(page)).reshape(-1)[: lengths[b]]
        blocks = -(-lengths[b] // block)
        starts = [(blocks // splits * z + min(z, blocks % splits)) * block for z in range(splits + 1)]
        for z in range(splits):
            own = places[starts[z] : starts[z + 1]]
            k, k2 = kv[own, 0].astype(float), k_tail[own, 0].astype(float)
            scores = (q[b].astype(float) @ k.T + q_tail[b].astype(float) @ k2.T) * scale / 1.44269504
            expected[b, :, z] = softmax(scores) @ k
            expected_sums[b, :, z] = log2_sums(scores)
    empty = nan(batch, H, splits), nan(batch, H, splits, D)
    arrays = q, q_tail, kv, k_tail, table.astype(np.int32), lengths.astype(np.int32)
    return Familiar(main, (*arrays, *empty), {6: expected_sums, 7: expected}, 2e-2, ("HGMMA", "UTMALDG"))
