"""Names of TileLang that tilewright does not have, and what to write instead: help for those who move a kernel."""

from __future__ import annotations

_INSTEAD: dict[str, tuple[str, ...]] = {
    "write T.copy in a T.Pipelined loop: the compiler makes asynchronous copies and their barriers": (
        "alloc_barrier", "alloc_cluster_barrier", "async_copy", "barrier_arrive", "barrier_wait", "copy_cluster",
        "cp_async_barrier_noinc", "create_tma_descriptor", "fence_proxy_async", "mbarrier_arrive",
        "mbarrier_arrive_expect_tx", "mbarrier_expect_tx", "mbarrier_wait_parity", "ptx_commit_group", "ptx_cp_async",
        "ptx_wait_group", "tma_copy", "tma_load", "tma_store_arrive", "tma_store_wait",
    ),
    "write T.gemm: the compiler chooses the instruction and waits for it": (
        "dp4a", "mma_gemm_blockscaled", "ptx_mma", "tcgen05_gemm", "tcgen05_gemm_blockscaled",
        "tcgen05_mma_arrive", "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_wait",
    ),
    "write T.alloc_fragment for the accumulator of T.gemm": ("alloc_tmem", "deallocate_tmem"),
    "write T.Pipelined(..., specialize=True): the compiler splits producer and consumer warps": (
        "WarpSpecialize", "annotate_consumer_reg_alloc", "annotate_producer_reg_dealloc", "annotate_ws_schedule",
        "disable_warp_group_reg_alloc", "no_set_max_nreg", "set_max_nreg", "ws",
    ),
    "write T.reduce_sum, T.reduce_max or T.reduce_min on a tile": (
        "alloc_reducer", "comm_reducer", "finalize_reducer", "reducer_init", "reducer_update", "tvm_thread_allreduce",
    ),
    "write `with T.Kernel(...)` and T.get_thread_binding()": ("env_thread", "launch_thread", "thread_binding"),
    "write `for ... in T.Persistent(domain, wave_size, index)`": ("BaseTileScheduler", "PersistentTileScheduler"),
    "write a helper in Python with @T.macro: code of the device's own language cannot be put in": (
        "CUDASourceCodeKernel", "access_ptr", "address_of", "call_extern", "call_intrin", "import_source",
    ),
    "pass tensors as T.Tensor parameters": (
        "decl_buffer", "handle", "make_tensor", "make_tensor_from_addr", "match_buffer", "ptr",
    ),
    "write T.Parallel: the compiler makes vector accesses": (
        "Broadcast", "Ramp", "Shuffle", "ldg128", "ldg256", "ldg32", "ldg64", "stg128", "stg256", "stg32", "stg64",
    ),
}  # fmt: skip

INSTEAD: dict[str, str] = {name: advice for advice, names in _INSTEAD.items() for name in names}
"""For each name of TileLang that is not here, what to write."""
