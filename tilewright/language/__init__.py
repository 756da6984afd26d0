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
from tilewright.language import (  # for the words that they have
    barriers,
    convolution,
    directed_rounding,
    external,
    matrix_words,
    older_words,
    other_names,
    random_numbers,
    reducers,
    scaled_products,
    schedules,
    source_kernels,
    thread_words,
    transfers,
    warpgroups,
    warps,
    wide_words,
)
from tilewright.language.annotations import (
    annotate_l2_hit_ratio,
    annotate_layout,
    annotate_min_blocks_per_sm,
    annotate_restrict_buffers,
    annotate_safe_value,
    assume,
    device_assert,
    func_attr,
    use_swizzle,
)
from tilewright.language.atomics import atomic_addx2, atomic_addx4, atomic_load, atomic_store
from tilewright.language.choices import machine, suited, traced_for
from tilewright.language.conversions import Cast, cast, infinity, max_value, min_value, reinterpret
from tilewright.language.decoding import decode, unpack
from tilewright.language.direct import Declaration, DirectFunction, Parameter, is_factory
from tilewright.language.dtypes import TYPES, NumberType, dtype
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
    launch_thread,
)
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
)
from tilewright.language.macro import Ref, inline, macro
from tilewright.language.math import (
    Select,
    align_up,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cdiv,
    ceildiv,
    clamp,
    floordiv,
    floormod,
    if_then_else,
    index_to_coordinates,
    popcount,
    shift_left,
    shift_right,
)
from tilewright.language.matrix_words import gemm_sp
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
)
from tilewright.language.mistakes import UnknownName
from tilewright.language.recording import WORDS, expression_here
from tilewright.language.reductions import all_of, any_of, cummax, cumsum, reduce
from tilewright.language.roles import channel, role, roles, wait_wgmma, wgmma_gemm
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
from tilewright.language.tile_ops import GemmWarpPolicy, clear, copy, evaluate, fill, gemm, transpose
from tilewright.language.tile_schedulers import BaseTileScheduler, PersistentTileScheduler
from tilewright.language.trace import PrimFunc, prim_func
from tilewright.language.vectors import Broadcast, Ramp
from tilewright.language.warpgroups import end_turns, pass_turn, pdl_sync, pdl_trigger, take_turn

Buffer = Tensor
Serial, Unroll, Vectorized = serial, unroll, vectorized

globals().update(TYPES | WORDS)

__all__ = [
    *WORDS, *TYPES, "BaseTileScheduler", "Buffer", "Fragment", "GemmWarpPolicy", "Layout", "Packed", "PartialFragment",
    "PersistentTileScheduler", "PrimFunc", "Ref", "Serial", "StridedTensor", "Tensor", "Unroll", "Vectorized", "cdiv",
    "dtype", "handle", "inline", "machine", "macro", "ptr", "symbolic",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Vector types such as ``T.float32x4``; anything else is an error that lists near names."""
    if name.startswith("_") and name not in INSTEAD:
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
