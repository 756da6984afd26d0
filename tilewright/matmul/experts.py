"""Products with several weights: runs of rows with one weight each (mixture of experts), and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import Unsupported, WrongArgumentDevice, WrongArgumentKind, WrongArgumentShape, an
from tilewright.ir.dtypes import dtype
from tilewright.kernels import FUNCTIONS, PAIRED, Request
from tilewright.libraries import torch
from tilewright.matmul import arrays
from tilewright.matmul.grouped_calls import GroupedCall, check_token_scales, epilogue_behind, result_type
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.planning import result_columns
from tilewright.matmul.product import is_followed, quant_matmul
from tilewright.matmul.tiers.dispatch import choose
from tilewright.runtime.tensors import Array, is_torch
from tilewright.targets.registry import resolve_device


def grouped_matmul(
    x: Array,
    weights: Sequence[PackedWeight],
    sizes: Any,
    *,
    activation_scales: Array | None = None,
    quantize: str | None = None,
    bias: Array | None = None,
    function: str | None = None,
    out_dtype: object = None,
) -> Any:  # of the library that x is of
    """Rows of `x` in consecutive runs, run i times ``weights[i]``: ``function(x_i @ W_i^T + bias_i)``.

    Parameters
    ----------
    x : ``[rows, K]``.
    weights : of one shape ``[N, K]``; `PackedExperts` for one launch, any others for one launch a run.
    sizes : rows of each run, 0 for none: numbers, or a tensor of integers on the device of `x`, which is read there.
    activation_scales : one a token, ``[rows, 1]``.
    bias : one for each weight, ``[weights, N]``.
    function : as in `quant_matmul`; or of neighbouring columns, a gate and what passes it, as `kernels.epilogue.PAIRED`
        says: ``"swiglu"``, ``"clamped_swiglu"`` (gpt-oss).
    quantize, out_dtype : as in `quant_matmul`.

    Returns
    -------
    ``[rows, N]``, for functions of pairs ``[rows, N / 2]``.  Rows behind the last run are not written.

    Raises
    ------
    WrongArgumentShape : sizes that do not add up to the rows (where they are numbers), weights of different shapes.
    WrongArgumentDevice : sizes on another device.

    Notes
    -----
    One launch on Hopper serves weights that are multiplied as they are (16-bit floats, and int8 or 8-bit floats with
    scales of channels by activations of the same type, which `quantize` makes), and low-bit weights by 16-bit
    activations. `explain_grouped` says what keeps others from it. Bias and function are part of it for low-bit weights,
    and a kernel behind it for the others, whose sums are float32 till then. Elsewhere, and for all other forms, there
    is a launch for each run that has rows; sizes on the device are then waited for.
    """
    followed = is_followed(x, bias)
    if (
        followed
        and isinstance(weights, PackedExperts)
        and x.dtype.itemsize > 1
        and activation_scales is out_dtype is None
    ):
        return _traced(x, weights, sizes, bias, quantize, function)
    _check_operands(x, weights, activation_scales, quantize)
    on_device = is_torch(sizes)
    if is_torch(sizes):
        arrays.check_strided("the sizes", sizes)
        sizes = arrays.with_numbers(sizes)
    if on_device and arrays.device_of(sizes) != arrays.device_of(x):
        raise WrongArgumentDevice(
            f"the sizes are on {arrays.device_of(sizes)}, the activations on {arrays.device_of(x)}"
        )
    _check_sizes(x, weights, sizes, on_device)
    _check_epilogue(weights, bias, function)
    if x.shape[0] and isinstance(weights, PackedExperts) and not followed and weights.are_for_threads:
        call = GroupedCall.of(x, weights, sizes, activation_scales, quantize, out_dtype, bias, function)
        if isinstance(call, GroupedCall):
            return call.run()
    given = sizes.tolist() if on_device else [int(size) for size in sizes]
    if function not in PAIRED or all(_makes_pairs(weight, x, quantize) for weight in weights):
        return _one_by_one(x, weights, given, activation_scales, out_dtype, quantize, bias, function)
    sums = _one_by_one(x, weights, given, activation_scales, "float32", quantize)
    out = arrays.empty_like(x, (x.shape[0], result_columns(weights[0].shape[0], function)), result_type(x, out_dtype))
    if x.shape[0]:
        arch = resolve_device(arrays.device_of(x))[1]
        kernel, arguments = epilogue_behind(sums, sizes, len(weights), bias, function, out, arch)
        kernel(*arguments)
    return out


def _traced(
    x: Array,
    weights: PackedExperts,
    sizes: Sequence[int] | Array,
    bias: object,
    quantize: str | None,
    function: str | None,
) -> Array:
    """The call as an operator of torch (`torch_operators`)."""
    columns = result_columns(weights.shape[0], function)
    sizes = sizes if is_torch(sizes) else torch.tensor(list(sizes), dtype=torch.int32, device=x.device)
    return torch.ops.tilewright.grouped_matmul(x, sizes, columns, weights.handle, bias, quantize, function)


def quant_bmm(
    x: Array, weights: Sequence[PackedWeight], *, out_dtype: object = None, **options: Any
) -> Array:  # of x's library
    """``y[b] = x[b] W_b^T`` for a batch of weights of one shape.

    Parameters
    ----------
    x : ``[B, M, K]``.
    weights : B of them; `PackedExperts` for one launch where there is one.
    out_dtype, options : as in `grouped_matmul`.

    Returns
    -------
    ``[B, M, N]``.
    """
    _check_operands(x, weights)
    if len(x.shape) != 3 or x.shape[0] != len(weights):
        raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [{len(weights)}, M, K]")
    batch, rows, width = x.shape
    found = grouped_matmul(x.reshape(batch * rows, width), weights, [rows] * batch, out_dtype=out_dtype, **options)
    return found.reshape(batch, rows, found.shape[-1])


def _check_operands(
    x: Any, weights: Sequence[PackedWeight], activation_scales: Array | None = None, quantize: str | None = None
) -> None:
    """The operands are tensors and weights, the scales one a token. Raises WrongArgumentKind, WrongArgumentShape,
    Unsupported."""
    arrays.device_of(x, "x")
    if is_torch(x):
        arrays.check_strided("the activations", x)
    if not isinstance(weights, Sequence):
        raise WrongArgumentKind.given(weights, "the weights", hint="a list of PackedWeight")
    for number, weight in enumerate(() if isinstance(weights, PackedExperts) else weights):
        if not isinstance(weight, PackedWeight):
            raise WrongArgumentKind(f"weight {number} is {an(type(weight).__name__)}, expected a PackedWeight")
    if activation_scales is not None and quantize is not None:
        raise Unsupported("activation_scales beside quantize", ("one of the two: quantising makes scales",))
    check_token_scales(x, activation_scales)


def _check_epilogue(weights: Sequence[PackedWeight], bias: Array | None, function: str | None) -> None:
    """The parts of an epilogue are such as experts have. Raises Unsupported, WrongArgumentShape,
    WrongArgumentDevice."""
    N = weights[0].shape[0]
    if function is not None and function not in (*FUNCTIONS, *PAIRED):
        raise Unsupported(f"the activation function {function!r}", (*FUNCTIONS, *PAIRED))
    result_columns(N, function)
    if bias is not None:
        arrays.device_of(bias, "bias")
        if tuple(bias.shape) != (len(weights), N):
            raise WrongArgumentShape(f"bias has shape {list(bias.shape)}, expected {[len(weights), N]}")
        arrays.check_device("bias", bias, "the weights are", weights[0].place)


def _check_sizes(x: Array, weights: Sequence[PackedWeight], sizes: Any, on_device: bool) -> None:
    if on_device:
        if tuple(sizes.shape) != (len(weights),) or not arrays.element_type(sizes).is_integer:
            raise WrongArgumentShape(
                f"the sizes are {list(sizes.shape)} of {arrays.element_type(sizes)}, expected [{len(weights)}] integers"
            )
    else:
        if not isinstance(sizes, (list, tuple)) and (sizes is None or np.ndim(sizes) != 1):
            raise WrongArgumentShape(f"the sizes are {sizes!r}, expected {len(weights)} numbers of rows")
        numbers = [int(size) for size in sizes]
        _check_not_negative(numbers)
        if len(numbers) != len(weights) or sum(numbers) != x.shape[0]:
            raise WrongArgumentShape(
                f"{len(numbers)} runs of {sum(numbers)} rows were given for {len(weights)} weights and "
                f"{x.shape[0]} rows",
                hint="one size for each weight, together all rows of x",
            )
    shapes = [weights.shape] if isinstance(weights, PackedExperts) else sorted({weight.shape for weight in weights})
    if len(shapes) != 1:
        raise WrongArgumentShape(f"the weights have {len(shapes)} different shapes, expected one: {shapes[:2]}")
    if len(x.shape) != 2:
        raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [rows, K]")


def _check_not_negative(sizes: Sequence[int]) -> None:
    if min(sizes, default=0) < 0:
        raise WrongArgumentShape(f"a run of {min(sizes)} rows was given")


def _makes_pairs(weight: PackedWeight, x: Array, quantize: str | None) -> bool:
    """Whether the kernel of a weight's products ends with functions of pairs; else a kernel behind it does those."""
    source = arrays.element_type(x).name

    def asked() -> bool:
        request = Request(source, "float32", quantize=quantize)
        return choose(weight.facts, request, resolve_device(weight.place)[1])[0].pairs

    return weight.derived(("makes pairs", source, quantize), asked)


