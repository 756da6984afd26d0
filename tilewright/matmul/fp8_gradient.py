"""The gradient of activations that `fp8_scaled_matmul` quantises: that of the product with what they were."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def quantised_product() -> Any:
    """The function of torch's that multiplies floats, whose rows become 8-bit floats, by a constant matrix."""
    import torch

    from tilewright.matmul.fp8 import fp8_scaled_matmul

    class Quantised(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, a: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, transpose_B: bool, block_N: int | None, out_dtype: Any, exact: bool,
            fast: bool,
        ) -> Any:  # fmt: skip
            ctx.save_for_backward(b, b_scale)
            ctx.turned, ctx.block, ctx.dtype = transpose_B, block_N, a.dtype
            return fp8_scaled_matmul(
                a.detach(),
                None,
                b,
                b_scale,
                transpose_B=transpose_B,
                block_N=block_N,
                out_dtype=out_dtype,
                exact=exact,
                fast=fast,
            )

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            b, scale = ctx.saved_tensors
            weight = _scaled(b if ctx.turned else b.T, scale, ctx.block)
            return (grads[0].float() @ weight).to(ctx.dtype), *[None] * 7

    return Quantised


def _scaled(rows: Any, scale: Any, block: int | None) -> Any:
    """A matrix ``[N, K]`` with its scales, float32."""
    from tilewright.matmul.fp8 import kind_of_scale

    (N, K), wide = rows.shape, rows.float()
    kind, group, each = kind_of_scale("b_scale", scale, N, K, block)
    if kind != "groups":
        return wide * scale.float().reshape(-1, 1)
    spread = scale.float().reshape(-1, scale.shape[-1]).repeat_interleave(each, 0)[:N]
    return wide * spread.repeat_interleave(group, 1)
