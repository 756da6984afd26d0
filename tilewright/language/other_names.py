"""TileLang's and TVM's names for functions that the language has under other names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.nodes import Expr
from tilewright.language.barriers import mbarrier_arrive, mbarrier_arrive_expect_tx, sync_threads, sync_warp
from tilewright.language.compiler_flags import texts_of_flags
from tilewright.language.external import call_extern, import_source
from tilewright.language.kernel import get_block_bindings, get_block_extents, get_cluster_dims
from tilewright.language.math import by_python, ceildiv, if_then_else
from tilewright.language.matrix_words import gemm_sp
from tilewright.language.memory import alloc_buffer
from tilewright.language.mistakes import NumberExpected
from tilewright.language.operators import floor_divide
from tilewright.language.proxies import Scalar, Value
from tilewright.language.recording import called, current, in_kernel, made_word, word
from tilewright.language.roles import wait_wgmma
from tilewright.language.tile_ops import GemmWarpPolicy
from tilewright.language.warpgroups import set_max_nreg


@word
def truncdiv(a: Value, b: Value) -> Value:
    """``a / b``, rounded towards zero.

    Parameters
    ----------
    a, b : integers; by 0 is the author's mistake.

    Examples
    --------
    >>> N[i] = T.truncdiv(N[i], 4)
    """
    if not isinstance(a, Scalar) and not isinstance(b, Scalar):
        divided = lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)  # noqa: E731
        return by_python("truncdiv", "integers, the second not 0", divided, a, b)
    down = floor_divide(a, b)
    return if_then_else(((a < 0) == (b < 0)) | (a == down * b), down, down + 1)


@word
def tvm_storage_sync(storage_scope: object) -> None:
    """`sync_threads`, or `sync_warp` for ``"warp"``.

    Parameters
    ----------
    storage_scope : ``"shared"``, ``"shared.dyn"`` or ``"warp"``.

    Examples
    --------
    >>> T.tvm_storage_sync("shared")
    """
    if storage_scope not in ("shared", "shared.dyn", "warp"):
        known = "'shared', 'shared.dyn' or 'warp' (T.sync_grid() for all blocks)"
        raise NumberExpected("the scope of T.tvm_storage_sync", known, repr(storage_scope))
    (sync_warp if storage_scope == "warp" else sync_threads)()


# Registers, barriers, clusters --------------------------------------------------------------------


@word
def get_cluster_id(dim: int = 0) -> Value:
    """Which cluster this block is of, along a dimension of the grid.

    Parameters
    ----------
    dim : 0, 1 or 2.

    Examples
    --------
    >>> C[tx // 64, tx % 64] = T.get_cluster_id()
    """
    blocks: tuple[Value, ...] = get_block_bindings()
    return blocks[dim] // get_cluster_dims()[dim] if dim < len(blocks) else 0


@word
def get_cluster_extent(dim: int = 0) -> Value:
    """How many clusters there are along a dimension of the grid.

    Parameters
    ----------
    dim : 0, 1 or 2.

    Examples
    --------
    >>> C[tx // 64, tx % 64] = T.get_cluster_extent()
    """
    blocks = get_block_extents()
    return ceildiv(blocks[dim], get_cluster_dims()[dim]) if dim < len(blocks) else 1


# Products by warpgroups ---------------------------------------------------------------------------


def _nothing(name: str) -> None:
    """The compiler does by itself what is asked for."""
    in_kernel(f"T.{name}")


@word
def warpgroup_fence_operand(
    buffer_or_ptr: object, offset: object = 0, num_regs: object = None, dtype: object = None
) -> None:
    """Accepted for TileLang's sake: the compiler keeps accumulators where products that run need them.

    Parameters
    ----------
    buffer_or_ptr, offset, num_regs, dtype : which registers.

    Examples
    --------
    >>> T.warpgroup_fence_operand(tile)
    """
    in_kernel("T.warpgroup_fence_operand")


@word
def wgmma_gemm_sp(
    A_sparse: object,
    E: object,
    B: object,
    C: object,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: object = GemmWarpPolicy.Square,
    clear_accum: object = False,
    annotations: object = None,
) -> None:
    """A synchronous `gemm_sp`; a following `wait_wgmma` has nothing to wait for.

    Parameters
    ----------
    A_sparse, E, B, C, transpose_A, transpose_E, transpose_B, policy, clear_accum, annotations : as those of `gemm_sp`.
    """
    gemm_sp(A_sparse, E, B, C, transpose_A, transpose_E, transpose_B, policy, clear_accum)


# Hints -------------------------------------------------------------------------------


@word
def annotate_compile_flags(flags: str | Sequence[str]) -> None:
    """Options of the device compiler: ``-include FILE`` and ``-D NAME=VALUE``.

    Other flags are accepted for TileLang's sake, and change nothing.

    Parameters
    ----------
    flags : a text, or a list of them.

    Examples
    --------
    >>> T.annotate_compile_flags(["-O3"])
    """
    current("T.annotate_compile_flags")
    for text in texts_of_flags(flags):
        import_source(text)


@word
def annotate_pass_configs(configs: Mapping[object, object]) -> None:
    """Accepted for TileLang's sake: how a program is compiled is the compiler's to choose.

    Parameters
    ----------
    configs : a dictionary.

    Examples
    --------
    >>> T.annotate_pass_configs({"tl.disable_tma_lower": True})
    """
    current("T.annotate_pass_configs")
    dict(configs)


class _IsValue(type):
    """Lets every value of the program be an instance."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (Scalar, Expr))


@called("PrimExpr")
class PrimExpr(metaclass=_IsValue):
    """``T.PrimExpr``: an annotation, and what `isinstance` says of a value of the program."""


# Words that only say others -----------------------------------------------------------------------

_REGISTERS = {"reg_count": "a multiple of 8 from 24 to 256."}
_PLACE = "C[tx // 64, tx % 64]"
_TWICE = 'T.import_source("__device__ float twice(float x) { return 2 * x; }")'

_ROWS: Sequence[tuple[str, Callable[..., object], str, Mapping[str, str], tuple[str, ...]]] = (
    ("truncmod", lambda a, b: a - truncdiv(a, b) * b, "The remainder of `truncdiv`: it has the sign of `a`.",
     {"a, b": "integers; by 0 is the author's mistake."}, ("N[i] = T.truncmod(N[i], 4)",)),
    ("likely", lambda cond: cond, "The condition: the compiler has no use for branch probabilities.",
     {"cond": "a condition."}, ("if T.likely(i < 60):", "    N[i] = 1")),
    ("fmul", lambda x, y: x * y, "``x * y``, rounded by itself, as every product is.", {"x, y": "floats."},
     ("C[i, 0] = T.fmul(A[i, 0], B[i, 0])",)),
    ("call_pure_extern", lambda dtype, func_name, *args: call_extern(dtype, func_name, *args),
     "`call_extern` of a function without side effects.", {"dtype, func_name, args": "as those of `call_extern`."},
     (_TWICE, f'{_PLACE} = T.call_pure_extern("float32", "twice", A[tx // 64, tx % 64])')),
    ("allocate", lambda shape, dtype="float32", scope="global", annotations=None: alloc_buffer(shape, dtype, scope),
     "`alloc_buffer` under TVM's name.",
     {"shape, dtype, scope": "as those of `alloc_buffer`.", "annotations": "accepted for TVM's sake."},
     ('scratch = T.allocate((64, 64), "float32", scope="shared")', "T.copy(A, scratch)")),
    ("inc_max_nreg", lambda reg_count: set_max_nreg(reg_count, 1), "`set_max_nreg` with more registers than at launch.",
     _REGISTERS, ()),
    ("dec_max_nreg", lambda reg_count: set_max_nreg(reg_count, 0),
     "`set_max_nreg` with fewer registers than at launch.", _REGISTERS, ()),
    ("ptx_arrive_cluster_barrier", lambda mbarrier, cta_id: mbarrier_arrive(mbarrier, cta_id),
     "`mbarrier_arrive` at the barrier of another block of the cluster.",
     {"mbarrier, cta_id": "as those of `mbarrier_arrive`."}, ()),
    ("ptx_arrive_barrier_expect_tx", lambda barrier, count: mbarrier_arrive_expect_tx(barrier, count),
     "`mbarrier_arrive_expect_tx` under TVM's name.",
     {"barrier_id": "a barrier.", "byte_count": "bytes that are announced."}, ()),
    ("get_cluster_size", lambda: math.prod(get_cluster_dims()),
     "How many blocks a cluster has; 1 where there are none.", {}, (f"{_PLACE} = T.get_cluster_size()",)),
    ("get_cluster_ids", lambda: [get_cluster_id(dim) for dim in range(len(get_block_bindings()))],
     "`get_cluster_id` along every dimension of the grid.", {}, (f"{_PLACE} = T.get_cluster_ids()[0]",)),
    ("get_cluster_extents", lambda: [get_cluster_extent(dim) for dim in range(3)],
     "`get_cluster_extent` along all three dimensions.", {}, (f"{_PLACE} = T.get_cluster_extents()[2]",)),
    ("warpgroup_arrive", lambda: _nothing("warpgroup_arrive"),
     "Accepted for TileLang's sake: the compiler orders what products that run asynchronously read.", {},
     ("T.warpgroup_arrive()",)),
    ("warpgroup_commit_batch", lambda: _nothing("warpgroup_commit_batch"),
     "Accepted for TileLang's sake: `wgmma_gemm` closes its group itself.", {}, ("T.warpgroup_commit_batch()",)),
    ("warpgroup_wait", lambda num_mma: wait_wgmma(num_mma), "`wait_wgmma` under another name.",
     {"num_mma": "how many may still run."}, ()),
)  # fmt: skip
"""Names, functions, meanings, parameters and examples."""

for _name, _function, _meaning, _parameters, _example in _ROWS:
    made_word(_function, _name, _meaning, _parameters, *_example)
