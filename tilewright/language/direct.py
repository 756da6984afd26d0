"""The direct style: a function whose body declares its tensors, traced for the arguments of a call.

``DirectFunction(python_function)`` is what the JIT holds.  It works in two steps, so that the JIT can key its cache
between them:

1. ``declaration = direct.declare(constants)``: given the compile-time arguments, the function runs as far as its
   last tensor annotation.  The declaration holds the type of every tensor parameter, over size symbols.
   ``declaration.bind(shapes, strides)`` finds the value of each `T.const` symbol in the shapes of actual arrays.
2. ``prim_func = direct.trace(constants, sizes, numbers)``: the function runs whole, with the `T.const` symbols as
   Python ints; `T.dynamic` symbols stay variables of the program, but `T.suited` may ask for those of the call.

``direct.parameters`` says which parameters are tensors, runtime scalars and compile-time constants;
``direct.split(*args, **kwargs)`` sorts the arguments of a call accordingly, defaults filled in.
`is_factory` tells the other style: a function that returns a `PrimFunc`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from tilewright.errors import Span, TilewrightError
from tilewright.ir import DType, Var
from tilewright.language.choices import Choice
from tilewright.language.mistakes import SymbolicCondition, SymbolicConstant
from tilewright.language.mistakes_of_scopes import MissingAnnotation, NumberInBody, SizeMismatch, UnboundSize
from tilewright.language.proxies import describe
from tilewright.language.recording import Builder, mismatch, parameters_span
from tilewright.language.source import annotated_in_body, body_facts
from tilewright.language.tensors import PointerAnnotation, TensorType
from tilewright.language.trace import (
    PrimFunc,
    Undeclared,
    add_parameter,
    evaluated_annotations,
    finish,
    parameter_names,
    returned_outputs,
    run,
    scalar_dtype,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a direct function.

    Attributes
    ----------
    kind : ``tensor``, ``pointer`` (a tensor of which the body says the shape), ``scalar`` (a number known only at
        launch) or ``constant`` (part of the specialisation).
    dtype : of a scalar; None otherwise.
    """

    name: str
    kind: str
    dtype: DType | None = None
    default: object = inspect.Parameter.empty

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