def _one_by_one(
    x: Array,
    weights: Sequence[PackedWeight],
    sizes: Sequence[int],
    activation_scales: Array | None,
    out_dtype: object,
    quantize: str | None = None,
    bias: Array | None = None,
    function: str | None = None,
) -> Array:
    """A launch for each run that has rows."""
    _check_not_negative(sizes)
    if sum(sizes) > x.shape[0]:
        raise WrongArgumentShape(f"the sizes add up to {sum(sizes)}, but there are {x.shape[0]} rows")
    scales = None if activation_scales is None else activation_scales.reshape(-1, 1)

    def product(number: int, rows: slice, out: Array | None = None, out_dtype: object = None) -> Any:
        return quant_matmul(
            x[rows],
            weights[number],
            activation_scales=None if scales is None else scales[rows],
            quantize=quantize,
            bias=None if bias is None else bias[number],
            function=function,
            out_dtype=out_dtype,
            out=out,
        )

    out, start, source = None, 0, arrays.element_type(x)
    if out_dtype is not None or (source.is_float and source.bits >= 16):  # else the first product's type decides
        out = arrays.empty_like(
            x, (x.shape[0], result_columns(weights[0].shape[0], function)), result_type(x, out_dtype)
        )
    stays = not is_torch(x) or not x.is_cuda  # rows of a new array are as kernels take them
    for number, size in enumerate(sizes):
        if size == 0:
            continue
        rows = slice(start, start + size)
        start += size
        if out is None:
            first = product(number, rows, out_dtype=out_dtype)
            if size == x.shape[0]:
                return first
            out = arrays.empty_like(x, (x.shape[0], first.shape[1]), dtype(first.dtype))
            out[rows] = first
        elif stays or arrays.is_row_major(out[rows]):
            product(number, rows, out=out[rows])
        else:
            out[rows] = product(number, rows, out_dtype=out.dtype)
    if out is not None and start:
        return out
    none = product(0, slice(0, 0), out_dtype=out_dtype)  # or what is wrong with the call
    return none if out is None else out
