"""Names of TileLang, NumPy and Triton that are not here, and what to write instead: help for those who move a
kernel."""

from __future__ import annotations

_INSTEAD: dict[str, tuple[str, ...]] = {
    "write T.tma_copy with barrier=, or T.copy in a T.Pipelined loop: the compiler makes descriptors": (
        "create_tma_descriptor", "tma_load",
    ),
    "write T.gemm: the compiler chooses the instruction and waits for it": (
        "WGMMATensorCoreIntrinEmitter", "alloc_descriptor", "alloc_wgmma_desc",
        "increase_descriptor_offset", "initialize_wgmma_descriptor", "mma_gemm_blockscaled",
        "ptx_wgmma_ss", "TensorCoreIntrinEmitterSM120", "TensorCoreIntrinEmitterWithLadderTransform",
        "SparseTensorCoreIntrinEmitter", "WGSparseTensorCoreIntrinEmitter", "WGMMADescriptorParams",
        "compute_gmma_descriptor", "get_ldmatrix_offset", "get_mma_micro_size", "mma_store_index_map", "mma_fill",
        "mma_store", "ptx_mma_block_scale", "ptx_mma_sm70", "ptx_wgmma_rs", "tvm_bmma_sync",
        "tvm_fill_fragment", "tvm_load_matrix_sync", "tvm_mma_sync", "tvm_store_matrix_sync", "tvm_mfma",
        "tvm_mfma_store", "tvm_rdna_wmma", "tvm_rdna_wmma_store", "validate_gemm_ab_dtypes",
    ),
    "write from tilelang.intrinsics import TensorCoreIntrinEmitter, or T.gemm": ("TensorCoreIntrinEmitter",),
    "write T.gemm_sp: the compiler chooses the instruction": ("ptx_mma_sp", "ptx_wgmma_sp_rs", "ptx_wgmma_sp_ss"),
    "tilewright has no tcgen05 instructions and no tensor memory: on sm_100a T.gemm uses mma.sync, so"
    " write T.gemm into a T.alloc_fragment": (
        "TCGEN05TensorCoreIntrinEmitter", "alloc_tcgen05_instr_desc", "alloc_tcgen05_smem_desc", "alloc_tmem",
        "deallocate_tmem", "gemm_blockscaled", "make_blockscaled_gemm_layout", "tcgen05_after_thread_sync",
        "tcgen05_before_thread_sync", "tcgen05_cp_warpx4", "tcgen05_gemm", "tcgen05_gemm_blockscaled",
        "tcgen05_gemm_sp", "tcgen05_mma", "tcgen05_mma_arrive", "tcgen05_mma_blockscaled",
        "tcgen05_sf_warp_transpose", "tma_gather4", "tma_gather4_bytes", "tma_scatter4", "TCGEN05DescriptorParams",
        "alloc_tcgen05_instruction_desc", "compute_umma_descriptor", "initialize_tcgen05_descriptor",
        "ptx_tcgen05_mma_blockscaled_ss", "ptx_tcgen05_mma_ss", "ptx_tcgen05_mma_ts", "tma_load_2sm",
    ),
    "write a loop over T.Persistent: tilewright has no cluster launch control": (
        "clc_get_first_ctaid_x", "clc_is_canceled", "clc_try_cancel_multicast", "clc_get_first_ctaid_y",
        "clc_get_first_ctaid_z", "clc_try_cancel",
    ),
    "leave it out: the compiler gives every tile that needs one a swizzled layout, and T.annotate_layout"
    " takes your own": ("get_swizzle_layout", "make_mma_swizzle_layout"),
    "write `with T.Kernel(...)` and T.get_thread_binding()": ("KernelLaunchFrame", "env_thread"),
    "write T.alloc_barrier(counts): it begins them too": (
        "ptx_fence_barrier_init", "ptx_init_barrier_thread_count", "create_barriers",
    ),
    "write tilewright.jit": ("JITFunc",),
    "leave it out: names of values are the compiler's business": ("get_let_value", "has_let_value"),
    "write `while condition:`": ("While",),
    "write T.import_source and T.call_extern": (
        "call_intrin", "call_llvm_intrin", "call_llvm_pure_intrin",
    ),
    "write T.alloc_fragment, or T.alloc_shared, and T.fill": ("full", "ones", "zeros"),
    "write T.gemm on tiles": ("dot", "matmul", "mma"),
    "write T.copy between a tensor and a tile, which leaves out what is beyond the tensor's end": ("load", "store"),
    "write `with T.Kernel(blocks, threads=...) as block`": ("blockIdx", "num_programs", "program_id"),
    "write T.get_thread_binding()": ("threadIdx",),
    "write T.sync_threads()": ("syncthreads",),
    "write T.if_then_else": ("where",),
    "write T.max": ("maximum",),
    "write T.min": ("minimum",),
    "write T.Parallel, whose indices are these numbers": ("arange",),
    "write T.reduce_sum": ("sum",),
    "write T.reduce_argmax": ("argmax",),
    "write T.reduce_argmin": ("argmin",),
    "write T.ptx_cp_async, and T.cp_async_barrier_noinc behind it": ("ptx_cp_async_barrier", "ptx_cp_async_bulk"),
    "leave it out: it belongs to TVM's runtime, which tilewright does without": (
        "TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace", "anylist_getitem", "anylist_resetitem",
        "anylist_setitem_call_cpacked", "anylist_setitem_call_packed", "call_cpacked", "call_cpacked_lowered",
        "call_packed", "call_packed_lowered", "lookup_param", "tvm_stack_alloca", "tvm_stack_make_array",
        "tvm_stack_make_shape", "tvm_struct_get", "tvm_struct_set", "tvm_throw_last_error", "tvm_tuple",
        "tvm_thread_invariant", "start_profile_intrinsic", "end_profile_intrinsic", "undef", "ret",
        "BACKEND_ONLY_TIR_EXPORTS",
    ),
    "write arithmetic on integers of 64 bits": ("q_multiply_shift", "q_multiply_shift_per_axis"),
    "write x * T.exp2(n)": ("ldexp",),
    "write T.reinterpret(T.reinterpret(x, 'int32') + 1, 'float32')": ("nextafter",),
    "write T.extract_lane and T.Shuffle": ("vectorcombine", "vectorhigh", "vectorlow"),
    "leave it out: vectors have as many lanes as they say": ("vscale",),
    "ask a type itself: T.dtype(x).bits, .is_float, .name": (
        "is_f8f6f4_family", "is_float4", "is_float4_e2m1_unpacked", "is_float4_e2m1fn", "get_tvm_dtype", "AnyDType",
    ),
    "write a text": ("StringImm",),
    "write T.float4_e2m1fn, whose elements share bytes": ("float4_e2m1_unpacked",),
    "pass None for a tensor that is not there; a kernel does not ask addresses": ("isnullptr",),
    "write with T.ws(group):": ("WarpSpecializeFrame",),
}  # fmt: skip

INSTEAD: dict[str, str] = {name: advice for advice, names in _INSTEAD.items() for name in names}
"""For each such name, what to write."""

SPELLINGS: dict[str, object] = {}
"""Words that are no part of the language, which a library of another's names gives (`tilewright.compat.tilelang`)."""