_LEFT_OUT: object = object()
"""Stands for a tensor or a scalar of which nothing is said."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a direct function takes, given its compile-time arguments.

    Attributes
    ----------
    tensors : the type of each tensor parameter, over `sizes` and `T.dynamic` variables.
    sizes : the `T.const` symbols by name.
    span : the author's ``def``.
    """

    name: str
    tensors: Mapping[str, TensorType]
    sizes: Mapping[str, Var]
    span: Span | None = None

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]],
        strides: Mapping[str, Sequence[int]] | None = None,
        named: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Values of the `T.const` symbols, from the arguments' shapes (and strides in elements, where declared).

        Parameters
        ----------
        shapes, strides : of the arguments; of some of them where `named` has what the others would say.
        named : values of symbols by name.

        Raises
        ------
        SizeMismatch : an argument has another rank, or two extents give one symbol two values.
        UnboundSize : a symbol that no extent or stride is.
        """
        named, known = named or {}, set(self.sizes.values())
        found = {var: (named[name], "an argument") for name, var in self.sizes.items() if name in named}
        for name, declared in self.tensors.items():
            if not declared.packed and name in shapes and len(shapes[name]) != len(declared.extents):
                raise SizeMismatch(
                    f"{self.name}: the tensor {name!r} has shape {tuple(shapes[name])}, but {len(declared.extents)} "
                    "dimensions are declared",
                    span=self.span,
                )
        for var, value, here in self._told(shapes, strides or {}):
            before, where = found.setdefault(var, (value, here)) if var in known else (value, here)
            if before != value:
                raise SizeMismatch(
                    f"{self.name}: {var.name} is {before} as {where}, but {value} as {here}", span=self.span
                )
        for name, var in self.sizes.items():
            if var not in found:
                partly = f"pass {name}=, or a tensor that has it" if self.tensors.keys() - shapes.keys() else None
                raise UnboundSize(name, span=self.span, hint=partly)
        return {name: found[var][0] for name, var in self.sizes.items()}

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of all sizes that tensors declare, those known only at launch too."""
        extents = [e for declared in self.tensors.values() for e in (*declared.extents, *(declared.steps or ()))]
        return tuple(dict.fromkeys([*self.sizes, *(extent.name for extent in extents if isinstance(extent, Var))]))

    def numbers(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Values of the symbols that are extents, by name; another rank is told when arguments are bound."""
        return {var.name: value for var, value, _ in self._told(shapes, {})}

    def _told(
        self, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[Var, int, str]]:
        """Symbols that extents and strides are, the value of each there, and the place in words.

        The bytes of a packed tensor are in the compiler's order and say nothing of its shape.
        """
        for name, declared in self.tensors.items():
            given = ("extent", declared.extents, shapes), ("stride", declared.steps or (), strides)
            for what, told, of in given if not declared.packed else ():
                for dimension, (extent, value) in enumerate(zip(told, of.get(name, ()), strict=False)):
                    if isinstance(extent, Var):
                        yield extent, int(value), f"{what} {dimension} of {name!r}"


class _DeclarationComplete(BaseException):
    """Ends the first run: every tensor parameter has been declared."""


@dataclass(slots=True)
class _DeclarationBuilder:
    """Collects annotations; called by the rewritten function for each ``name: annotation``."""

    builder: Builder
    expected: frozenset[str]
    stop: bool
    types: dict[str, TensorType] = field(default_factory=dict)

    def __call__(self, name: str, annotation: object, value: object) -> object:
        if (number := scalar_dtype(annotation)) is not None:
            raise NumberInBody(name, self.builder.name, number.name)
        if not isinstance(annotation, TensorType):
            raise MissingAnnotation(name, self.builder.name, describe(annotation))
        if value is None:  # left out: the body may ask
            return None
        self.types[name] = annotation
        if self.stop:
            if self.expected <= self.types.keys():
                raise _DeclarationComplete
            return value
        return add_parameter(self.builder, name, annotation)


class _SizeBuilder(Builder):
    """The builder of a direct function."""

    def __init__(
        self, name: str, span: Span | None, sizes: Mapping[str, int] | None, numbers: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(name, "direct", span)
        self.sizes = None if sizes is None else dict(sizes)
        self.numbers = dict(numbers or {})
        """Sizes known only at launch, as the call has them that the function is traced for."""
        self.choices: list[Choice] = []
        self.symbols: dict[str, Var] = {}


class DirectFunction:
    """A function of the direct style.

    Parameters
    ----------
    function : the author's function.

    Attributes
    ----------
    parameters : in order; see `Parameter`.
    span : the author's ``def``.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.name = function.__name__
        self.span = parameters_span(function)
        self.signature = inspect.signature(function)
        self._annotations = evaluated_annotations(function, {})
        declared = annotated_in_body(function)
        self.parameters = tuple(self._parameter(name, declared) for name in parameter_names(function))

    def _parameter(self, name: str, declared: frozenset[str]) -> Parameter:
        annotation = self._annotations.get(name)
        default = self.signature.parameters[name].default
        if name in declared or isinstance(annotation, TensorType):
            return Parameter(name, "tensor", default=default)
        if isinstance(annotation, PointerAnnotation):
            return Parameter(name, "pointer", default=default)
        dtype = scalar_dtype(annotation)
        return Parameter(name, "constant" if dtype is None else "scalar", dtype, default)

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of the parameters of one kind, in order."""
        return tuple(parameter.name for parameter in self.parameters if parameter.kind == kind)

    def split(self, *arguments: object, **keywords: object) -> tuple[dict[str, object], dict[str, object]]:
        """The runtime arguments (tensors and scalars, in order) and the compile-time ones of a call, by name.

        A tensor that is left out (None) counts as a constant: the kernel may ask ``if bias is not None``.

        Raises
        ------
        WrongArguments : the arguments do not fit the signature.
        """
        try:
            bound = self.signature.bind(*arguments, **keywords)
        except TypeError:
            problem = mismatch(self.function, arguments, keywords, self.name)
            assert problem is not None
            raise problem from None
        bound.apply_defaults()
        constants = {p.name for p in self.parameters if p.kind == "constant" or bound.arguments[p.name] is None}
        runtime = {name: value for name, value in bound.arguments.items() if name not in constants}
        return runtime, {name: value for name, value in bound.arguments.items() if name in constants}

    def split_sized(
        self, *arguments: object, **keywords: object
    ) -> tuple[dict[str, object], dict[str, object], dict[str, Any]]:  # sizes, as the caller has them
        """The same of a call, and the numbers whose names are no parameters: sizes, perhaps."""
        sizes = {name: keywords.pop(name) for name in list(keywords) if self._may_be_size(name, keywords[name])}
        return (*self.split(*arguments, **keywords), sizes)

    def split_partly(
        self, *arguments: object, **keywords: object
    ) -> tuple[dict[str, object], dict[str, object], dict[str, Any]]:  # sizes, as the caller has them
        """The same for arguments that only say what to compile: tensors and scalars may be left out.

        Raises
        ------
        WrongArguments : the others do not fit the signature, or a compile-time argument is missing.
        """
        left_out = {p.name: _LEFT_OUT for p in self.parameters if p.kind != "constant" and p.is_required}
        positional = {p.name for p, _ in zip(self.parameters, arguments, strict=False)}
        given = {name: value for name, value in left_out.items() if name not in positional} | keywords
        runtime, constants, sizes = self.split_sized(*arguments, **given)
        return {name: value for name, value in runtime.items() if value is not _LEFT_OUT}, constants, sizes

    def _may_be_size(self, name: str, value: object) -> bool:
        return name not in self.signature.parameters and isinstance(value, (int, float)) and not isinstance(value, bool)

    def declare(self, constants: Mapping[str, object]) -> Declaration:
        """Read the declarations, with the compile-time arguments given.

        Parameters
        ----------
        constants : a value for each ``constant`` parameter, and None for each tensor that is left out.
        """
        builder = _SizeBuilder(self.name, self.span, None)
        annotated = ((name, found) for name, found in self._annotations.items() if name != "return")
        in_signature = {name: found for name, found in annotated if isinstance(found, TensorType)}
        present = [name for name in self.names("tensor") if name not in constants]
        expected = frozenset(present) - in_signature.keys()
        collector = _DeclarationBuilder(builder, expected, stop=True)
        builder.declaration = collector
        if expected:
            try:
                run(builder, self.function, self._values(builder, constants))
            except _DeclarationComplete:
                pass
            except (SymbolicCondition, SymbolicConstant) as error:
                raise _too_early(error) from None
            missing = expected - collector.types.keys()
            if missing:
                raise MissingAnnotation(min(missing), self.name, span=self.span)
        types = {**collector.types, **in_signature}
        return Declaration(self.name, {name: types[name] for name in present}, dict(builder.symbols), self.span)

    def trace(
        self,
        constants: Mapping[str, object],
        sizes: Mapping[str, int],
        numbers: Mapping[str, int] | None = None,
        chosen: list[Choice] | None = None,
    ) -> PrimFunc:
        """Trace the function.

        Parameters
        ----------
        constants : a value for each ``constant`` parameter.
        sizes : a value for each `T.const` symbol (`Declaration.bind`).
        numbers : the `T.dynamic` symbols of the call (`Declaration.numbers`).
        chosen : filled with what `T.suited` chose for the call, in turn.
        """
        builder = _SizeBuilder(self.name, self.span, sizes, numbers)
        builder.choices = [] if chosen is None else chosen
        builder.declaration = _DeclarationBuilder(builder, frozenset(), stop=False)
        result, place = run(builder, self.function, self._values(builder, constants))
        return finish(builder, returned_outputs(builder, result, place))

    def _values(self, builder: Builder, constants: Mapping[str, object]) -> dict[str, object]:
        """What the rewritten function is called with."""
        values: dict[str, object] = {}
        for parameter in self.parameters:
            name, given = parameter.name, constants.get(parameter.name)
            if parameter.kind == "constant" and hasattr(given, "__dlpack__") and getattr(given, "shape", None):
                raise MissingAnnotation(name, self.name, span=self.span)
            if parameter.kind == "constant" or name in constants:
                values[name] = constants[name]
            elif parameter.kind in ("scalar", "pointer") or isinstance(self._annotations.get(name), TensorType):
                values[name] = add_parameter(builder, name, self._annotations[name])
            else:
                builder.params[name] = None
                values[name] = Undeclared(name)
        return values


def _too_early(error: TilewrightError) -> TilewrightError:
    """A `T.const` symbol has no value before all tensors are declared."""
    error.hint = "move this below the last tensor annotation: T.const symbols are Python ints from there on"
    return error


def is_factory(function: Callable[..., object]) -> bool:  # any callable of Python's
    """Whether a function makes a `PrimFunc` rather than being a kernel of the direct style.

    True where it is annotated to return one, or its body defines a `T.prim_func`; where it neither does nor says
    anything of the direct style (annotated parameters, `T.Kernel`, `T.empty`, `T.const`), it is taken to return one
    that another function made.
    """
    returned = function.__annotations__.get("return")
    if returned is PrimFunc or (isinstance(returned, str) and returned.rpartition(".")[2] == PrimFunc.__name__):
        return True  # told without reading the source, which decorating would wait for
    if function.__name__ == "<lambda>":
        return True  # which has no statements to declare tensors with
    names = function.__code__.co_names
    if "prim_func" in names or "Kernel" in names:
        return "prim_func" in names
    annotated, has_prim_func, is_direct = body_facts(function)
    return has_prim_func or not (annotated or is_direct)
