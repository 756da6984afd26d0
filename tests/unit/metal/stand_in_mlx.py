"""A stand-in for ``mlx.core``: arrays, and `fast.metal_kernel`, whose texts pass the strict front end and run in the emulator.

Each check cites what it stands for: `metal_kernel.cpp` is MLX's ``mlx/backend/common/metal_kernel.cpp``, `custom_kernel.cpp` its
``mlx/backend/metal/custom_kernel.cpp``, `fast.cpp` its ``python/src/fast.cpp``, "limits" Apple's table of feature sets.
"""

from __future__ import annotations

import ctypes
import re
import types
from typing import Any

import ml_dtypes
import numpy as np
from front_end import complaints

from tilewright.emulator import run
from tilewright.errors import EmulationError
from tilewright.runtime import dlpack
from tilewright.targets.metal.emulation import METAL

NAMES = {
    "bool_": (np.bool_, "bool"), "float16": (np.float16, "float16_t"), "bfloat16": (ml_dtypes.bfloat16, "bfloat16_t"),
    "float32": (np.float32, "float"), **{f"{s}int{b}": (np.dtype(f"{s}int{b}"), f"{s}int{b}_t") for s in ("", "u") for b in (8, 16, 32, 64)},
}  # fmt: skip
ATTRIBUTES = {"thread_index_in_threadgroup": "uint", "threadgroup_position_in_grid": "uint3"}
UTILS = "#include <metal_stdlib>\nusing namespace metal;\ntypedef half float16_t;\ntypedef bfloat bfloat16_t;\n"
"""What MLX puts in front of every text (`metal::utils()`), as far as it matters here."""


class Dtype:
    """A type of elements."""

    def __init__(self, name: str) -> None:
        self.name, (self.numpy, self.text) = name, NAMES[name]

    def __repr__(self) -> str:
        return f"mlx.core.{self.name}"


class array:
    """An array: memory of its own, or a part of another's."""

    __module__ = "mlx.core"

    def __init__(self, values: Any, dtype: Dtype | None = None, offset: int = 0) -> None:
        made = np.asarray(values, dtype.numpy if dtype else None)
        self.dtype = dtype or next(DTYPES[name] for name, (kind, _) in NAMES.items() if np.dtype(kind) == made.dtype)
        self.memory = np.ascontiguousarray(made).reshape(-1).copy()  # from here on nobody changes it
        self.offset, self.shape = offset, made.shape

    @classmethod
    def part(cls, of: array, first: int, shape: tuple[int, ...]) -> array:
        """Consecutive elements of another array, in its memory."""
        made = cls.__new__(cls)
        made.dtype, made.memory, made.offset, made.shape = of.dtype, of.memory, of.offset + first, shape
        return made

    @property
    def flat(self) -> np.ndarray:
        return self.memory[self.offset : self.offset + self.size]

    size = property(lambda self: int(np.prod(self.shape)))
    ndim = property(lambda self: len(self.shape))

    def reshape(self, *shape: int) -> array:
        return array.part(self, 0, self.flat.reshape(shape).shape)

    def view(self, dtype: Dtype) -> array:
        return array(self.flat.view(dtype.numpy), dtype)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        if self.dtype.name == "bfloat16":  # NumPy's buffer protocol has none
            raise RuntimeError("Item size 2 for PEP 3118 buffer format string B does not match")
        return self.flat.reshape(self.shape)

    def __dlpack__(self, **_: Any) -> Any:
        """A capsule of device 8 whose address is a handle, with the offset beside it (MLX's pull request 3531)."""
        capsule = self.memory.view(np.uint8).reshape(-1).__dlpack__()
        record = dlpack._Tensor.from_address(dlpack._api.PyCapsule_GetPointer(capsule, b"dltensor"))
        record.device.type, record.byte_offset = 8, self.offset * self.memory.itemsize
        code = next(code for code, name in dlpack._CODES.items() if name == self.dtype.name.rstrip("_"))
        record.dtype.code, record.dtype.bits = code
        self.extents = (ctypes.c_int64 * max(self.ndim, 1))(*self.shape)
        record.ndim, record.shape, record.strides = self.ndim, self.extents, None
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (8, 0)


DTYPES = {name: Dtype(name) for name in NAMES}


