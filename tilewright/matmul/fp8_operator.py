"""`fp8_scaled_matmul` as an operator of torch: what compiled graphs call, and the gradient of activations that it
quantises."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.errors import Unsupported
from tilewright.matmul.arrays import check_device, device_of

if TYPE_CHECKING:
    import torch


@functools.cache
def register_fp8(multiply: "Callable[..., torch.Tensor]", width: Callable[..., int]) -> None:
    """Make ``torch.ops.tilewright.fp8_scaled_matmul`` known to torch. `multiply` computes it, of the operator's
    arguments; `width` says the columns of its result, of a, b and whether b is transposed."""
    import torch

    @torch.library.custom_op("tilewright::fp8_scaled_matmul", mutates_args=())
    def run(
        a: torch.Tensor,
        a_scale: torch.Tensor | None,
        b: torch.Tensor,
        b_scale: torch.Tensor,
        transpose_B: bool,
        block_N: int | None,
        out_dtype: torch.dtype,
        exact: bool,
        fast: bool,
    ) -> torch.Tensor:
        result: torch.Tensor = multiply(a, a_scale, b, b_scale, transpose_B, block_N, out_dtype, exact, fast)
        return result

    @run.register_fake
    def shaped(a: torch.Tensor, *others: Any) -> torch.Tensor:
        a_scale, b, b_scale, transpose_B, _, out_dtype, _, _ = others
        given = (("a_scale", a_scale), ("b", b), ("b_scale", b_scale))
        for name, other in given if a.is_meta else ():
            if other is not None:
                check_device(name, other, "a is", device_of(a))
        return a.new_empty((*a.shape[:-1], width(a, b, transpose_B)), dtype=out_dtype)

    def keep(ctx: Any, inputs: Any, output: object) -> None:
        a, a_scale, b, b_scale, ctx.transposed, ctx.block, _, _, _ = inputs
        ctx.quantised = a_scale is None
        ctx.save_for_backward(b, b_scale)
        ctx.dtype = a.dtype

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[object, ...]:
        if not ctx.quantised or any(ctx.needs_input_grad[1:4]):
            what = "gradients of 8-bit floats and their scales"
            raise Unsupported(what, ("gradients of a that the call quantises, a_scale=None",))
        b, scale = ctx.saved_tensors
        weight = _scaled(b if ctx.transposed else b.T, scale, ctx.block)
        return ((grad.float() @ weight).to(ctx.dtype), *[None] * 8)

    run.register_autograd(backward, setup_context=keep)


def _scaled(rows: "torch.Tensor", scale: "torch.Tensor", block: int | None) -> "torch.Tensor":
    """A matrix ``[N, K]`` with its scales, float32."""
    from tilewright.matmul.fp8 import kind_of_scale

    (N, K), wide = rows.shape, rows.float()
    kind, group, each = kind_of_scale("b_scale", scale, N, K, block)
    if kind != "groups":
        return wide * scale.float().reshape(-1, 1)
    spread = scale.float().reshape(-1, scale.shape[-1]).repeat_interleave(each, 0)[:N]
    return wide * spread.repeat_interleave(group, 1)
