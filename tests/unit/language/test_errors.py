"""Every mistake of an author that the language knows, tested on its exact message.

Each case is a file with one mistake; the message is compared whole, with the class's name before it and the file's
name shortened to ``kernel.py``.
"""

# The messages are what a terminal shows: long lines stay as they are.

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import TilewrightError
from tilewright.language.direct import DirectFunction

PREAMBLE = "import tilewright.language as T\n"

KERNEL = """
@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64,), "int8"), n: T.int32):
    with T.Kernel(4, threads=128) as block:
        tile = T.alloc_fragment((64, 64), "float32")
        row = T.alloc_fragment((64,), "float32")
"""
"""What stands before the statements of `IN_KERNEL`; they begin in line 8."""

IN_KERNEL: dict[str, tuple[str, str]] = {
    "missing_argument": (
        """
T.copy(A)
""",
        """
WrongArguments: T.copy: missing a required argument: 'dst'
  --> kernel.py:8:9
  |
8 |         T.copy(A)
  |         ^^^^^^^^^
  help: T.copy(src, dst, *, coalesced_width=None, disable_tma=False, eviction_policy=None, prefer_instruction=None, multicast=False, rank=None, l2_prefetch=None, annotations=None, loop_layout=None)
""",
    ),
    "too_many_arguments": (
        """
T.clear(tile, row)
""",
        """
WrongArguments: T.clear: too many positional arguments
  --> kernel.py:8:9
  |
8 |         T.clear(tile, row)
  |         ^^^^^^^^^^^^^^^^^^
  help: T.clear(buffer)
""",
    ),
    "keyword_typo": (
        """
for k in T.Pipelined(4, num_stage=2):
    T.copy(A, tile)
""",
        """
WrongArguments: T.Pipelined has no argument 'num_stage'
  --> kernel.py:8:18
  |
8 |         for k in T.Pipelined(4, num_stage=2):
  |                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: did you mean 'num_stages' or 'stage'? T.Pipelined(start, stop=None, num_stages=0, order=None, stage=None, sync=None, group=None, annotations=None, specialize=None)
""",
    ),
    "unknown_name": (
        """
T.coppy(A, tile)
""",
        """
UnknownName: tilewright.language has no name 'coppy'
  --> kernel.py:8:9
  |
8 |         T.coppy(A, tile)
  |         ^^^^^^^
  help: did you mean 'copy' or 'tma_copy'?
""",
    ),
    "unknown_name_far": (
        """
T.tensor_memory(A, tile)
""",
        """
UnknownName: tilewright.language has no name 'tensor_memory'
  --> kernel.py:8:9
  |
8 |         T.tensor_memory(A, tile)
  |         ^^^^^^^^^^^^^^^
  help: tilewright.language.__all__ lists the names
""",
    ),
    "name_of_another_language": (
        """
T.tcgen05_gemm(A, tile)
""",
        """
UnknownName: tilewright.language has no name 'tcgen05_gemm'
  --> kernel.py:8:9
  |
8 |         T.tcgen05_gemm(A, tile)
  |         ^^^^^^^^^^^^^^
  help: tilewright has no tcgen05 instructions and no tensor memory: on sm_100a T.gemm uses mma.sync, so write T.gemm into a T.alloc_fragment
""",
    ),
    "barrier_of_a_product": (
        """
T.gemm(A, tile, tile, mbar=row)
""",
        """
NumberExpected: mbar of T.gemm is the tile 'row'
  --> kernel.py:8:9
  |
8 |         T.gemm(A, tile, tile, mbar=row)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected None: the compiler waits for products
""",
    ),
    "launched_twice": (
        """
T.launch_thread("threadIdx.x", 64)
""",
        """
NumberExpected: the extent of threadIdx.x is 64
  --> kernel.py:8:9
  |
8 |         T.launch_thread("threadIdx.x", 64)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected 128, as T.Kernel says
""",
    ),
    "stateless_scheduler": (
        """
tiles = T.PersistentTileScheduler(4, 4, stateful=False)
tiles.init(block)
""",
        """
NumberExpected: a tile scheduler is stateful=False
  --> kernel.py:9:9
  |
9 |         tiles.init(block)
  |         ^^^^^^^^^^^^^^^^^
  help: expected stateful=True, or scheduler.coord(tile)
""",
    ),
    "layout_of_a_copy": (
        """
T.copy(A, tile, loop_layout=T.Fragment((32, 64), lambda i, j: (i, j)))
""",
        """
NumberExpected: loop_layout of T.copy is one of (32, 64)
  --> kernel.py:8:9
  |
8 |         T.copy(A, tile, loop_layout=T.Fragment((32, 64), lambda i, j: (i, j)))
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected a T.Fragment of shape (64, 64)
""",
    ),
    "unknown_dtype": (
        """
x = T.alloc_fragment((64,), "float33")
""",
        """
UnknownDType: unknown dtype 'float33'
  --> kernel.py:8:13
  |
8 |         x = T.alloc_fragment((64,), "float33")
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: did you mean 'float32' or 'tfloat32' or 'float64'?
""",
    ),
    "copy_shapes_differ": (
        """
T.copy(A[0:32, 0:64], tile)
""",
        """
OperatorMismatch: T.copy: shapes differ: source (32, 64), destination (64, 64)
  --> kernel.py:8:9
  |
8 |         T.copy(A[0:32, 0:64], tile)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: give both sides the same shape; extents of 1 do not count
""",
    ),
    "gemm_k_differs": (
        """
left = T.alloc_shared((64, 32), "float16")
right = T.alloc_shared((64, 64), "float16")
T.gemm(left, right, tile)
""",
        """
OperatorMismatch: T.gemm: a has k = 32 (shape (64, 32)), but b has k = 64 (shape (64, 64))
  --> kernel.py:10:9
   |
10 |         T.gemm(left, right, tile)
   |         ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: A is (M, K), B is (K, N), C is (M, N) and wide enough to sum in; transpose_A and transpose_B swap axes
""",
    ),
    "gemm_of_floats_into_integers": (
        """
left = T.alloc_shared((64, 64), "float16")
count = T.alloc_fragment((64, 64), "int32")
T.gemm(left, left, count)
""",
        """
OperatorMismatch: T.gemm: c is int32, but the product of float16 and float16 needs a float accumulator
  --> kernel.py:10:9
   |
10 |         T.gemm(left, left, count)
   |         ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: A is (M, K), B is (K, N), C is (M, N) and wide enough to sum in; transpose_A and transpose_B swap axes
""",
    ),
    "gemm_policy": (
        """
T.gemm(tile, tile, tile, policy='FullRow')
""",
        """
NumberExpected: policy of T.gemm is 'FullRow'
  --> kernel.py:8:9
  |
8 |         T.gemm(tile, tile, tile, policy='FullRow')
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected one of 'square', 'full_row', 'full_col' (did you mean 'full_row'?)
""",
    ),
    "reduce_shape": (
        """
T.reduce_sum(tile, tile, dim=1)
""",
        """
OperatorMismatch: T.reduce_sum: folding dimension 1 of (64, 64) gives (64), but the destination has shape (64, 64)
  --> kernel.py:8:9
  |
8 |         T.reduce_sum(tile, tile, dim=1)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: the destination has the source's shape without `dim`, or with 1 there
""",
    ),
    "reduce_dim": (
        """
T.reduce_max(tile, row, dim=2)
""",
        """
OperatorMismatch: T.reduce_max: dim is 2, but the source has 2 dimensions
  --> kernel.py:8:9
  |
8 |         T.reduce_max(tile, row, dim=2)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: the destination has the source's shape without `dim`, or with 1 there
""",
    ),
    "bits_of_floats": (
        """
x = tile[0, 0] & 3
""",
        """
NumberExpected: an operand of `&` is a float32
  --> kernel.py:8:13
  |
8 |         x = tile[0, 0] & 3
  |             ^^^^^^^^^^^^^^
  help: expected integers or bools
""",
    ),
    "immutable_in_loop": (
        """
total = 0
for i in range(n):
    total = total + 1
""",
        """
ImmutableName: 'total' is immutable and cannot be assigned again in the `for` of line 9
  --> kernel.py:10:13
   |
10 |             total = total + 1
   |             ^^^^^^^^^^^^^^^^^
  help: make it mutable before: `total = T.alloc_var(dtype, init=...)`
""",
    ),
    "immutable_in_branch": (
        """
scale = 1.0
if n > 3:
    scale = 2.0
""",
        """
ImmutableName: 'scale' is immutable and cannot be assigned again in the `if` of line 9
  --> kernel.py:10:13
   |
10 |             scale = 2.0
   |             ^^^^^^^^^^^
  help: make it mutable before: `scale = T.alloc_var(dtype, init=...)`
""",
    ),
    "escaped_name": (
        """
if n > 3:
    scale = 2.0
tile[0, 0] = scale
""",
        """
EscapedName: 'scale' was assigned in the `if` of line 8 and has no value after it
  --> kernel.py:10:9
   |
10 |         tile[0, 0] = scale
   |         ^^^^^^^^^^
  help: make it mutable before: `scale = T.alloc_var(dtype, init=...)`
""",
    ),
    "value_after_its_loop": (
        """
found = []
for i in range(n):
    found.append(i * 2)
tile[0, 0] = found[0]
""",
        """
ValueOutOfScope: a value of the `for` of line 9 is used after its end
  --> kernel.py:11:9
   |
11 |         tile[0, 0] = found[0]
   |         ^^^^^^^^^^
  help: use it inside, or keep it in a tile or a T.alloc_var made before
""",
    ),
    "symbolic_shape": (
        """
x = T.alloc_shared((n, 64), "float32")
""",
        """
SymbolicConstant: an extent of T.alloc_shared needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:8:13
  |
8 |         x = T.alloc_shared((n, 64), "float32")
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: use a Python int, such as a parameter of the enclosing function or a T.const size
""",
    ),
    "range_as_list_index": (
        """
tiles = [tile, row]
for i in range(2):
    T.clear(tiles[i])
""",
        """
SymbolicConstant: Python's indexing or `range` needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:10:21
   |
10 |             T.clear(tiles[i])
   |                     ^^^^^^^^
  help: loop over a Python list, as in `for i in list(range(4))`, to have i known
""",
    ),
    "python_int": (
        """
x = int(n) + 1
""",
        """
SymbolicConstant: Python's int() needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:8:13
  |
8 |         x = int(n) + 1
  |             ^^^^^^
  help: write T.cast(x, 'int32') for a conversion in the kernel
""",
    ),
    "iteration_over_scalar": (
        """
for i in n:
    tile[i, 0] = 1.0
""",
        """
SymbolicIteration: cannot iterate over a symbolic int32
  --> kernel.py:8:18
  |
8 |         for i in n:
  |                  ^
  help: write `for i in range(n)` for a loop, and index with i
""",
    ),
    "iteration_over_tile": (
        """
for x in tile:
    pass
""",
        """
SymbolicIteration: cannot iterate over the tile 'tile'
  --> kernel.py:8:18
  |
8 |         for x in tile:
  |                  ^^^^
  help: write `for i in range(n)` for a loop, and index with i
""",
    ),
    "nested_kernel": (
        """
with T.Kernel(4) as inner:
    T.clear(tile)
""",
        """
NestedKernel: T.Kernel stands inside the T.Kernel of line 5
  --> kernel.py:8:14
  |
8 |         with T.Kernel(4) as inner:
  |              ^^^^^^^^^^^
  help: end the first block before: kernels run one after another
""",
    ),
    "tile_operator_in_parallel": (
        """
for i in T.Parallel(64):
    T.clear(tile)
""",
        """
TileOperatorInParallel: T.clear acts on the whole block and cannot stand in the `T.Parallel` of line 8
  --> kernel.py:9:13
  |
9 |             T.clear(tile)
  |             ^^^^^^^^^^^^^
  help: move it out of the loop, or use T.serial for a loop in order
""",
    ),
    "parallel_in_parallel": (
        """
for i in T.Parallel(64):
    for j in T.Parallel(64):
        tile[i, j] = 0.0
""",
        """
TileOperatorInParallel: T.Parallel acts on the whole block and cannot stand in the `T.Parallel` of line 8
  --> kernel.py:9:22
  |
9 |             for j in T.Parallel(64):
  |                      ^^^^^^^^^^^^^^
  help: move it out of the loop, or use T.serial for a loop in order
""",
    ),
    "return_in_branch": (
        """
if n > 3:
    return n
""",
        """
WrongReturn: `return` of a value stands in the `if` of line 8
  --> kernel.py:9:13
  |
9 |             return n
  |             ^^^^^^^^
  help: a macro or a kernel returns its value at its end; use T.if_then_else or T.alloc_var to choose one
""",
    ),
    "float_index": (
        """
tile[n / 2.0, 0] = 1.0
""",
        """
FloatIndex: an index of the tile 'tile' is a symbolic float32, not an integer
  --> kernel.py:8:9
  |
8 |         tile[n / 2.0, 0] = 1.0
  |         ^^^^^^^^^^^^^^^^
  help: use `//`, or T.cast(x, 'int32')
""",
    ),
    "float_literal_index": (
        """
x = tile[0.5, 0]
""",
        """
FloatIndex: an index of the tile 'tile' is 0.5, not an integer
  --> kernel.py:8:13
  |
8 |         x = tile[0.5, 0]
  |             ^^^^^^^^^^^^
  help: use `//`, or T.cast(x, 'int32')
""",
    ),
    "wrong_rank": (
        """
x = tile[0]
""",
        """
WrongRank: the tile 'tile' has 2 dimensions, but 1 index is given
  --> kernel.py:8:13
  |
8 |         x = tile[0]
  |             ^^^^^^^
  help: give one index or slice a dimension; `...` stands for the dimensions not named
""",
    ),
    "wrong_rank_of_store": (
        """
row[0, 1] = 1.0
""",
        """
WrongRank: the tile 'row' has 1 dimension, but 2 indices are given
  --> kernel.py:8:9
  |
8 |         row[0, 1] = 1.0
  |         ^^^^^^^^^
  help: give one index or slice a dimension; `...` stands for the dimensions not named
""",
    ),
    "index_out_of_range": (
        """
x = tile[64, 0]
""",
        """
IndexOutOfRange: index 64 is out of range in dimension 0 of the tile 'tile'
  --> kernel.py:8:13
  |
8 |         x = tile[64, 0]
  |             ^^^^^^^^^^^
  help: the extent there is 64
""",
    ),
    "negative_index_out_of_range": (
        """
tile[0, -65] = 1.0
""",
        """
IndexOutOfRange: index -65 is out of range in dimension 1 of the tile 'tile'
  --> kernel.py:8:9
  |
8 |         tile[0, -65] = 1.0
  |         ^^^^^^^^^^^^
  help: the extent there is 64
""",
    ),
    "slice_out_of_range": (
        """
T.clear(tile[32:96, 0:64])
""",
        """
IndexOutOfRange: index 32:96 is out of range in dimension 0 of the tile 'tile'
  --> kernel.py:8:17
  |
8 |         T.clear(tile[32:96, 0:64])
  |                 ^^^^^^^^^^^^^^^^^
  help: the extent there is 64
""",
    ),
    "slice_step": (
        """
T.clear(tile[0:64:2, 0:64])
""",
        """
SliceStep: a slice with a step is no rectangular tile
  --> kernel.py:8:17
  |
8 |         T.clear(tile[0:64:2, 0:64])
  |                 ^^^^^^^^^^^^^^^^^^
  help: write a T.Parallel loop that steps its index
""",
    ),
    "symbolic_extent": (
        """
T.copy(A[0:n, 0:64], tile)
""",
        """
SymbolicExtent: T.copy needs tiles of known size, but the source in 'A' has a symbolic extent
  --> kernel.py:8:9
  |
8 |         T.copy(A[0:n, 0:64], tile)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: slice with a constant length, `A[i * 64 : (i + 1) * 64]`; what reaches beyond the end is cut off
""",
    ),
    "if_on_tile": (
        """
if tile:
    T.clear(tile)
""",
        """
TensorCondition: the tile 'tile' has no truth value
  --> kernel.py:8:12
  |
8 |         if tile:
  |            ^^^^
  help: test an element, T.any_of(tile) or T.all_of(tile)
""",
    ),
    "arithmetic_on_tile": (
        """
x = tile + 1
""",
        """
TensorOperand: `+` works on scalars, not on the tile 'tile'
  --> kernel.py:8:13
  |
8 |         x = tile + 1
  |             ^^^^^^^^
  help: loop over the elements: `for i, j in T.Parallel(...)` and index with i, j
""",
    ),
    "store_of_tile": (
        """
tile[0, 0] = row
""",
        """
ScalarExpected: an element of the tile 'tile' takes one scalar, but the tile 'row' was given
  --> kernel.py:8:9
  |
8 |         tile[0, 0] = row
  |         ^^^^^^^^^^
  help: use T.copy(source, destination) for tiles, T.fill(tile, value) for one value
""",
    ),
    "store_to_slice": (
        """
tile[0:4, 0] = 1.0
""",
        """
ScalarExpected: cannot assign to a slice of the tile 'tile'
  --> kernel.py:8:9
  |
8 |         tile[0:4, 0] = 1.0
  |         ^^^^^^^^^^^^
  help: use T.copy(source, destination) for tiles, T.fill(tile, value) for one value
""",
    ),
    "integer_division": (
        """
x = n / 2
""",
        """
IntegerDivision: `/` on two integers is ambiguous
  --> kernel.py:8:13
  |
8 |         x = n / 2
  |             ^^^^^
  help: write `//` for the quotient, or T.cast(x, 'float32') / y
""",
    ),
    "symbolic_key": (
        """
table = {n: 1}
""",
        """
SymbolicKey: a symbolic value cannot be hashed, so it is no key of a dictionary or a set
  --> kernel.py:8:17
  |
8 |         table = {n: 1}
  |                 ^^^^^^
  help: index a tensor with it, or use a Python list over constants
""",
    ),
    "try_statement": (
        """
try:
    T.clear(tile)
except ValueError:
    pass
""",
        """
UnsupportedStatement: `try` is not supported in a kernel
  --> kernel.py:8:9
  |
8 |         try:
  |         ^^^^
  help: a kernel cannot catch exceptions; remove it, or test the condition before
""",
    ),
    "with_something_else": (
        """
with memoryview(b"") as bytes_seen:
    T.clear(tile)
""",
        """
UnsupportedContext: `with` in a kernel takes T.Kernel, not a memoryview
  --> kernel.py:8:14
  |
8 |         with memoryview(b"") as bytes_seen:
  |              ^^^^^^^^^^^^^^^
  help: move other context managers out of the kernel
""",
    ),
    "yield_statement": (
        """
yield n
""",
        """
UnsupportedStatement: `yield` is not supported in a kernel
  --> kernel.py:8:9
  |
8 |         yield n
  |         ^^^^^^^
  help: a kernel cannot be a generator; return the result
""",
    ),
    "global_statement": (
        """
global counter
counter = 1
""",
        """
UnsupportedStatement: `global` is not supported in a kernel
  --> kernel.py:8:9
  |
8 |         global counter
  |         ^^^^^^^^^^^^^^
  help: pass the value as a parameter, or read it without declaring it
""",
    ),
    "del_statement": (
        """
del tile
""",
        """
UnsupportedStatement: `del` is not supported in a kernel
  --> kernel.py:8:9
  |
8 |         del tile
  |         ^^^^^^^^
  help: names end with their block; remove it
""",
    ),
    "nested_class": (
        """
class Inner:
    pass
""",
        """
UnsupportedStatement: a nested class is not supported in a kernel
  --> kernel.py:8:9
  |
8 |         class Inner:
  |         ^^^^^^^^^^^^
  help: define it outside the kernel
""",
    ),
    "walrus": (
        """
if (m := n) > 3:
    T.clear(tile)
""",
        """
UnsupportedStatement: `:=` is not supported in a kernel
  --> kernel.py:8:13
  |
8 |         if (m := n) > 3:
  |             ^^^^^^
  help: assign the name in a statement of its own
""",
    ),
    "for_else": (
        """
for i in range(4):
    T.clear(tile)
else:
    T.clear(row)
""",
        """
UnsupportedStatement: `else` of a loop is not supported in a kernel
  --> kernel.py:8:9
  |
8 |         for i in range(4):
  |         ^^^^^^^^^^^^^^^^^^
  help: set a T.alloc_var in the loop and test it after
""",
    ),
    "break_in_parallel": (
        """
for i in T.Parallel(64):
    if i > n:
        break
""",
        """
LoopExit: `break` has no meaning in T.Parallel, whose iterations may overlap
  --> kernel.py:10:17
   |
10 |                 break
   |                 ^^^^^
  help: use an `if`, or T.serial for a loop in order
""",
    ),
    "break_of_python_loop": (
        """
for i in [1, 2]:
    if n > i:
        break
""",
        """
SymbolicExit: `break` of a Python loop stands in the `if` of line 9, which is decided only where the program runs
  --> kernel.py:10:17
   |
10 |                 break
   |                 ^^^^^
  help: loop with `for i in range(n)` or T.serial, which the program executes
""",
    ),
    "raise_in_branch": (
        """
if n > 3:
    raise ValueError('n')
""",
        """
UnsupportedStatement: `raise` under a symbolic condition is not supported in a kernel
  --> kernel.py:9:13
  |
9 |             raise ValueError('n')
  |             ^^^^^^^^^^^^^^^^^^^^^
  help: write T.device_assert(condition, message)
""",
    ),
    "too_many_names": (
        """
for i, j, k in T.Parallel(64, 64):
    tile[i, j] = 0.0
""",
        """
WrongUnpacking: T.Parallel gives 2 values here, but 3 names are bound
  --> kernel.py:8:24
  |
8 |         for i, j, k in T.Parallel(64, 64):
  |                        ^^^^^^^^^^^^^^^^^^
  help: write as many names as T.Parallel has extents
""",
    ),
    "reinterpret_width": (
        """
x = T.reinterpret(n, "float16")
""",
        """
NumberExpected: T.reinterpret is float16
  --> kernel.py:8:13
  |
8 |         x = T.reinterpret(n, "float16")
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected a dtype of 32 bits
""",
    ),
    "copy_of_number": (
        """
T.copy(3.0, tile)
""",
        """
TileExpected: the source of T.copy is 3.0
  --> kernel.py:8:9
  |
8 |         T.copy(3.0, tile)
  |         ^^^^^^^^^^^^^^^^^
  help: expected a tensor, a tile, a slice or an element of one
""",
    ),
    "view_size": (
        """
x = T.view(tile, (32, 64))
""",
        """
ViewMismatch: 'tile' cannot be viewed this way: it has 16384 bytes, but the view needs 8192
  --> kernel.py:8:13
  |
8 |         x = T.view(tile, (32, 64))
  |             ^^^^^^^^^^^^^^^^^^^^^^
  help: give a shape of the same size in bytes
""",
    ),
    "zero_step": (
        """
for i in T.serial(0, n, 0):
    T.clear(tile)
""",
        """
NumberExpected: the step of T.serial is 0
  --> kernel.py:8:18
  |
8 |         for i in T.serial(0, n, 0):
  |                  ^^^^^^^^^^^^^^^^^
  help: expected a number other than zero
""",
    ),
    "negative_stages": (
        """
for k in T.Pipelined(4, num_stages=-1):
    T.clear(tile)
""",
        """
NumberExpected: num_stages of T.Pipelined is -1
  --> kernel.py:8:18
  |
8 |         for k in T.Pipelined(4, num_stages=-1):
  |                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected a number from 0 up
""",
    ),
    "prefer_typo": (
        """
T.copy(A, tile, prefer_instruction="cpasync")
""",
        """
NumberExpected: prefer_instruction of T.copy is 'cpasync'
  --> kernel.py:8:9
  |
8 |         T.copy(A, tile, prefer_instruction="cpasync")
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected one of 'tma', 'cp_async', 'sync' (did you mean 'cp_async' or 'sync'?)
""",
    ),
    "annotate_layout_shape": (
        """
T.annotate_layout({tile: T.Layout((32, 32), lambda i, j: i * 32 + j)})
""",
        """
NumberExpected: the layout of 'tile' is one of (32, 32)
  --> kernel.py:8:9
  |
8 |         T.annotate_layout({tile: T.Layout((32, 32), lambda i, j: i * 32 + j)})
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected a layout of shape (64, 64)
""",
    ),
    "string_operand": (
        """
tile[0, 0] = n + "1"
""",
        """
NumberExpected: an operand of `+` is '1'
  --> kernel.py:8:22
  |
8 |         tile[0, 0] = n + "1"
  |                      ^^^^^^^
  help: expected a number
""",
    ),
}
"""Statements of a kernel, and the message."""

