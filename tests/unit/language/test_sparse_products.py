"""`T.gemm_sp` with metadata of every integer type, operands turned, and pairs of float32, as programs of TileLang's give them."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.formats.sparse import compress, prune
from tilewright.options import override

M, N, K, STEP = 64, 32, 128, 64


def product(dtype, meta, turned, group):
    A, E, B = turned
    words = np.dtype(meta).itemsize * 2 * group

    def shape(rows, columns, swapped):
        return (columns, rows) if swapped else (rows, columns)

    @T.prim_func
    def main(
        kept: T.Tensor(shape(M, K // 2, A), dtype), places: T.Tensor(shape(M, K // words, E), meta),
        dense: T.Tensor(shape(K, N, B), dtype), C: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(shape(M, STEP // 2, A), dtype)
            e = T.alloc_shared(shape(M, STEP // words, E), meta)
            b = T.alloc_shared(shape(STEP, N, B), dtype)
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for k in T.Pipelined(K // STEP, num_stages=2):
                T.copy(kept[k * STEP // 2, 0] if A else kept[0, k * STEP // 2], a)
                T.copy(places[k * STEP // words, 0] if E else places[0, k * STEP // words], e)
                T.copy(dense[0, k * STEP] if B else dense[k * STEP, 0], b)
                T.gemm_sp(a, e, b, c, A, E, B)
            T.copy(c, C)

    return main


@pytest.mark.parametrize(
    "dtype, meta, turned",
    [
        ("float16", "int16", (0, 0, 0)), ("float16", "int16", (1, 1, 1)), ("float16", "uint8", (0, 1, 1)), ("float16", "int32", (1, 0, 1)),
        ("float16", "int8", (0, 0, 1)), ("float32", "int16", (0, 1, 0)), ("float32", "uint8", (1, 0, 1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_every_form_of_the_operands(dtype, meta, turned, target):
    rng = np.random.default_rng(0)
    group = 2 if dtype == "float32" else 4
    a = prune(rng.standard_normal((M, K)).astype(dtype), group)
    b = rng.standard_normal((K, N)).astype(dtype)
    kept, places = compress(a, group)
    operands = (kept, np.ascontiguousarray(places).view(meta), b)
    given = [np.ascontiguousarray(one.T) if swapped else one for one, swapped in zip(operands, turned, strict=True)]
    with override(verify=False):  # as programs run: views of staged tiles were taken for names out of scope
        kernel = tilewright.compile(product(dtype, meta, turned, group), target=target)
    c = np.full((M, N), np.nan, np.float32)
    (kernel if target == "cpu" else kernel.emulate)(*given, c)
    assert np.allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)
