"""Functions of the device vocabulary that lowering calls, registered for the IR."""

from __future__ import annotations

from tilewright.ir.intrinsics import Intrinsic, register
from tilewright.targets.cuda import meanings as _meanings  # noqa: F401  gives them a meaning in NumPy

for _name in ("mma_sparse_m16n8k16", "mma_sparse_m16n8k32", "mma_sparse_m16n8k64"):
    register(Intrinsic(_name, 4, None, pure=False, collective=True))
# A lane's word of metadata, from bytes of one row or of two.
register(Intrinsic("sparse_places", None, None, pure=False))
register(Intrinsic("sparse_hold", 1, None, pure=False))
for _name in ("ldmatrix", "ldmatrix_trans"):
    register(Intrinsic(_name, 3, None, pure=False, collective=True, reads_only=(1, 2)))
register(Intrinsic("cp_async_prefetch", 3, None, pure=False, reads_only=(1,)))
register(Intrinsic("cp_async_zfill_prefetch", 4, None, pure=False, checks_bounds=True, reads_only=(1,)))
register(Intrinsic("cp_async_hint", 3, None, pure=False, reads_only=(1,)))
register(Intrinsic("cp_async_zfill_hint", 4, None, pure=False, checks_bounds=True, reads_only=(1,)))
# Neighbours of a tensor get what as many registers hold, each added atomically.
register(Intrinsic("atomic_add_fragment", 2, None, pure=False))
# How barriers in shared memory come to be, what sees the writes of other blocks, and copies of the engine.
for _name, _arity in (
    ("mbarrier_init", 2),
    ("fence_mbarrier_init", 0),
    ("mbarrier_wait_cluster", 2),
    ("mbarrier_arrive_cluster_release", 2),
    ("mbarrier_arrive_expect_tx_cluster", 3),
    ("bulk_copy_cluster", 4),
    ("tma_store", None),
    ("tma_reduce_add", None),
    ("bulk_commit", 0),
    ("bulk_wait", 1),
    ("bulk_wait_read", 1),
    ("bulk_store", 3),
    ("fence_proxy_async_shared", 0),
):
    register(Intrinsic(_name, _arity, None, pure=False))
register(Intrinsic("warp_uniform", 1, None))
for _name, _arity in (
    ("bulk_load", 4),
    ("bulk_load_hint", 5),
    ("bulk_load_multicast", 5),
    ("tma_load", None),
    ("tma_load_hint", None),
    ("tma_load_multicast", None),
    ("tma_load_multicast_hint", None),
):
    register(Intrinsic(_name, _arity, None, pure=False, reads_only=(1,)))
# Clusters: an arrival in another block, a load for several.
register(Intrinsic("mapa", 2, None))
register(Intrinsic("load_cluster_fragment", 3, None, pure=False))
register(Intrinsic("pack_f16x2", 2, None))
register(Intrinsic("pack_bf16x2", 2, None))
# Pairs of 16-bit floats in a word, and bytes of two words.
for _name, _arity in (
    ("sub_f16x2", 2),
    ("mul_f16x2", 2),
    ("fma_f16x2", 3),
    ("mul_bf16x2", 2),
    ("fma_bf16x2", 3),
    ("neg_f16x2", 1),
    ("neg_bf16x2", 1),
    ("low_twice", 1),
    ("high_twice", 1),
    ("prmt", 3),
    ("lop3", 4),
    ("bits_float", 1),
):
    register(Intrinsic(_name, _arity, None))
register(Intrinsic("set_word", 3, None, pure=False))
register(Intrinsic("get_word", 2, None))
register(Intrinsic("table_word", 3, None, pure=False))
register(Intrinsic("quad_transpose", 1, None, pure=False, collective=True))
# Gemms of warpgroups: descriptors of tiles; n, types, majors, how many steps of k and where each begins in a (unless it
# is in registers) and b, accumulator, a, b, and whether the old sum counts. Sparse ones are one step, have the selector
# of lanes behind the types, and the metadata behind b.
register(Intrinsic("wgmma_descriptor", 4, None))
register(Intrinsic("wgmma_advance", 2, None))
for _name, _arity in (
    ("wgmma_ss", None),
    ("wgmma_rs", None),
    ("wgmma_sparse_ss", 9),
    ("wgmma_sparse_rs", 9),
    ("wgmma_fence", 0),
    ("wgmma_commit", 0),
    ("wgmma_wait", 1),
    ("hold_registers", 1),
    ("stmatrix_x4", 2),
    ("stmatrix_x4_trans", 2),
    ("stmatrix_x2_trans", 2),
):
    register(Intrinsic(_name, _arity, None, pure=False, collective=True))
