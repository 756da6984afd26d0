"""Mistakes that an author can make in a kernel's names, values and indices, one class each: the sentence, what was
expected, what to write.

Those of scopes and whole functions are in `mistakes_of_scopes`.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence
from string import Formatter
from typing import ClassVar

from tilewright.errors import Span, TilewrightError, near


class AuthorError(TilewrightError, ValueError):
    """Base of the mistakes in a kernel's source.

    A class has its sentence, and its advice: what to write instead. Names in braces are what a single mistake is about;
    it is made with these in the order in which they first stand in the two.
    """

    sentence: ClassVar[str] = "{message}"
    advice: ClassVar[str] = ""

    def __init__(self, *about: object, span: Span | None = None, hint: str | None = None) -> None:
        names = dict.fromkeys(name for _, name, _, _ in Formatter().parse(self.sentence + self.advice) if name)
        named = dict(zip(names, about, strict=True))
        super().__init__(self.sentence.format(**named), span=span, hint=hint or self.advice.format(**named) or None)


class MisplacedRole(AuthorError):
    """Roles and what belongs to them, written where they have no place."""

    advice = "{what_to_write}"


# Names and calls ----------------------------------------------------------------------------------


class UnknownName(AuthorError, AttributeError):
    """``T.something`` that does not exist."""

    sentence = "tilewright.language has no name {name!r}"
    advice = "{what_to_write}"


class UnknownAttribute(AuthorError, AttributeError):
    """``A.something`` that tensors, tiles and numbers of a program do not have."""

    def __init__(self, owner: str, name: str, known: Iterable[str]) -> None:
        names = sorted(one for one in known if not one.startswith("_"))
        super().__init__(f"{owner} has no attribute {name!r}", hint=near(name, names) or f"it has {', '.join(names)}")


class MatrixOfNumbers(AuthorError, TypeError):
    """``@`` between numbers."""

    sentence = "`@` multiplies matrices, not numbers"
    advice = "T.gemm multiplies tiles, `*` numbers"


class UndefinedName(AuthorError, NameError):
    """A Python name that nothing defines, or that has no value yet."""

    def __init__(self, error: NameError, known: Sequence[str], *, span: Span | None = None) -> None:
        name = getattr(error, "name", None) or next(iter(re.findall(r"'(\w+)'", str(error))), "")
        unset = isinstance(error, UnboundLocalError) or "free variable" in str(error)
        words = "is used before it has a value" if unset else "is not defined"
        hint = near(name, [other for other in known if other != name]) or ("" if unset else near(name, dir(builtins)))
        hint = hint or "assign it before this line, or import it"
        super().__init__(f"the name {name!r} {words}", span=span, hint=hint)


class WrongArguments(AuthorError, TypeError):
    """A call that does not fit the signature."""

    advice = "{signature}"


class WrongUnpacking(AuthorError):
    """A loop or a kernel that gives another number of values than the author names."""

    def __init__(self, what: str, given: int, named: int) -> None:
        noun = "value" if given == 1 else "values"
        one = given == 1 and what != "T.Parallel"
        super().__init__(
            f"{what} gives {given} {noun} here, but {named} names are bound",
            hint="bind one name" if one else f"write as many names as {what} has extents",
        )


class SourceUnavailable(AuthorError):
    """A function whose source text cannot be read."""

    sentence = "the source of {name} is not available"
    advice = "define the kernel with `def` in a file or a notebook cell: its source is rewritten before it runs"


class SourceChanged(SourceUnavailable):
    """A function whose file was changed after it was imported, so that other text stands in its place."""

    sentence = "{file} has changed since {name} was imported: its text is not there any more"
    advice = "start the process again, or import the module again"


class UnsupportedStatement(AuthorError):
    """Python that has no meaning in a kernel."""

    sentence = "{what} is not supported in a kernel"
    advice = "{what_to_write}"


UNSUPPORTED: dict[str, tuple[str, str]] = {
    "Try": ("`try`", "a kernel cannot catch exceptions; remove it, or test the condition before"),
    "TryStar": ("`try`", "a kernel cannot catch exceptions; remove it, or test the condition before"),
    "AsyncFor": ("`async for`", "write `for`"),
    "AsyncWith": ("`async with`", "write `with T.Kernel(...)`"),
    "AsyncFunctionDef": ("`async def`", "write `def`"),
    "Await": ("`await`", "a kernel runs on the device and cannot await"),
    "Yield": ("`yield`", "a kernel cannot be a generator; return the result"),
    "YieldFrom": ("`yield from`", "a kernel cannot be a generator; return the result"),
    "Global": ("`global`", "pass the value as a parameter, or read it without declaring it"),
    "Nonlocal": ("`nonlocal`", "pass the value as a parameter, or use T.alloc_var for what changes"),
    "Delete": ("`del`", "names end with their block; remove it"),
    "ClassDef": ("a nested class", "define it outside the kernel"),
    "NamedExpr": ("`:=`", "assign the name in a statement of its own"),
}
"""Syntax nodes that a kernel may not contain, how messages name them, what to write instead."""


class UnsupportedContext(AuthorError):
    """``with`` on something that is no block of the program."""

    sentence = "`with` in a kernel takes T.Kernel, not {found}"
    advice = "move other context managers out of the kernel"


class MacroExpected(AuthorError):
    """`T.macro` on something that is no function."""

    sentence = "T.macro decorates a Python function, not {found}"
    advice = "write `@T.macro` above a `def`"


# Values -------------------------------------------------------------------------------------------


class NumberExpected(AuthorError):
    """An operand, extent or option of the wrong kind."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what} is {found}", hint=f"expected {expected}")


