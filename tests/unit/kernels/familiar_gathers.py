"""Programs that fill tiles row by row: rows of a list, rows that exist only up to a length, rows of experts."""

import numpy as np
from familiar_program import Familiar, nan, normal

import tilewright.language as T

D, KEYS, ROWS, LENGTH = 64, 150, 160, 137


def rows_of_a_list(style):
    """A product of rows that a list names, or that exist up to a length, in the ways in which authors write it."""

    @T.prim_func
    def main(
        K: T.Tensor((KEYS, D), "float16"),
        W: T.Tensor((D, 64), "float16"),
        n: T.int32,
        rows: T.Tensor((ROWS,), "int32"),
        C: T.Tensor((ROWS, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, D), "float16")
            weight = T.alloc_shared((D, 64), "float16")
            chosen = T.alloc_shared((64,), "int32")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(W, weight)
            for k in T.Pipelined(T.ceildiv(n, 64), num_stages=2):
                if style == "both ways":
                    for i, d in T.Parallel(64, D):
                        if k * 64 + i < n:
                            tile[i, d] = K[k * 64 + i, d]
                        else:
                            tile[i, d] = 0
                elif style == "a choice":
                    for i, d in T.Parallel(64, D):
                        tile[i, d] = T.if_then_else(k * 64 + i < n, K[k * 64 + i, d], 0)
                elif style == "a list":
                    for i, d in T.Parallel(64, D):
                        tile[i, d] = K[rows[k * 64 + i], d]
                elif style == "a list with gaps":
                    for i, d in T.Parallel(64, D):
                        if rows[k * 64 + i] >= 0 and k * 64 + i < n:
                            tile[i, d] = K[rows[k * 64 + i], d]
                        else:
                            tile[i, d] = T.float16(0)
                else:
                    T.copy(rows[k * 64 : k * 64 + 64], chosen)
                    for i, d in T.Parallel(64, D):
                        tile[i, d] = K[chosen[i], d]
                T.gemm(tile, weight, c, clear_accum=True)
                T.copy(c, C[k * 64 : k * 64 + 64, :])

    keys, weight = normal(KEYS, D), normal(D, 64, seed=1)
    rows = np.random.default_rng(2).integers(0, KEYS, ROWS).astype(np.int32)
    if style == "a list with gaps":
        rows[::5] = -1
    taken = np.zeros((ROWS, D))
    taken[:KEYS] = keys
    if "list" in style:
        taken = np.where(rows[:, None] >= 0, keys[rows], 0)
    if style in ("both ways", "a choice", "a list with gaps"):
        taken[LENGTH:] = 0
    expected = taken @ weight.astype(float)
    moved = ("LDG.E.128" if "shared" in style else "LDGSTS", "UTMALDG", "HGMMA")
    return Familiar(main, (keys, weight, LENGTH, rows, nan(ROWS, 64)), {4: expected}, 1e-3, moved)


STYLES = ("both ways", "a choice", "a list", "a list with gaps", "a list in shared memory")
