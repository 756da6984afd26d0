"""The products as operators of torch: what a compiled graph calls, with shapes that a tracer can know without running, and gradients.

A graph names the layer that owns a weight, whose kernels may bring the codes into another order while the graph lives, by a handle:
an operand like the others, so that graphs of layers that are alike are one.  Eager calls of `Linear` do not come this way.
"""

import os
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.errors import Unsupported, WeightIsGone
from tilewright.matmul.arrays import is_capturing
from tilewright.matmul.dense_tensor import dense_tensor
from tilewright.matmul.experts import grouped_matmul
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.product import quant_matmul

if TYPE_CHECKING:
    import torch


class Owner(Protocol):
    """What holds a weight: a layer."""

    @property
    def weight(self) -> PackedWeight | PackedExperts:
        """The weight as it is now."""


_OWNERS: dict[int | bytes, weakref.ref[Any]] = {}
"""Layers by the addresses of their handles, and by what these hold."""

_CAPTURED: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
"""Handles of each layer that graphs of the GPU were captured with: their addresses are not given to others."""


def handle_of(owner: Owner, device: Any, old: "torch.Tensor | None" = None) -> "torch.Tensor":
    """A tensor on a device by which operators find a layer, for as long as both live.

    They know it by its address, which nothing else has meanwhile, and copies of it by its random bytes.  When the weight is replaced
    the layer keeps the `old` one, but not one that a graph of the GPU was captured with: such a graph reads memory that is no longer
    the weight's, and torch makes it anew where an address has changed.
    """
    import torch

    device = torch.device(device)
    if type(old) is torch.Tensor and old.device.type == device.type and device.index in (None, old.device.index):
        address = old.data_ptr()
        if _OWNERS.get(address, _nobody)() is owner and address not in _CAPTURED.get(owner, ()):
            return old
    name = os.urandom(16)
    with torch.inference_mode(False):
        handle = torch.tensor(list(name), dtype=torch.uint8, device=device)
    if type(handle) is torch.Tensor and not handle.is_meta:
        for key in (handle.data_ptr(), name):
            _OWNERS[key] = weakref.ref(owner)
            weakref.finalize(handle, _OWNERS.pop, key, None).atexit = False
    return handle


def weight_of(handle: "torch.Tensor") -> PackedWeight:
    """The weight of the layer with a handle.

    Raises
    ------
    WeightIsGone : there is no such layer.
    """
    owner = (_OWNERS.get(handle.data_ptr()) or _OWNERS.get(bytes(handle.tolist())) or _nobody)()
    if owner is None:
        raise WeightIsGone(
            "a graph calls a layer that was deleted, or whose weight was replaced after the graph was made",
            hint="keep the layer alive while its graph runs; an exported program that was saved has no layers in another process",
        )
    if is_capturing(handle):
        _CAPTURED.setdefault(owner, {})[handle.data_ptr()] = handle
    return owner.weight  # type: ignore[no-any-return]


def _nobody() -> None:
    return None


def apply_function(name: str | None, values: Any) -> Any:
    """An epilogue's function by torch, which knows its gradient."""
    import torch

    if name == "gelu_tanh":
        return torch.nn.functional.gelu(values, approximate="tanh")
    return values if name is None else getattr(torch.nn.functional, name)(values)


