"""Mistakes in names, and where they hold."""

# The messages are what a terminal shows: long lines stay as they are.

NAMES: dict[str, tuple[str, str]] = {
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
  help: assign it before this line, or import it
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
  help: assign it before this line, or import it
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
