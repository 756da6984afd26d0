"""From other libraries' checkpoints and models to ours: recognising, converting, quantising."""

from tilewright.conversion.checkpoint import Converted, convert_checkpoint
from tilewright.conversion.dequantized import dequantize
from tilewright.conversion.model import load_quantized, quantize
from tilewright.conversion.schemes import QuantizationScheme, quantization_scheme

__all__ = [
    "Converted",
    "QuantizationScheme",
    "convert_checkpoint",
    "dequantize",
    "load_quantized",
    "quantization_scheme",
    "quantize",
]
