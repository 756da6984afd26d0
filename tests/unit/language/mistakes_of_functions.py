"""Mistakes of whole functions: parameters, annotations, decorators and macros."""

# The messages are what a terminal shows: long lines stay as they are.

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
  help: did you mean 'threads'? T.Kernel(*blocks, threads=None, is_cpu=False, cluster_dims=None, persistent=None, ping_pong=None, specialize=None, beside=False, prelude=None)
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
    with T.Kernel(1):
        T.clear(C)
    T.copy(A, C)
""",
        """
OutsideKernel: T.copy stands outside T.Kernel
  --> kernel.py:7:5
  |
7 |     T.copy(A, C)
  |     ^^^^^^^^^^^^
  help: put it under `with T.Kernel(...) as block:`
""",
    ),
    "store_outside_kernel": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    A[0] = 1.0
    with T.Kernel(1):
        A[1] = 2.0
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
WrongReturn: kernel returns the tensor 'A', but only tensors made by T.empty can be returned
  --> kernel.py:4:1
  |
4 | def kernel(A: T.Tensor((64,), "float32")):
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: make the result with T.empty(shape, dtype) and return that
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
    "suited_in_prim_func": (
        """
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    rows = T.suited(lambda m: m, 64)
    with T.Kernel(1) as block:
        T.clear(A)
""",
        """
ConstOutsideDirect: T.suited belongs to functions decorated with tilewright.jit, whose sizes come from their arguments
  --> kernel.py:5:12
  |
5 |     rows = T.suited(lambda m: m, 64)
  |            ^^^^^^^^^^^^^^^^^^^^^^^^^
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
MissingReturn: the output 'C' is never returned
  --> kernel.py:5:5
  |
5 |     C = T.empty((64,), "float32")
  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: end the function with `return C`; T.alloc_global makes a workspace that stays inside
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
