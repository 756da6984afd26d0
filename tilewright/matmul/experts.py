"""Products with several weights: runs of rows with one weight each (mixture of experts), and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import WrongArgumentShape
from tilewright.ir.dtypes import dtype
from tilewright.matmul.arrays import empty_like, is_row_major
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import quant_matmul


def grouped_matmul(
    x: Any, weights: Sequence[PackedWeight], sizes: Sequence[int], *, out_dtype: Any = None, **options: Any
) -> Any:
    """Rows of `x` in consecutive runs, run i times ``weights[i]``: one launch for each run that has rows.

    Parameters
    ----------
    x : ``[rows, K]``.
    weights : of one shape ``[N, K]``, of any formats.
    sizes : rows of each run, 0 for none; known on the host.
    out_dtype, options : as in `quant_matmul`; tensors of rows (`residual`, scales of tokens) are not taken.

    Returns
    -------
    ``[rows, N]``.

    Raises
    ------
    WrongArgumentShape : sizes that do not add up to the rows, weights of different shapes.
    """
    sizes = [int(size) for size in sizes]
    if len(sizes) != len(weights) or sum(sizes) != x.shape[0] or min(sizes, default=0) < 0:
        raise WrongArgumentShape(
            f"{len(sizes)} runs of {sum(sizes)} rows were given for {len(weights)} weights and {x.shape[0]} rows",
            hint="one size for each weight, together all rows of x",
        )
    shapes = sorted({weight.shape for weight in weights})
    if len(shapes) != 1:
        raise WrongArgumentShape(f"the weights have {len(shapes)} different shapes, expected one: {shapes[:2]}")
    out, start = None, 0
    for weight, size in zip(weights, sizes):
        if size == 0:
            continue
        rows = slice(start, start + size)
        start += size
        if out is None:
            first = quant_matmul(x[rows], weight, out_dtype=out_dtype, **options)
            if size == x.shape[0]:
                return first
            out = empty_like(x, (x.shape[0], shapes[0][0]), dtype(first.dtype))
            out[rows] = first
        elif is_row_major(out[rows]):
            quant_matmul(x[rows], weight, out=out[rows], **options)
        else:
            out[rows] = quant_matmul(x[rows], weight, out_dtype=out.dtype, **options)
    return quant_matmul(x, weights[0], out_dtype=out_dtype, **options) if out is None else out


def quant_bmm(x: Any, weights: Sequence[PackedWeight], *, out_dtype: Any = None, **options: Any) -> Any:
    """``y[b] = x[b] W_b^T`` for a batch of weights of one shape.

    Parameters
    ----------
    x : ``[B, M, K]``.
    weights : B of them.
    out_dtype, options : as in `grouped_matmul`.

    Returns
    -------
    ``[B, M, N]``.
    """
    if len(x.shape) != 3 or x.shape[0] != len(weights):
        raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [{len(weights)}, M, K]")
    batch, rows, width = x.shape
    found = grouped_matmul(x.reshape(batch * rows, width), weights, [rows] * batch, out_dtype=out_dtype, **options)
    return found.reshape(batch, rows, found.shape[-1])
