"""Mistakes of functions of the direct style."""

# The messages are what a terminal shows: long lines stay as they are.

DIRECT_STYLE: dict[str, tuple[str, str]] = {
    "two_names_for_one_size": (
        """
def kernel(A):
    M, N = T.const("M")
    A: T.Tensor((M,), "float32")
""",
        """
WrongUnpacking: a symbolic int32 gives 1 value here, but 2 names are bound
  --> kernel.py:4:5
  |
4 |     M, N = T.const("M")
  |     ^^^^^^^^^^^^^^^^^^^
  help: bind one name
""",
    ),
    "one_name_for_two_sizes": (
        """
def kernel(A):
    M = T.const("M, N")
    A: T.Tensor((M,), "float32")
""",
        """
NumberExpected: an extent of T.Tensor is the 2 values of T.const together
  --> kernel.py:5:8
  |
5 |     A: T.Tensor((M,), "float32")
  |        ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: expected an integer: name each value, as in `M, N = T.const(...)`
""",
    ),
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
    "number_in_the_body": (
        """
def kernel(A, n):
    M = T.const("M")
    A: T.Tensor((M,), "float32")
    n: T.int32
    with T.Kernel(n) as block:
        T.clear(A)
""",
        """
NumberInBody: the parameter 'n' is a number: the signature has to say so, before a call's arguments are sorted
  --> kernel.py:6:8
  |
6 |     n: T.int32
  |        ^^^^^^^
  help: write `def kernel(..., n: T.int32)`, and leave this line out
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
  help: write N alone as an extent or a stride of an annotated tensor parameter, or pass N= in the call
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
