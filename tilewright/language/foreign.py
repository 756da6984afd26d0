"""Names of TileLang, NumPy and Triton that are not here, and what to write instead: help for those who move a
kernel."""

from __future__ import annotations

_INSTEAD: dict[str, tuple[str, ...]] = {
    "write T.tma_copy with barrier=, or T.copy in a T.Pipelined loop: the compiler makes descriptors": (
        "create_tma_descriptor", "tma_load",
    ),
    "write T.gemm: the compiler chooses the instruction and waits for it": (
        "TensorCoreIntrinEmitter", "WGMMATensorCoreIntrinEmitter", "alloc_descriptor", "alloc_wgmma_desc",
        "increase_descriptor_offset", "initialize_wgmma_descriptor", "mma_gemm_blockscaled", "ptx_ldmatrix", "ptx_mma",
        "ptx_wgmma_ss", "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_fence_operand", "warpgroup_wait",
    ),
    "write T.gemm_sp: the compiler chooses the instruction": ("ptx_mma_sp", "wgmma_gemm_sp"),
    "tilewright has no tcgen05 instructions and no tensor memory: on sm_100a T.gemm uses mma.sync, so write "
    "T.gemm into a"
    " T.alloc_fragment": (
        "TCGEN05TensorCoreIntrinEmitter", "alloc_tcgen05_instr_desc", "alloc_tcgen05_smem_desc", "alloc_tmem",
        "deallocate_tmem", "gemm_blockscaled", "make_blockscaled_gemm_layout", "tcgen05_after_thread_sync",
        "tcgen05_before_thread_sync", "tcgen05_cp_warpx4", "tcgen05_gemm", "tcgen05_gemm_blockscaled",
        "tcgen05_gemm_sp",
        "tcgen05_mma", "tcgen05_mma_arrive", "tcgen05_mma_blockscaled", "tcgen05_sf_warp_transpose", "tma_gather4",
        "tma_gather4_bytes", "tma_scatter4",
    ),
    "write a loop over T.Persistent: tilewright has no cluster launch control": (
        "clc_get_first_ctaid_x", "clc_is_canceled", "clc_try_cancel_multicast",
    ),
    "leave it out: the compiler gives every tile that needs one a swizzled layout, and T.annotate_layout takes "
    "your own": (
        "get_swizzle_layout", "make_mma_swizzle_layout",
    ),
    "write T.Pipelined(..., specialize=True): the compiler splits producer and consumer warps": (
        "WSID", "WSInstr", "WSOpRef", "WSPipeline", "WSRole", "WSSchedule", "WSScope", "WSSync", "WSSyncKind",
        "annotate_ws_schedule", "ws_op",
    ),
    "write `with T.Kernel(...)` and T.get_thread_binding()": ("KernelLaunchFrame", "env_thread"),
    "write T.sync_threads()": ("tvm_storage_sync",),
    "write T.alloc_barrier(counts): it begins them too": ("ptx_fence_barrier_init", "ptx_init_barrier_thread_count"),
    "write T.ballot_sync(condition): which lanes happen to run together is nobody's promise": ("activemask",),
    "write the operation on each element in T.Parallel or T.vectorized: the compiler moves neighbours together": (
        "abs2", "add2", "fma2", "max2", "min2", "mul2", "sub2",
    ),
    "write a loop over the bits with T.popcount and T.__ffs": ("__fns",),
    "write tilewright.jit": ("JITFunc",),
    "leave it out: names of values are the compiler's business": ("get_let_value", "has_let_value"),
    "write `while condition:`": ("While",),
    "write T.alloc_shared, T.alloc_fragment, T.alloc_local or T.alloc_global": ("allocate",),
    "write A[i + lane] for each lane": ("extract_lane",),
    "leave it out, and pass tensors that do not overlap": ("annotate_restrict_buffers",),
    "leave it out: tilewright.compile(..., schedule=) takes what the compiler would choose": (
        "annotate_compile_flags", "annotate_pass_configs",
    ),
    "write T.import_source and T.call_extern": (
        "CUDASourceCodeKernel", "call_intrin",
    ),
    "pass tensors as T.Tensor parameters": (
        "handle", "match_buffer",
    ),
    "write T.Parallel: the compiler makes vector accesses": (
        "Shuffle", "lds128", "lds32", "lds64", "ldg128", "ldg256", "ldg32", "ldg64", "stg128", "stg256", "stg32",
        "stg64", "sts128", "sts32", "sts64",
    ),
    "write T.alloc_fragment, or T.alloc_shared, and T.fill": ("full", "ones", "zeros"),
    "write T.gemm on tiles": ("dot", "matmul", "mma"),
    "write T.copy between a tensor and a tile, which leaves out what is beyond the tensor's end": ("load", "store"),
    "write `with T.Kernel(blocks, threads=...) as block`": ("num_programs", "program_id"),
    "write T.if_then_else": ("where",),
    "write T.max": ("maximum",),
    "write T.min": ("minimum",),
    "write T.Parallel, whose indices are these numbers": ("arange",),
    "write T.reduce_sum": ("sum",),
    "write T.reduce_argmax": ("argmax",),
    "write T.reduce_argmin": ("argmin",),
}  # fmt: skip

INSTEAD: dict[str, str] = {name: advice for advice, names in _INSTEAD.items() for name in names}
"""For each such name, what to write."""