class SeveralValues(AuthorError, TypeError):
    """Arithmetic on all indices of a grid or of a loop at once, or on several sizes that share one name."""

    sentence = "{operation} is given all {count} values of {word} at once"
    advice = "give each a name, as in `{names}`"


class SymbolicCondition(AuthorError):
    """Python asks a symbolic value for its truth."""

    sentence = "Python cannot know whether a symbolic condition holds while the kernel is traced"
    advice = "in a helper function, add @T.macro above its `def`; in an expression, write T.if_then_else(...)"


class SymbolicConstant(AuthorError):
    """A symbolic value where a constant is needed."""

    sentence = "{what} needs a value that is known while the kernel is traced, but this one is symbolic"
    advice = (
        "use a Python int, such as a parameter of the enclosing function, a T.const size or the i of `for i in (0, 1):`"
    )


class SymbolicIteration(AuthorError):
    """Python iterates over a symbolic value."""

    sentence = "cannot iterate over {what}"
    advice = "write `for i in range(n)` for a loop, and index with i"


class LoopOutsideKernel(AuthorError, TypeError):
    """A loop of the program where Python itself would run it."""

    sentence = "{word} is a loop of the program, which Python cannot run"
    advice = "write `for i in {word}(...)` in a kernel, or in a helper with @T.macro above its `def`"


class SymbolicKey(AuthorError, TypeError):
    """A symbolic value as the key of a dictionary or a member of a set."""

    sentence = "a symbolic value cannot be hashed, so it is no key of a dictionary or a set"
    advice = "index a tensor with it, or use a Python list over constants"


class IntegerDivision(AuthorError):
    """``/`` on two integers."""

    sentence = "`/` on two integers is ambiguous"
    advice = "write `//` for the quotient, or T.cast(x, 'float32') / y"


class TensorOperand(AuthorError):
    """A whole tensor where a scalar is needed."""

    sentence = "{what} works on scalars, not on {found}"
    advice = "loop over the elements: `for i, j in T.Parallel(...)` and index with i, j"


class NotIndexable(AuthorError, TypeError):
    """An index on a scalar."""

    sentence = "{found} has no elements"
    advice = "only tensors, tiles and slices are indexed"


