"""Weights of MLX (Apple's array framework): integers in strings of bits, with a scale and a number that is added for
each group, and small floats in blocks."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, factor
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.importers.compressed_tensors import from_float_quantized
from tilewright.quant.importers.mx import from_mx
from tilewright.quant.importers.nvfp4 import from_nvfp4
from tilewright.quant.weight import QuantizedWeight

BITS = (1, 2, 3, 4, 5, 6, 8)
MODES = {"affine": (4, 64), "mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
"""Bits and groups that MLX takes where nothing says them; those of floats have no others."""


def from_mlx(
    weight: object,
    scales: object,
    biases: object = None,
    global_scale: object = None,
    *,
    mode: str = "affine",
    bits: int | None = None,
    group: int | None = None,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of MLX: ``w[n, k] = code[n, k] * scales[n, k // group] + biases[n, k // group]``.

    With ``code[n, k]`` for bits ``bits * k`` to ``bits * k + bits`` of the string that the words of row n make, lowest
    bits first. Floats have nothing that is added.

    Parameters
    ----------
    weight : uint32 ``[N, K * bits / 32]``.
    scales, biases : floats ``[N, K / group]``; beside floats uint8, e8m0 or (nvfp4) e4m3, and no biases.
    global_scale : of nvfp4, float32, one: the largest number of the weight, 2688 (6 * 448) times what all scales are
        multiplied by; None for no such factor.
    mode : one of `MODES`: integers (``"affine"``), or floats of e2m1 or e4m3.
    bits : 1, 2, 3, 4, 5, 6 or 8; None for the usual of the mode.
    group : columns that share a scale; None for the usual.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones((1, 1), np.float32)
    >>> from_mlx(np.array([[0x76543210]], np.uint32), 2 * one, -one, group=8).to_dense().tolist()
    [[-1.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0]]
    """
    if mode not in MODES:
        raise InvalidTensor(f"{name}: no mode {mode!r} of MLX", hint=f"known: {', '.join(MODES)}")
    bits, group = bits or MODES[mode][0], group or MODES[mode][1]
    known = BITS if mode == "affine" else MODES[mode][:1]
    if bits not in known or (mode != "affine" and group != MODES[mode][1]):
        raise InvalidTensor(
            f"{name}: {mode} weights of MLX have {', '.join(map(str, known))} bits"
            + ("" if mode == "affine" else f" in groups of {MODES[mode][1]}")
            + f", not {bits} in groups of {group}"
        )
    words = expect(f"{name}.weight", weight, ["uint32"], [None, None], "[N, K * bits / 32]")
    N, K = words.shape[0], words.shape[1] * 32 // bits
    if group < 1 or K % group or K * bits != words.shape[1] * 32:
        raise InvalidTensor(
            f"{name}.weight has rows of {words.shape[1]} words, which groups of {group} codes of "
            f"{bits} bits do not make"
        )
    if global_scale is not None and mode != "nvfp4":
        raise InvalidTensor(f"{name}.global_scale is beside a weight of the mode {mode}, where nvfp4 has one")
    if mode == "affine":
        factors = expect(f"{name}.scales", scales, FLOATS, [N, K // group], "[N, K / group]")
        added = expect(f"{name}.biases", biases, FLOATS, [N, K // group], "[N, K / group]")
        codes = fields(words, bits, K)
        return assemble(name, codes, f"uint{bits}", factors, group, zeros=-added, zeros_mode="rescale")
    powers = expect(f"{name}.scales", scales, ["uint8"], [N, K // group], "[N, K / group]")
    if biases is not None:
        raise InvalidTensor(f"{name} has biases of groups, where the mode {mode} adds nothing")
    packed = np.ascontiguousarray(words, "<u4").view(np.uint8)
    if mode == "nvfp4":
        whole = 1.0 if global_scale is None else factor(f"{name}.global_scale", global_scale, ["float32"]) / (6 * 448)
        made = from_nvfp4(packed, powers.view(ml_dtypes.float8_e4m3fn), np.ones(1, np.float32), name=name)
        return replace(made, tensor_scale=whole)
    if mode == "mxfp4":
        return from_mx(packed, powers, name=name)
    return from_float_quantized(packed.view(ml_dtypes.float8_e4m3fn), powers, group=group, name=name)
