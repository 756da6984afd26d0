"""Mistakes in indices, slices and regions."""

# The messages are what a terminal shows: long lines stay as they are.

INDICES: dict[str, tuple[str, str]] = {
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
    "two_indices_as_one": (
        """
for i in T.Parallel(64, 64):
    tile[i, 0] = 1.0
""",
        """
NumberExpected: an index of the tile 'tile' is the 2 values of T.Parallel together
  --> kernel.py:9:13
  |
9 |             tile[i, 0] = 1.0
  |             ^^^^^^^^^^
  help: expected an integer: name each value, as in `for i, j in T.Parallel(...)`
""",
    ),
}
