"""``LadderPermutate``, ``QuantCompress`` and ``LOP3Permutate``: the steps from codes to BitBLAS's packed bytes, one by
one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compat.bitblas.quantization.utils import general_compress, interleave_weight
from tilewright.errors import InvalidTensor, Unsupported
from tilewright.matmul.arrays import as_torch
from tilewright.quant.importers.bitblas import bitblas_order, columns_of
from tilewright.runtime.tensors import Array, as_numpy, is_torch
from tilewright.tuning import time_call


def on_arrays(function: Callable[[np.ndarray], np.ndarray], tensor: Array, out: Any = None) -> Array:
    """A function of NumPy arrays on a tensor of either library; the result on the tensor's device, or in `out`."""
    made = function(as_numpy(tensor))
    result: Any = as_torch(np.ascontiguousarray(made), tensor.device) if is_torch(tensor) else made
    if out is None:
        return result
    if is_torch(out):
        out.copy_(result.reshape(out.shape))
    else:
        out[...] = np.reshape(result, out.shape)
    return out


@dataclass(frozen=True)
class LadderPermutateConfig:
    """See BitBLAS: the order of the elements of an operand ``[M, N]`` in tiles of 16 rows."""

    M: int
    N: int
    datatype: str = "float16"
    dequantize_bits: int = -1
    storage_dtype: str = "float16"
    propagate_kind: str = "B"
    transpose_matrix: bool = False
    transform_kind: int = 2
    target_instruction: str = "nvidia-mma"


@dataclass(frozen=True)
class QuantCompressConfig:
    """See BitBLAS: codes ``[M, N]`` of `dequantize_bits` bits, packed."""

    M: int
    N: int
    input_dtype: str = "int8"
    storage_dtype: str = "int8"
    dequantize_bits: int = 4


@dataclass(frozen=True)
class LOP3PermutateConfig:
    """See BitBLAS: the order of codes within words, for decoding to `datatype`."""

    M: int
    N: int
    datatype: str = "float16"
    dequantize_bits: int = 4
    storage_dtype: str = "int8"
    propagate_kind: str = "B"
    transpose_matrix: bool = False
    transform_kind: int = 0
    target_instruction: str = "nvidia-mma"


class _Step:
    """A step as an operator with BitBLAS's methods."""

    def __init__(self, config: Any, name: str = "permutate", target: object = "llvm", **options: object) -> None:
        self.config, self.name, self.target = config, name, target

    def step(self, array: np.ndarray) -> np.ndarray:
        """The step on an array."""
        raise NotImplementedError

    def forward(self, inp: Array, out: Array | None = None) -> Array:
        """The step on a tensor; written to `out` where given."""
        return on_arrays(self.step, inp, out)

    __call__ = forward

    def profile_latency(self) -> float:
        """Median milliseconds of the step on a matrix of the configuration's size, on the host."""
        inp = np.zeros(self._input_shape(), np.dtype(getattr(self.config, "input_dtype", "int8")))
        return time_call(lambda: self.step(inp), "cpu")

    def _input_shape(self) -> tuple[int, int]:
        share = 8 // self.config.dequantize_bits if 0 < self.config.dequantize_bits < 8 else 1
        return self.config.M, self.config.N // share