WHOLE: dict[str, tuple[str, str]] = {
    "keyword_typo_of_kernel": (
        """
@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32")):
    with T.Kernel(4, thread=128) as block:
        T.clear(A)
""",
        """
WrongArguments: T.Kernel has no argument 'thread'
  --> kernel.py:5:10
  |
5 |     with T.Kernel(4, thread=128) as block:
  |          ^^^^^^^^^^^^^^^^^^^^^^^
  help: did you mean 'threads'? T.Kernel(*blocks, threads=None, is_cpu=False, cluster_dims=None, persistent=None, specialize=None, prelude=None)
""",
    ),
    "unknown_dtype_in_annotation": (
        """
@T.prim_func
def kernel(A: T.Tensor((64, 64), "flaot16")):
    with T.Kernel(4) as block:
        T.clear(A)
""",
        """
UnknownDType: unknown dtype 'flaot16'
  --> kernel.py:4:15
  |
4 | def kernel(A: T.Tensor((64, 64), "flaot16")):
  |               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: did you mean 'float16' or 'bfloat16' or 'float64'?
""",
    ),
    "fragment_outside_its_kernel": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(4) as block:
        tile = T.alloc_fragment((64,), "float32")
    with T.Kernel(4) as block:
        T.copy(tile, A)
""",
        """
ValueOutOfScope: the fragment tile 'tile' of the `T.Kernel` of line 5 is used after its end
  --> kernel.py:8:9
  |
8 |         T.copy(tile, A)
  |         ^^^^^^^^^^^^^^^
  help: use it inside, or keep it in a tile or a T.alloc_var made before
""",
    ),
    "tile_operator_outside_kernel": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
    T.copy(A, C)
""",
        """
OutsideKernel: T.copy stands outside T.Kernel
  --> kernel.py:5:5
  |
5 |     T.copy(A, C)
  |     ^^^^^^^^^^^^
  help: put it under `with T.Kernel(...) as block:`
""",
    ),
    "store_outside_kernel": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    A[0] = 1.0
