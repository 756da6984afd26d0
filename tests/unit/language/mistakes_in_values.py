"""Mistakes in names, values and indices."""

# The messages are what a terminal shows: long lines stay as they are.

VALUES: dict[str, tuple[str, str]] = {
    "mistake_that_another_room_finds": (
        """
from tilewright.layout import Layout
T.annotate_layout({tile: Layout.parse("rows first")})
""",
        """
InvalidLayout: not a layout: rows first
  --> kernel.py:9:34
  |
9 |         T.annotate_layout({tile: Layout.parse("rows first")})
  |                                  ^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: as a layout prints itself: layout(shape=(16, 8), digits=('8:t4 2:r2', '2:r1 4:t1'))
""",
    ),
    "negative_extent_of_a_parallel_loop": (
        """
for i in T.Parallel(-3):
    A[i, 0] = 1
""",
        """
NumberExpected: an extent of T.Parallel is -3
  --> kernel.py:8:18
  |
8 |         for i in T.Parallel(-3):
  |                  ^^^^^^^^^^^^^^
  help: expected a size that is not negative
""",
    ),
    "attribute_of_a_tensor": (
        """
A[0, 0] = A.shap[0]
""",
        """
UnknownAttribute: the tensor 'A' has no attribute 'shap'
  --> kernel.py:8:19
  |
8 |         A[0, 0] = A.shap[0]
  |                   ^^^^^^
  help: did you mean 'shape'?
""",
    ),
    "attribute_of_a_number": (
        """
A[0, 0] = A[0, 1].dtyp
""",
        """
UnknownAttribute: a value of the program has no attribute 'dtyp'
  --> kernel.py:8:19
  |
8 |         A[0, 0] = A[0, 1].dtyp
  |                   ^^^^^^^^^^^^
  help: did you mean 'dtype' or 'astype'?
""",
    ),
    "matrix_product_of_numbers": (
        """
A[0, 0] = A[0, 0] @ A[0, 1]
""",
        """
MatrixOfNumbers: `@` multiplies matrices, not numbers
  --> kernel.py:8:19
  |
8 |         A[0, 0] = A[0, 0] @ A[0, 1]
  |                   ^^^^^^^^^^^^^^^^^
  help: T.gemm multiplies tiles, `*` numbers
""",
    ),
    "atomic_on_a_tile_of_registers": (
        """
for i in T.Parallel(64):
    T.atomic_add(tile[0, 0], 1)
""",
        """
OperatorMismatch: T.atomic_add: the destination is a fragment buffer, but atomics need global or shared memory
  --> kernel.py:9:13
  |
9 |             T.atomic_add(tile[0, 0], 1)
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: an element of a tensor or a shared tile, of a type that the operation has; what one thread has needs none
""",
    ),
    "atomic_on_what_a_thread_has": (
        """
own = T.alloc_local((4,), "float32")
T.atomic_max(own[0], 1)
""",
        """
OperatorMismatch: T.atomic_max: the destination is a local buffer, but atomics need global or shared memory
  --> kernel.py:9:9
  |
9 |         T.atomic_max(own[0], 1)
  |         ^^^^^^^^^^^^^^^^^^^^^^^
  help: an element of a tensor or a shared tile, of a type that the operation has; what one thread has needs none
""",
    ),
    "atomic_load_of_registers": (
        """
A[0, 0] = T.atomic_load(tile[0, 0])
""",
        """
OperatorMismatch: T.atomic_load: the destination is a fragment buffer, but atomics need global or shared memory
  --> kernel.py:8:19
  |
8 |         A[0, 0] = T.atomic_load(tile[0, 0])
  |                   ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: an element of a tensor or a shared tile, of a type that the operation has; what one thread has needs none
""",
    ),
    "atomic_and_of_floats": (
        """
T.atomic_and(A[0, 0], 1)
""",
        """
OperatorMismatch: T.atomic_and: atomic and needs integers, but the destination is float32
  --> kernel.py:8:9
  |
8 |         T.atomic_and(A[0, 0], 1)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^
  help: an element of a tensor or a shared tile, of a type that the operation has; what one thread has needs none
""",
    ),
    "misspelt_python_name": (
        """
for i in T.Parallel(64):
    tile[i, 0] = tille[i, 1]
""",
        """
UndefinedName: the name 'tille' is not defined
  --> kernel.py:9:26
  |
9 |             tile[i, 0] = tille[i, 1]
  |                          ^^^^^
  help: did you mean 'tile'?
""",
    ),
    "name_of_nothing": (
        """
T.clear(zqxjkvw)
""",
        """
UndefinedName: the name 'zqxjkvw' is not defined
  --> kernel.py:8:17
  |
8 |         T.clear(zqxjkvw)
  |                 ^^^^^^^
  help: assign it before this line
""",
    ),
    "name_before_its_value": (
        """
later = later + 1
""",
        """
UndefinedName: the name 'later' is used before it has a value
  --> kernel.py:8:17
  |
8 |         later = later + 1
  |                 ^^^^^
  help: assign it before this line
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
  help: tiles have fixed sizes: let blocks or a loop go through the dimension tile by tile, or make it a T.const size
""",
    ),
    "symbolic_warpgroup": (
        """
for group in range(2):
    with T.ws(group):
        T.clear(tile)
""",
        """
SymbolicConstant: a warpgroup of T.ws needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:9:18
  |
9 |             with T.ws(group):
  |                  ^^^^^^^^^^^
  help: use a Python int, such as a parameter of the enclosing function, a T.const size or the i of `for i in (0, 1):`
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
    "region_from_the_end_that_passes_it": (
        """
T.copy(A[-2, 0], tile)
""",
        """
PassesTheEnd: index -2 counts from the end, and 64 elements from there pass the end of dimension 0 of 'A'
  --> kernel.py:8:9
  |
8 |         T.copy(A[-2, 0], tile)
  |         ^^^^^^^^^^^^^^^^^^^^^^
  help: end the region with the tensor; zeros are read before a tensor where the kernel computes the start, as in A[bx * 64 - 2]
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
    "function_of_numpy": (
        """
import numpy
B[0] = numpy.exp(A[0, 0])
""",
        """
SymbolicConstant: np.exp needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:9:16
  |
9 |         B[0] = numpy.exp(A[0, 0])
  |                ^^^^^^^^^^^^^^^^^^
  help: T.exp, if there is one, works on values of the program
""",
    ),
    "choice_of_tiles": (
        """
chosen = tile if n == 0 else A
""",
        """
NumberExpected: a choice by `... if ... else ...` or T.if_then_else is the tile 'tile'
  --> kernel.py:8:18
  |
8 |         chosen = tile if n == 0 else A
  |                  ^^^^^^^^^^^^^^^^^^^^^
  help: expected numbers: for tiles write an `if` with an operator on each side, or choose element by element
""",
    ),
    "name_of_numpy": (
        """
zeros = T.zeros((64,), "float32")
""",
        """
UnknownName: tilewright.language has no name 'zeros'
  --> kernel.py:8:17
  |
8 |         zeros = T.zeros((64,), "float32")
  |                 ^^^^^^^
  help: write T.alloc_fragment, or T.alloc_shared, and T.fill
""",
    ),
}
