"""Functions of the device vocabulary that lowering calls, registered for the IR."""

from __future__ import annotations

from tilewright.ir.intrinsics import declare
from tilewright.targets.gpu.copies import copy_meanings as _meanings  # noqa: F401  gives them a meaning in NumPy

# A lane's word of metadata, from bytes of one row or of two.
declare("sparse_places/* sparse_hold/1", pure=False)
declare("async_copy_prefetch/3 async_copy_hint/3", pure=False, reads_only=(1,))
declare("async_copy_zfill_prefetch/4 async_copy_zfill_hint/4", pure=False, checks_bounds=True, reads_only=(1,))
# Neighbours of a tensor get what as many registers hold, each added atomically.
declare("atomic_add_fragment/2", pure=False)
# How barriers in shared memory come to be, what sees the writes of other blocks, and copies of the engine.
declare("signal_init/2 fence_signal_init/0 signal_wait_cluster/2", pure=False)
declare("signal_arrive_cluster_release/2 signal_arrive_expect_tx_cluster/3 bulk_copy_cluster/4", pure=False)
declare("box_store/* box_reduce_add/* bulk_commit/0 bulk_wait/1 bulk_wait_read/1 bulk_store/3", pure=False)
declare("fence_proxy_async_shared/0", pure=False)
declare("warp_uniform/1")
declare("bulk_load/4 bulk_load_hint/5 bulk_load_multicast/5 box_load/* box_load_hint/*", pure=False, reads_only=(1,))
declare("box_load_multicast/* box_load_multicast_hint/*", pure=False, reads_only=(1,))
# Clusters: an arrival in another block, a load for several.
declare("peer_address/2")
declare("load_cluster_fragment/3", pure=False)
declare("pack_f16x2/2 pack_bf16x2/2")
# Pairs of 16-bit floats in a word, and bytes of two words.
declare("sub_f16x2/2 mul_f16x2/2 fma_f16x2/3 mul_bf16x2/2 fma_bf16x2/3 neg_f16x2/1 neg_bf16x2/1 low_twice/1")
declare("high_twice/1 prmt/3 lop3/4 bits_float/1 get_word/2")
declare("set_word/3 table_word/3", pure=False)
declare("quad_transpose/1", pure=False, collective=True)
# Gemms of warpgroups: descriptors of tiles, and the groups of what a family's own functions multiply.
declare("gmma_descriptor/4 gmma_advance/2")
declare("gmma_fence/0 gmma_commit/0 gmma_wait/1 hold_registers/1 store_matrix_x4/2", pure=False, collective=True)
declare("store_matrix_x4_trans/2 store_matrix_x2_trans/2", pure=False, collective=True)
