"""Words for the threads of a warp: which one this is, and what all of them tell one another.

All threads of the warp must execute them together.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL, FLOAT32, INT32, UINT32
from tilewright.language.interface import called, made_word, word
from tilewright.language.kernel import get_thread_binding, get_thread_extents
from tilewright.language.proxies import Scalar, as_expr, constant, constant_that, constant_within, named_by_author


def _named(value: ir.Expr, name: str) -> Scalar:
    """A value under a name of its own: the threads meet once, here."""
    return named_by_author(value, name, "a word for warps")


def linear_thread() -> ir.Expr:
    """Index of the thread in its block, x fastest."""
    total: ir.Expr = ir.const(0)
    stride = 1
    for dim, extent in enumerate(get_thread_extents()):
        if extent > 1:
            index = as_expr(get_thread_binding(dim), INT32)
            total = total + index * stride
        stride *= extent
    return total


def _size(given: object, what: str, default: int) -> int:
    return default if given is None else constant_within(given, what, 1, 1024)


def _index(
    name: str, meaning: str, parameters: dict[str, str], of: Callable[..., ir.Expr], kept: str
) -> Callable[..., Scalar]:
    """A word that says where the thread is."""
    defaults = dict.fromkeys(parameters)
    example = f"C[tx // 64, tx % 64] = T.{name}()"
    return made_word(lambda *sizes: _named(of(*sizes), kept), name, meaning, parameters, example, **defaults)


_GROUP = {"warp_size": "threads of a group; those of a warp where None."}

get_lane_idx = _index(
    "get_lane_idx",
    "The thread's index in its warp, 0 to 31; or in its group of `warp_size` threads.",
    _GROUP,
    lambda size: linear_thread() % _size(size, "warp_size", ir.WARP),
    "lane",
)
get_warp_idx = _index(
    "get_warp_idx",
    "The index of the thread's warp in the block; or of its group of `warp_size` threads.",
    _GROUP,
    lambda size: linear_thread() // _size(size, "warp_size", ir.WARP),
    "warp",
)
called("get_warp_idx_sync")(get_warp_idx)
get_warp_group_idx = _index(
    "get_warp_group_idx",
    "The index of the thread's warpgroup in the block: of four warps, unless said otherwise.",
    {"warp_size": "threads of a warp, 32 where None.", "warps_per_group": "4 where None."},
    lambda size, warps: (
        linear_thread()
        // (_size(size, "warp_size", ir.WARP) * _size(warps, "warps_per_group", ir.WARPGROUP // ir.WARP))
    ),
    "warpgroup",
)


ALL_LANES = 0xFFFFFFFF


def _shuffle(function: str, name: str, lane_name: str, meaning: str) -> Callable[..., Scalar]:
    def call(value: object, lane: object, width: object, mask: object) -> Scalar:
        operand, by = as_expr(value, what=f"the value of T.{name}"), as_expr(lane, INT32)
        what, expected = f"the width of T.{name}", "1, 2, 4, 8, 16 or 32"
        size = constant_that(lambda lanes: 1 <= lanes <= ir.WARP and ir.WARP % lanes == 0, width, what, expected)
        _mask(mask, f"T.{name}")
        if size == ir.WARP:
            return _named(ir.Call(operand.dtype, function, (operand, by)), "other")
        return _named(ir.Call(operand.dtype, "shuffle", (operand, _lane_in_group(function, by, size))), "other")

    parameters = {
        "value": "of each thread.", lane_name: "an integer, as the sentence above says.",
        "width": "lanes of a group, within which lanes count from 0.",
        "mask": "the lanes that use the result, an int; all lanes of the warp must execute the call.",
    }  # fmt: skip
    example = f"C[tx // 64, tx % 64] = T.{name}(tx, 1)"
    return made_word(call, name, f"The value that {meaning}.", parameters, example, width=ir.WARP, mask=ALL_LANES)


def _lane_in_group(function: str, by: ir.Expr, size: int) -> ir.Expr:
    """The lane of the warp that a lane of a smaller group asks; itself where there is no such one.

    An exclusive or reaches into groups before its own, and not into those behind it, as the hardware's does.
    """
    lane = linear_thread() % ir.WARP
    own = lane % size
    first = lane - own
    if function == "shuffle":
        return first + by % size
    other = {"shuffle_xor": "xor", "shuffle_up": "sub", "shuffle_down": "add"}[function]
    asked = ir.index_binary(other, lane, by)
    there = ir.binary("lt", asked, first + ir.const(size))
    if other != "xor":
        there = ir.binary("all", ir.binary("ge", asked, first), there)
    return ir.Select(INT32, there, asked, lane)


shfl_sync = _shuffle("shuffle", "shfl_sync", "srcLane", "lane `srcLane` of the warp has")
shfl_xor = _shuffle("shuffle_xor", "shfl_xor", "delta", "the lane whose index differs in the bits `delta` has")
shfl_up = _shuffle("shuffle_up", "shfl_up", "delta", "the lane `delta` below has; the own one where there is none")
shfl_down = _shuffle(
    "shuffle_down", "shfl_down", "delta", "the lane `delta` above has; the own one where there is none"
)


def _as_tvm_calls_it(shuffle: Callable[..., Scalar], name: str, lane_name: str) -> Callable[..., Scalar]:
    def call(mask: object, value: object, lane: object, width: object, warp_size: object) -> Scalar:
        return shuffle(value, lane, width, mask)

    own = shuffle.__name__
    parameters = {
        f"mask, value, {lane_name}, width": f"as those of `{own}`.", "warp_size": "accepted for TVM's sake."
    }  # fmt: skip
    example = f"C[tx // 64, tx % 64] = T.{name}(T.tvm_warp_activemask(), tx, 1, 32, 32)"
    meaning = f"`{own}` with its arguments in TVM's order."
    return made_word(call, name, meaning, parameters, example, width=ir.WARP, warp_size=ir.WARP)


tvm_warp_activemask = made_word(
    lambda: ALL_LANES,
    "tvm_warp_activemask",
    "All lanes: warp functions must not be executed in divergent code.",
    {},
    "C[tx // 64, tx % 64] = T.tvm_warp_shuffle(T.tvm_warp_activemask(), tx, 0, 32, 32)",
)
activemask = made_word(
    lambda: _named(_ballot(True, "T.activemask"), "votes"),
    "activemask",
    "The active lanes of the warp: always all of them, because warp functions must not be executed in divergent code.",
    {},
    'C[tx // 64, tx % 64] = T.cast(T.popcount(T.activemask()), "float32")',
)


def _mask(mask: object, what: str) -> int:
    """A set of lanes, as an unsigned word."""
    return constant(mask, f"the mask of {what}") & ALL_LANES


def _ballot(predicate: object, what: str, mask: object = ALL_LANES, opposite: bool = False) -> ir.Expr:
    """The lanes of a mask in which a condition holds, or does not."""
    held = as_expr(predicate, BOOL, f"the condition of {what}")
    votes = ir.Call(UINT32, "ballot", (ir.Unary(BOOL, "not", held) if opposite else held,))
    lanes = _mask(mask, what)
    return votes if lanes == ALL_LANES else ir.binary("and", as_expr(_named(votes, "votes")), ir.const(lanes, UINT32))


def _asked(
    name: str, meaning: str, example: str, opposite: bool, answer: Callable[[Scalar], Scalar]
) -> Callable[..., Scalar]:
    """A word of a condition of each lane, whose answer all of them get."""

    def call(predicate: object, mask: object = ALL_LANES) -> Scalar:
        return answer(_named(_ballot(predicate, f"T.{name}", mask, opposite), "votes"))

    parameters = {
        "predicate": "of each thread.",
        "mask": "the lanes that take part, an int; all lanes of the warp must execute the call.",
    }
    return made_word(call, name, meaning, parameters, f"C[tx // 64, tx % 64] = {example}")


ballot = made_word(
    lambda predicate: _named(_ballot(predicate, "T.ballot"), "votes"),
    "ballot",
    "`ballot_sync` of all lanes.",
    {"predicate": "of each thread."},
    'C[tx // 64, tx % 64] = T.cast(T.popcount(T.ballot(tx % 2 == 0)), "float32")',
)
ballot_sync = _asked(
    "ballot_sync",
    "A word whose bit i is the condition of lane i.",
    'T.cast(T.popcount(T.ballot_sync(tx % 2 == 0)), "float32")',
    False,
    lambda votes: votes,
)
any_sync = _asked(
    "any_sync",
    "Whether the condition holds in some lane of the warp.",
    "T.if_then_else(T.any_sync(tx == 3), 1, 0)",
    False,
    lambda votes: _named(ir.binary("ne", as_expr(votes), ir.const(0, UINT32)), "found"),
)
all_sync = _asked(
    "all_sync",
    "Whether the condition holds in every lane of the warp.",
    "T.if_then_else(T.all_sync(tx < 100), 1, 0)",
    True,
    lambda votes: _named(ir.binary("eq", as_expr(votes), ir.const(0, UINT32)), "held"),
)


def _match(function: str, name: str, meaning: str) -> Callable[..., Scalar]:
    def call(value: object, mask: object = ALL_LANES) -> Scalar:
        operand, lanes = as_expr(value, what=f"the value of T.{name}"), _mask(mask, f"T.{name}")
        if lanes == ALL_LANES:
            return _named(ir.Call(UINT32, function, (operand,)), "same")
        same = _named(ir.binary("and", ir.Call(UINT32, "match_any", (operand,)), ir.const(lanes, UINT32)), "same")
        if function == "match_any":
            return same
        every = ir.binary("eq", as_expr(same), ir.const(lanes, UINT32))
        return _named(ir.Select(UINT32, every, as_expr(same), ir.const(0, UINT32)), "same")

    parameters = {
        "value": "a number of each thread.",
        "mask": "the lanes that take part, an int; all lanes of the warp must execute the call.",
    }
    example = f'C[tx // 64, tx % 64] = T.cast(T.popcount(T.{name}(tx // 2)), "float32")'
    return made_word(call, name, f"A word whose bits are the lanes of the warp {meaning}.", parameters, example)


match_any_sync = _match("match_any", "match_any_sync", "with the same value as this one")
match_all_sync = _match("match_all", "match_all_sync", "if all have the same value, and 0 if not")


def _reduction(op: str, name: str) -> Callable[[object], Scalar]:
    def call(value: object) -> Scalar:
        operand = as_expr(value, what=f"the value of T.{name}")
        return _named(ir.Call(operand.dtype, f"warp_{op}", (operand,)), "total")

    meaning, example = "The values of all lanes of the warp combined, in every lane.", f"T.{name}(tx)"
    return made_word(call, name, meaning, {"value": "of each thread."}, f"C[tx // 64, tx % 64] = {example}")


warp_reduce_sum, warp_reduce_max, warp_reduce_min = (
    _reduction("add", "warp_reduce_sum"), _reduction("max", "warp_reduce_max"), _reduction("min", "warp_reduce_min"),
)  # fmt: skip
warp_reduce_bitand, warp_reduce_bitor, warp_reduce_bitxor = (
    _reduction("and", "warp_reduce_bitand"), _reduction("or", "warp_reduce_bitor"),
    _reduction("xor", "warp_reduce_bitxor"),
)  # fmt: skip


@word
def simdgroup_reduce_sum(value: object) -> Scalar:
    """The sum over all lanes that the machine runs together, in every lane; small floats are added up in float32.

    On Metal it is a simdgroup's, elsewhere a warp's; on AMD's machines whose waves have 64 lanes it is a wave's. Blocks
    are whole ones of these. `T.warp_reduce_sum` speaks of 32 threads on every machine.

    Parameters
    ----------
    value : of each thread.

    Examples
    --------
    >>> C[tx // 64, tx % 64] = T.simdgroup_reduce_sum(A[0, tx % 64])
    """
    operand = as_expr(value, what="the value of T.simdgroup_reduce_sum")
    wide = FLOAT32 if operand.dtype.is_float and operand.dtype.bits < 32 else operand.dtype
    total = ir.Call(wide, "simdgroup_add", (ir.cast(operand, wide),))
    return _named(ir.cast(total, operand.dtype), "total")


def _vote(function: str, name: str, meaning: str, dtype: ir.DType) -> Callable[[object], Scalar]:
    def call(predicate: object) -> Scalar:
        return _named(ir.Call(dtype, function, (as_expr(predicate, BOOL, f"the condition of T.{name}"),)), "votes")

    example = f'C[tx // 64, tx % 64] = T.cast(T.{name}(tx < 100), "float32")'
    return made_word(call, name, f"A barrier of the block; {meaning}.", {"predicate": "of each thread."}, example)


syncthreads_and = _vote("sync_threads_and", "syncthreads_and", "whether the condition holds in all of them", BOOL)
syncthreads_or = _vote("sync_threads_or", "syncthreads_or", "whether it holds in any of them", BOOL)
syncthreads_count = _vote("sync_threads_count", "syncthreads_count", "in how many it holds", INT32)

_as_tvm_calls_it(shfl_sync, "tvm_warp_shuffle", "warp_id")
_as_tvm_calls_it(shfl_up, "tvm_warp_shuffle_up", "offset")
_as_tvm_calls_it(shfl_down, "tvm_warp_shuffle_down", "offset")
