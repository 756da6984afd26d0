"""`quant_matmul`: one call that multiplies activations by a packed weight, whatever either is made of."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tilewright.errors import NotPrepared, Unsupported, WrongArgumentDType, WrongArgumentKind, WrongArgumentShape, an
from tilewright.ir.dtypes import dtype
from tilewright.kernels import FUNCTIONS, PAIRED, Request, WeightFacts
from tilewright.libraries import is_compiling, torch
from tilewright.matmul import arrays
from tilewright.matmul.config import is_size, whole
from tilewright.matmul.known_calls import Products, check_transforms, is_watched, wants_gradients
from tilewright.matmul.packed import PackedWeight, named
from tilewright.matmul.planning import check_request, result_columns
from tilewright.matmul.replay import replay
from tilewright.matmul.results import Result, result_for, result_type
from tilewright.matmul.rotations import rotated
from tilewright.matmul.tiers import dispatch
from tilewright.matmul.tiers.base import Machine, Operands, Ready
from tilewright.matmul.tiers.base import named as named_options
from tilewright.matmul.tiers.dispatch import prepare
from tilewright.runtime.call_keys import MISSED, CallPlan, kind_of, missed
from tilewright.runtime.tensors import Array, is_torch
from tilewright.targets.registry import resolve, resolve_device
from tilewright.tuning import Candidate


def quant_matmul(
    x: Array,  # an array, or one with the name of its type
    weight: PackedWeight,
    *,
    activation_scales: Array | None = None,
    activation_group: int | None = None,
    quantize: str | None = None,
    bias: Array | None = None,
    function: str | None = None,
    residual: Array | None = None,
    out_dtype: object = None,
    out: Array | None = None,
) -> Any:  # of the library that x is of
    """``function(x @ W^T + bias) + residual`` for a quantised weight ``W``.

    Parameters
    ----------
    x : ``[..., K]``, any number of rows; floats, 8-bit floats, or integers of at most 8 bits (fewer than 8 packed, low
        bits first, ``[..., K * bits / 8]`` uint8: pass `tilewright.pack`'s result as ``(array, "int4")``).
    weight : on the device of `x`.
    activation_scales : what `x` is multiplied by: one number ``[1]``, one a token ``[..., 1]``, or one for each run of
        columns, ``[..., ceil(K / g)]`` (fastest in the order of memory in which tokens lie side by side, where the
        weight has 128 x 128 blocks).
    activation_group : g, where the shape of the scales does not say it: the weight's group is understood where there
        are as many, else what divides K, else a power of two.
    quantize : ``"int8"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``: quantise float `x` first, one scale a token; then
        there are no `activation_scales`.
    bias : ``[N]`` of any float type.
    function : ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or ``"tanh"``; on processors, where
        the tier of panels serves the call, also one of pairs of columns (`grouped_matmul`), which makes half as many.
    residual : ``[..., N]`` of the result's type, added last.
    out_dtype : of the result; by default that of float `x`, int32 for integers without any scale, else float32. Integer
        results are rounded to nearest and saturate.
    out : the result's array, written in place; of any strides, and it may share memory with `x` and `residual`, which
        are read before: kernels write beside it then, and the result is copied.

    Returns
    -------
    ``[..., N]`` of `out_dtype`.  Sums are taken in float32 (int32 for integers, float64 for float64).

    Raises
    ------
    ArgumentError : an array of a wrong shape, type or device, named.
    Unsupported : a combination that no kernel computes; says what there is.
    """
    arguments = (x, activation_scales, activation_group, quantize, bias, function, residual, out_dtype, out)
    loaded = sys.modules.get("torch")  # each call comes by here: `is_compiling` takes a tenth of a microsecond more
    is_known = type(weight) is PackedWeight and (loaded is None or not loaded.compiler.is_compiling())
    if is_known and (found := weight.calls.run(*arguments)) is not MISSED:
        return found
    given = ProductOptions(*arguments[1:])
    if is_followed(x, bias, residual, out):
        return _traced(x, weight, given)
    product = Product.of(x, weight, given)
    result = product.run()
    if is_known:
        tensors = {"x": x, "activation_scales": activation_scales, "bias": bias, "residual": residual, "out": out}
        product.remember(weight.calls, arguments, tensors)
    return result


class ProductOptions(NamedTuple):
    """What a call of `quant_matmul` has beside its activations and its weight."""

    activation_scales: Array | None = None
    activation_group: int | None = None
    quantize: str | None = None
    bias: Any = None
    function: str | None = None
    residual: Any = None
    out_dtype: object = None
    out: Any = None


def is_followed(*tensors: Array | None) -> bool:
    """Whether torch follows what is computed: its compiler, a tracer, a transform, or one who will ask for gradients.
    Raises Unsupported for gradients by transforms or forwards, which are not known."""
    if "torch" not in sys.modules or is_compiling():
        return "torch" in sys.modules
    check_transforms(*tensors, of="a product")
    return is_watched() or wants_gradients(*tensors)


def _traced(x: Array, weight: PackedWeight, given: ProductOptions) -> Array:
    """The call as an operator of torch (`torch_operators`); what is behind the sums by torch itself where gradients of
    it are wanted."""
    scales, group, quantize, bias, function, residual, out_dtype, out = given
    if weight.handle is None and not is_compiling():
        named(weight)
    if function in PAIRED:
        raise Unsupported(f"a call that torch follows with {function}", FUNCTIONS)
    if isinstance(x, tuple) or weight.handle is None:
        raise Unsupported(
            "a call that torch follows with packed activations, or of a weight made before torch was imported",
            ("tensors",),
        )
    if out is not None:
        out_dtype = out.dtype
    elif out_dtype is None and x.dtype.itemsize < 2:
        raise Unsupported(
            f"a call that torch follows with activations of {x.dtype} and no out_dtype", ("out_dtype=torch.float32",)
        )
    of = x.dtype if out_dtype is None else out_dtype
    of = of if isinstance(of, torch.dtype) else arrays.torch_type(dtype(of))
    group = _known_group(x, weight, scales, group)
    run = functools.partial(torch.ops.tilewright.quant_matmul, x, weight.shape[0], weight.handle, scales, group, bias)
    if wants_gradients(x, bias, residual):
        found = apply_function(function, run(None, quantize, None, of))
        found = found if residual is None else found + residual
    else:
        found = run(residual, quantize, function, of)
    if out is None:
        return found
    if out.shape != found.shape:
        raise WrongArgumentShape(f"out has shape {list(out.shape)}, expected {list(found.shape)}")
    return out.copy_(found)


def _known_group(x: Any, weight: PackedWeight, scales: Any, group: int | None) -> int | None:
    """The group of activation scales that operators of torch are given: what the weight says is worked out before."""
    tokens = x.shape[:-1].numel()
    if scales is None or group is not None or scales.numel() in (1, tokens):
        return group
    return _group_of(scales.shape[-1], weight) or None


def apply_function(name: str | None, values: Any) -> Array:  # numbers, arrays, tensors
    """An epilogue's function by torch, which knows its gradient."""
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(values, approximate="tanh")
    return values if name is None else getattr(torch.nn.functional, name)(values)


class Product:
    """One checked call: its prepared kernel and its operands."""

    def __init__(
        self,
        prepared: Ready,
        operands: Operands,
        made: Result,
        request: Request,
        where: object,
        rotate: Callable[[Array], Array] | None = None,
    ) -> None:
        self.prepared, self.operands, self._made, self._rotate = prepared, operands, made, rotate
        self.request, self._where = request, where

    @property
    def result(self) -> Any:  # of the library that x is of
        """What the call gives back, filled by `run`."""
        return self._made.given

    @property
    def machine(self) -> Machine:
        """Where it runs."""
        return _machine(self._where)

    def run(self) -> Any:  # of the library that x is of
        """Launch; returns the result."""
        if self.operands.activations.shape[0]:
            self.prepared(self.operands)
        return self._made.settle()

    def remember(self, calls: Products, arguments: tuple[object, ...], tensors: Mapping[str, object]) -> None:
        """Let known calls take notice of this one, which has run and is known by its `arguments`: the second of its
        kind is written down. `tensors` are those among them in their order, by their names in `quant_matmul`."""
        if self.operands.activations.shape[0] and calls.is_second(arguments):
            passed = {name: tensor for name, tensor in tensors.items() if tensor is not None}
            if self._rotate is not None:
                passed["x"] = self.operands.activations
            plan, compares = replay(self.prepared, self.operands, self._made, passed)
            if self._rotate is not None and plan is not missed:
                plan, compares = _behind(self._rotate, plan), False
            positions = [i for i, argument in enumerate(arguments) if kind_of(argument) in ("numpy", "torch")]
            calls.keep(arguments, plan, positions, compares=compares)

    def emulate(self, **options: object) -> Array:
        """Run the device text under the emulator; returns the result."""
        self.prepared.emulate(self.operands, **options)
        return self._made.settle()

    @staticmethod
    def of(
        x: Any,  # an array, or one with the name of its type
        weight: PackedWeight,
        given: ProductOptions | None = None,
        target: object = None,
        chosen: Candidate | None = None,
        **options: Any,
    ) -> Product:
        """Check a call and prepare it; see `quant_matmul`, whose other arguments are `given` or among the options.

        `target` compiles for another machine, to emulate; `chosen` are options for the kernels, of this call alone.
        """
        call = ProductOptions(**options) if given is None else given
        activation_scales, activation_group, quantize, bias, function, residual, out_dtype, out = call
        x, source = _with_type(x)
        device = arrays.device_of(x, "the activations")
        if is_torch(x):
            arrays.check_strided("the activations", x)
            x = arrays.with_numbers(x)
        quantize = None if quantize is None else dtype(quantize).name
        if quantize is not None and activation_scales is not None:
            raise Unsupported("activation_scales beside quantize", ("one of the two: quantising makes scales",))
        if not isinstance(weight, PackedWeight):
            raise WrongArgumentKind(
                f"the weight is {an(type(weight).__name__)}, expected a PackedWeight",
                hint="PackedWeight.pack(weight) makes one of a QuantizedWeight, "
                "tilewright.quantize(array, 'w4a16') that of an array",
            )
        arrays.check_device("the weight", weight.held["codes"], "the activations are", device)
        facts = weight.facts
        activations = arrays.element_type(x).name if source is None else dtype(source).name
        leading, flat = _flattened(x, facts, activations)
        columns = result_columns(facts.N, function)
        kind, group, scales = _activation_scales(activation_scales, leading, weight, device, activation_group)
        result = result_type(out, out_dtype, activations, facts, kind, quantize)
        for what, values, expected in (("bias", bias, (facts.N,)), ("residual", residual, (*leading, columns))):
            _check_array(what, values, expected, device)
        request = Request(
            activations,
            result,
            kind,
            "float32" if scales is None else arrays.element_type(scales).name,
            group,
            quantize,
            bias=None if bias is None else arrays.element_type(bias).name,
            residual=residual is not None,
            function=function,
            rows=flat.shape[0],
        )
        if residual is not None and arrays.element_type(residual).name != result:
            raise WrongArgumentDType(f"residual is {arrays.element_type(residual)}, but the result is {result}")
        prepared = _prepared(weight, request, target or device, x, chosen)
        rows, rotation = flat.shape[0], weight.held.get("rotation")
        rotate = None
        if rotation is not None:
            rotate = functools.partial(rotated, rotation=rotation, activations=activations)
            flat = rotate(flat)
        read = (
            flat, scales, None if bias is None else arrays.contiguous(bias),
            None if residual is None else arrays.contiguous(residual.reshape(rows, columns)),
        )  # fmt: skip
        made = result_for(x, (*leading, columns), dtype(result), out, read)
        return Product(prepared, Operands(*read, made.written), made, request, target or device, rotate)


def _behind(rotate: Callable[[Array], Array], plan: CallPlan) -> CallPlan:
    """A plan of a call whose activations are rotated before its launches."""
    return lambda x, *others: plan(rotate(x), *others)


def _prepared(weight: PackedWeight, request: Request, where: object, example: Array, chosen: Candidate | None) -> Ready:
    """What earlier calls have prepared: of as many rows, or of other numbers that the same kernel serves."""
    kind = "torch" if is_torch(example) else "numpy"
    key = (request, where, kind)
    found = weight.prepared.get(key) if chosen is None else None
    if found is not None:
        return found
    check_request(request, (*FUNCTIONS, *PAIRED))
    machine = _machine(where)
    if chosen is not None:
        return arrays.aside(lambda: prepare(weight, request, machine, example, chosen), example)
    of_kind = (dataclasses.replace(request, rows=0), where, kind)
    # To choose asks the weight's numbers the first time, which a graph that is captured cannot do.
    known = not arrays.is_capturing(example) or any(one[:3] == of_kind for one in weight.prepared)
    options = dispatch.chosen(weight, request, machine) if known else {}
    kernel = (*of_kind, named_options(options))
    found = weight.prepared.get(kernel)
    if found is None:
        if arrays.is_capturing(example):
            raise NotPrepared(
                "a call of a kind that has not run before, while a graph is captured",
                hint=f"call once with {request.rows} rows of {request.activations} before: kernels are compiled "
                "and weights packed then",
            )
        found = arrays.aside(lambda: prepare(weight, request, machine, example, options), example)
    weight.prepared[key] = weight.prepared[kernel] = found
    return found


def _machine(where: object) -> Machine:
    """The machine of a device's name or of a target."""
    if isinstance(where, str) and " " not in where:
        return Machine(*resolve_device(where))
    return Machine(*resolve(where))


def explain(facts: WeightFacts, request: Request, target: object = "auto") -> str:
    """Which tier serves a call, and why not the ones before it."""
    return dispatch.explain(facts, request, _machine(target).arch)


def _with_type(x: Array | tuple[Array, str]) -> tuple[object, object]:
    """Activations, and the type of packed ones where one is said."""
    if not isinstance(x, tuple):
        return x, None
    if len(x) != 2:
        raise WrongArgumentKind(f"the activations are a tuple of {len(x)}", hint='(array, "int4") are packed ones')
    return x[0], x[1]


def _flattened(x: Array, facts: WeightFacts, activations: str) -> tuple[tuple[int, ...], Array]:
    """Leading dimensions, and x as a row-major matrix."""
    per_byte = dtype(activations).per_byte
    width = -(-facts.columns // per_byte)
    if not x.shape or x.shape[-1] != width:
        raise WrongArgumentShape(
            f"the activations have shape {list(x.shape)}, but the weight is {[facts.N, facts.columns]}: "
            f"their last dimension should be {width}"
        )
    leading = tuple(x.shape[:-1])
    rows = math.prod(map(int, leading))
    return leading, arrays.contiguous(x.reshape(rows, width))


def _activation_scales(
    scales: Array | None, leading: tuple[int, ...], weight: PackedWeight, device: str, group: object
) -> tuple[str, int, Array | None]:
    """Their kind, the columns of a group, and the scales as a matrix of rows and groups."""
    if scales is None:
        return "none", 0, None
    arrays.check_device("activation_scales", scales, "the activations are", device)
    shape, rows, columns = tuple(scales.shape), math.prod(map(int, leading)), weight.shape[1]
    if scales.size == 1 if not is_torch(scales) else scales.numel() == 1:
        return "tensor", 0, scales.reshape(1, 1)
    if shape in (leading, (*leading, 1), (rows,), (rows, 1)):
        return "token", 0, arrays.contiguous(scales.reshape(rows, 1))
    if shape[:-1] in (leading, (rows,)) and shape[-1] > 1:
        group = _group_of(shape[-1], weight) if group is None else whole(group)
        if is_size(group) and -(-columns // group) == shape[-1]:
            return "group", group, scales.reshape(rows, shape[-1])
    raise WrongArgumentShape(
        f"activation_scales have shape {list(shape)}, but there are {rows} tokens of {columns} elements"
        + (f" in groups of {group}" if group else ""),
        hint=f"one number [1], one a token [{rows}, 1], or one a group of columns [{rows}, {columns} / group], "
        "with activation_group where that does not come out even",
    )


def _group_of(groups: int, weight: PackedWeight) -> int:
    """Columns that share a scale, where so many groups say it: the weight's, what divides K, or a power of two; else
    0."""
    columns, own = weight.shape[1], weight.block[1]
    if "g_idx" not in weight.held and -(-columns // own) == groups:
        return own
    if columns % groups == 0:
        return columns // groups
    rounded = 1 << (-(-columns // groups) - 1).bit_length()
    return rounded if -(-columns // rounded) == groups else 0


def _check_array(what: str, values: Array | None, expected: tuple[int, ...], device: str) -> None:
    if values is None:
        return
    arrays.check_device(what, values, "the activations are", device)
    if tuple(values.shape) != expected:
        raise WrongArgumentShape(f"{what} has shape {list(values.shape)}, expected {list(expected)}")