class LadderPermutate(_Step):
    """Rows to tiles: stage 1 cuts, 2 moves rows to where ldmatrix looks for them, 3 to the registers of mma.

    Raises
    ------
    Unsupported : bytes of an operand that lies as ldmatrix does not turn it: A transposed, B not.
    InvalidTensor : tiles that a matrix does not fill.
    """

    config: LadderPermutateConfig

    def __init__(
        self, config: LadderPermutateConfig, name: str = "permutate", target: object = "llvm", **options: object
    ) -> None:
        super().__init__(config, name, target)
        if config.propagate_kind not in ("A", "B"):
            raise Unsupported(f"the operand {config.propagate_kind!r}", ("A", "B"))
        halves = config.datatype == "float16"
        if not halves and config.transpose_matrix != (config.propagate_kind == "B"):
            raise Unsupported(
                f"permuting {config.propagate_kind} of {config.datatype} with "
                f"transpose_matrix={config.transpose_matrix}",
                ("A as it is", "B transposed"),
            )

    def step(self, array: np.ndarray) -> np.ndarray:
        """``[M, N]`` to ``[M / 16, N / columns, 16, columns]``."""
        config, kind = self.config, array.dtype
        if config.dequantize_bits in range(1, 8):
            array = _codes(array, config.dequantize_bits)
        if config.transform_kind > 1 and not config.transpose_matrix:
            array = _exchanged(array, columns_of(config.datatype))
        order = bitblas_order(16, config.datatype, config.transform_kind, False)
        if not 0 < config.dequantize_bits < 8:
            return order.pack(array).reshape(order.shape(config.M, config.N))
        share = 8 // config.dequantize_bits
        whole = bitblas_order(config.dequantize_bits, config.datatype, config.transform_kind, False)
        packed = whole.pack(np.ascontiguousarray(array))
        return packed.reshape(config.M // 16, config.N // order.columns, 16, order.columns // share).view(kind)

    def retrieve_output_shape(self) -> list[int]:
        """Shape of the result."""
        return bitblas_order(16, self.config.datatype, self.config.transform_kind, False).shape(
            self.config.M, self.config.N
        )


def _exchanged(array: np.ndarray, columns: int) -> np.ndarray:
    """With the quarters beside the diagonal of each tile of 16 rows exchanged: ldmatrix gives them in turn down the
    rows of an operand that is not transposed, along the rows of one that is."""
    rows, width = array.shape
    if rows % 16 or width % columns:
        return array  # which the order refuses with its reason
    tiles = array.reshape(rows // 16, 2, 8, width // columns, 2, columns // 2)
    return np.ascontiguousarray(tiles.swapaxes(1, 4)).reshape(rows, width)


def _codes(packed: np.ndarray, bits: int) -> np.ndarray:
    from tilewright.formats import unpack_plain

    return unpack_plain(packed.view(np.uint8), packed.shape[-1] * 8 // bits, bits)


class QuantCompress(_Step):
    """Codes, one an element, to bytes.  Raises NotRepresentable for what is no code."""

    config: QuantCompressConfig

    def step(self, array: np.ndarray) -> np.ndarray:
        """``[M, N]`` to ``[M, N * bits / 8]``."""
        flat = array.reshape(self.config.M, -1)
        return general_compress(flat, self.config.dequantize_bits, np.dtype(self.config.storage_dtype))

    def _input_shape(self) -> tuple[int, int]:
        return self.config.M, self.config.N

    def retrieve_qweight_shape(self) -> list[int]:
        """Shape of the result."""
        return [self.config.M, self.config.N * self.config.dequantize_bits // 8]


class LOP3Permutate(_Step):
    """The codes of every 32-bit word in the order of fast decoding."""

    config: LOP3PermutateConfig

    def step(self, array: np.ndarray) -> np.ndarray:
        """Bytes, or words of 32 bits, to as many of the same type."""
        if array.dtype.kind not in "iu" or array.dtype.itemsize not in (1, 4):
            raise InvalidTensor(f"packed weights are bytes or words of 32 bits, not {array.dtype}")
        target = "int8" if self.config.datatype == "uint8" else self.config.datatype
        made = interleave_weight(np.ascontiguousarray(array).view(np.int8), self.config.dequantize_bits, target)
        return made.view(array.dtype).reshape(array.shape)

    def retrieve_weight_shape(self) -> list[int]:
        """Shape of the result."""
        return [self.config.M, self.config.N * self.config.dequantize_bits // 8]

    retrieve_2d_weight_shape = retrieve_weight_shape
