"""nvfp4 checkpoints: e2m1 codes in blocks of 16 along K (modelopt: of 32 too), each with an e4m3 scale, and one float32
for the whole weight."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import expect, factor
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array

BLOCK = 16


def from_nvfp4(
    weight: Array,
    weight_scale: object,
    tensor_scale: Array,
    *,
    divides: bool = False,
    group: int = BLOCK,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of an nvfp4 checkpoint, of modelopt's form or of compressed-tensors'.

    ::

        code[n, k] = weight[n, k // 2] >> 4 * (k % 2) & 15
        w[n, k]    = e2m1[code[n, k]] * weight_scale[n, k // group] * tensor_scale     modelopt: weight_scale_2
        w[n, k]    = e2m1[code[n, k]] * weight_scale[n, k // group] / tensor_scale     (`divides`) weight_global_scale

    Parameters
    ----------
    weight : uint8 ``[N, K / 2]``.
    weight_scale : float8_e4m3fn ``[N, K / group]``, without NaN and signs.
    tensor_scale : one float32, above 0.
    divides : whether the weight's scale divides.
    group : columns that share a scale.
    """
    packed = expect(f"{name}.weight", weight, ["uint8"], [None, None], "[N, K / 2]")
    N, K = packed.shape[0], 2 * packed.shape[1]
    if K % group:
        raise InvalidTensor(f"{name}.weight has rows of {K} codes, which blocks of {group} do not divide")
    scales = expect(f"{name}.weight_scale", weight_scale, ["float8_e4m3fn"], [N, K // group], f"[N, K / {group}]")
    signs = np.argwhere(np.signbit(scales))
    if signs.size:
        raise InvalidTensor(
            f"{name}.weight_scale has a sign at {signs[0].tolist()}, where nvfp4 has none",
            hint="mixfp4 marks blocks of int4 by it, which cannot be read",
        )
    whole = factor(f"{name}: the weight's scale", tensor_scale, ["float32"])
    whole = 1.0 / whole if divides else whole
    return assemble(name, fields(packed, 4, K), "e2m1", scales, group, tensor_scale=whole)
