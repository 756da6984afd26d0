"""Functions that a `Call` may name: one record each, with the NumPy meaning.

Adding a function means adding a record here and, where a target can do better than the generic
spelling, one entry in that target's table of spellings.  Targets add their own machine functions
(a dot-product instruction, say) with `register`, so that thread programs that use them can be interpreted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.expressions import Call, Expr
from tilewright.ir.extremes import GREATEST, LEAST, Extreme
from tilewright.ir.formulas import expanded, numbers


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A function that expressions may call.

    Attributes
    ----------
    arity : number of arguments; None where any number is allowed.
    reference : NumPy function of the argument arrays (floats arrive in float64 and the result is rounded
        once to the call's dtype; integers arrive in their own type); None for a function that only a
        device can execute or that the interpreter treats specially.
    pure : no effect, so calls may be moved, merged and dropped.
    floats_only : arguments must be floats.
    collective : threads synchronise in it (barriers, warp shuffles); it may not stand under a divergent condition.
    checks_bounds : it may be given places out of bounds, and looks after that itself.
    reads_only : numbers of the arguments whose places it only reads; it may write all others, unless it is pure.
    fills : numbers of those of which it reads nothing.
    formula : how other functions make it (`formulas`), where no target has one of its own.
    """

    name: str
    arity: int | None
    reference: Callable[..., object] | None
    pure: bool = True
    floats_only: bool = False
    collective: bool = False
    checks_bounds: bool = False
    reads_only: tuple[int, ...] = ()
    fills: tuple[int, ...] = ()
    formula: str | None = None

    def may_write(self, number: int) -> bool:
        """Whether it may write to the place that it is given as argument of this number."""
        return not self.pure and number not in self.reads_only


INTRINSICS: dict[str, Intrinsic] = {}


def register(intrinsic: Intrinsic) -> Intrinsic:
    """Add a record; a second one of the same name is a defect."""
    assert intrinsic.name not in INTRINSICS, intrinsic.name
    INTRINSICS[intrinsic.name] = intrinsic
    return intrinsic


def declare(
    words: str,
    pure: bool = True,
    collective: bool = False,
    checks_bounds: bool = False,
    reads_only: tuple[int, ...] = (),
) -> None:
    """Add functions that only a device executes, or that the interpreter treats specially.

    Parameters
    ----------
    words : their names, each with a slash and its arity behind it, ``*`` for any number: ``"bulk_wait/1 box_store/*"``.
    """
    for word in words.split():
        name, _, count = word.partition("/")
        arity = None if count == "*" else int(count)
        register(Intrinsic(name, arity, None, pure, False, collective, checks_bounds, reads_only))


def declare_product(name: str, arity: int = 3) -> None:
    """Make a matrix instruction known, by whoever names it first: it adds to the registers that it is given first."""
    if name not in INTRINSICS:
        declare(f"{name}/{arity}", pure=False, collective=True, reads_only=tuple(range(1, arity)))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf_reference(x: np.ndarray) -> np.ndarray:
    return _erf(x) if np.size(x) else np.asarray(x, np.float64)


