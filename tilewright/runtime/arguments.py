"""From the caller's arguments to pointers, scalars and sizes, with every mismatch named.

Nothing runs before all arguments are checked: count, kind, dtype, rank, shape relations, strides, alignment,
device, writability, overlap.  What depends only on shapes and types is checked once for each combination of
them and remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import errors
from tilewright.errors import an, near
from tilewright.ir import ADDRESSED, Buffer, Function, Var, conditional_parameters, dtypes, entry_parameters, evaluate
from tilewright.ir.arguments import Expectations, TensorView, row_major_strides
from tilewright.ir.walking import buffers, variables
from tilewright.language.tensors import TensorType
from tilewright.runtime.tensors import Array, allocator_like, allocator_on, is_tensor, table_of, tensor_view


@dataclass(frozen=True, slots=True)
class Bound:
    """A call ready to run.

    Attributes
    ----------
    entry : the entry arguments: pointers, scalars, then sizes.
    outputs : the tensors to return.
    keepalive : whatever must live until the kernel has run.
    device : index of the device on which the tensors are; None where there are none.
    """

    entry: list[int | float | bool]
    outputs: list[Any]
    keepalive: list[object]
    device: int | None = None


class Binder(Expectations):
    """Checks and converts the arguments of one function.

    Parameters
    ----------
    function : its parameters, outputs and sizes say what is expected.
    device : kind of memory the kernel can reach (``"cpu"``, ``"cuda"``).
    packed_bytes : for each parameter declared packed, how many bytes its packed form has.
    """

    def __init__(self, function: Function, device: str, packed_bytes: Mapping[Buffer, int] | None = None) -> None:
        super().__init__(function, packed_bytes)
        self.device, self.inputs = device, function.inputs
        self.names = [param.name for param in self.inputs]
        self.optional = conditional_parameters(function)
        self.addressed = frozenset(function.attribute(ADDRESSED, ()))
        self._known: dict[object, dict[Var, int]] = {}

    def bind(self, arguments: Sequence[object], named: Mapping[str, object]) -> Bound:
        """Check the arguments of a call and allocate its outputs.

        Raises
        ------
        ArgumentError : a subclass that says which argument is wrong, what was found and what was expected.
        """
        values = self.with_tables(self.in_order(arguments, named))
        views: dict[Buffer, TensorView] = {}
        scalars: dict[Var, int | float | bool] = {}
        addresses: dict[Buffer, int] = {}
        example = None
        for param, value in zip(self.inputs, values, strict=True):
            if isinstance(param, Buffer) and param.name in self.addressed and type(value) is int:
                addresses[param] = value
            elif isinstance(param, Buffer):
                views[param] = self._view(param, value)
                example = value if example is None else example
            else:
                scalars[param] = self.number(param, value)
        shapes = self._shapes(views, scalars)
        self._check_memory(views)
        outputs: dict[Buffer, Array] = {}
        if self.function.outputs:
            allocate = allocator_on(self.device) if example is None else allocator_like(example)
            for buffer in self.function.outputs:
                outputs[buffer] = allocate(tuple(evaluate(e, shapes) for e in buffer.shape), buffer.dtype)
                views[buffer] = self._view(buffer, outputs[buffer])
        entry: list[int | float | bool] = [
            scalars[param] if isinstance(param, Var) else views[param].pointer if param in views else addresses[param]
            for param in self.function.params
        ]
        entry += [shapes[var] for var in self.sizes]
        device = next((view.device[1] for view in views.values()), None)
        return Bound(entry, list(outputs.values()), [values, outputs], device)

    def has_tensors(self, values: Sequence[object]) -> bool:
        """Whether no tensor is left out, or given by its address."""
        return not any(isinstance(p, Buffer) and (v is None or type(v) is int) for p, v in zip(self.inputs, values))

    def with_tables(self, values: list[Any]) -> list[Any]:  # tensors of any library, and numbers
        """The arguments with a tensor of addresses in place of each list of tensors that a table of pointers stands
        for."""
        if not self.pointers or not any(isinstance(value, (list, tuple)) for value in values):
            return values
        return [
            self._table(param, value) if param.name in self.pointers and isinstance(value, (list, tuple)) else value
            for param, value in zip(self.inputs, values, strict=True)
        ]

    def _table(self, param: Buffer | Var, tensors: Sequence[object]) -> Any:
        views = []
        for number, one in enumerate(tensors):
            element = Buffer(f"{param.name}[{number}]", (), dtypes.UINT64)
            views.append(self._view(element, one))
        return table_of(tensors, [view.pointer for view in views])

    @property
    def entry_parameters(self) -> tuple[Buffer | Var, ...]:
        """What `Bound.entry` holds, in order."""
        return entry_parameters(self.function)

    def arguments(self, inputs: Sequence[object], outputs: Sequence[object]) -> list[object]:
        """Inputs and outputs of a call in the order of the function's parameters."""
        given, made = iter(inputs), iter(outputs)
        return [next(made) if param in self.function.outputs else next(given) for param in self.function.params]

    def with_tensors(self, inputs: Sequence[object], bound: Bound) -> list[Any]:  # tensors of any library, and numbers
        """The entry arguments with tensors in the place of addresses."""
        given = zip(self.function.params, self.arguments(inputs, bound.outputs), strict=True)
        tensors: dict[Buffer | Var, object] = {param: value for param, value in given if isinstance(param, Buffer)}
        return [tensors.get(param, value) for param, value in zip(self.entry_parameters, bound.entry, strict=True)]

    def in_order(self, arguments: Sequence[object], named: Mapping[str, object]) -> list[Array | int]:
        """The input arguments in the order of the signature."""
        if not named and len(arguments) == len(self.names):
            return self._with_absent(list(arguments))
        signature = f"{self.function.name}({', '.join(self.names)})"
        if len(arguments) > len(self.names):
            raise errors.WrongArgumentCount(
                f"{signature} takes {len(self.names)} arguments, {len(arguments)} were given",
                hint=self._outputs_hint(len(arguments)),
            )
        values = dict(zip(self.names, arguments))
        for name, value in named.items():
            if name not in self.names:
                raise errors.WrongArgumentCount(
                    f"{signature} has no parameter {name!r}", hint=near(name, self.names) or None
                )
            if name in values:
                raise errors.WrongArgumentCount(f"{signature} was given {name!r} twice")
            values[name] = value
        missing = [name for name in self.names if name not in values]
        if missing:
            raise errors.WrongArgumentCount(f"{signature} lacks {', '.join(missing)}")
        return self._with_absent([values[name] for name in self.names])

    def _with_absent(self, values: list[Any]) -> list[Array | int]:
        """The arguments with a tensor for each None that a tensor may be left out by, of which nothing is read."""
        absent = [i for i, (p, one) in enumerate(zip(self.inputs, values)) if one is None and p in self.optional]
        if not absent:
            return values
        sizes: dict[Var, int] = {}
        for param, value in zip(self.inputs, values):
            if isinstance(param, Var) and isinstance(value, int):
                sizes[param] = value
            elif isinstance(param, Buffer) and is_tensor(value):
                for extent, found in zip(param.shape, tensor_view(value).shape, strict=False):
                    self.tell(sizes, {}, extent, found, f"an extent of {param.name!r}")
        example = next((value for value in values if is_tensor(value)), None)
        allocate = allocator_on(self.device) if example is None else allocator_like(example)
        for place in absent:
            param = self.inputs[place]
            assert isinstance(param, Buffer)
            untold = _shape_variables([param]) - set(sizes)
            body = self.function.body
            if untold & (variables(body) | _shape_variables([*buffers(body), *self.function.outputs])):
                raise errors.WrongArgumentKind(
                    f"argument {param.name!r} is None, and no other argument tells its shape", hint="pass a tensor"
                )
            shape = tuple(evaluate(extent, {**dict.fromkeys(untold, 0), **sizes}) for extent in param.shape)
            values[place] = allocate(shape, param.dtype)
        return values

    def _outputs_hint(self, given: int) -> str | None:
        outputs = self.function.outputs
        if outputs and given == len(self.function.params):
            return f"{', '.join(b.name for b in outputs)} is allocated and returned by the call: do not pass it"
        return None

    def _view(self, param: Buffer, value: object) -> TensorView:
        if not is_tensor(value):
            raise errors.WrongArgumentKind(
                f"argument {param.name!r} is {an(type(value).__name__)}, expected a tensor",
                hint="a tensor may be left out that the kernel touches under conditions alone: pass this one"
                if value is None
                else "pass a NumPy array, a torch tensor or anything with __dlpack__",
            )
        view = tensor_view(value)
        if view.device[0] != self.device:
            raise errors.WrongArgumentDevice(
                f"argument {param.name!r} is on {view.device[0]}, the kernel runs on {self.device}",
                hint="move the tensor, or compile the kernel for the tensor's device with target="
                + ("; kernel.emulate(...) runs it here without a GPU" if view.device[0] == "cpu" else ""),
            )
        return view

    def _shapes(self, views: Mapping[Buffer, TensorView], scalars: Mapping[Var, object]) -> dict[Var, int]:
        """Sizes of this call; everything that depends on shapes, strides and types alone is checked here."""
        integers = tuple(v for v in scalars.values() if isinstance(v, int))
        key = (integers, *((view.shape, view.strides, view.dtype) for view in views.values()))
        known = self._known.get(key)
        if known is None:
            known = self.told(views, scalars)
            if len(self._known) > 4096:
                self._known.clear()
            self._known[key] = known
        return known

    def _check_memory(self, views: Mapping[Buffer, TensorView]) -> None:
        """What depends on addresses: alignment, device, writability, overlap."""
        first: TensorView | None = None
        for param, view in views.items():
            alignment = view.dtype.storage_bytes
            if view.pointer % alignment and 0 not in view.shape:
                raise errors.MisalignedArgument(
                    f"argument {param.name!r} starts at an address that is no multiple of {alignment} bytes",
                    hint="pass a copy",
                )
            if first is not None and view.device != first.device:
                raise errors.WrongArgumentDevice(
                    f"argument {param.name!r} is on {view.device[0]}:{view.device[1]}, others on "
                    f"{first.device[0]}:{first.device[1]}"
                )
            first = first or view
            if param in self.written:
                self.check_writable(param, view)
                self._check_overlap(param, view, views)

    def _check_overlap(self, param: Buffer, view: TensorView, views: Mapping[Buffer, TensorView]) -> None:
        low, high = byte_range(view)
        for other, other_view in views.items():
            if other is param or other_view.handle != view.handle:
                continue
            other_low, other_high = byte_range(other_view)
            if low < other_high and other_low < high:
                raise errors.OverlappingArguments(
                    f"argument {param.name!r}, which the kernel writes, shares memory with {other.name!r}",
                    hint="pass a copy of one of them, or say that it is meant: T.annotate_restrict_buffers"
                    if other_view.pointer == view.pointer and other_view.shape == view.shape
                    else "pass a copy of one of them",
                )