""",
        """
OutsideKernel: a store to the tensor 'A' stands outside T.Kernel
  --> kernel.py:5:5
  |
5 |     A[0] = 1.0
  |     ^^^^
  help: put it under `with T.Kernel(...) as block:`
""",
    ),
    "no_kernel": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    x = 1
""",
        """
MissingKernel: kernel has no T.Kernel
  --> kernel.py:4:1
  |
4 | def kernel(A: T.Tensor((64,), "float32")):
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: write the work under `with T.Kernel(blocks, threads=128) as block:`
""",
    ),
    "outside_function": (
        """
T.clear(None)
""",
        """
OutsideFunction: T.clear stands outside a kernel function
  --> kernel.py:3:1
  |
3 | T.clear(None)
  | ^^^^^^^^^^^^^
  help: decorate the function with @T.prim_func or @tilewright.jit
""",
    ),
    "return_of_prim_func": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(4) as block:
        T.clear(A)
    return A
""",
        """
WrongReturn: kernel returns the tensor 'A', but a T.prim_func returns nothing
  --> kernel.py:4:1
  |
4 | def kernel(A: T.Tensor((64,), "float32")):
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: write the result into a tensor parameter and name it in out_idx
""",
    ),
    "symbolic_if_in_helper": (
        """
def larger(a, b):
    if a > b:
        return a
    return b


