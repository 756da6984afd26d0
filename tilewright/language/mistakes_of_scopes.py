"""Mistakes of scopes and of whole functions: where names live, what a function must say, sizes that do not agree."""

from __future__ import annotations

from tilewright.errors import Span
from tilewright.language.mistakes import AuthorError


class OutsideFunction(AuthorError):
    """A statement of the program outside any traced function."""

    sentence = "{what} stands outside a kernel function"
    advice = "decorate the function with @T.prim_func or @tilewright.jit"


class OutsideKernel(AuthorError):
    """Work of a block outside `T.Kernel`."""

    sentence = "{what} stands outside T.Kernel"
    advice = "put it under `with T.Kernel(...) as block:`"


class NestedKernel(AuthorError):
    """`T.Kernel` inside `T.Kernel`."""

    sentence = "T.Kernel stands inside the T.Kernel{of_line}"
    advice = "end the first block before: kernels run one after another"


class MissingKernel(AuthorError):
    """A function without `T.Kernel`."""

    sentence = "{name} has no T.Kernel"
    advice = "write the work under `with T.Kernel(blocks, threads=128) as block:`"


class TileOperatorInParallel(AuthorError):
    """Work of the whole block inside a loop over elements."""

    sentence = "{what} acts on the whole block and cannot stand in {where}"
    advice = "move it out of the loop, or use T.serial for a loop in order"


class ThreadsMeetInParallel(AuthorError):
    """A shuffle, a vote or another word for threads together, inside a loop over elements."""

    sentence = "threads do this together, but which of them does an iteration of T.Parallel is the compiler's choice"
    advice = "give each thread its elements: T.serial from T.get_thread_binding() on; or use T.reduce_sum and its kin"


class ValueOutOfScope(AuthorError):
    """A value or a tile used after its loop, branch or kernel."""

    sentence = "{what} of {where} is used after its end"
    advice = "use it inside, or keep it in a tile or a T.alloc_var made before"


class EscapedName(AuthorError):
    """A name used after the branch or loop that assigned it."""

    sentence = "{name!r} was assigned in {where} and has no value after it"
    advice = "make it mutable before: `{name} = T.alloc_var(dtype, init=...)`"


class ImmutableName(AuthorError):
    """An outer name assigned in a loop or branch of the program."""

    sentence = "{name!r} is immutable and cannot be assigned again in {where}"
    advice = "make it mutable before: `{name} = T.alloc_var(dtype, init=...)`"


class EffectInExpression(AuthorError):
    """Statements recorded where only a value may be computed."""

    sentence = "{where} may not have an effect"
    advice = "compute it in a statement before, or write an `if` statement"


class LoopExit(AuthorError):
    """``break`` or ``continue`` in a loop whose iterations have no order."""

    sentence = "`{word}` has no meaning in {loop}, whose iterations may overlap"
    advice = "use an `if`, or T.serial for a loop in order"


class EndlessCalls(AuthorError):
    """A macro or helper that calls itself whatever its arguments are."""

    sentence = "a macro or a helper calls itself without end: calls are written out while the kernel is traced"
    advice = "write a loop, or let a condition on Python's own numbers end the calls"


class IterationsCollide(AuthorError):
    """An element or variable that all iterations of a parallel loop change, other than by sums in tiles."""

    sentence = (
        "all iterations over {variable!r} change the same element of {buffer!r}, in no order: the result would be any "
        "of theirs"
    )
    advice = (
        "sum up in a tile, `total[0] += value`; loop over {variable!r} with T.serial inside; or store under "
        "`if {variable} == 0`"
    )


class IterationsDepend(AuthorError):
    """An element that one iteration of a parallel loop reads and another one changes."""

    sentence = "one iteration reads an element of {buffer!r} that another one changes, and they run in no order"
    advice = "store to a second tile and copy it back behind the loop, add by T.atomic_add, or loop with T.serial"


class SymbolicExit(AuthorError):
    """``break`` or ``continue`` of a Python loop under a symbolic condition."""

    sentence = "`{word}` of a Python loop stands in {where}, which is decided only where the program runs"
    advice = "loop with `for i in range(n)` or T.serial, which the program executes"


class MissingAnnotation(AuthorError):
    """A parameter without a type."""

    advice = 'annotate it: `A: T.Tensor((M, N), "float16")` for a tensor, `n: T.int32` for a scalar'

    def __init__(self, name: str, function: str, found: str | None = None, *, span: Span | None = None) -> None:
        problem = f"is annotated with {found}" if found else "has no annotation"
        super().__init__(f"the parameter {name!r} of {function} {problem}", span=span)


class NumberInBody(AuthorError):
    """A scalar parameter that the body annotates, as only tensors are there."""

    sentence = "the parameter {name!r} is a number: the signature has to say so, before a call's arguments are sorted"
    advice = "write `def {function}(..., {name}: T.{dtype})`, and leave this line out"


class UndeclaredTensor(AuthorError):
    """A tensor parameter used before its annotation in the body."""

    sentence = "the tensor {name!r} is used before its annotation"
    advice = "move `{name}: T.Tensor(...)` above this line"


class WrongReturn(AuthorError):
    """A return that the style or the place does not allow."""

    advice = "{what_to_write}"


class MissingReturn(AuthorError):
    """An output that is not returned."""

    sentence = "the output {name!r} is never returned"
    advice = "end the function with `return {name}`; T.alloc_global makes a workspace that stays inside"


class UnknownOutput(AuthorError):
    """An ``out_idx`` that is no tensor parameter."""

    sentence = "output {index} is no tensor parameter of {function}"
    advice = "out_idx counts the {count} parameters from 0, or from -1 at the end"


class ConstOutsideDirect(AuthorError):
    """`T.const` (or what else asks for the sizes of a call) in a `T.prim_func`."""

    sentence = "{word} belongs to functions decorated with tilewright.jit, whose sizes come from their arguments"
    advice = "use a Python int of the enclosing function, or T.dynamic for a size known at launch"


class ChoiceNotKnown(AuthorError):
    """`T.suited` that cannot say what a call asks for."""

    sentence = "T.suited cannot choose: {problem}"
    advice = (
        "call it below the tensors' annotations, with symbols of T.dynamic that are extents, and a function that gives "
        "a hashable value"
    )


class UnboundSize(AuthorError):
    """A `T.const` symbol that no argument gives."""

    sentence = "no argument gives the size {name!r}"
    advice = "write {name} alone as an extent or a stride of an annotated tensor parameter, or pass {name}= in the call"


class UnboundDynamicSize(AuthorError):
    """A `T.dynamic` symbol that no argument gives."""

    sentence = "no argument of {function} gives the size {name!r}"
    advice = "write {name} alone as an extent or a stride of a tensor parameter, or make it one: `{name}: T.int32`"


class SizeMismatch(AuthorError):
    """Arguments whose shapes give one size two values."""

    advice = "pass tensors whose shapes agree"
