"""Every mistake that an author can make in a kernel, one class each: the sentence, what was expected, what to write."""

from __future__ import annotations

from tilewright.errors import Span, TilewrightError


class AuthorError(TilewrightError):
    """Base of the mistakes in a kernel's source."""


class MisplacedRole(AuthorError):
    """Roles and what belongs to them, written where they have no place."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)


# Names and calls ----------------------------------------------------------------------------------


class UnknownName(AuthorError, AttributeError):
    """``T.something`` that does not exist."""

    def __init__(self, name: str, hint: str, *, span: Span | None = None) -> None:
        super().__init__(f"tilewright.language has no name {name!r}", span=span, hint=hint or None)


class WrongArguments(AuthorError, TypeError):
    """A call that does not fit the signature."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)


class WrongUnpacking(AuthorError):
    """A loop or a kernel that gives another number of values than the author names."""

    def __init__(self, what: str, given: int, named: int) -> None:
        noun = "value" if given == 1 else "values"
        super().__init__(
            f"{what} gives {given} {noun} here, but {named} names are bound",
            hint=f"write as many names as {what} has extents" if what != "T.serial" else "bind one name",
        )


class SourceUnavailable(AuthorError):
    """A function whose source text cannot be read."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the source of {name} is not available",
            hint="define the kernel with `def` in a file or a notebook cell: its source is rewritten before it runs",
        )


class SourceChanged(SourceUnavailable):
    """A function whose file was changed after it was imported, so that other text stands in its place."""

    def __init__(self, name: str, file: str) -> None:
        AuthorError.__init__(
            self,
            f"{file} has changed since {name} was imported: its text is not there any more",
            hint="start the process again, or import the module again",
        )


class UnsupportedStatement(AuthorError):
    """Python that has no meaning in a kernel."""

    def __init__(self, what: str, hint: str, *, span: Span | None = None) -> None:
        super().__init__(f"{what} is not supported in a kernel", span=span, hint=hint)


class UnsupportedContext(AuthorError):
    """``with`` on something that is no block of the program."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"`with` in a kernel takes T.Kernel, not {found}", hint="move other context managers out of the kernel"
        )


class MacroExpected(AuthorError):
    """`T.macro` on something that is no function."""

    def __init__(self, found: str) -> None:
        super().__init__(f"T.macro decorates a Python function, not {found}", hint="write `@T.macro` above a `def`")


# Values -------------------------------------------------------------------------------------------


class NumberExpected(AuthorError):
    """An operand, extent or option of the wrong kind."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what} is {found}", hint=f"expected {expected}")


class SymbolicCondition(AuthorError):
    """Python asks a symbolic value for its truth."""

    def __init__(self) -> None:
        super().__init__(
            "Python cannot know whether a symbolic condition holds while the kernel is traced",
            hint="in a helper function, add @T.macro above its `def`; in an expression, write T.if_then_else(...)",
        )


class SymbolicConstant(AuthorError):
    """A symbolic value where a constant is needed."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(
            f"{what} needs a value that is known while the kernel is traced, but this one is symbolic",
            hint=hint
            or "use a Python int, such as a parameter of the enclosing function, a T.const size or the i of `for i in (0, 1):`",
        )


class SymbolicIteration(AuthorError):
    """Python iterates over a symbolic value."""

    def __init__(self, what: str) -> None:
        super().__init__(f"cannot iterate over {what}", hint="write `for i in range(n)` for a loop, and index with i")


class LoopOutsideKernel(AuthorError, TypeError):
    """A loop of the program where Python itself would run it."""

    def __init__(self, word: str) -> None:
        super().__init__(
            f"{word} is a loop of the program, which Python cannot run",
            hint=f"write `for i in {word}(...)` in a kernel, or in a helper with @T.macro above its `def`",
        )


class SymbolicKey(AuthorError, TypeError):
    """A symbolic value as the key of a dictionary or a member of a set."""

    def __init__(self) -> None:
        super().__init__(
            "a symbolic value cannot be hashed, so it is no key of a dictionary or a set",
            hint="index a tensor with it, or use a Python list over constants",
        )


class IntegerDivision(AuthorError):
    """``/`` on two integers."""

    def __init__(self) -> None:
        super().__init__(
            "`/` on two integers is ambiguous", hint="write `//` for the quotient, or T.cast(x, 'float32') / y"
        )


class TensorOperand(AuthorError):
    """A whole tensor where a scalar is needed."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(
            f"{what} works on scalars, not on {found}",
            hint="loop over the elements: `for i, j in T.Parallel(...)` and index with i, j",
        )


class NotIndexable(AuthorError, TypeError):
    """An index on a scalar."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found} has no elements", hint="only tensors, tiles and slices are indexed")


class TensorCondition(AuthorError):
    """``if`` on a tensor."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found} has no truth value", hint="test an element, T.any_of(tile) or T.all_of(tile)")


class ScalarExpected(AuthorError):
    """A store of something that is no scalar, or to something that is no element."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(
            f"{what} takes one scalar, but {found} was given"
            if what != "an assignment"
            else f"cannot assign to {found}",
            hint="use T.copy(source, destination) for tiles, T.fill(tile, value) for one value",
        )