@T.prim_func
def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
    with T.Kernel(4) as block:
        A[0] = larger(n, 3)
""",
        """
SymbolicCondition: Python cannot know whether a symbolic condition holds while the kernel is traced
  --> kernel.py:4:8
  |
4 |     if a > b:
  |        ^^^^^
  help: in a helper function, add @T.macro above its `def`; in an expression, write T.if_then_else(...)
""",
    ),
    "kernel_names": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(4, 4, 2) as (bx, by):
        T.clear(A)
""",
        """
WrongUnpacking: T.Kernel gives 3 values here, but 2 names are bound
  --> kernel.py:5:5
  |
5 |     with T.Kernel(4, 4, 2) as (bx, by):
  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: write as many names as T.Kernel has extents
""",
    ),
    "missing_annotation": (
        """
@T.prim_func
def kernel(A, n: T.int32):
    with T.Kernel(4) as block:
        T.clear(A)
""",
        """
MissingAnnotation: the parameter 'A' of kernel has no annotation
  --> kernel.py:4:1
  |
4 | def kernel(A, n: T.int32):
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: annotate it: `A: T.Tensor((M, N), "float16")` for a tensor, `n: T.int32` for a scalar
""",
    ),
    "bare_tensor_annotation": (
        """
@T.prim_func
def kernel(A: T.Tensor):
    with T.Kernel(4) as block:
        T.clear(A)
""",
        """
MissingAnnotation: the parameter 'A' of kernel is annotated with T.Tensor itself
  --> kernel.py:4:1
  |
4 | def kernel(A: T.Tensor):
  | ^^^^^^^^^^^^^^^^^^^^^^^^
  help: annotate it: `A: T.Tensor((M, N), "float16")` for a tensor, `n: T.int32` for a scalar
""",
    ),
    "unbound_dynamic_size": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    m = T.dynamic("m")
    with T.Kernel(m) as block:
        T.clear(A)
