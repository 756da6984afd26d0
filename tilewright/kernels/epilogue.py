"""What becomes of a sum before it is stored: a factor, a bias, an activation function, a residual, one rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels.values import Value

FUNCTIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
"""What an epilogue may apply to the product and its bias."""

PAIRED = ("swiglu", "clamped_swiglu")
"""Functions of two neighbours, a gate and what passes it, which become one: columns of the result are half as many.

``swiglu`` is ``silu(gate) * up``. ``clamped_swiglu`` is that of gpt-oss: with the gate at most 7 and `up` between -7
and 7, ``gate * sigmoid(1.702 * gate) * (up + 1)``.
"""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``function(sum * factor + bias) + residual``, each part where it is asked for.

    Attributes
    ----------
    factor : whether all sums are multiplied by one number, ``factor[1]`` (float32).
    bias : element type of ``bias[N]``; None for none.
    function : one of `FUNCTIONS` or, where experts have it, of `PAIRED`; None for none.
    residual : whether ``residual[M, N]``, of the result's type, is added last.
    """

    factor: bool = False
    bias: str | None = None
    function: str | None = None
    residual: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether sums are stored as they are."""
        return self == PLAIN

    @property
    def pairs(self) -> bool:
        """Whether two sums become one."""
        return self.function in PAIRED

    def before_residual(self, value: Value, factor: Value | None, bias: Value | None) -> Value:  # values of the program
        """A sum (float32) with everything but the residual and what is done to pairs; `factor` and `bias` are numbers,
        or None where they are not used."""
        if self.factor:
            value = value * factor
        if self.bias is not None:
            value = value + bias
        return applied(value, self.function)


PLAIN = Epilogue()
"""Sums are stored as they are."""


def applied(value: Value, function: str | None) -> Value:
    """An activation function of a float32."""
    if function == "relu":
        return T.max(value, 0.0)
    if function == "gelu":
        return 0.5 * value * (1.0 + T.erf(value * 0.7071067811865476))
    if function == "gelu_tanh":
        return 0.5 * value * (1.0 + T.tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)))
    if function == "silu":
        return value / (1.0 + T.exp(-value))
    if function == "sigmoid":
        return 1.0 / (1.0 + T.exp(-value))
    return T.tanh(value) if function == "tanh" else value


def paired(gate: Value, up: Value, function: str | None) -> Value:
    """A function of two neighbours, float32."""
    if function == "swiglu":
        return applied(gate, "silu") * up
    gate, up = T.min(gate, 7.0), T.clamp(up, -7.0, 7.0)
    return gate / (1.0 + T.exp(-1.702 * gate)) * (up + 1.0)


def stored(value: Any, out: str) -> Value:
    """A result in the type of C: integers saturate, floats become integers by rounding to nearest."""
    record = dtype_of(out)
    if not record.is_integer:
        return T.cast(value, out)
    if value.dtype.is_float:
        return T.cast(T.round(value), out)
    if record.bits >= 32:
        return T.cast(value, out)
    return T.cast(T.clamp(value, int(record.minimum), int(record.maximum)), out)