class TileExpected(AuthorError):
    """A tile operator's operand that is no tile."""

    def __init__(self, what: str, found: str, expected: str = "a tensor, a tile, a slice or an element of one") -> None:
        super().__init__(f"{what} is {found}", hint=f"expected {expected}")


class ViewMismatch(AuthorError):
    """A view that does not fit the memory it views."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(
            f"{name!r} cannot be viewed this way: it {problem}", hint="give a shape of the same size in bytes"
        )


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

    def __init__(self, what: str, found: str) -> None:
        super().__init__(f"an index of {what} is {found}, not an integer", hint="use `//`, or T.cast(x, 'int32')")


class IndexOutOfRange(AuthorError, IndexError):
    """A constant index outside a dimension."""

    def __init__(self, index: object, dimension: int, size: object, what: str) -> None:
        super().__init__(
            f"index {index} is out of range in dimension {dimension} of {what}",
            hint=f"the extent there is {size}",
        )


class SliceStep(AuthorError):
    """A slice with a step."""

    def __init__(self) -> None:
        super().__init__(
            "a slice with a step is no rectangular tile", hint="write a T.Parallel loop that steps its index"
        )


class SymbolicExtent(AuthorError):
    """A tile operator on a slice whose length is not known."""

    def __init__(self, operator: str, operand: str, buffer: str) -> None:
        super().__init__(
            f"{operator} needs tiles of known size, but the {operand} in {buffer!r} has a symbolic extent",
            hint="slice with a constant length, `A[i * 64 : (i + 1) * 64]`; what reaches beyond the end is cut off",
        )


# Scopes -------------------------------------------------------------------------------------------


class OutsideFunction(AuthorError):
    """A statement of the program outside any traced function."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} stands outside a kernel function",
            hint="decorate the function with @T.prim_func or @tilewright.jit",
        )


class OutsideKernel(AuthorError):
    """Work of a block outside `T.Kernel`."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} stands outside T.Kernel", hint="put it under `with T.Kernel(...) as block:`")


class NestedKernel(AuthorError):
    """`T.Kernel` inside `T.Kernel`."""

    def __init__(self, line: int | None) -> None:
        where = f" of line {line}" if line else ""
        super().__init__(
            f"T.Kernel stands inside the T.Kernel{where}",
            hint="end the first block before: kernels run one after another",
        )


class MissingKernel(AuthorError):
    """A function without `T.Kernel`."""

    def __init__(self, name: str, *, span: Span | None = None) -> None:
        super().__init__(
            f"{name} has no T.Kernel",
            span=span,
            hint="write the work under `with T.Kernel(blocks, threads=128) as block:`",
        )


class TileOperatorInParallel(AuthorError):
    """Work of the whole block inside a loop over elements."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(
            f"{what} acts on the whole block and cannot stand in {where}",
            hint="move it out of the loop, or use T.serial for a loop in order",
        )


class ValueOutOfScope(AuthorError):
    """A value or a tile used after its loop, branch or kernel."""

    def __init__(self, where: str, what: str = "a value") -> None:
        super().__init__(
            f"{what} of {where} is used after its end",
            hint="use it inside, or keep it in a tile or a T.alloc_var made before",
        )


class EscapedName(AuthorError):
    """A name used after the branch or loop that assigned it."""

    def __init__(self, name: str, where: str | None) -> None:
        place = where or "a loop or branch that was not taken while tracing"
        super().__init__(
            f"{name!r} was assigned in {place} and has no value after it",
            hint=f"make it mutable before: `{name} = T.alloc_var(dtype, init=...)`",
        )


class ImmutableName(AuthorError):
    """An outer name assigned in a loop or branch of the program."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"{name!r} is immutable and cannot be assigned again in {where}",
            hint=f"make it mutable before: `{name} = T.alloc_var(dtype, init=...)`",
        )


class EffectInExpression(AuthorError):
    """Statements recorded where only a value may be computed."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} may not have an effect", hint="compute it in a statement before, or write an `if` statement"
        )


class LoopExit(AuthorError):
    """``break`` or ``continue`` in a loop whose iterations have no order."""

    def __init__(self, word: str, loop: str) -> None:
        super().__init__(
            f"`{word}` has no meaning in {loop}, whose iterations may overlap",
            hint="use an `if`, or T.serial for a loop in order",
        )


class IterationsCollide(AuthorError):
    """An element that all iterations of a parallel loop change."""

    def __init__(self, variable: str, buffer: str, span: Span | None = None) -> None:
        super().__init__(
            f"all iterations over {variable!r} change the same element of {buffer!r}, in no order: the result would be any of theirs",
            span=span,
            hint=f"reduce a tile with T.reduce_sum and its kin, loop over {variable!r} with T.serial inside, or use T.atomic_add",
        )