class TensorCondition(AuthorError):
    """``if`` on a tensor."""

    sentence = "{found} has no truth value"
    advice = "test an element, T.any_of(tile) or T.all_of(tile)"


class ScalarExpected(AuthorError):
    """A store of something that is no scalar, or to something that is no element."""

    advice = "use T.copy(source, destination) for tiles, T.fill(tile, value) for one value"

    def __init__(self, what: str, found: str) -> None:
        assigned = what == "an assignment"
        super().__init__(f"cannot assign to {found}" if assigned else f"{what} takes one scalar, but {found} was given")


class TileExpected(AuthorError):
    """A tile operator's operand that is no tile."""

    def __init__(self, what: str, found: str, expected: str = "a tensor, a tile, a slice or an element of one") -> None:
        super().__init__(f"{what} is {found}", hint=f"expected {expected}")


class ViewMismatch(AuthorError):
    """A view that does not fit the memory it views."""

    sentence = "{name!r} cannot be viewed this way: it {problem}"
    advice = "give a shape of the same size in bytes"


# Indices ------------------------------------------------------------------------------------------


class WrongRank(AuthorError, IndexError):
    """Too few or too many indices."""

    def __init__(self, what: str, rank: int, given: int) -> None:
        noun = "dimension" if rank == 1 else "dimensions"
        super().__init__(
            f"{what} has {rank} {noun}, but {given} {'index is' if given == 1 else 'indices are'} given",
            hint="give one index or slice a dimension; `...` stands for the dimensions not named" if rank else None,
        )


class FloatIndex(AuthorError):
    """An index that is a float."""

    sentence = "an index of {what} is {found}, not an integer"
    advice = "use `//`, or T.cast(x, 'int32')"


class IndexOutOfRange(AuthorError, IndexError):
    """A constant index outside a dimension."""

    sentence = "index {index} is out of range in dimension {dimension} of {what}"
    advice = "the extent there is {size}"


class PassesTheEnd(AuthorError, IndexError):
    """A region whose first index is counted from the end, and that is longer than what is left there."""

    sentence = (
        "index {index} counts from the end, and {extent} elements from there pass the end of dimension {dimension} of "
        "{name!r}"
    )
    advice = (
        "end the region with the tensor; zeros are read before a tensor where the kernel computes the start, as in "
        "A[bx * 64 - 2]"
    )


class SliceStep(AuthorError):
    """A slice with a step."""

    sentence = "a slice with a step is no rectangular tile"
    advice = "write a T.Parallel loop that steps its index"


class SymbolicExtent(AuthorError):
    """A tile operator on a slice whose length is not known."""

    sentence = "{operator} needs tiles of known size, but the {operand} in {buffer!r} has a symbolic extent"
    advice = "slice with a constant length, `A[i * 64 : (i + 1) * 64]`; what reaches beyond the end is cut off"


class OperatorMismatch(AuthorError):
    """Operands that do not fit together, as the operator's own check says."""

    def __init__(self, operator: str, problem: str) -> None:
        advice = next((text for name, text in _ADVICE.items() if operator.startswith(name) or name in problem), None)
        super().__init__(f"{operator}: {problem}", hint=advice or "make the operands' shapes and dtypes agree")


_ADVICE = {
    "overlap in": "copy to a second tile, and from there",
    "T.copy": "give both sides the same shape; extents of 1 do not count",
    "T.gemm_sp": "A is (M, K / 2), E is uint8 (M, K / 8) as formats.sparse.compress gives them, B is (K, N), C "
    "is (M, N)",
    "T.gemm": "A is (M, K), B is (K, N), C is (M, N) and wide enough to sum in; transpose_A and transpose_B swap axes",
    "T.atomic": "an element of a tensor or a shared tile, of a type that the operation has; what one thread has needs "
    "none",
    "T.reduce": "the destination has the source's shape without `dim`, or with 1 there",
}
