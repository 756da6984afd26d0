"""Names of TileLang that tilewright does not have, and what to write instead: help for those who move a kernel."""

from __future__ import annotations

_INSTEAD: dict[str, tuple[str, ...]] = {
    "write T.tma_copy with barrier=, or T.copy in a T.Pipelined loop: the compiler makes descriptors": (
        "create_tma_descriptor", "tma_load",
    ),
    "write T.gemm: the compiler chooses the instruction and waits for it": (
        "mma_gemm_blockscaled", "ptx_mma", "tcgen05_gemm", "tcgen05_gemm_blockscaled",
        "tcgen05_mma_arrive", "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_wait",
    ),
    "write T.alloc_fragment for the accumulator of T.gemm": ("alloc_tmem", "deallocate_tmem"),
    "write T.Pipelined(..., specialize=True): the compiler splits producer and consumer warps": (
        "annotate_ws_schedule",
    ),
    "write T.reduce_sum, T.reduce_max or T.reduce_min on a tile": (
        "alloc_reducer", "finalize_reducer", "reducer_init", "reducer_update",
    ),
    "write `with T.Kernel(...)` and T.get_thread_binding()": ("env_thread", "launch_thread"),
    "write `for ... in T.Persistent(domain, wave_size, index)`": ("BaseTileScheduler", "PersistentTileScheduler"),
    "write T.import_source and T.call_extern": (
        "CUDASourceCodeKernel", "call_intrin",
    ),
    "pass tensors as T.Tensor parameters": (
        "decl_buffer", "handle", "make_tensor_from_addr", "match_buffer",
    ),
    "write T.Parallel: the compiler makes vector accesses": (
        "Shuffle", "ldg128", "ldg256", "ldg32", "ldg64", "stg128", "stg256", "stg32", "stg64",
    ),
}  # fmt: skip

INSTEAD: dict[str, str] = {name: advice for advice, names in _INSTEAD.items() for name in names}
"""For each name of TileLang that is not here, what to write."""