""",
        """
UnboundDynamicSize: no argument of kernel gives the size 'm'
  --> kernel.py:4:1
  |
4 | def kernel(A: T.Tensor((64,), "float32")):
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: write m alone as an extent or a stride of a tensor parameter, or make it one: `m: T.int32`
""",
    ),
    "const_in_prim_func": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    M = T.const("M")
    with T.Kernel(M) as block:
        T.clear(A)
""",
        """
ConstOutsideDirect: T.const belongs to functions decorated with tilewright.jit, whose sizes come from their arguments
  --> kernel.py:5:9
  |
5 |     M = T.const("M")
  |         ^^^^^^^^^^^^
  help: use a Python int of the enclosing function, or T.dynamic for a size known at launch
""",
    ),
    "empty_in_prim_func": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    C = T.empty((64,), "float32")
    with T.Kernel(4) as block:
        T.copy(A, C)
""",
        """
OutputOutsideDirect: T.empty belongs to functions decorated with tilewright.jit, which return their results
  --> kernel.py:5:9
  |
5 |     C = T.empty((64,), "float32")
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: add a tensor parameter and name it in out_idx, or use T.alloc_global for a workspace
""",
    ),
    "effect_in_condition": (
        """
@T.macro
def next_value(A):
    A[0] += 1.0
    return A[0]