def autocast(x: "torch.Tensor") -> "torch.Tensor":
    """Activations in the type that `torch.autocast` asks for."""
    import torch

    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or not x.dtype.is_floating_point:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def register_operators() -> None:
    """Make ``torch.ops.tilewright.quant_matmul`` and the gradient of its activations known to torch."""
    import torch

    @torch.library.custom_op("tilewright::quant_matmul", mutates_args=())
    def run(
        x: torch.Tensor,
        out_features: int,
        handle: torch.Tensor,
        activation_scales: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        quantize: str | None,
        function: str | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        return quant_matmul(
            x, weight_of(handle), activation_scales=activation_scales, bias=bias, residual=residual, quantize=quantize,
            function=function, out_dtype=out_dtype,
        )  # fmt: skip

    @run.register_fake
    def shaped(
        x: torch.Tensor,
        out_features: int,
        handle: torch.Tensor,
        activation_scales: Any,
        bias: Any,
        residual: Any,
        quantize: Any,
        function: Any,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], out_features), dtype=out_dtype)

    @torch.library.custom_op("tilewright::quant_matmul_gradient", mutates_args=())
    def gradient(grad: torch.Tensor, in_features: int, handle: torch.Tensor) -> torch.Tensor:
        return grad @ dense_tensor(weight_of(handle), grad.dtype)

    @gradient.register_fake
    def shaped_gradient(grad: torch.Tensor, in_features: int, handle: torch.Tensor) -> torch.Tensor:
        return grad.new_empty((*grad.shape[:-1], in_features))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        x, _, handle, scales, ctx.bias, residual, _, ctx.function, _ = inputs
        ctx.save_for_backward(handle)
        ctx.width, ctx.dtype, ctx.others = x.shape[-1], x.dtype, (scales, residual)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if ctx.function is not None or any(other is not None and other.requires_grad for other in ctx.others):
            raise Unsupported(
                "gradients through an epilogue's function, residual or scales", ("gradients of x and of the bias",)
            )
        (handle,) = ctx.saved_tensors
        of_x = gradient(grad.contiguous(), ctx.width, handle).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        of_bias = None
        if ctx.needs_input_grad[4]:
            of_bias = grad.sum(tuple(range(grad.ndim - 1))).to(ctx.bias.dtype)
        return of_x, None, None, None, of_bias, None, None, None, None

    run.register_autograd(backward, setup_context=keep)

    def keep_gradient(ctx: Any, inputs: Any, output: Any) -> None:
        grad, _, handle = inputs
        ctx.save_for_backward(handle)
        ctx.columns = grad.shape[-1]

    def backward_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return (
            run(grad.contiguous(), ctx.columns, *ctx.saved_tensors, None, None, None, None, None, grad.dtype),
            None,
            None,
        )

    gradient.register_autograd(backward_gradient, setup_context=keep_gradient)

    def batched(info: Any, in_dims: Any, x: torch.Tensor, *rest: Any) -> Any:
        if any(dim is not None for dim in in_dims[1:]):
            raise Unsupported("vmap over a layer's weight, bias or scales", ("vmap over its activations",))
        return run(x.movedim(in_dims[0], 0), *rest), 0

    run.register_vmap(batched)

    def batched_gradient(info: Any, in_dims: Any, grad: torch.Tensor, *rest: Any) -> Any:
        return gradient(grad.movedim(in_dims[0], 0), *rest), 0

    gradient.register_vmap(batched_gradient)
    _register_grouped()


def _register_grouped() -> None:
    """Make ``torch.ops.tilewright.grouped_matmul`` known to torch: rows in runs, one weight of a layer each."""
    import torch

    @torch.library.custom_op("tilewright::grouped_matmul", mutates_args=())
    def run(
        x: torch.Tensor, sizes: torch.Tensor, columns: int, handle: torch.Tensor, bias: torch.Tensor | None, quantize: str | None,
        function: str | None,
    ) -> torch.Tensor:  # fmt: skip
        return grouped_matmul(x, weight_of(handle), sizes, bias=bias, quantize=quantize, function=function)  # type: ignore[arg-type]

    @run.register_fake
    def shaped(
        x: torch.Tensor, sizes: torch.Tensor, columns: int, handle: torch.Tensor, bias: Any, quantize: Any, function: Any
    ) -> torch.Tensor:  # fmt: skip
        return x.new_empty((x.shape[0], columns))

    @torch.library.custom_op("tilewright::grouped_matmul_gradient", mutates_args=())
    def gradient(grad: torch.Tensor, sizes: torch.Tensor, width: int, handle: torch.Tensor) -> torch.Tensor:
        found, start = grad.new_zeros(len(grad), width), 0
        for weight, size in zip(weight_of(handle), sizes.tolist()):  # type: ignore[call-overload]
            if size:
                rows = slice(start, start + size)
                found[rows] = grad[rows] @ dense_tensor(weight, grad.dtype)
            start += size
        return found

    @gradient.register_fake
    def shaped_gradient(grad: torch.Tensor, sizes: torch.Tensor, width: int, handle: torch.Tensor) -> torch.Tensor:
        return grad.new_empty((grad.shape[0], width))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        x, sizes, _, handle, _, _, ctx.function = inputs
        ctx.width = x.shape[1]
        ctx.save_for_backward(sizes, handle)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if ctx.function is not None or ctx.needs_input_grad[4]:
            raise Unsupported("gradients through an epilogue's function or of experts' biases", ("gradients of x",))
        sizes, handle = ctx.saved_tensors
        return gradient(grad.contiguous(), sizes, ctx.width, handle), *[None] * 6

    run.register_autograd(backward, setup_context=keep)
