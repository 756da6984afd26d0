"""Weights of NVIDIA's modelopt (TensorRT Model Optimizer) that no other library has: int4 with two rows a byte."""

from __future__ import annotations

import numpy as np

from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import Group, assemble, group_size
from tilewright.quant.weight import QuantizedWeight


def from_modelopt_int4(
    weight: object, weight_scale: object, *, group: Group = None, name: str = "weight"
) -> QuantizedWeight:
    """A weight of modelopt's ``W4A16_AWQ``: two's complement, rows 2 * r and 2 * r + 1 in the halves of byte r.

    ::

        code[n, k] = weight[n // 2, k] >> 4 * (n % 2) & 15
        w[n, k]    = int4(code[n, k]) * weight_scale[n, k // group]

    Activations are multiplied by ``pre_quant_scale`` before they meet it (`importers.assemble.smoothed`).

    Parameters
    ----------
    weight : uint8 ``[N / 2, K]``.
    weight_scale : floats ``[N, K / group]``.
    group : columns that share a scale, where they do not divide K: `assemble.group_size`.

    Examples
    --------
    >>> import numpy as np
    >>> from_modelopt_int4(np.array([[0x81]], np.uint8), np.ones((2, 1), np.float32)).to_dense().tolist()
    [[1.0], [-8.0]]
    """
    packed = expect(f"{name}.weight", weight, ["uint8"], [None, None], "[N / 2, K]")
    rows, K = packed.shape
    scales = expect(f"{name}.weight_scale", weight_scale, FLOATS, [2 * rows, None], "[N, K / group]")
    codes = np.stack([packed & 15, packed >> 4], 1).reshape(2 * rows, K)
    columns = group_size(f"{name}.weight_scale", K, scales.shape[1], group)
    return assemble(name, codes, "int4", scales, columns)