class SymbolicExit(AuthorError):
    """``break`` or ``continue`` of a Python loop under a symbolic condition."""

    def __init__(self, word: str, where: str) -> None:
        super().__init__(
            f"`{word}` of a Python loop stands in {where}, which is decided only where the program runs",
            hint="loop with `for i in range(n)` or T.serial, which the program executes",
        )


# Functions ----------------------------------------------------------------------------------------


class MissingAnnotation(AuthorError):
    """A parameter without a type."""

    def __init__(self, name: str, function: str, found: str | None = None, *, span: Span | None = None) -> None:
        problem = f"is annotated with {found}" if found else "has no annotation"
        super().__init__(
            f"the parameter {name!r} of {function} {problem}",
            span=span,
            hint='annotate it: `A: T.Tensor((M, N), "float16")` for a tensor, `n: T.int32` for a scalar',
        )


class NumberInBody(AuthorError):
    """A scalar parameter that the body annotates, as only tensors are there."""

    def __init__(self, name: str, function: str, dtype: str) -> None:
        super().__init__(
            f"the parameter {name!r} is a number: the signature has to say so, before a call's arguments are sorted",
            hint=f"write `def {function}(..., {name}: T.{dtype})`, and leave this line out",
        )


class UndeclaredTensor(AuthorError):
    """A tensor parameter used before its annotation in the body."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the tensor {name!r} is used before its annotation", hint=f"move `{name}: T.Tensor(...)` above this line"
        )


class WrongReturn(AuthorError):
    """A return that the style or the place does not allow."""

    def __init__(self, message: str, hint: str, *, span: Span | None = None) -> None:
        super().__init__(message, span=span, hint=hint)


class MissingReturn(AuthorError):
    """An output that is not returned."""

    def __init__(self, name: str, *, span: Span | None = None) -> None:
        super().__init__(
            f"the output {name!r} is never returned",
            span=span,
            hint=f"end the function with `return {name}`; T.alloc_global makes a workspace that stays inside",
        )


class UnknownOutput(AuthorError):
    """An ``out_idx`` that is no tensor parameter."""

    def __init__(self, index: int, function: str, count: int, *, span: Span | None = None) -> None:
        super().__init__(
            f"output {index} is no tensor parameter of {function}",
            span=span,
            hint=f"out_idx counts the {count} parameters from 0, or from -1 at the end",
        )


class ConstOutsideDirect(AuthorError):
    """`T.const` (or what else asks for the sizes of a call) in a `T.prim_func`."""

    def __init__(self, word: str = "T.const") -> None:
        super().__init__(
            f"{word} belongs to functions decorated with tilewright.jit, whose sizes come from their arguments",
            hint="use a Python int of the enclosing function, or T.dynamic for a size known at launch",
        )


class ChoiceNotKnown(AuthorError):
    """`T.suited` that cannot say what a call asks for."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"T.suited cannot choose: {what}",
            hint="call it below the tensors' annotations, with symbols of T.dynamic that are extents, and a function that gives a hashable value",
        )


class OutputOutsideDirect(AuthorError):
    """`T.empty` in a `T.prim_func`."""

    def __init__(self) -> None:
        super().__init__(
            "T.empty belongs to functions decorated with tilewright.jit, which return their results",
            hint="add a tensor parameter and name it in out_idx, or use T.alloc_global for a workspace",
        )


class UnboundSize(AuthorError):
    """A `T.const` symbol that no argument gives."""

    def __init__(self, name: str, *, span: Span | None = None) -> None:
        super().__init__(
            f"no argument gives the size {name!r}",
            span=span,
            hint=f"write {name} alone as an extent or a stride of an annotated tensor parameter",
        )


class UnboundDynamicSize(AuthorError):
    """A `T.dynamic` symbol that no argument gives."""

    def __init__(self, name: str, function: str, *, span: Span | None = None) -> None:
        super().__init__(
            f"no argument of {function} gives the size {name!r}",
            span=span,
            hint=f"write {name} alone as an extent or a stride of a tensor parameter, or make it one: `{name}: T.int32`",
        )


class SizeMismatch(AuthorError, ValueError):
    """Arguments whose shapes give one size two values."""

    def __init__(self, message: str, *, span: Span | None = None) -> None:
        super().__init__(message, span=span, hint="pass tensors whose shapes agree")


class OperatorMismatch(AuthorError):
    """Operands that do not fit together, as the operator's own check says."""

    def __init__(self, operator: str, problem: str) -> None:
        advice = next((text for name, text in _ADVICE.items() if operator.startswith(name)), None)
        super().__init__(f"{operator}: {problem}", hint=advice or "make the operands' shapes and dtypes agree")


_ADVICE = {
    "T.copy": "give both sides the same shape; extents of 1 do not count",
    "T.gemm_sp": "A is (M, K / 2), E is uint8 (M, K / 8) as formats.sparse.compress gives them, B is (K, N), C is (M, N)",
    "T.gemm": "A is (M, K), B is (K, N), C is (M, N) and wide enough to sum in; transpose_A and transpose_B swap axes",
    "T.reduce": "the destination has the source's shape without `dim`, or with 1 there",
}
