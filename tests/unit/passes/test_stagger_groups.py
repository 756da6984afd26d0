"""Warpgroups that wait for their own products begin one after the other; others together."""

import tilewright
import tilewright.language as T


def text(threads, promote, rows=128):
    @T.prim_func
    def product(A: T.Tensor((256, 512), "float8_e4m3fn"), C: T.Tensor((256, 256), "bfloat16")):
        with T.Kernel(2, 256 // rows, threads=threads) as (bn, bm):
            a, b = T.alloc_shared((rows, 128), "float8_e4m3fn"), T.alloc_shared((128, 128), "float8_e4m3fn")
            c = T.alloc_fragment((rows, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[bm * rows, k * 128], a)
                T.copy(A[bn * 128, k * 128], b)
                T.gemm(a, b, c, transpose_B=True, promote_every=promote)
            T.copy(c, C[bm * rows, bn * 128])

    return tilewright.compile(product, target="cuda -arch=sm_90a").get_kernel_source()


def test_only_groups_that_add_up_beside_the_unit_are_late():
    # One warpgroup's share of a step, 64 x 128 x 128 products, takes the matrix unit 256 cycles.
    assert "tw::delay(thread / 128 * 256)" in text(256, 128)
    assert "tw::delay" not in text(256, None)
    assert "tw::delay" not in text(128, 128, 64)
