"""The products as operators of torch: what a compiled graph calls, with shapes that a tracer can know without running, and gradients.

A graph names the layer that owns a weight by a handle, whose kernels may bring the codes into another order while the graph lives.
Eager calls of `Linear` do not come this way.
"""

import itertools
import weakref
from typing import Any, Protocol

from tilewright.errors import Unsupported, WeightIsGone
from tilewright.matmul.dense_tensor import dense_tensor
from tilewright.matmul.experts import grouped_matmul
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.product import quant_matmul


class Owner(Protocol):
    """What holds a weight: a layer."""

    @property
    def weight(self) -> PackedWeight | PackedExperts:
        """The weight as it is now."""


_OWNERS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def handle_of(owner: Owner) -> str:
    """A new name under which operators find a layer, for as long as it lives."""
    handle = f"layer-{next(_NUMBERS)}"
    _OWNERS[handle] = owner
    return handle


def weight_of(handle: str) -> PackedWeight:
    """The weight of the layer with a handle.

    Raises
    ------
    WeightIsGone : the layer was deleted.
    """
    owner = _OWNERS.get(handle)
    if owner is None:
        raise WeightIsGone(f"the layer of the handle {handle!r} was deleted", hint="keep it alive while its graph runs")
    return owner.weight


def apply_function(name: str | None, values: Any) -> Any:
    """An epilogue's function by torch, which knows its gradient."""
    import torch

    if name == "gelu_tanh":
        return torch.nn.functional.gelu(values, approximate="tanh")
    return values if name is None else getattr(torch.nn.functional, name)(values)


def register_operators() -> None:
    """Make ``torch.ops.tilewright.quant_matmul`` and the gradient of its activations known to torch."""
    import torch

    @torch.library.custom_op("tilewright::quant_matmul", mutates_args=())
    def run(
        x: torch.Tensor,
        out_features: int,
        handle: str,
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
        handle: str,
        activation_scales: Any,
        bias: Any,
        residual: Any,
        quantize: Any,
        function: Any,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], out_features), dtype=out_dtype)

    @torch.library.custom_op("tilewright::quant_matmul_gradient", mutates_args=())
    def gradient(grad: torch.Tensor, in_features: int, handle: str) -> torch.Tensor:
        return grad @ dense_tensor(weight_of(handle), grad.dtype)

    @gradient.register_fake
    def shaped_gradient(grad: torch.Tensor, in_features: int, handle: str) -> torch.Tensor:
        return grad.new_empty((*grad.shape[:-1], in_features))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        x, _, ctx.handle, scales, ctx.bias, residual, _, ctx.function, _ = inputs
        ctx.width, ctx.dtype, ctx.others = x.shape[-1], x.dtype, (scales, residual)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if ctx.function is not None or any(other is not None and other.requires_grad for other in ctx.others):
            raise Unsupported(
                "gradients through an epilogue's function, residual or scales", ("gradients of x and of the bias",)
            )
        of_x = gradient(grad.contiguous(), ctx.width, ctx.handle).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        of_bias = None
        if ctx.needs_input_grad[4]:
            of_bias = grad.sum(tuple(range(grad.ndim - 1))).to(ctx.bias.dtype)
        return of_x, None, None, None, of_bias, None, None, None, None

    run.register_autograd(backward, setup_context=keep)

    def keep_gradient(ctx: Any, inputs: Any, output: Any) -> None:
        grad, _, ctx.handle = inputs
        ctx.columns = grad.shape[-1]

    def backward_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return run(grad.contiguous(), ctx.columns, ctx.handle, None, None, None, None, None, grad.dtype), None, None

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
        x: torch.Tensor, sizes: torch.Tensor, columns: int, handle: str, bias: torch.Tensor | None, quantize: str | None,
        function: str | None,
    ) -> torch.Tensor:  # fmt: skip
        return grouped_matmul(x, weight_of(handle), sizes, bias=bias, quantize=quantize, function=function)  # type: ignore[arg-type]

    @run.register_fake
    def shaped(
        x: torch.Tensor, sizes: torch.Tensor, columns: int, handle: str, bias: Any, quantize: Any, function: Any
    ) -> torch.Tensor:  # fmt: skip
        return x.new_empty((x.shape[0], columns))

    @torch.library.custom_op("tilewright::grouped_matmul_gradient", mutates_args=())
    def gradient(grad: torch.Tensor, sizes: torch.Tensor, width: int, handle: str) -> torch.Tensor:
        found, start = grad.new_zeros(len(grad), width), 0
        for weight, size in zip(weight_of(handle), sizes.tolist()):  # type: ignore[call-overload]
            if size:
                rows = slice(start, start + size)
                found[rows] = grad[rows] @ dense_tensor(weight, grad.dtype)
            start += size
        return found

    @gradient.register_fake
    def shaped_gradient(grad: torch.Tensor, sizes: torch.Tensor, width: int, handle: str) -> torch.Tensor:
        return grad.new_empty((grad.shape[0], width))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        x, sizes, _, ctx.handle, _, _, ctx.function = inputs
        ctx.width = x.shape[1]
        ctx.save_for_backward(sizes)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if ctx.function is not None or ctx.needs_input_grad[4]:
            raise Unsupported("gradients through an epilogue's function or of experts' biases", ("gradients of x",))
        return gradient(grad.contiguous(), *ctx.saved_tensors, ctx.width, ctx.handle), *[None] * 6

    run.register_autograd(backward, setup_context=keep)
