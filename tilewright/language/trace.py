"""From the author's function to a program: run it once, rewritten, with stand-ins for its parameters."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import CellType, FrameType, FunctionType
from typing import Any, NoReturn

from tilewright.errors import InternalError, InvalidProgram, Span, TilewrightError, TilewrightWarning
from tilewright.ir import POINTERS, DType, bound_variables, find, size_in, size_variables
from tilewright.ir import nodes as ir
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.language import mistakes_of_scopes
from tilewright.language.buffers import BufferProxy
from tilewright.language.dtypes import NumberType
from tilewright.language.external import without_results
from tilewright.language.kernel import KernelContext, close_launch
from tilewright.language.mistakes import UndefinedName, WrongArguments
from tilewright.language.proxies import Scalar, describe
from tilewright.language.recording import Builder, activate, expression_of, parameters_span, word
from tilewright.language.rewriting import rewritten
from tilewright.language.source import annotated_in_body
from tilewright.language.tensors import PointerAnnotation, PointerProxy, TensorAnnotation, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class PrimFunc:
    """A traced and verified function.

    Attributes
    ----------
    function : the program, at stage ``traced``; its ``outputs`` are what the caller gets back.
    span : the author's ``def``.
    """

    function: ir.Function
    span: Span | None

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def params(self) -> tuple[ir.Buffer | ir.Var, ...]:
        """The parameters in the author's order; outputs of the direct style come last."""
        return self.function.params

    @property
    def attrs(self) -> dict[str, object]:
        """What `T.func_attr` said, and the function's name as ``global_symbol``."""
        return {"global_symbol": self.name, **dict(self.function.attributes)}

    @property
    def buffer_map(self) -> dict[ir.Buffer, BufferProxy]:
        """Each tensor of the parameters, as authors see tensors."""
        return {param: BufferProxy(param) for param in self.params if isinstance(param, ir.Buffer)}

    def with_attr(self, key: str, value: object) -> PrimFunc:
        """The same function under another name (``global_symbol``), or with another attribute."""
        changed = (
            {"name": str(value)}
            if key == "global_symbol"
            else {"attributes": tuple({**dict(self.function.attributes), key: value}.items())}
        )
        return PrimFunc(replace(self.function, **changed), self.span)  # type: ignore[arg-type]

    def with_outputs(self, indices: int | Sequence[int] | None) -> PrimFunc:
        """The same function with some parameters made by the caller's side and returned.

        Parameters
        ----------
        indices : positions in `params`, negative ones from the end; None for no outputs.

        Raises
        ------
        UnknownOutput : a position that no tensor parameter has.
        """
        if indices is None:
            return self
        outputs: list[ir.Buffer] = []
        for index in [indices] if isinstance(indices, (int, str)) else indices:
            if not isinstance(index, int):
                raise mistakes_of_scopes.UnknownOutput(repr(index), self.name, len(self.params), span=self.span)
            found = self.params[index] if -len(self.params) <= index < len(self.params) else None
            if not isinstance(found, ir.Buffer):
                raise mistakes_of_scopes.UnknownOutput(index, self.name, len(self.params), span=self.span)
            outputs.append(found)
        return PrimFunc(replace(self.function, outputs=tuple(outputs)), self.span)

    def show(self) -> str:
        """The program as text."""
        return print_program(self.function)

    script = show

    def __str__(self) -> str:
        return self.show()

    def __repr__(self) -> str:
        return f"<PrimFunc {self.name}>"

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise WrongArguments(
            f"{self.name} is a traced function and cannot be called",
            "compile it with tilewright.compile, or return it from a function decorated with tilewright.jit",
        )


@word
def prim_func(func: Callable[..., object] | None = None, *, eager_jit: object = False, **options: object) -> Any:
    """Decorator: traces a function with annotated parameters, at once.

    Tensor parameters are annotated ``A: T.Tensor((M, K), "float16")``, scalars ``n: T.int32``.  One whose annotation is
    None is left out, and None in the body: ``bias: T.Tensor((N,), "float32") if with_bias else None``.  The result is
    a `PrimFunc`.

    Parameters
    ----------
    func : whose parameters are annotated.
    eager_jit, options : accepted for TileLang's and TVM's sake.

    Examples
    --------
    >>> @T.prim_func
    ... def example(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    ...     with T.Kernel(1):
    ...         T.copy(A, C)
    """
    namespace = _caller_names()
    if func is None:
        return lambda decorated: trace_annotated(decorated, namespace)
    return trace_annotated(func, namespace)


