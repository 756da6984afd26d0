"""Ternary weights of BitNet b1.58 as Hugging Face's ``transformers`` packs them."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, factor
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array


def from_hf_bitnet(
    weight: object, weight_scale: Array, *, out_features: int | None = None, divides: bool = True, name: str = "weight"
) -> QuantizedWeight:
    """A packed weight of `transformers`' BitNet.

    With ``R = ceil(N / 4)`` rows of bytes::

        ternary[n, k] = (weight[n % R, k] >> 2 * (n // R)) % 4 - 1        -1, 0 or 1
        w[n, k]       = ternary[n, k] / weight_scale      (`divides`: BitLinear)
        w[n, k]       = ternary[n, k] * weight_scale      (AutoBitLinear)

    Parameters
    ----------
    weight : uint8 ``[R, K]``; the code 3 means nothing and is refused.
    weight_scale : one float, above 0.
    out_features : N, where it is no multiple of 4.
    divides : what the checkpoint's configuration means by its scale: True for ``linear_class`` bitlinear.

    Source: Ma et al. 2024; the packed form of ``transformers.integrations.bitnet``.
    """
    packed = expect(f"{name}.weight", weight, ["uint8"], [None, None], "[N / 4, K]")
    rows, K = packed.shape
    N = 4 * rows if out_features is None else out_features
    if rows != -(-N // 4):
        raise InvalidTensor(f"{name}.weight has {rows} rows of bytes, where N = {N} needs {-(-N // 4)}")
    scale = factor(f"{name}.weight_scale", weight_scale, FLOATS)
    fields = np.concatenate([packed >> np.uint8(2 * part) & np.uint8(3) for part in range(4)])[:N]
    if (fields == 3).any():
        n, k = np.argwhere(fields == 3)[0]
        raise InvalidTensor(f"{name}.weight holds the code 3 at [{n}, {k}]: a ternary weight has 0, 1 and 2")
    # The codes of ternary are those of int2, two's complement: -1 is 3.
    codes = (fields - np.uint8(1)) & np.uint8(3)
    return assemble(name, codes, "ternary", None, (N, K), tensor_scale=1.0 / scale if divides else scale)
