"""A persistent Triton product for `gemm.py` to compare with: ``C = scale * A @ B^T`` of bfloat16 or e4m3, tuned over tiles.

Blocks stay for many tiles, which they take band by band; operands and results move by descriptors (TMA), results in two halves.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BAND = 8
"""Rows of tiles that are walked column by column."""


def _with_boxes(arguments: dict[str, Any]) -> None:
    """Gives the descriptors the boxes of a configuration."""
    block_m, block_n, block_k = (arguments[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    arguments["a"].block_shape = [block_m, block_k]
    arguments["b"].block_shape = [block_n, block_k]
    arguments["c"].block_shape = [block_m, block_n // 2]


def _configurations() -> list[triton.Config]:
    tiles = [
        (128, 256, 4, 8), (128, 256, 3, 8), (256, 128, 4, 8), (128, 128, 4, 8), (128, 128, 5, 4), (64, 256, 4, 4),
        (64, 128, 6, 4), (64, 64, 8, 4),
    ]  # fmt: skip
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n}, num_stages=stages, num_warps=warps, pre_hook=_with_boxes
        )
        for m, n, stages, warps in tiles
    ]  # fmt: skip


def _timed(call: Any, quantiles: Any) -> Any:
    """Triton's own measure, in a quarter of its time: a size is tuned in half a second."""
    return triton.testing.do_bench(call, warmup=8, rep=25, quantiles=quantiles)


CONFIGURATIONS = _configurations()


@triton.autotune(CONFIGURATIONS, key=["M", "N", "K", "BLOCK_K"], do_bench=_timed)
@triton.jit(do_not_specialize=["M"])  # compiled once for all numbers of rows
def _product(
    a, b, c, scale, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BAND: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), rows * columns, BLOCKS, flatten=True):
        band = tile // (BAND * columns)
        height = min(rows - band * BAND, BAND)
        row = (band * BAND + tile % (BAND * columns) % height) * BLOCK_M
        column = tile % (BAND * columns) // height * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            left = a.load([row, k * BLOCK_K])
            right = b.load([column, k * BLOCK_K])
            total = tl.dot(left, right.T, total)
        total *= scale
        halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        first, second = tl.split(halves)
        c.store([row, column], first.to(tl.bfloat16))
        c.store([row, column + BLOCK_N // 2], second.to(tl.bfloat16))


def _arguments(a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[tuple[Any, ...], dict[str, int], torch.Tensor]:
    """What the kernel is called with, in order and by name, and the result."""
    M, K = a.shape
    N = b.shape[0]
    c = torch.empty(M, N, device=a.device, dtype=torch.bfloat16)
    block_k = 128 // a.element_size()
    maps = [TensorDescriptor.from_tensor(one, [64, block_k if one is not c else 64]) for one in (a, b, c)]
    blocks = torch.cuda.get_device_properties(a.device).multi_processor_count
    return (*maps, scale, M, N, K), {"BLOCK_K": block_k, "BAND": BAND, "BLOCKS": blocks}, c


def triton_matmul(a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> Any:
    """A call without arguments that multiplies ``a[M, K]`` by ``b[N, K]`` into a bfloat16 tensor of its own, which it returns."""
    arguments, named, c = _arguments(a, b, scale)
    grid = (named["BLOCKS"],)

    def run() -> torch.Tensor:
        _product[grid](*arguments, **named)
        return c

    return run


def build(number: int) -> None:
    """The machine code of one of the `CONFIGURATIONS` for bfloat16, put into Triton's cache: it is the same for all sizes."""
    a, b = (torch.zeros(256, 256, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    arguments, named, _ = _arguments(a, b, 1.0)
    config = CONFIGURATIONS[number]
    _with_boxes({**dict(zip("abc", arguments)), **named, **config.kwargs})
    _product.fn[named["BLOCKS"],](*arguments, **named, **config.all_kwargs())
    torch.cuda.synchronize()
