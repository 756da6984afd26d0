"""transformers on our kernels: importing this room teaches transformers to quantise with tilewright, and to load what
it wrote.

Examples
--------
    import tilewright.hf
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=tilewright.hf.QuantizationConfig("int4",
    group=128)) model.save_pretrained("ours") model = AutoModelForCausalLM.from_pretrained("ours")
"""

from tilewright.conversion.counting import count_codes
from tilewright.hf import dispatch
from tilewright.hf.config import QuantizationConfig
from tilewright.hf.gguf import load_gguf
from tilewright.hf.quantizer import TilewrightQuantizer

dispatch.register(QuantizationConfig, TilewrightQuantizer)
count_codes()

__all__ = ["QuantizationConfig", "TilewrightQuantizer", "load_gguf"]