def _shape_variables(params: Sequence[Buffer]) -> set[Var]:
    extents = (extent for param in params for extent in param.shape if not isinstance(extent, int))
    return set[Var]().union(*map(variables, extents))


def byte_range(view: TensorView) -> tuple[int, int]:
    """Addresses from the first byte to behind the last one; empty for tensors without elements."""
    if 0 in view.shape:
        return view.pointer, view.pointer
    size = view.dtype.storage_bytes
    low = high = 0
    for extent, stride in zip(view.shape, view.strides, strict=True):
        reach = (extent - 1) * stride
        low, high = min(low, low + reach), max(high, high + reach)
    return view.pointer + low * size, view.pointer + (high + 1) * size


def shape_and_strides(name: str, value: object, declared: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Logical shape and strides of an argument; packed sub-byte types count elements, not bytes."""
    if is_tensor(value):
        view = tensor_view(value)
        shape, strides = view.shape, view.strides
    elif hasattr(value, "shape"):
        shape = tuple(value.shape)
        strides = row_major_strides(shape)
    elif isinstance(value, (list, tuple)) and all(isinstance(extent, int) for extent in value):
        return tuple(value), row_major_strides(tuple(value))
    elif declared.pointers and isinstance(value, (list, tuple)):
        shape, strides = (len(value),), (1,)  # the tensors that a table's entries point to
    else:
        raise errors.WrongArgumentKind(f"argument {name!r} is {an(type(value).__name__)}, expected a tensor")
    per_byte = declared.element.per_byte
    if per_byte > 1 and shape:
        shape = (*shape[:-1], shape[-1] * per_byte)
    return shape, strides