def _caller_names() -> Mapping[str, object]:
    """Names visible where the decorator stands, for annotations that are texts."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tilewright.language"):
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def trace_annotated(function: Any, namespace: Mapping[str, object]) -> PrimFunc:
    """Trace a function whose parameters are all annotated.

    Work of a function that opens no kernel is done by one thread, as on a processor in TileLang; a warning says so.
    """
    try:
        return _traced(function, namespace)
    except mistakes_of_scopes.OutsideKernel as error:
        try:
            made = _traced(function, namespace, alone=True)
        except mistakes_of_scopes.NestedKernel:
            raise error.with_traceback(None) from None
        warnings.warn(
            f"one thread does the work of {function.__name__}, which has no "
            f"T.Kernel\n{error.span.show() if error.span else ''}",
            TilewrightWarning,
            stacklevel=4,
        )
        return made


def _traced(function: Any, namespace: Mapping[str, object], alone: bool = False) -> PrimFunc:
    builder = Builder(function.__name__, "prim_func", parameters_span(function))
    annotations = evaluated_annotations(function, namespace)
    values: dict[str, Any] = {}
    for name in parameter_names(function):
        if name not in annotations and name in annotated_in_body(function):
            builder.params[name] = None
            values[name] = Undeclared(name)
        elif name in annotations and annotations[name] is None:
            values[name] = None
        else:
            values[name] = add_parameter(builder, name, annotations.get(name))
    builder.declaration = functools.partial(_declared, builder)
    result, place = run(builder, function, values, alone)
    return finish(builder, returned_outputs(builder, result, place))


def _declared(builder: Builder, name: str, annotation: object, value: object) -> object:
    """``name: annotation`` in the body: a parameter that had none in the signature."""
    if name not in builder.params:
        raise mistakes_of_scopes.MissingAnnotation(name, builder.name, describe(annotation))
    return add_parameter(builder, name, annotation)


class Undeclared:
    """Stands for a tensor parameter before its annotation."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def _fail(self, *_: object) -> NoReturn:
        raise mistakes_of_scopes.UndeclaredTensor(self.__dict__["_name"])

    __getattr__ = __getitem__ = __setitem__ = __iter__ = __bool__ = _fail


def returned_outputs(builder: Builder, result: object, place: Span | None) -> tuple[ir.Buffer, ...]:
    """The tensors that a function returns: those of `T.empty`."""
    returned = () if result is None else result if isinstance(result, (tuple, list)) else (result,)
    outputs = []
    for value in returned:
        if not isinstance(value, BufferProxy) or value.buffer not in builder.outputs:
            raise mistakes_of_scopes.WrongReturn(
                f"{builder.name} returns {describe(value)}, but only tensors made by T.empty can be returned",
                "make the result with T.empty(shape, dtype) and return that",
                span=place,
            )
        outputs.append(value.buffer)
    return tuple(outputs)


def parameter_names(function: Any) -> tuple[str, ...]:
    """Names of the parameters, in order.

    Raises
    ------
    MissingAnnotation : the function takes ``*args`` or ``**kwargs``.
    """
    code = function.__code__
    if code.co_flags & 0x0C:
        raise mistakes_of_scopes.MissingAnnotation(
            "*args or **kwargs", function.__name__, span=parameters_span(function)
        )
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def evaluated_annotations(function: Any, namespace: Mapping[str, object]) -> dict[str, object]:
    """The parameters' annotations; those kept as texts (PEP 563) are evaluated where the function was defined."""
    found: dict[str, object] = {}
    enclosed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, annotation in function.__annotations__.items():
        if type(annotation) is str:
            names = {**namespace, **{n: c.cell_contents for n, c in enclosed.items() if _filled(c)}}
            try:
                annotation = eval(annotation, function.__globals__, names)
            except TilewrightError as error:
                raise error.at(parameters_span(function)) from None
            except Exception:
                continue
        found[name] = annotation
    return found


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def scalar_dtype(annotation: object) -> DType | None:
    """The dtype of a scalar parameter's annotation, None where it is no number type of `T`."""
    return annotation.record if isinstance(annotation, NumberType) else None


