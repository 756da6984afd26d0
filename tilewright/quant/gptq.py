"""The calibrated rounding of GPTQ: columns one by one, each column's error spread over those still to come.

Source: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022, algorithm 1, with the inverse's Cholesky factor and lazy updates of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import number_format
from tilewright.formats.number import Format
from tilewright.ir.dtypes import DType
from tilewright.quant.quantize import quantize
from tilewright.quant.weight import QuantizedWeight

BLOCK = 128
"""Columns whose errors are spread among themselves before the rest of the weight is updated."""


@dataclass(slots=True)
class Hessian:
    """``2 / n * sum of x x^T`` over the inputs of a layer: how much errors of its weight's columns matter together.

    Attributes
    ----------
    columns : K of the weight.
    sum : float64 ``[K, K]``.
    count : inputs seen.
    """

    columns: int
    sum: np.ndarray = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.sum = np.zeros((self.columns, self.columns))

    def add(self, inputs: np.ndarray) -> None:
        """Take in inputs ``[..., K]``.  Raises CannotQuantize where they are not finite or of another width."""
        flat = np.asarray(inputs, np.float32).reshape(-1, inputs.shape[-1])
        if flat.shape[1] != self.columns:
            raise CannotQuantize(f"calibration inputs have {flat.shape[1]} columns, the weight {self.columns}")
        if not np.isfinite(flat).all():
            raise CannotQuantize(
                "calibration inputs are not finite", hint="is the model in a type that its activations fit?"
            )
        self.sum += flat.T @ flat
        self.count += len(flat)

    @property
    def value(self) -> np.ndarray:
        """The Hessian of the mean squared error of the layer's result."""
        return self.sum * (2.0 / max(self.count, 1))


def gptq_quantize(
    weight: object,
    hessian: Hessian | np.ndarray,
    to: str | Format | DType = "uint4",
    *,
    group: int | None = 128,
    zeros: str | None = None,
    scale_dtype: object = None,
    act_order: bool = False,
    damping: float = 0.01,
) -> QuantizedWeight:
    """Round a weight so that the result of its layer changes little on the calibration inputs.

    Parameters
    ----------
    weight : ``[N, K]`` floats.
    hessian : of the layer's inputs, ``[K, K]``.
    to, group, zeros, scale_dtype : as in `quantize`; the scale of a group is that of its columns once the errors of
        those before them have been spread.
    act_order : round the columns that matter most first; groups are then runs of that order (`QuantizedWeight.g_idx`).
    damping : added to the diagonal, as a part of its mean, so that it can be inverted.

    Returns
    -------
    the rounded weight, of the same form as that of `quantize`.

    Raises
    ------
    CannotQuantize : a weight that is not finite, a Hessian of another size or that cannot be inverted.
    """
    of = number_format(to)
    wide = np.array(weight, np.float64)
    # Also the check of the weight, and what columns that never saw an input are rounded by.
    plain = quantize(wide, of, group=group, zeros=zeros, scale_dtype=scale_dtype)
    matrix = hessian.value if isinstance(hessian, Hessian) else np.asarray(hessian, np.float64)
    N, K = wide.shape
    if matrix.shape != (K, K):
        raise CannotQuantize(f"the Hessian is {list(matrix.shape)}, but the weight has K = {K}")
    order = np.argsort(-np.diag(matrix), kind="stable") if act_order else np.arange(K)
    upper = _inverse_factor(matrix[np.ix_(order, order)], damping)
    wide = np.ascontiguousarray(wide[:, order])
    # Columns that never saw an input have no say, and are rounded as they are.
    group = K if group is None else group
    codes = np.empty((N, K), np.uint8)
    parts: list[QuantizedWeight] = []
    for start in range(0, K, BLOCK):
        stop = min(start + BLOCK, K)
        errors = np.empty((N, stop - start))
        for k in range(start, stop):
            if k % group == 0:
                parts.append(_group_of(wide, k, group, start, stop, errors, upper, of, zeros, scale_dtype))
            codes[:, k], rounded = _rounded(wide[:, k], parts[-1])
            error = (wide[:, k] - rounded) / upper[k, k]
            wide[:, k + 1 : stop] -= np.outer(error, upper[k, k + 1 : stop])
            errors[:, k - start] = error
        wide[:, stop:] -= errors @ upper[start:stop, stop:]
    ordered = np.empty_like(codes)
    ordered[:, order] = codes
    g_idx = None
    if act_order and group < K:
        g_idx = np.empty(K, np.int32)
        g_idx[order] = np.arange(K, dtype=np.int32) // group

    def joined(name: str) -> np.ndarray | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values, axis=1) if values[0].shape[0] == N else values[0]

    return QuantizedWeight(ordered, of, joined("scales"), joined("zeros"), plain.zeros_mode, (1, group), g_idx)


def _inverse_factor(matrix: np.ndarray, damping: float) -> np.ndarray:
    """The upper Cholesky factor of the damped inverse: row k is how the error of column k spreads."""
    matrix = matrix.copy()
    diagonal = np.einsum("kk->k", matrix)
    diagonal[diagonal == 0.0] = 1.0
    diagonal += damping * diagonal.mean()
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(matrix))
        return np.linalg.cholesky(inverse.T @ inverse).T
    except np.linalg.LinAlgError:
        raise CannotQuantize(
            "the Hessian of the calibration inputs cannot be inverted", hint="use more inputs, or more damping (0.1)"
        ) from None


def _group_of(
    wide: np.ndarray,
    k: int,
    group: int,
    start: int,
    stop: int,
    errors: np.ndarray,
    upper: np.ndarray,
    of: Format,
    zeros: str | None,
    held: object,
) -> QuantizedWeight:
    """Scales and zeros of the group that begins at column k, after all errors so far."""
    columns = wide[:, k : k + group].copy()
    if k + group > stop and k > start:
        # Errors of this block have not yet reached the columns behind it.
        later = columns[:, stop - k :]
        later -= errors[:, : k - start] @ upper[start:k, stop : k + group]
    return quantize(columns, of, group=None, zeros=zeros, scale_dtype=held)


def _rounded(column: np.ndarray, group: QuantizedWeight) -> tuple[np.ndarray, np.ndarray]:
    """Codes of one column, and what they stand for."""
    scale = 1.0 if group.scales is None else group.scales[:, 0].astype(np.float64)
    zero = 0.0 if group.zeros is None else group.zeros[:, 0].astype(np.float64)
    codes = group.format.encode(column / scale + zero)
    return codes, (group.format.decode(codes) - zero) * scale
