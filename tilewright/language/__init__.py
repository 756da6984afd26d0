"""The language: what kernel authors import as ``T``.

>>> import tilewright.language as T
>>> @T.prim_func
... def scale(A: T.Tensor((1024,), "float32"), C: T.Tensor((1024,), "float32")):
...     with T.Kernel(T.ceildiv(1024, 128)) as block:
...         for i in T.Parallel(128):
...             C[block * 128 + i] = A[block * 128 + i] * 2.0

Names and meanings are TileLang's.  A kernel is an ordinary Python function that is rewritten and run once
(`control_flow`): Python values stay Python's, symbolic ones (`proxies`) record the program.
"""

from __future__ import annotations

from typing import Any

from tilewright.errors import near
from tilewright.ir import dtypes as _dtypes
from tilewright.language.annotations import (
    annotate_l2_hit_ratio,
    annotate_layout,
    annotate_min_blocks_per_sm,
    annotate_restrict_buffers,
    annotate_safe_value,
    assume,
    func_attr,
    use_swizzle,
)  # fmt: skip
from tilewright.language.atomics import ATOMICS, atomic_addx2, atomic_addx4, atomic_load, atomic_store
from tilewright.language.barriers import BARRIER_WORDS
from tilewright.language.branch_words import BRANCH_WORDS
from tilewright.language.choices import suited
from tilewright.language.convolution import CONVOLUTION_WORDS
from tilewright.language.debug import device_assert, print_
from tilewright.language.direct import Declaration, DirectFunction, Parameter, is_factory
from tilewright.language.directed_rounding import ROUNDED_OPERATIONS
from tilewright.language.dtypes import TYPES, NumberType, dtype
from tilewright.language.external import EXTERNAL_WORDS
from tilewright.language.foreign import INSTEAD, SPELLINGS
from tilewright.language.kernel import (
    ClusterKernel,
    Kernel,
    get_block_binding,
    get_block_bindings,
    get_block_extent,
    get_block_extents,
    get_thread_binding,
    get_thread_bindings,
    get_thread_extent,
    get_thread_extents,
)  # fmt: skip
from tilewright.language.launches import launch_thread
from tilewright.language.layouts import Fragment, Layout, PartialFragment
from tilewright.language.loops import (
    Parallel,
    Persistent,
    Pipelined,
    grid,
    loop_break,
    serial,
    thread_return,
    unroll,
    vectorized,
)  # fmt: skip
from tilewright.language.machines import machine, traced_for
from tilewright.language.macro import Ref, inline, macro
from tilewright.language.math import (
    FUNCTIONS,
    Cast,
    Select,
    abs_,
    align_up,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cast,
    cdiv,
    ceildiv,
    clamp,
    floordiv,
    floormod,
    if_then_else,
    index_to_coordinates,
    infinity,
    max_,
    max_value,
    min_,
    min_value,
    popcount,
    reinterpret,
    shift_left,
    shift_right,
)  # fmt: skip
from tilewright.language.matrix_words import MATRIX_WORDS
from tilewright.language.meetings import end_turns, pass_turn, pdl_sync, pdl_trigger, take_turn
from tilewright.language.memory import (
    Tensor,
    alias,
    alloc_buffer,
    alloc_fragment,
    alloc_global,
    alloc_local,
    alloc_shared,
    alloc_var,
    reshape,
    view,
)  # fmt: skip
from tilewright.language.mistakes import UnknownName
from tilewright.language.older_words import OLDER_WORDS
from tilewright.language.other_names import OTHER_NAMES
from tilewright.language.positions import POSITION_WORDS
from tilewright.language.random_numbers import RANDOM_WORDS
from tilewright.language.reducers import REDUCER_WORDS
from tilewright.language.reductions import REDUCTIONS, all_of, any_of, cummax, cumsum, reduce
from tilewright.language.roles import channel, role, roles, wait_wgmma, wgmma_gemm
from tilewright.language.scaled_products import SCALED_PRODUCTS
from tilewright.language.schedules import SCHEDULE_WORDS
from tilewright.language.source import expression_here
from tilewright.language.source_kernels import SOURCE_WORDS
from tilewright.language.sparse_products import gemm_sp
from tilewright.language.tensors import (
    Packed,
    StridedTensor,
    const,
    dynamic,
    empty,
    handle,
    make_tensor,
    make_tensor_from_addr,
    match_buffer,
    ptr,
    symbolic,
)
from tilewright.language.thread_words import THREAD_WORDS
from tilewright.language.tile_ops import (
    GemmWarpPolicy,
    clear,
    copy,
    decode,
    evaluate,
    fill,
    gemm,
    transpose,
    unpack,
)
from tilewright.language.tile_schedulers import BaseTileScheduler, PersistentTileScheduler
from tilewright.language.trace import PrimFunc, prim_func
from tilewright.language.transfers import TRANSFER_WORDS
from tilewright.language.vectors import Broadcast, Ramp
from tilewright.language.warps import WARP_WORDS
from tilewright.language.wide_words import WIDE_WORDS

