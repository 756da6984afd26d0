"""Weights in the forms of other libraries' checkpoints, as `QuantizedWeight`; each by one formula in its docstring.

All of these functions take `name`, what messages call the weight, and raise InvalidTensor (MissingTensor where one is
None) for tensors of another shape or element type, that do not fit one another, or of a form that there is not.
"""

from tilewright.quant.importers.awq import from_awq, from_awq_fast
from tilewright.quant.importers.bitblas import from_bitblas
from tilewright.quant.importers.bitnet import from_hf_bitnet
from tilewright.quant.importers.bitsandbytes import from_bitsandbytes, from_bitsandbytes_int8, read_bitsandbytes
from tilewright.quant.importers.compressed_tensors import from_float_quantized, from_int_quantized, from_pack_quantized
from tilewright.quant.importers.eetq import from_eetq
from tilewright.quant.importers.exl2 import from_exl2
from tilewright.quant.importers.gguf import from_gguf
from tilewright.quant.importers.gptq import from_gptq
from tilewright.quant.importers.hqq import from_hqq, read_hqq, read_sinq
from tilewright.quant.importers.marlin import from_marlin, from_marlin_24, from_qqq
from tilewright.quant.importers.mlx import from_mlx
from tilewright.quant.importers.modelopt import from_modelopt_int4
from tilewright.quant.importers.mx import from_mx
from tilewright.quant.importers.nvfp4 import from_nvfp4
from tilewright.quant.importers.torchao import from_torchao, read_torchao

__all__ = [
    "from_awq", "from_awq_fast", "from_bitblas", "from_bitsandbytes", "from_bitsandbytes_int8", "from_eetq",
    "from_exl2", "from_float_quantized", "from_gguf", "from_gptq", "from_hf_bitnet", "from_hqq", "from_int_quantized",
    "from_marlin", "from_marlin_24", "from_mlx", "from_modelopt_int4", "from_mx", "from_nvfp4", "from_pack_quantized",
    "from_qqq", "from_torchao", "read_bitsandbytes", "read_hqq", "read_sinq", "read_torchao",
]  # fmt: skip