@T.prim_func
def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
    with T.Kernel(4) as block:
        x = next_value(A) if n > 3 else 0.0
""",
        """
EffectInExpression: an operand that is evaluated only under a condition may not have an effect
  --> kernel.py:12:13
   |
12 |         x = next_value(A) if n > 3 else 0.0
   |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: compute it in a statement before, or write an `if` statement
""",
    ),
    "mistake_in_macro": (
        """
@T.macro
def clear_twice(tile):
    T.clear(tile)
    T.clear(tile[0])


@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32")):
    with T.Kernel(4) as block:
        clear_twice(A)
""",
        """
WrongRank: the tensor 'A' has 2 dimensions, but 1 index is given
  --> kernel.py:6:13
  |
6 |     T.clear(tile[0])
  |             ^^^^^^^
  help: give one index or slice a dimension; `...` stands for the dimensions not named
""",
    ),
    "macro_arity": (
        """
@T.macro
def clear_twice(tile):
    T.clear(tile)


@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32")):
    with T.Kernel(4) as block:
        clear_twice(A, 2)
""",
        """
WrongArguments: clear_twice: too many positional arguments
  --> kernel.py:11:9
   |
11 |         clear_twice(A, 2)
   |         ^^^^^^^^^^^^^^^^^
  help: clear_twice(tile)
