"""Weights of torchao as its safetensors files have them: parts of a tensor under names, its kind in the file's
metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.checkpoints.bounds import json_value
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import assemble, fields, group_size, signed, smoothed
from tilewright.quant.importers.compressed_tensors import FLOAT8, from_float_quantized
from tilewright.quant.importers.mx import powers_of_two
from tilewright.quant.importers.nvfp4 import from_nvfp4
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

_IN_BLOCKS = ("MXTensor", "NVFP4Tensor")
KINDS = ("Int4Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", *_IN_BLOCKS)
"""Kinds of tensors that can be read."""

PARTS = (
    "qdata", "scale", "zero_point", "act_pre_scale", "act_quant_scale", "act_quant_zero_point", "per_tensor_scale",
    "act_per_tensor_scale",
)  # fmt: skip
"""What they are made of; static scales of activations go, which are quantised as they come."""

ABOUT = (
    "block_size", "dtype", "target_dtype", "shape", "activation_quantization", "act_quant_kwargs", "reduce_range",
    "mm_config", "kernel_preference",
)  # fmt: skip
"""What else is said of them; only the first and the third change what codes mean."""

_ABOUT_BLOCKS = (
    "block_size", "elem_dtype", "orig_dtype", "kernel_preference", "act_quant_kwargs", "is_swizzled_scales",
    "use_triton_kernel",
)  # fmt: skip
"""The same of small floats in blocks."""

_ELEMENTS = {
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2", "float4_e2m1fn_x2": "e2m1",
}  # fmt: skip
"""Small floats by torchao's names; those of 6 bits lie in a byte each, those of 4 bits two by two, the even column
low."""

_ACTIVATIONS = {"Int8Tensor": "int8", "IntxUnpackedToInt8Tensor": "int8", "Float8Tensor": "float8_e4m3fn"}


def from_torchao(
    kind: str, parts: Mapping[str, object], about: Mapping[str, object], *, name: str = "weight"
) -> QuantizedWeight:
    """A weight of one of torchao's kinds of tensors.

    ::

        Int4Tensor                  w = code * scale[k // g, n] + zero_point[k // g, n]     two codes a byte, the even k low
        Int8Tensor                  w = (code - zero_point[b]) * scale[b]
        IntxUnpackedToInt8Tensor    the same, codes of fewer bits in an int8 each
        Float8Tensor                w = code * scale[b]
        MXTensor, NVFP4Tensor       w = code * scale[n, k // block_size] * per_tensor_scale

    with b for the block of ``block_size`` that the element is in, and codes in two's complement.

    Parameters
    ----------
    kind : one of `KINDS`.
    parts : ``qdata``, ``scale`` and, where the kind has them, ``zero_point`` and ``act_pre_scale``, by which
        activations are multiplied first.
    about : the other attributes, ``block_size`` among them.

    Source: the tensor subclasses of torchao and `torchao.prototype.safetensors`.
    """  # noqa: E501
    if kind not in KINDS:
        hint = f"known are {', '.join(KINDS)}; the other kinds are orders of one kernel"
        raise InvalidTensor(f"{name} is a torchao {kind}", hint=hint)
    for part in ("qdata", "scale"):
        if part not in parts:
            raise MissingTensor(f"{name}: the part {part} of a torchao {kind} is missing")
    in_blocks = kind in _IN_BLOCKS
    words = _ABOUT_BLOCKS if in_blocks else ABOUT
    unknown = [key for key, value in about.items() if key not in words and value is not None and value is not False]
    absent = [] if kind == "NVFP4Tensor" else ["per_tensor_scale", "act_per_tensor_scale"]
    absent += ["zero_point"] if in_blocks or kind == "Float8Tensor" else []
    unknown += [part for part in parts if part not in PARTS or part in absent]
    if unknown:
        raise InvalidTensor(f"{name}: a torchao {kind} with {', '.join(unknown)}, which nothing here reads")
    weight = (_small_floats if in_blocks else _read)(kind, parts, about, name)
    return smoothed(weight, parts.get("act_pre_scale"), f"{name}.act_pre_scale")


def _read(kind: str, parts: Mapping[str, object], about: Mapping[str, object], name: str) -> QuantizedWeight:
    block = about.get("block_size")
    if (
        not isinstance(block, (list, tuple))
        or len(block) != 2
        or not all(size == -1 or _counts(size) for size in block)
    ):
        raise InvalidTensor(f"{name} has the block size {block}, where one for two dimensions is due")
    if kind == "Int4Tensor":
        return _int4(parts, block[1], name)
    if kind == "Float8Tensor":
        return from_float_quantized(parts["qdata"], parts["scale"], block=_extents(block, parts["qdata"]), name=name)
    codes = expect(f"{name}.qdata", parts["qdata"], ["int8"], [None, None], "[N, K]")
    rows, columns = _extents(block, codes)
    grid = [-(-codes.shape[0] // rows), -(-codes.shape[1] // columns)]
    scales = expect(f"{name}.scale", parts["scale"], FLOATS, grid, "one a block")
    zeros = parts.get("zero_point")
    if zeros is not None:
        zeros = expect(f"{name}.zero_point", zeros, ["int8", *FLOATS], grid, "one a block").astype(np.float32)
        zeros = zeros if zeros.any() else None
    bits = _bits(about) if kind.startswith("Intx") else 8
    stored = signed(f"{name}.qdata", codes, bits)
    return assemble(name, stored, f"int{bits}", scales, (rows, columns), zeros=zeros)


def _int4(parts: Mapping[str, object], group: int, name: str) -> QuantizedWeight:
    packed = expect(f"{name}.qdata", parts["qdata"], ["int8", "uint8"], [None, None], "[N, K / 2]").view(np.uint8)
    N, K = packed.shape[0], 2 * packed.shape[1]
    scales = expect(f"{name}.scale", parts["scale"], FLOATS, [None, N], "[K / group, N]")
    if "zero_point" not in parts:
        raise MissingTensor(f"{name}: the part zero_point of a torchao Int4Tensor is missing")
    added = expect(f"{name}.zero_point", parts["zero_point"], FLOATS, scales.shape, "as scale")
    columns = group_size(f"{name}.scale", K, scales.shape[0], group)
    factors, zeros = np.ascontiguousarray(scales.T), np.ascontiguousarray(-added.T)
    return assemble(name, fields(packed, 4, K), "int4", factors, columns, zeros=zeros, zeros_mode="rescale")


def _small_floats(kind: str, parts: Mapping[str, object], about: Mapping[str, object], name: str) -> QuantizedWeight:
    named = "float4_e2m1fn_x2" if kind == "NVFP4Tensor" else _type_of(about.get("elem_dtype"))
    element, size = _ELEMENTS.get(named), about.get("block_size")
    if element is None or not isinstance(size, int) or size < 1:
        raise InvalidTensor(
            f"{name} is a torchao {kind} of {named} in blocks of {size}", hint=f"known are {', '.join(_ELEMENTS)}"
        )
    held = named if named in FLOAT8 else "uint8"
    qdata = expect(f"{name}.qdata", parts["qdata"], [held], [None, None], "[N, K]")
    codes = fields(qdata, 4, 2 * qdata.shape[1]) if element == "e2m1" else qdata
    N, groups = codes.shape[0], -(-codes.shape[1] // size)
    scales = as_numpy(parts["scale"])
    if about.get("is_swizzled_scales"):
        scales = _in_rows(f"{name}.scale", scales, N, groups)
    due = "float8_e4m3fn" if kind == "NVFP4Tensor" else "float8_e8m0fnu"
    scales = expect(f"{name}.scale", scales, [due], [N, groups], "[N, K / block]")
    if kind == "NVFP4Tensor":
        whole = parts.get("per_tensor_scale", np.ones(1, np.float32))
        return from_nvfp4(qdata, scales, as_numpy(whole), group=size, name=name)
    if named in FLOAT8:
        return from_float_quantized(qdata, scales, group=size, name=name)
    powers = powers_of_two(f"{name}.scale", scales)
    return assemble(name, codes, element, powers, size)


def _in_rows(name: str, scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Scales that lie as the matrix units of Blackwell take them: tiles of 128 rows by 4 columns, in each of which 32
    rows of 16 hold the rows r, r + 32, r + 64 and r + 96."""
    high, wide = -(-rows // 128), -(-columns // 4)
    if scales.size != high * wide * 512:
        raise InvalidTensor(f"{name} is {list(scales.shape)}, where {high} x {wide} tiles of 128 x 4 scales are due")
    tiles = scales.reshape(high, wide, 32, 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles.reshape(128 * high, 4 * wide)[:rows, :columns])


def _extents(block: Sequence[int], codes: object) -> tuple[int, int]:
    """Rows and columns of a block; -1 stands for all."""
    shape = as_numpy(codes).shape
    rows, columns = (extent if size == -1 else size for size, extent in zip(block, shape))
    return rows, columns


def _counts(size: object) -> bool:
    return type(size) is int and size > 0


def _type_of(kind: object) -> str:
    return str(kind.get("_data") if isinstance(kind, Mapping) else kind).removeprefix("torch.")


def _bits(about: Mapping[str, object]) -> int:
    text = _type_of(about.get("target_dtype"))
    bits = text.removeprefix("int")
    if bits not in "2345678" or len(bits) != 1:
        raise InvalidTensor(f"integers of the type {text}", hint="int2 to int8 can be read")
    return int(bits)


def read_torchao(tensors: Mapping[str, object], layer: str, metadata: Mapping[str, str]) -> QuantizedWeight:
    """The weight of a layer, whose parts are ``layer._weight_qdata`` and so on. Raises InvalidTensor, MissingTensor,
    also for a file without torchao's metadata."""
    start = f"{layer}._weight_"
    parts = {part: tensors[start + part] for part in PARTS if start + part in tensors}
    kind, rest = _described(layer, metadata)
    return from_torchao(kind, parts, rest, name=layer)


def _described(layer: str, metadata: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
    """The kind of a layer's tensor, and its attributes."""
    try:
        about = json_value(metadata[f"{layer}.weight"])
        return str(about["_type"]), dict(about["_data"])
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidTensor(
            f"{layer}: the file does not say which torchao tensor it is ({error!r})",
            hint="torchao's save keeps that in the file's metadata",
        ) from None


def torchao_activations(layer: str, metadata: Mapping[str, str]) -> str | None:
    """What activations are quantised to before they meet a layer's weight; None for as they are. Raises InvalidTensor
    for a file without torchao's metadata."""
    kind, about = _described(layer, metadata)
    quantised = about.get("act_quant_kwargs") or about.get("activation_quantization")
    if kind == "MXTensor" and isinstance(quantised, Mapping):
        of = quantised.get("_data")
        small = _type_of(of.get("elem_dtype")) if isinstance(of, Mapping) else ""
        return "float8_e4m3fn" if small == "float8_e4m3fn" else None
    return _ACTIVATIONS.get(kind) if quantised else None
