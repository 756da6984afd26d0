"""Mistakes in statements, loops, views and options."""

# The messages are what a terminal shows: long lines stay as they are.

STATEMENTS: dict[str, tuple[str, str]] = {
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
    "last_one_of_a_parallel_loop": (
        """
for i, j in T.Parallel(4, 8):
    row[i] = A[i, j]
""",
        """
IterationsCollide: all iterations over 'j' change the same element of 'row', in no order: the result would be any of theirs
  --> kernel.py:9:13
  |
9 |             row[i] = A[i, j]
  |             ^^^^^^^^^^^^^^^^
  help: sum up in a tile, `total[0] += value`; loop over 'j' with T.serial inside; or store under `if j == 0`
""",
    ),
    "neighbours_in_a_parallel_loop": (
        """
for i in T.Parallel(3):
    row[i + 1] = row[i]
""",
        """
IterationsDepend: one iteration reads an element of 'row' that another one changes, and they run in no order
  --> kernel.py:9:13
  |
9 |             row[i + 1] = row[i]
  |             ^^^^^^^^^^^^^^^^^^^
  help: store to a second tile and copy it back behind the loop, add by T.atomic_add, or loop with T.serial
""",
    ),
    "shuffle_in_a_parallel_loop": (
        """
for i in T.Parallel(64):
    row[i] = row[i] + T.shfl_xor(row[i], 1)
""",
        """
ThreadsMeetInParallel: threads do this together, but which of them does an iteration of T.Parallel is the compiler's choice
  --> kernel.py:9:13
  |
9 |             row[i] = row[i] + T.shfl_xor(row[i], 1)
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: give each thread its elements: T.serial from T.get_thread_binding() on; or use T.reduce_sum and its kin
""",
    ),
    "tile_turned_round_in_place": (
        """
for i in T.Parallel(64):
    row[i] = row[63 - i]
""",
        """
IterationsDepend: one iteration reads an element of 'row' that another one changes, and they run in no order
  --> kernel.py:9:13
  |
9 |             row[i] = row[63 - i]
  |             ^^^^^^^^^^^^^^^^^^^^
  help: store to a second tile and copy it back behind the loop, add by T.atomic_add, or loop with T.serial
""",
    ),
    "helper_that_calls_itself": (
        """
def again(x):
    again(x)
again(row)
""",
        """
EndlessCalls: a macro or a helper calls itself without end: calls are written out while the kernel is traced
  --> kernel.py:9:13
  |
9 |             again(x)
  |             ^^^^^^^^
  help: write a loop, or let a condition on Python's own numbers end the calls
""",
    ),
    "loop_longer_than_its_tile": (
        """
for i in T.Parallel(128):
    row[i] = 0
""",
        """
IndexOutOfRange: index i = 64 is out of range in dimension 0 of the tile 'row'
  --> kernel.py:9:13
  |
9 |             row[i] = 0
  |             ^^^^^^^^^^
  help: the extent there is 64
""",
    ),
    "neighbour_of_the_last_element": (
        """
for i in T.Parallel(64):
    row[i] = row[i + 1]
""",
        """
IndexOutOfRange: index i + 1 = 64 is out of range in dimension 0 of the tile 'row'
  --> kernel.py:9:13
  |
9 |             row[i] = row[i + 1]
  |             ^^^^^^^^^^^^^^^^^^^
  help: the extent there is 64
""",
    ),
    "columns_of_too_many_groups": (
        """
for i, g, j in T.Parallel(64, 4, 20):
    tile[i, g * 16 + j - 1] = 0
""",
        """
IndexOutOfRange: index g * 16 + j - 1 = 66 is out of range in dimension 1 of the tile 'tile'
  --> kernel.py:9:13
  |
9 |             tile[i, g * 16 + j - 1] = 0
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: the extent there is 64
""",
    ),
    "neighbour_of_the_first_element": (
        """
for i in T.Parallel(64):
    row[i] = row[63 - i] + row[i - 1]
""",
        """
IndexOutOfRange: index i - 1 = -1 is out of range in dimension 0 of the tile 'row'
  --> kernel.py:9:13
  |
9 |             row[i] = row[63 - i] + row[i - 1]
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: the extent there is 64
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
    "alias_of_a_size_known_at_launch": (
        """
x = T.alias(T.alloc_shared((64, 64), "float32"), (n, 64), "float32")
""",
        """
SymbolicConstant: an extent of T.alias needs a value that is known while the kernel is traced, but this one is symbolic
  --> kernel.py:8:13
  |
8 |         x = T.alias(T.alloc_shared((64, 64), "float32"), (n, 64), "float32")
  |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: use a Python int, such as a parameter of the enclosing function, a T.const size or the i of `for i in (0, 1):`
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
