"""Mistakes in values: what is done with numbers and tiles."""

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
  help: tiles have fixed sizes: let a loop go through the dimension tile by tile, use `tile[0:n]` of the largest that there can be, or make it a T.const size
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
    "symbolic_extent": (
        """
T.fill(tile[0:n, 0:64], 0)
""",
        """
SymbolicExtent: T.fill needs tiles of known size, but the destination in 'tile' has a symbolic extent
  --> kernel.py:8:9
  |
8 |         T.fill(tile[0:n, 0:64], 0)
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
  help: functions of T work on values of the program, as T.exp and T.max do
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
    "arithmetic_on_two_indices": (
        """
for i in T.Parallel(64, 64):
    tile[0, i * 2] = 1.0
""",
        """
SeveralValues: `*` is given all 2 values of T.Parallel at once
  --> kernel.py:9:21
  |
9 |             tile[0, i * 2] = 1.0
  |                     ^^^^^
  help: give each a name, as in `for i, j in T.Parallel(...)`
""",
    ),
    "sum_of_two_indices": (
        """
for i in T.grid(4, 4):
    tile[0, 1 + i] = 1.0
""",
        """
SeveralValues: `+` is given all 2 values of T.grid at once
  --> kernel.py:9:21
  |
9 |             tile[0, 1 + i] = 1.0
  |                     ^^^^^
  help: give each a name, as in `for i, j in T.grid(...)`
""",
    ),
    "float_extent": (
        """
for i in T.Parallel(64 / 2):
    tile[i, 0] = 1.0
""",
        """
NumberExpected: an extent of T.Parallel is 32.0
  --> kernel.py:8:18
  |
8 |         for i in T.Parallel(64 / 2):
  |                  ^^^^^^^^^^^^^^^^^^
  help: expected an integer: `//` divides without a fraction
""",
    ),
    "function_of_a_tile": (
        """
A[0, 0] = T.exp(tile)
""",
        """
NumberExpected: the argument of T.exp is the tile 'tile'
  --> kernel.py:8:19
  |
8 |         A[0, 0] = T.exp(tile)
  |                   ^^^^^^^^^^^
  help: expected a number: loop over the elements, `for i, j in T.Parallel(...)`, and index with i, j
""",
    ),
}