def add_parameter(builder: Builder, name: str, annotation: object) -> Any:
    """Add a parameter of the program; its stand-in."""
    dtype = scalar_dtype(annotation)
    if dtype is not None:
        var = ir.Var(dtype, name)
        builder.params[name] = var
        return Scalar(var)
    if isinstance(annotation, PointerAnnotation):
        builder.params[name] = None
        return PointerProxy(name, annotation.dtype)
    if not isinstance(annotation, TensorType):
        what = "T.Tensor itself" if isinstance(annotation, TensorAnnotation) else None
        if what is None and annotation is not None:
            what = getattr(annotation, "__name__", None) or describe(annotation)
        raise mistakes_of_scopes.MissingAnnotation(name, builder.name, what, span=builder.span)
    buffer = annotation.buffer(name)
    builder.params[name] = buffer
    if annotation.pointers:
        builder.attributes[POINTERS] = (*builder.attributes.get(POINTERS, ()), name)
    return BufferProxy(buffer)


def run(
    builder: Builder, function: Callable[..., object], values: Mapping[str, object], alone: bool = False
) -> tuple[Any, Span | None]:
    """Run the rewritten function; mistakes leave with the author's line and without our frames.

    Parameters
    ----------
    alone : whether all of it is a kernel of one thread.

    Returns
    -------
    what the function returned, and its ``def`` for messages about it.
    """
    if not isinstance(function, FunctionType):
        raise mistakes_of_scopes.MissingAnnotation("what is decorated", describe(function))
    try:
        with activate(builder), KernelContext((1,), (1, 1, 1), {}) if alone else nullcontext():
            result = rewritten(function, "function")(**values)
            close_launch()
            return result, builder.span
    except TilewrightError as error:
        raise error.at(expression_of(error.__traceback__)).with_traceback(None) from None
    except RecursionError as error:
        raise mistakes_of_scopes.EndlessCalls().at(expression_of(error.__traceback__)) from None
    except NameError as error:
        names = _names_where(error, function)
        if names is None:
            raise
        raise UndefinedName(error, names, span=expression_of(error.__traceback__)) from None


def _names_where(error: NameError, function: Any) -> list[str] | None:
    """The names that the author's line could mean; None where the error comes from somebody else's code."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or traceback.tb_frame.f_code.co_filename != function.__code__.co_filename:
        return None
    frame = traceback.tb_frame
    return [name for name in (*frame.f_locals, *frame.f_globals) if not name.startswith("__")]


def finish(builder: Builder, outputs: tuple[ir.Buffer, ...]) -> PrimFunc:
    """The traced function, checked."""
    if not builder.kernels:
        raise mistakes_of_scopes.MissingKernel(builder.name, span=builder.span)
    for buffer, span in builder.outputs.items():
        if buffer not in outputs:
            raise mistakes_of_scopes.MissingReturn(buffer.name, span=span)
    params: list[ir.Buffer | ir.Var] = []
    for name, param in builder.params.items():
        if param is None:
            raise mistakes_of_scopes.MissingAnnotation(name, builder.name, span=builder.span)
        params.append(param)
    body = without_results(ir.Seq(tuple(builder.root.statements), span=builder.span))
    said = tuple(sorted(builder.attributes.items()))
    function = ir.Function(builder.name, (*params, *outputs), body, outputs, attributes=said, span=builder.span)
    check_sizes(function)
    try:
        verify(function)
    except InvalidProgram as error:
        raise InternalError(
            f"tracing {builder.name} gave an invalid program: {error.message}", span=error.span
        ) from None
    return PrimFunc(function, builder.span)


def check_sizes(function: ir.Function) -> None:
    """Every symbolic size must stand alone as an extent or a stride of an input, or with constants, so that this binds
    it.

    Raises
    ------
    UnboundDynamicSize
    """
    bare: set[ir.Expr] = {param for param in function.params if isinstance(param, ir.Var)}
    for param in function.inputs:
        if isinstance(param, ir.Buffer):
            bare.update(e for e in map(size_in, (*param.shape, *(param.strides or ()))) if e is not None)
    mentioned = dict.fromkeys(size_variables(function))
    bound = bound_variables(function.body)
    mentioned.update(dict.fromkeys(v for v in find(function.body, ir.Var) if v not in bound))
    for var in mentioned:
        if var not in bare:
            raise mistakes_of_scopes.UnboundDynamicSize(function.name, var.name, span=function.span)