Buffer = Tensor
Serial, Unroll, Vectorized = serial, unroll, vectorized

_NAMED: dict[str, object] = {
    **FUNCTIONS, **REDUCTIONS, **ATOMICS, **TYPES, **WARP_WORDS, **BARRIER_WORDS, **TRANSFER_WORDS, **EXTERNAL_WORDS,
    **THREAD_WORDS,
    **OLDER_WORDS, **CONVOLUTION_WORDS, **POSITION_WORDS, **SCALED_PRODUCTS, **ROUNDED_OPERATIONS, **REDUCER_WORDS,
    **RANDOM_WORDS, **WIDE_WORDS, **OTHER_NAMES, **SCHEDULE_WORDS, **BRANCH_WORDS, **MATRIX_WORDS, **SOURCE_WORDS,
    "abs": abs_, "max": max_, "min": min_, "print": print_,
}  # fmt: skip
globals().update(_NAMED)

__all__ = [
    "BaseTileScheduler", "Broadcast", "Buffer", "Cast", "ClusterKernel", "Fragment", "GemmWarpPolicy", "Kernel",
    "Layout", "Packed", "Parallel", "PartialFragment",
    "Persistent", "PersistentTileScheduler", "Pipelined", "PrimFunc", "Ramp", "Ref", "Select", "Serial",
    "StridedTensor", "Tensor", "Unroll", "Vectorized",
    "alias", "align_up", "all_of", "alloc_buffer", "alloc_fragment", "alloc_global", "alloc_local", "alloc_shared",
    "alloc_var",
    "annotate_l2_hit_ratio", "annotate_layout", "annotate_min_blocks_per_sm", "annotate_restrict_buffers",
    "annotate_safe_value", "any_of", "assume",
    "atomic_addx2", "atomic_addx4", "atomic_load", "atomic_store", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "cast", "cdiv", "ceildiv", "channel", "clamp", "clear", "const", "copy", "cummax", "cumsum",
    "decode",
    "device_assert", "dtype", "dynamic", "empty", "end_turns", "evaluate", "fill", "floordiv", "floormod", "func_attr",
    "gemm", "gemm_sp",
    "get_block_binding", "get_block_bindings", "get_block_extent", "get_block_extents", "get_thread_binding",
    "get_thread_bindings", "get_thread_extent", "get_thread_extents", "grid", "handle",
    "if_then_else", "index_to_coordinates",
    "infinity", "inline", "launch_thread", "loop_break", "machine", "macro", "make_tensor", "make_tensor_from_addr",
    "match_buffer", "max_value", "min_value", "pass_turn", "pdl_sync", "pdl_trigger", "popcount", "prim_func", "ptr",
    "reduce",
    "reinterpret", "reshape", "role", "roles",
    "serial", "shift_left", "shift_right", "suited", "symbolic", "take_turn", "thread_return", "transpose", "unpack",
    "unroll", "use_swizzle",
    "vectorized", "view", "wait_wgmma", "wgmma_gemm",
]  # fmt: skip
__all__ += list(_NAMED)


def __getattr__(name: str) -> Any:
    """Vector types such as ``T.float32x4``; anything else is an error that lists near names."""
    if name.startswith("__") and name not in INSTEAD:
        raise AttributeError(name)
    if name in SPELLINGS:
        return SPELLINGS[name]
    try:
        return NumberType(name)
    except _dtypes.UnknownDType:
        raise UnknownName(
            name,
            INSTEAD.get(name) or near(name, __all__) or "tilewright.language.__all__ lists the names",
            span=expression_here(),
        ) from None


def __dir__() -> list[str]:
    """What authors write; the modules that it is made of are none of their business."""
    return sorted(set(__all__))


__internal__ = (Declaration, DirectFunction, NumberType, Parameter, is_factory, traced_for)
"""What the JIT takes from here, besides `PrimFunc`."""