def _every_other(first: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate([a, b], axis=-1)[..., first::2]


def _math(name: str, function: Callable[..., object], arity: int = 1) -> None:
    register(Intrinsic(name, arity, function, floats_only=True))


def _of_numpy(names: str, arity: int = 1) -> None:
    """Functions of floats that NumPy has under the same names."""
    for name in names.split():
        _math(name, getattr(np, name), arity)


def _reference(name: str) -> Callable[..., object]:
    found = INTRINSICS[name].reference
    assert found is not None, name
    return found


def composed(name: str, formula: str, arity: int = 1) -> Intrinsic:
    """A function that others make: this record is all that the language, the interpreter and every target need."""
    reference = functools.partial(numbers, formula, _reference)
    return register(Intrinsic(name, arity, reference, floats_only=True, formula=formula))


def in_full(call: Call) -> Expr | None:
    """A call as the formula of its function says it; None where it has none."""
    formula = INTRINSICS[call.function].formula
    return None if formula is None else expanded(formula, call)


_of_numpy("exp exp2")
_math("fast_exp2", np.exp2)  # to 2 units in the last place; what is below the smallest normal number may be 0
_math("exp10", lambda x: np.power(10.0, x))
_of_numpy("log log2 log10 log1p sqrt")
_math("rsqrt", lambda x: 1.0 / np.sqrt(x))
_of_numpy("sin cos tan tanh sinh cosh")
_math("atan", np.arctan)
_math("atan2", np.arctan2, 2)
_math("erf", _erf_reference)
composed("sigmoid", "(exp(-abs(x)) if x < 0 else 1) / (1 + exp(-abs(x)))")  # small numbers are no zeros
_math("pow", np.power, 2)
_of_numpy("fmod", 2)
_of_numpy("floor ceil trunc round")
_math("fma", lambda a, b, c: a * b + c, 3)
_of_numpy("isnan isinf isfinite")

register(Intrinsic("abs", 1, np.abs))
register(Intrinsic("popcount", 1, lambda x: np.bitwise_count(np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}"))))
declare("sync_threads/0", pure=False, collective=True)
# Shows a line: a text with ``{}`` for each number that follows (`ops.prints`).
declare("print_line/*", pure=False)

# Atomics on one element: a Region of it, the value, and the memory order as a text; the old value comes back.
declare("atomic_add/3 atomic_max/3 atomic_min/3 atomic_and/3 atomic_or/3 atomic_xor/3 atomic_exchange/3", pure=False)
declare("atomic_load/2 atomic_store/3", pure=False)
# Whether any, or every, element of a Region differs from zero.
declare("any_of/1 all_of/1")

# A kernel that begins before the one before it has ended: waits until that has; lets the next one begin.
declare("grid_wait/0 grid_launch/0", pure=False)
# A fragment (as a Region) whose asynchronous products have been waited for, while others run on.
declare("settle/1", pure=False)
# Warpgroups of a role take turns: a wait for the one before (none for the first one where the argument holds), leave
# for the next one to go on, and what the first one does when all turns have been taken.
declare("take_turn/1 pass_turn/0 end_turns/0", pure=False)
# A barrier of all threads of all blocks of a grid; passes add the counter of arrived blocks.
declare("grid_sync/*", pure=False)
# A barrier of all threads of all blocks of a cluster, in one or in two parts; which of them this block is. A relaxed
# arrival orders nothing but barriers that were fenced.
declare("cluster_sync/0", pure=False, collective=True)
declare("cluster_arrive/0 cluster_arrive_relaxed/0 cluster_wait/0", pure=False)
declare("cluster_rank/0")

# A row of barriers in shared memory comes to be: its Region, whose threads use it ("block" or "cluster"), the arrivals
# of each. Then one barrier as a Region: a wait for a phase's parity; each thread's arrival, here or in a block of the
# cluster; bytes.
declare("begin_barriers/* signal_wait/2 signal_arrive/1 signal_arrive_cluster/2", pure=False)
declare("signal_expect_tx/2 signal_arrive_expect_tx/2 async_copy_signal_arrive_noinc/1", pure=False)
# Named barriers: number and threads; threads of a warp; registers that a warpgroup's threads keep.
declare("named_barrier_sync/2 named_barrier_arrive/2 sync_warp/0 set_registers/1 fence_proxy_async/0", pure=False)
declare("schedule_fence/0", pure=False)  # compilers move nothing over it
register(Intrinsic("settled", 1, lambda x: x))  # a value that is there, not only on its way
register(Intrinsic("agreed", 1, lambda x: x))  # the same of a condition that all threads answer alike
# Copies that a thread starts: places in shared and global memory, for the second also how many bytes are valid.
declare("async_copy/2", pure=False, reads_only=(1,))
declare("async_copy_zfill/3", pure=False, checks_bounds=True, reads_only=(1,))

# Vectors of thread programs: 0, 1, 2, ... a lane, and all lanes folded into one value.
declare("lane_index/0")
_FOLDS: dict[str, np.ufunc | Extreme] = {
    "add": np.add, "mul": np.multiply, "min": LEAST, "max": GREATEST, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "all": np.logical_and, "any": np.logical_or,
}  # fmt: skip
for _name, _fold in _FOLDS.items():
    register(Intrinsic(f"lanes_{_name}", 1, functools.partial(_fold.reduce, axis=-1)))
EVERY_OTHER = ("even_lanes", "odd_lanes")
"""Every other lane of two vectors that follow one another, from the first one on or from the second one on."""
for _odd, _name in enumerate(EVERY_OTHER):
    register(Intrinsic(_name, 2, functools.partial(_every_other, _odd)))
# Threads of a warp tell one another a value, by lane or by distance, and whether a condition holds, one bit a lane.
declare("shuffle/2 shuffle_xor/2 shuffle_up/2 shuffle_down/2 ballot/1", collective=True)
# The lanes of a warp that have the same value as this one, one bit a lane; all of them where all have the same, else
# none.
declare("match_any/1 match_all/1", collective=True)
# The values of all lanes of a warp combined, in every lane; votes of a whole block, which are barriers too.
declare("warp_add/1 warp_min/1 warp_max/1 warp_and/1 warp_or/1 warp_xor/1", collective=True)
# The sum over all lanes that the machine runs together: a warp's, or a wave's of 64.
declare("simdgroup_add/1", collective=True)
declare("sync_threads_and/1 sync_threads_or/1 sync_threads_count/1", pure=False, collective=True)
# Four bytes, four bytes, and the sum that gets their products, as Regions.
declare("dp4a/3", pure=False)
# Matrices of 8 rows from shared memory into registers of a warp.
declare("load_matrix/3 load_matrix_trans/3", pure=False, collective=True, reads_only=(1, 2))
# Asks for the line that holds a place, in the nearest cache or one behind it; nothing is wrong with a place that does
# not exist.
register(Intrinsic("prefetch", 1, lambda _: 0, pure=False, checks_bounds=True, reads_only=(0,)))
register(Intrinsic("prefetch_far", 1, lambda _: 0, pure=False, checks_bounds=True, reads_only=(0,)))
# Vectors stored one behind the other past the caches, where a condition holds; in order for other threads behind a
# fence.
declare("stream/*", pure=False)
# The elements of a Region as the first lanes of a vector, 0 behind them; the first lanes of a vector stored to a
# Region.
declare("load_first/1")
declare("store_first/2", pure=False)
# How many elements from a place on until a vector could be stored past the caches, where a condition holds; else 0.
declare("stream_head/2")
# A function of the device's own language: its name, then numbers and places.
declare("call_extern/*", pure=False)
