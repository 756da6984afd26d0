"""Quantised weights: from floats to codes, scales and zero points."""

from tilewright.quant.quantize import quantize
from tilewright.quant.weight import QuantizedWeight

__all__ = ["QuantizedWeight", "quantize"]
