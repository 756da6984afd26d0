"""Mistakes of scopes and of whole functions: where names live, what a function must say, sizes that do not agree."""

from __future__ import annotations

from tilewright.errors import Span
from tilewright.language.mistakes import AuthorError


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
            f"all iterations over {variable!r} change the same element of {buffer!r}, in no order: the result "
            "would be any of theirs",
            span=span,
            hint=f"reduce a tile with T.reduce_sum and its kin, loop over {variable!r} with T.serial inside, or "
            "use T.atomic_add",
        )


class SymbolicExit(AuthorError):
    """``break`` or ``continue`` of a Python loop under a symbolic condition."""

    def __init__(self, word: str, where: str) -> None:
        super().__init__(
            f"`{word}` of a Python loop stands in {where}, which is decided only where the program runs",
            hint="loop with `for i in range(n)` or T.serial, which the program executes",
        )


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
            hint="call it below the tensors' annotations, with symbols of T.dynamic that are extents, and a "
            "function that gives a hashable value",
        )


class UnboundSize(AuthorError):
    """A `T.const` symbol that no argument gives."""

    def __init__(self, name: str, hint: str | None = None, *, span: Span | None = None) -> None:
        super().__init__(
            f"no argument gives the size {name!r}",
            span=span,
            hint=hint or f"write {name} alone as an extent or a stride of an annotated tensor parameter",
        )


class UnboundDynamicSize(AuthorError):
    """A `T.dynamic` symbol that no argument gives."""

    def __init__(self, name: str, function: str, *, span: Span | None = None) -> None:
        super().__init__(
            f"no argument of {function} gives the size {name!r}",
            span=span,
            hint=f"write {name} alone as an extent or a stride of a tensor parameter, or make it one: `{name}: "
            "T.int32`",
        )


class SizeMismatch(AuthorError, ValueError):
    """Arguments whose shapes give one size two values."""

    def __init__(self, message: str, *, span: Span | None = None) -> None:
        super().__init__(message, span=span, hint="pass tensors whose shapes agree")