""",
    ),
    "call_of_prim_func": (
        """
@T.prim_func
def inner(A: T.Tensor((64,), "float32")):
    with T.Kernel(4) as block:
        T.clear(A)


@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(4) as block:
        inner(A)
""",
        """
WrongArguments: inner is a traced function and cannot be called
  --> kernel.py:12:9
   |
12 |         inner(A)
   |         ^^^^^^^^
  help: compile it with tilewright.compile, or return it from a function decorated with tilewright.jit
""",
    ),
}
"""Whole files, from line 3 on, and the message."""

DIRECT_STYLE: dict[str, tuple[str, str]] = {
    "missing_return": (
        """
def kernel(A):
    M = T.const("M")
    A: T.Tensor((M,), "float32")
    C = T.empty((M,), "float32")
    with T.Kernel(4) as block:
        T.copy(A, C)
""",
        """
MissingReturn: the output 'C' is never returned
  --> kernel.py:6:5
  |
6 |     C = T.empty((M,), "float32")
  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: end the function with `return C`; T.alloc_global makes a workspace that stays inside
""",
    ),
    "wrong_return": (
        """
def kernel(A):
    M = T.const("M")
    A: T.Tensor((M,), "float32")
    with T.Kernel(4) as block:
        T.clear(A)
    return A
""",
        """
WrongReturn: kernel returns the tensor 'A', but only tensors made by T.empty can be returned
  --> kernel.py:3:1
  |
