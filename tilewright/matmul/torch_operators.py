"""The products as operators of torch: what a compiled graph calls, with shapes that a tracer can know without running,
and gradients.

A graph names the layer that owns a weight, whose kernels may bring the codes into another order while the graph lives,
by a handle: an operand like the others, so that graphs of layers that are alike are one. Eager calls of `Linear` do not
come this way.
"""

import functools
from typing import TYPE_CHECKING, Any

from tilewright.errors import Unsupported, WeightIsGone
from tilewright.matmul.dense_tensor import dense_tensor
from tilewright.matmul.experts import grouped_matmul
from tilewright.matmul.handles import handle_of, owner_of
from tilewright.matmul.known_calls import is_watched
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.product import quant_matmul
from tilewright.runtime.tensors import is_torch

if TYPE_CHECKING:
    import torch


def weight_of(handle: "torch.Tensor") -> Any:
    """The weight, or the weights, of what has a handle. Raises WeightIsGone where there is no such layer."""
    owner = owner_of(handle)
    return owner if isinstance(owner, (PackedWeight, PackedExperts)) else owner.weight


class Remembered:
    """The weight of a call, for its gradient: the layer may have another one by then, or none (it was replaced, moved
    or offloaded; `torch.func.functional_call` puts its own back).

    Attributes
    ----------
    weight : lives until the gradient was asked for; None in a graph that is traced, which asks the layer.
    """

    def __init__(self, handle: "torch.Tensor") -> None:
        self.weight = None if is_watched() or handle.is_meta else weight_of(handle)
        self._writes = self._counted()

    def _counted(self) -> dict[int, int]:
        """Writes that torch has counted to the arrays of the weight."""
        held = {} if self.weight is None else self.weight.held
        return {id(one): one._version for one in held.values() if is_torch(one) and not one.is_inference()}

    def handle(self, given: "torch.Tensor") -> "torch.Tensor":
        """A handle of the weight: the call's, where that still names it.

        Raises
        ------
        WeightIsGone : the weight was written to since.
        """
        if self.weight is None:
            return given
        if any(self._writes.get(place, count) != count for place, count in self._counted().items()):
            raise WeightIsGone(
                "a gradient was asked for of a product whose weight was written to since",
                hint="call the layer again before backward(); an array that is assigned leaves earlier calls their own",
            )
        try:
            if weight_of(given) is self.weight:
                return given
        except WeightIsGone:
            pass
        return handle_of(self.weight, given.device)


def autocast(x: "torch.Tensor") -> "torch.Tensor":
    """Activations in the type that `torch.autocast` asks for; it leaves float64 alone."""
    import torch

    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or not x.dtype.is_floating_point:
        return x
    if x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def by_column(scales: "torch.Tensor", group: int | None, x: "torch.Tensor") -> "torch.Tensor":
    """Activation scales with one number for each of the activations, or for several that share it."""
    if scales.numel() == 1:
        return scales.reshape(())
    if scales.numel() == x.shape[:-1].numel():
        return scales.reshape(*x.shape[:-1], 1)
    assert group is not None
    spread = scales.reshape(*x.shape[:-1], scales.shape[-1]).repeat_interleave(group, -1)
    return spread[..., : x.shape[-1]]


