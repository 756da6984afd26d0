"""Mistakes in the words of the language: their arguments, types and shapes."""

# The messages are what a terminal shows: long lines stay as they are.

CALLS: dict[str, tuple[str, str]] = {
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
T.alloc_shared((4,), "float32", "shared", tile)
""",
        """
WrongArguments: T.alloc_shared: too many positional arguments
  --> kernel.py:8:9
  |
8 |         T.alloc_shared((4,), "float32", "shared", tile)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: T.alloc_shared(shape, dtype, scope='shared.dyn')
""",
    ),
    "annotations_that_are_none": (
        """
T.clear(tile, row)
""",
        """
NumberExpected: annotations of T.clear is the tile 'row'
  --> kernel.py:8:9
  |
8 |         T.clear(tile, row)
  |         ^^^^^^^^^^^^^^^^^^
  help: expected a dictionary, or None
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
  help: did you mean 'copy' or 'tma_copy' or 'copysign'?
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
    "tensor_of_vectors": (
        """
work = T.alloc_global((64,), "float16x2")
""",
        """
NumberExpected: the dtype of a tensor is float16x2
  --> kernel.py:8:16
  |
8 |         work = T.alloc_global((64,), "float16x2")
  |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected a type of numbers, such as float16, and a last dimension of 2
""",
    ),
    "copy_onto_itself": (
        """
T.copy(row[0:48], row[16:64])
""",
        """
OperatorMismatch: T.copy: two operands overlap in 'row', one of which is changed while the other one is read
  --> kernel.py:8:9
  |
8 |         T.copy(row[0:48], row[16:64])
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: copy to a second tile, and from there
""",
    ),
    "codebook_in_a_tile": (
        """
codes = T.alloc_fragment((64,), "uint4")
T.decode(codes, row, codebook=row)
""",
        """
NumberExpected: the codebook of T.decode is the tile 'row'
  --> kernel.py:9:9
  |
9 |         T.decode(codes, row, codebook=row)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected a list of Python's numbers
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
}
