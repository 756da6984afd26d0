"""What a `Matmul` does with its weight: from numbers to the bytes of raw tensors or a `PackedWeight`, and which raw
tensors fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import MissingOperand, WrongArgumentDType, WrongArgumentKind, WrongArgumentShape, an
from tilewright.formats import pack_plain, unpack_plain
from tilewright.ir.dtypes import UINT8, dtype
from tilewright.matmul.arrays import as_torch, check_device, contiguous, device_of, element_type, placed_like, viewed
from tilewright.matmul.column_order import column_order
from tilewright.matmul.config import MatmulConfig
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.weight_codes import codes_of, stored_codes, zero_points
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array, as_numpy, is_torch


@dataclass(frozen=True, slots=True)
class MatmulCall:
    """What a `Matmul` is called with; None for what was left out. See `Matmul.forward`."""

    A: Any
    W: Any
    scale: Array | None = None
    zeros: Any = None
    bias: Any = None
    output: Array | None = None
    a_scale: Any = None
    residual: Array | None = None


class WeightForms:
    """The weight of a config in its two forms: raw tensors of bytes, scales and zeros, and a `PackedWeight`."""

    config: MatmulConfig
    name: str

    def retrieve_weight_shape(self) -> list[int]:
        """Shape of what `transform_weight` gives: ``[N, K * bits / 8]`` bytes; elements of 8 bits and more as the
        layout has them."""
        shape = [int(extent) for extent in self._code_shape()]
        return shape[::-1] if self._is_transposed else shape

    @property
    def _is_transposed(self) -> bool:
        """Whether raw weights are ``[K, N]``: elements that no byte holds two of, in the layouts nn and tn."""
        return self.config.layout[1] == "n" and self.config.format.bits >= 8

    def _code_shape(self) -> tuple[int, ...]:
        """The shape in which the kernel takes a raw weight."""
        facts = self.config.facts()
        return facts.N, facts.K if facts.format.is_dense else -(-facts.K * facts.format.bits // 8)

    def transform_weight(self, weight: Array, scale: object = None, zeros: object = None, bias: object = None) -> Any:
        """Pack a weight of numbers (integer formats) or codes into the bytes that `forward` takes.

        Parameters
        ----------
        weight : ``[N, K]`` (``[K, N]`` in layouts nn and tn).  For integer formats the numbers themselves, -8 to 7 for
            int4; for the others codes (an integer tensor), values (a float tensor) or 8-bit floats.
        scale, zeros, bias : given back beside the weight, for ``forward(A, *transformed)``.

        Raises
        ------
        NotRepresentable : a number that the format does not have, named with its index.
        """
        packed = self._bytes(self._codes(weight), weight)
        extra = (scale, zeros, bias)
        return packed if all(value is None for value in extra) else [packed, *extra]

    @property
    def weight_transform(self) -> Callable[[Array], Array]:
        """From codes to the bytes that `forward` takes, without conversion of numbers.

        The function takes integers of any type, in the order that `transform_weight` takes numbers in, and raises
        InvalidCode.
        """
        of = self.config.format
        return lambda codes: self._bytes(stored_codes(self._by_rows(as_numpy(codes)), of), codes)

    def _codes(self, weight: Array) -> np.ndarray:
        """Codes ``[N, K]`` of a weight of numbers."""
        return codes_of(self._by_rows(as_numpy(weight)), self.config.format)

    def _by_rows(self, array: np.ndarray) -> np.ndarray:
        """A weight of the config's layout as ``[N, K]``.  Raises WrongArgumentShape."""
        config = self.config
        found, transposed = array.shape, config.layout[1] == "n"
        array = array.T if transposed else array
        if array.shape != (config.N, config.K):
            order, expected = ("[K, N]", [config.K, config.N]) if transposed else ("[N, K]", [config.N, config.K])
            raise WrongArgumentShape(f"the weight has shape {list(found)}, expected {order} = {expected}")
        return array

    def _bytes(self, codes: np.ndarray, example: Array) -> Array:
        """Codes ``[N, K]`` as raw tensors hold them, of the kind and on the device of `example`."""
        of = self.config.format
        packed: np.ndarray = np.ascontiguousarray(codes if of.is_dense else pack_plain(codes, of.bits))
        if not of.is_dense:
            packed = packed.view(np.int8)
        if self._is_transposed:
            packed = np.ascontiguousarray(packed.T)
        return as_torch(packed, example.device) if is_torch(example) else packed

    def pack(
        self,
        weight: Array,
        scale: object = None,
        zeros: object = None,
        device: object = None,
        *,
        multipliers: object = None,
        divisors: object = None,
        g_idx: object = None,
        tensor_scale: float = 1.0,
    ) -> PackedWeight:
        """The weight with its scales and zeros as one object, in the order that the fastest kernels read.

        Parameters
        ----------
        weight, scale, zeros : as for `transform_weight` and `forward`.
        multipliers, divisors, g_idx, tensor_scale : of `QuantizedWeight`: second-level int8 scales of groups (`scale`
            may then be ``[N, 1]``), SmoothQuant's divisors of activations, act-order, one more factor.

        Raises
        ------
        MissingOperand : the config has scales or zeros that were not given.
        CannotQuantize, NotRepresentable : they do not fit the weight.
        """
        config = self.config
        parts = {"multipliers": multipliers, "divisors": divisors, "g_idx": g_idx}
        self._need(scale=scale, zeros=zeros)
        grouped, block = self._groups({"scales": scale, "zeros": zeros})
        made = QuantizedWeight(
            self._codes(weight),
            config.format,
            **grouped,
            block=block,
            tensor_scale=tensor_scale,
            zeros_mode=config.zeros_mode if config.with_zeros else "original",
            **{name: None if array is None else as_numpy(array) for name, array in parts.items()},
        )
        if device is None and is_torch(weight):
            device = weight.device
        return PackedWeight.pack(made, device)

    def _need(self, **operands: object) -> None:
        wanted = {
            "scale": self.config.with_scaling,
            "zeros": self.config.with_zeros,
            "bias": self.config.with_bias,
            "a_scale": self.config.a_scale is not None,
            "residual": self.config.with_residual,
        }
        switch = {"scale": "with_scaling", "zeros": "with_zeros", "bias": "with_bias", "residual": "with_residual"}
        for name, value in operands.items():
            if wanted[name] and value is None:
                raise MissingOperand(
                    f"{self.name} was called without {name}", hint=f"its config has {switch.get(name, name)}"
                )
            if not wanted[name] and value is not None:
                raise MissingOperand(
                    f"{self.name} was given {name}, which its config does not have",
                    hint=f"set {switch.get(name, name)} in the MatmulConfig",
                )

    def _check_packed(self, weight: PackedWeight, scale: object, zeros: object) -> None:
        """A packed weight is of the config's size and format, and brings its own scales and zeros. Raises
        WrongArgumentShape, WrongArgumentDType, MissingOperand."""
        facts = self.config.facts()
        if weight.shape != (facts.N, facts.K):
            raise WrongArgumentShape(
                f"the packed weight has shape {list(weight.shape)}, but the config's is {[facts.N, facts.K]}"
            )
        if weight.format != facts.format:
            raise WrongArgumentDType(
                f"the packed weight is {weight.format}, but the config's W_dtype is {self.config.W_dtype}"
            )
        for name, value in (("scale", scale), ("zeros", zeros)):
            if value is not None:
                raise MissingOperand(
                    f"{self.name} was given {name} beside a packed weight, which has its own", hint=f"leave out {name}"
                )

    def _packed(self, given: MatmulCall) -> PackedWeight:
        """The weight of raw tensors, each of which must be what the config says."""
        config, tensors = self.config, self._weight_tensors(given)
        arrays = {**tensors, "codes": self._plain(tensors["codes"])}
        facts, of, block = config.facts(), config.format, config.block
        if config.with_zeros and config.zeros_mode == "quantized":
            grouped, block = self._groups({name: array for name, array in tensors.items() if name != "codes"})
            arrays |= {name: placed_like(array, tensors["codes"]) for name, array in grouped.items()}
        mode = config.zeros_mode if config.with_zeros else "original"
        if column_order(facts.K, block[1], None) is None:
            return PackedWeight(of, (facts.N, facts.K), arrays, block=block, zeros_mode=mode)
        # Groups are padded, which is done on the host.
        held: dict[str, Any] = {name: as_numpy(array) for name, array in arrays.items()}
        codes = held.pop("codes") if of.is_dense else unpack_plain(held.pop("codes").view(np.uint8), facts.K, of.bits)
        made = QuantizedWeight(codes, of, block=block, zeros_mode=mode, **held)
        return PackedWeight.pack(made, getattr(given.W, "device", None))

    def _groups(self, given: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
        """Scales and zeros as a weight holds them, those that there are, and its block.  Packed zeros are one for each
        row, beside which the scales of a block of rows are repeated."""
        config, (rows, columns) = self.config, self.config.block
        arrays = {name: as_numpy(array) for name, array in given.items() if array is not None}
        if not (config.with_zeros and config.zeros_mode == "quantized"):
            return arrays, (rows, columns)
        count = config.facts().N
        arrays["zeros"] = np.ascontiguousarray(zero_points(arrays["zeros"], count, config.format.bits))
        if "scales" in arrays:
            arrays["scales"] = np.repeat(arrays["scales"], rows, axis=0)[:count]
        return arrays, (1, columns)

    def _plain(self, codes: Array) -> Array:
        """Codes in the order of raw tensors, row by row, low bits first."""
        return codes

    def _weight_tensors(self, given: MatmulCall) -> dict[str, Array]:
        """The weight's tensors by name, each of the shape and type that the config says, on the device of A."""
        facts, W, shaped = self.config.facts(), given.W, Shaped(device_of(given.A))
        packed_zeros = facts.zeros == "packed"
        grouped = None if facts.scale is None else (facts.scale.rows, facts.scale.columns)
        points = None if facts.zero_point is None else (facts.zero_point.rows, facts.zero_point.columns)
        if packed_zeros:
            points = (facts.groups, -(-facts.N * facts.format.bits // 8))
        if not facts.format.is_dense and getattr(getattr(W, "dtype", None), "itemsize", 1) != 1:
            raise WrongArgumentDType(
                f"W is {W.dtype}, where the bytes of packed {facts.format} codes are due",
                hint="transform_weight makes them of numbers",
            )
        if self._is_transposed:
            W = contiguous(shaped("W", W, tuple(self.retrieve_weight_shape()), None).T)
        of_scales = facts.scale and dtype(facts.scale.dtype)
        of_points = None if packed_zeros else facts.zero_point and dtype(facts.zero_point.dtype)
        tensors = {
            "codes": shaped("W", W, self._code_shape(), facts.format.dtype if facts.format.is_dense else None),
            "scales": shaped("scale", given.scale, grouped, of_scales),
            "zeros": shaped("zeros", given.zeros, points, of_points),
        }
        return {name: array for name, array in tensors.items() if array is not None}


class Shaped:
    """Tensors of the shape and type that is due, on one device; each as kernels take it."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(
        self, what: str, array: Array | None, expected: tuple[int, ...] | None, of: object, also: tuple[int, ...] = ()
    ) -> Any:  # of the library that the array is of
        if array is None or expected is None:
            return None
        if not hasattr(array, "shape"):
            raise WrongArgumentKind(f"{what} is {an(type(array).__name__)}, expected a tensor")
        check_device(what, array, "A is", self.device)
        shape = tuple(array.shape)
        flat = int(np.prod(shape, dtype=np.int64))
        if shape not in (expected, also) and not (what == "a_scale" and flat == int(np.prod(expected))):
            raise WrongArgumentShape(f"{what} has shape {list(shape)}, expected {list(expected)}")
        if of is not None and element_type(array) != of:
            raise WrongArgumentDType(f"{what} is {element_type(array)}, expected {of}")
        array = contiguous(array)
        if of is None and element_type(array).name == "int8":
            array = viewed(array, UINT8)
        return array.reshape(expected)