@functools.cache
def register_operators() -> None:
    """Make ``torch.ops.tilewright.quant_matmul`` and the gradient of its activations known to torch."""
    import torch

    @torch.library.custom_op("tilewright::quant_matmul", mutates_args=())
    def run(
        x: torch.Tensor,
        out_features: int,
        handle: torch.Tensor,
        activation_scales: torch.Tensor | None,
        activation_group: int | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        quantize: str | None,
        function: str | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        return quant_matmul(
            x,
            weight_of(handle),
            activation_scales=activation_scales,
            activation_group=activation_group,
            bias=bias,
            residual=residual,
            quantize=quantize,
            function=function,
            out_dtype=out_dtype,
        )

    @run.register_fake
    def shaped(x: torch.Tensor, out_features: int, *others: Any) -> torch.Tensor:
        *_, out_dtype = others
        return x.new_empty((*x.shape[:-1], out_features), dtype=out_dtype)

    @torch.library.custom_op("tilewright::quant_matmul_gradient", mutates_args=())
    def gradient(grad: torch.Tensor, in_features: int, handle: torch.Tensor) -> torch.Tensor:
        return grad @ dense_tensor(weight_of(handle), grad.dtype)

    @gradient.register_fake
    def shaped_gradient(grad: torch.Tensor, in_features: int, handle: torch.Tensor) -> torch.Tensor:
        return grad.new_empty((*grad.shape[:-1], in_features))

    def keep(ctx: Any, inputs: Any, output: object) -> None:
        x, _, handle, scales, ctx.group, ctx.bias, residual, _, ctx.function, _ = inputs
        ctx.save_for_backward(handle)
        ctx.of = Remembered(handle)
        ctx.width, ctx.dtype, ctx.others = x.shape[-1], x.dtype, (scales, residual)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[object, ...]:
        if ctx.function is not None or any(other is not None and other.requires_grad for other in ctx.others):
            raise Unsupported(
                "gradients through an epilogue's function, residual or scales", ("gradients of x and of the bias",)
            )
        handle, of_x, of_bias = ctx.of.handle(*ctx.saved_tensors), None, None
        if ctx.needs_input_grad[0]:
            of_x = gradient(grad.contiguous(), ctx.width, handle)
            if ctx.others[0] is not None:
                of_x = of_x * by_column(ctx.others[0], ctx.group, of_x)
            of_x = of_x.to(ctx.dtype)
        if ctx.needs_input_grad[5]:
            of_bias = grad.sum(tuple(range(grad.ndim - 1))).to(ctx.bias.dtype)
        return of_x, None, None, None, None, of_bias, None, None, None, None

    run.register_autograd(backward, setup_context=keep)

    def keep_gradient(ctx: Any, inputs: Any, output: object) -> None:
        grad, _, handle = inputs
        ctx.save_for_backward(handle)
        ctx.of, ctx.columns = Remembered(handle), grad.shape[-1]

    def backward_gradient(ctx: Any, grad: torch.Tensor) -> tuple[object, ...]:
        handle = ctx.of.handle(*ctx.saved_tensors)
        return (run(grad.contiguous(), ctx.columns, handle, *[None] * 6, grad.dtype), None, None)

    gradient.register_autograd(backward_gradient, setup_context=keep_gradient)

    def batched(info: object, in_dims: Any, x: torch.Tensor, *rest: object) -> tuple[torch.Tensor, int]:
        if any(dim is not None for dim in in_dims[1:]):
            raise Unsupported("vmap over a layer's weight, bias or scales", ("vmap over its activations",))
        return run(x.movedim(in_dims[0], 0), *rest), 0

    run.register_vmap(batched)

    def batched_gradient(info: object, in_dims: Any, grad: torch.Tensor, *rest: object) -> tuple[torch.Tensor, int]:
        return gradient(grad.movedim(in_dims[0], 0), *rest), 0

    gradient.register_vmap(batched_gradient)
    _register_grouped()


def _register_grouped() -> None:
    """Make ``torch.ops.tilewright.grouped_matmul`` known to torch: rows in runs, one weight of a layer each."""
    import torch

    @torch.library.custom_op("tilewright::grouped_matmul", mutates_args=())
    def run(
        x: torch.Tensor,
        sizes: torch.Tensor,
        columns: int,
        handle: torch.Tensor,
        bias: torch.Tensor | None,
        quantize: str | None,
        function: str | None,
    ) -> torch.Tensor:
        return grouped_matmul(x, weight_of(handle), sizes, bias=bias, quantize=quantize, function=function)

    @run.register_fake
    def shaped(x: torch.Tensor, sizes: torch.Tensor, columns: int, *others: object) -> torch.Tensor:
        return x.new_empty((x.shape[0], columns))

    @torch.library.custom_op("tilewright::grouped_matmul_gradient", mutates_args=())
    def gradient(grad: torch.Tensor, sizes: torch.Tensor, width: int, handle: torch.Tensor) -> torch.Tensor:
        found, start = grad.new_zeros(len(grad), width), 0
        for weight, size in zip(weight_of(handle), sizes.tolist()):
            if size:
                rows = slice(start, start + size)
                found[rows] = grad[rows] @ dense_tensor(weight, grad.dtype)
            start += size
        return found

    @gradient.register_fake
    def shaped_gradient(grad: torch.Tensor, sizes: torch.Tensor, width: int, handle: torch.Tensor) -> torch.Tensor:
        return grad.new_empty((grad.shape[0], width))

    def keep(ctx: Any, inputs: Any, output: object) -> None:
        x, sizes, _, handle, _, _, ctx.function = inputs
        ctx.of, ctx.width = Remembered(handle), x.shape[1]
        ctx.save_for_backward(sizes, handle)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[object, ...]:
        if ctx.function is not None or ctx.needs_input_grad[4]:
            raise Unsupported("gradients through an epilogue's function or of experts' biases", ("gradients of x",))
        sizes, handle = ctx.saved_tensors
        return gradient(grad.contiguous(), sizes, ctx.width, ctx.of.handle(handle)), *[None] * 6

    run.register_autograd(backward, setup_context=keep)
