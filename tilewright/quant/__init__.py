"""Quantised weights: from floats to codes, scales and zero points."""

from tilewright.quant.quantize import QuantizedWeight, quantize

__all__ = ["QuantizedWeight", "quantize"]
