"""Weights of MLX (Apple's array framework): integers in strings of bits, with a scale and a number that is added for
each group."""

from __future__ import annotations

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.weight import QuantizedWeight

BITS = (2, 3, 4, 5, 6, 8)


def from_mlx(
    weight: object, scales: object, biases: object, *, bits: int = 4, group: int = 64, name: str = "weight"
) -> QuantizedWeight:
    """A weight of MLX's mode ``affine``: ``w[n, k] = code[n, k] * scales[n, k // group] + biases[n, k // group]``.

    With ``code[n, k]`` for bits ``bits * k`` to ``bits * k + bits`` of the string that the words of row n make, lowest
    bits first.

    Parameters
    ----------
    weight : uint32 ``[N, K * bits / 32]``.
    scales, biases : floats ``[N, K / group]``.
    bits : 2, 3, 4, 5, 6 or 8.
    group : columns that share a scale.
    name : what messages call the weight.

    Raises
    ------
    InvalidTensor : a tensor of another shape or element type, another number of bits.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones((1, 1), np.float32)
    >>> from_mlx(np.array([[0x76543210]], np.uint32), 2 * one, -one, group=8).to_dense().tolist()
    [[-1.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0]]
    """
    if bits not in BITS:
        raise InvalidTensor(f"{name}: MLX weights have {', '.join(map(str, BITS))} bits, not {bits}")
    words = expect(f"{name}.weight", weight, ["uint32"], [None, None], "[N, K * bits / 32]")
    N, K = words.shape[0], words.shape[1] * 32 // bits
    if group < 1 or K % group or K * bits != words.shape[1] * 32:
        raise InvalidTensor(
            f"{name}.weight has rows of {words.shape[1]} words, which groups of {group} codes of "
            f"{bits} bits do not make"
        )
    factors = expect(f"{name}.scales", scales, FLOATS, [N, K // group], "[N, K / group]")
    added = expect(f"{name}.biases", biases, FLOATS, [N, K // group], "[N, K / group]")
    codes, block = fields(words, bits, K), (1, group)
    return assemble(codes, f"uint{bits}", scales=factors, zeros=-added, zeros_mode="rescale", block=block, name=name)