class Kernel:
    """What `metal_kernel` gives."""

    texts: list[str] = []

    def __init__(
        self, name: str, input_names: list[str], output_names: list[str], source: str, header: str = "",
        ensure_row_contiguous: bool = True, atomic_outputs: bool = False,
    ) -> None:  # fmt: skip
        if not output_names:
            raise ValueError("[metal_kernel] Must specify at least one output.")  # metal_kernel.cpp
        if not all(isinstance(one, str) for one in (name, source, header, *input_names, *output_names)):
            raise TypeError("incompatible function arguments")  # fast.cpp: nanobind
        self.name, self.inputs, self.outputs, self.source, self.header = name, input_names, output_names, source, header
        self.calls: list[Any] = []

    def __call__(
        self, *positional: Any, inputs: Any, output_shapes: Any, output_dtypes: Any, grid: Any, threadgroup: Any,
        template: Any = (), init_value: Any = None, verbose: bool = False, stream: Any = None,
    ) -> list[array]:  # fmt: skip
        if positional:
            raise TypeError("incompatible function arguments")  # fast.cpp: keyword arguments alone
        for given in (grid, threadgroup):  # fast.cpp: tuples of three ints
            if not (isinstance(given, tuple) and len(given) == 3 and all(type(one) is int for one in given)):
                raise TypeError("incompatible function arguments")
        if not all(isinstance(one, (array, int, float)) for one in inputs):  # fast.cpp: arrays and numbers
            raise TypeError("incompatible function arguments")
        for _, value in template:
            if not isinstance(value, (int, bool, Dtype)):  # fast.cpp
                raise ValueError("[metal_kernel] Invalid template argument. Must be `mlx.core.Dtype`, `int` or `bool`.")
        for what, given, names in (
            ("inputs", inputs, self.inputs), ("output_shapes", output_shapes, self.outputs),
            ("output_dtypes", output_dtypes, self.outputs),
        ):  # fmt: skip
            if len(given) != len(names):  # metal_kernel.cpp
                raise ValueError(
                    f"[metal_kernel] Expected `{what}` to have size {len(names)} but got size {len(given)}."
                )
        if stream == "cpu":
            raise ValueError("[metal_kernel] Only supports the GPU.")  # metal_kernel.cpp
        if not all(isinstance(one, Dtype) for one in output_dtypes):
            raise TypeError("incompatible function arguments")  # fast.cpp
        if init_value is not None and not isinstance(init_value, (int, float)):
            raise TypeError("incompatible function arguments")  # fast.cpp: optional<float>
        arrays = [one if isinstance(one, array) else array(one) for one in inputs]
        if len(inputs) + len(output_shapes) > 31:
            raise RuntimeError("31 buffers")  # limits: buffers of a kernel
        return self._run(arrays, output_shapes, output_dtypes, grid, threadgroup, init_value)

    def _run(self, arrays: Any, shapes: Any, dtypes: Any, grid: Any, threadgroup: Any, init_value: Any) -> list[array]:
        if np.prod(threadgroup) > 1024:  # custom_kernel.cpp, and limits
            raise ValueError(f"Thread group size ({np.prod(threadgroup)}) is greater than the maximum allowed")
        group = tuple(min(a, b) for a, b in zip(threadgroup, grid))  # custom_kernel.cpp: a group shrinks to its grid
        made = [array(np.full(int(np.prod(shape)), 0, one.numpy), one) for shape, one in zip(shapes, dtypes)]
        for one, shape in zip(made, shapes):  # allocator::malloc: whatever was there
            one.memory.view(np.uint8)[:] = 0xFF if init_value is None else 0
            one.memory[...] = one.memory if init_value is None else init_value
            one.shape = tuple(shape)
        text = self._text(arrays, dtypes)
        said = complaints(text.replace("&", "*") if any(one.ndim == 0 for one in arrays) else text)
        if said:
            raise RuntimeError("[metal::Device] Unable to build metal library from source\n" + "\n".join(said))
        self.calls.append((grid, threadgroup))
        Kernel.texts.append(text)
        values = [one.flat.view(np.uint8) if one.size else np.zeros(0, np.uint8) for one in (*arrays, *made)]
        counts = tuple(-(-total // size) for total, size in zip(grid, group))
        found = run(
            text, f"custom_kernel_{self.name}", values, grid=counts, block=group, shared_bytes=32768, memory=values,
            vocabulary=METAL,
        )  # fmt: skip
        if found.reports:
            raise EmulationError(found.reports)
        return made

    def _text(self, arrays: list[array], dtypes: list[Dtype]) -> str:
        """As `write_signature` writes it: small inputs are constant, ones without dimensions references."""
        lines = []
        for name, one in zip(self.inputs, arrays):
            space, mark = "constant" if one.size < 8 else "device", "*" if one.ndim else "&"
            lines.append(f"  const {space} {one.dtype.text}{mark} {name} [[buffer({len(lines)})]]")
            for what, kind in (("_shape", "int*"), ("_strides", "int64_t*"), ("_ndim", "int&")):
                if name + what in self.source and one.ndim:
                    lines.append(f"  const constant {kind} {name}{what} [[buffer({len(lines)})]]")
        for name, dtype in zip(self.outputs, dtypes):
            lines.append(f"  device {dtype.text}* {name} [[buffer({len(lines)})]]")
        lines += [f"  {kind} {name} [[{name}]]" for name, kind in ATTRIBUTES.items() if name in self.source]
        head = f"kernel void custom_kernel_{self.name}(\n" + ",\n".join(lines) + ") {\n"
        return f"{UTILS}{self.header}\n{head}{self.source}\n}}\n"


def core() -> types.ModuleType:
    """The module."""
    made = types.ModuleType("mlx.core")
    made.__dict__.update(
        array=array, fast=types.SimpleNamespace(metal_kernel=Kernel), **DTYPES,
        zeros=lambda shape, dtype: array(np.zeros(tuple(shape), dtype.numpy), dtype),
    )  # fmt: skip
    return made


def declared(text: str) -> list[str]:
    """The parameters of a text's kernel."""
    return re.findall(r"^  (.*?) \[\[", text, re.M)