3 | def kernel(A):
  | ^^^^^^^^^^^^^^
  help: make the result with T.empty(shape, dtype) and return that
""",
    ),
    "const_too_early": (
        """
def kernel(A):
    M = T.const("M")
    blocks = list(range(M))
    A: T.Tensor((M,), "float32")
    with T.Kernel(len(blocks)) as b:
        T.clear(A)
""",
        """
SymbolicConstant: Python's indexing or `range` needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:5:19
  |
5 |     blocks = list(range(M))
  |                   ^^^^^^^^
  help: move this below the last tensor annotation: T.const symbols are Python ints from there on
""",
    ),
    "const_not_bound": (
        """
def kernel(A):
    M, N = T.const("M, N")
    A: T.Tensor((M, N * 2), "float32")
    with T.Kernel(4) as b:
        T.clear(A)
""",
        """
UnboundSize: no argument gives the size 'N'
  --> kernel.py:3:1
  |
3 | def kernel(A):
  | ^^^^^^^^^^^^^^
  help: write N alone as an extent or a stride of an annotated tensor parameter
""",
    ),
    "tensor_before_annotation": (
        """
def kernel(A):
    x = A[0]
    A: T.Tensor((8,), "float32")
    with T.Kernel(4) as b:
        T.clear(A)
""",
        """
UndeclaredTensor: the tensor 'A' is used before its annotation
  --> kernel.py:4:9
  |
4 |     x = A[0]
  |         ^^^^
  help: move `A: T.Tensor(...)` above this line
""",
    ),
}
"""Functions of the direct style, called with an argument whose extents are 8, and the message."""


def mistake(path: Path, text: str) -> tuple[TilewrightError, dict[str, Any]]:
    """Run a file with a mistake; the error it raises."""
    path.write_text(text, encoding="utf-8")
    linecache.checkcache()
    names: dict[str, Any] = {"__name__": "mistake"}
    with pytest.raises(TilewrightError) as caught:
        exec(compile(text, str(path), "exec", dont_inherit=True), names)
        call(DirectFunction(names["kernel"]))
    return caught.value, names


def call(direct: DirectFunction) -> None:
    """What the JIT does for a call with one tensor of extents 8."""
    declaration = direct.declare({})
    sizes = declaration.bind({"A": (8,) * len(declaration.tensors["A"].shape)})
    direct.trace({}, sizes)


def check(path: Path, text: str, expected: str) -> None:
    error, _ = mistake(path, text)
    shown = f"{type(error).__name__}: {error}".replace(str(path), "kernel.py")
    assert without_columns(shown) == without_columns(expected.strip("\n"))


def without_columns(message: str) -> str:
    """The message; before Python 3.11, which records no columns of expressions, without the caret."""
    if sys.version_info >= (3, 11):
        return message
    lines = [line for line in message.splitlines() if set(line) - set(" |^")]
    return "\n".join(line.rpartition(":")[0] if line.startswith("  --> ") else line for line in lines)


@pytest.mark.parametrize("name", IN_KERNEL)
def test_mistake_in_a_kernel(name: str, tmp_path: Path) -> None:
    statements, expected = IN_KERNEL[name]
    indented = "".join(f"        {line}\n" if line else "\n" for line in statements.strip("\n").split("\n"))
    check(tmp_path / "kernel.py", PREAMBLE + KERNEL + indented, expected)


@pytest.mark.parametrize("name", WHOLE)
def test_mistake_of_a_function(name: str, tmp_path: Path) -> None:
    text, expected = WHOLE[name]
    check(tmp_path / "kernel.py", f"{PREAMBLE}\n{text.strip()}\n", expected)


@pytest.mark.parametrize("name", DIRECT_STYLE)
def test_mistake_in_the_direct_style(name: str, tmp_path: Path) -> None:
    text, expected = DIRECT_STYLE[name]
    check(tmp_path / "kernel.py", f"{PREAMBLE}\n{text.strip()}\n", expected)


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {}
    text = "import tilewright.language as T\n@T.prim_func\ndef kernel(A: T.Tensor((4,), 'float32')): pass\n"
    with pytest.raises(TilewrightError) as caught:
        exec(compile(text, "<nowhere>", "exec", dont_inherit=True), names)
    assert caught.value.message == "the source of kernel is not available"
    assert caught.value.hint == (
        "define the kernel with `def` in a file or a notebook cell: its source is rewritten before it runs"
    )


def test_mistakes_leave_nothing_open(tmp_path: Path) -> None:
    """After a mistake the next kernel traces as if nothing had happened."""
    mistake(tmp_path / "wrong.py", PREAMBLE + KERNEL + "        T.coppy(A, tile)\n")
    text = PREAMBLE + KERNEL + "        T.clear(tile)\n"
    (tmp_path / "right.py").write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, str(tmp_path / "right.py"), "exec", dont_inherit=True), names)
    assert names["kernel"].name == "kernel"
