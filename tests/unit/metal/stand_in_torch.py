"""A stand-in for ``torch.mps``: what a call of a compiled text is refused for there is refused here, the rest runs in the emulator.

Each check cites what it stands for: `Module.cpp` is torch's ``torch/csrc/mps/Module.cpp``, `OperationUtils.mm` its
``aten/src/ATen/native/mps/OperationUtils.mm``, "limits" Apple's table of feature sets.
"""

from __future__ import annotations

import ctypes
import re
import types
from typing import Any

import numpy as np
import torch
from front_end import complaints

from tilewright.emulator import run
from tilewright.errors import EmulationError
from tilewright.targets.metal.emulation import METAL

CASTS = ("fp16", "bf16", "int32", "int16", "int8", "uint8")


class MpsTensor(torch.Tensor):
    """A tensor that says that it is on Apple's GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("mps", 0)


def on_mps(tensor: torch.Tensor) -> MpsTensor:
    return tensor.as_subclass(MpsTensor)


def host(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor's memory from its first element on."""
    storage = tensor.as_subclass(torch.Tensor).untyped_storage()
    if not storage.nbytes():
        return np.zeros(0, np.uint8)
    memory = np.frombuffer((ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()), np.uint8)
    return memory[tensor.storage_offset() * tensor.element_size() :]


class Library:
    """Kernels of one text (`DynamicMetalShaderLibrary`)."""

    def __init__(self, text: str) -> None:
        if not text.isascii():
            raise RuntimeError("cannot be encoded")  # OperationUtils.mm: NSASCIIStringEncoding
        said = complaints(text)
        if said:
            raise SyntaxError("\n".join(said))  # Module.cpp: compile errors arrive so
        self.text, self.launches = text, []
        self.names = re.findall(r"\bkernel void (\w+)\(", text)

    def __getattr__(self, name: str) -> Any:
        if name not in self.names:  # OperationUtils.mm: a function that is not in the library
            raise RuntimeError(f"Failed to create function state object for: {name}")
        head = self.text[self.text.index(f"kernel void {name}(") :].split(") {")[0]
        indices = re.findall(r"\[\[buffer\((\d+)\)\]\]", head)
        most = re.search(rf"max_total_threads_per_threadgroup\((\d+)\)\]\]\s*kernel void {name}\(", self.text)
        return Function(self, name, len(indices), int(most[1]) if most else 1024)


class Function:
    """One kernel (`MetalKernelFunction`)."""

    def __init__(self, library: Library, name: str, arguments: int, most: int) -> None:
        self.library, self.name, self.arguments = library, name, arguments
        self.max_threads_per_threadgroup, self.thread_execution_width = most, 32

    def __call__(
        self, *given: Any, threads: Any = None, group_size: Any = None, arg_casts: Any = None, error_buf_idx: Any = None
    ) -> None:
        threads, group_size = self._sizes(given, threads, group_size)
        if len(given) > 31:
            raise RuntimeError("31 buffers")  # limits: buffers of a kernel
        if (
            len(given) != self.arguments
        ):  # Metal's validation: a buffer that the kernel has and nobody bound, or the other way
            raise RuntimeError(f"{self.name} has {self.arguments} arguments, {len(given)} were given")
        values, memory, tables = [], [], []
        for place, value in enumerate(given):
            cast = arg_casts.get(place) if isinstance(arg_casts, dict) else arg_casts
            if cast is not None and cast not in CASTS:  # Module.cpp: parse_arg_casts
                raise RuntimeError(f"Unsupported cast type {cast}")
            values.append(self._argument(value))
            if isinstance(value, (list, tuple)):
                memory += [host(one) for one in value]
                tables.append(values[-1])
            memory.append(values[-1])
        grid = tuple(-(-total // size) for total, size in zip(threads, group_size, strict=True))
        if any(total % size for total, size in zip(threads, group_size)):
            raise AssertionError("the last group would be ragged, and barriers in it would hang")
        self.library.launches.append((self.name, grid, group_size))
        found = run(
            self.library.text, self.name, values, grid=grid, block=group_size, shared_bytes=32768, memory=memory,
            tables=tables,
            vocabulary=METAL,
        )  # fmt: skip
        if found.reports:
            raise EmulationError(found.reports)

    def _sizes(self, given: Any, threads: Any, group_size: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if threads is None:
            threads = given[0].numel()  # Module.cpp: threads of the first tensor's elements
        threads = (threads,) if isinstance(threads, int) else tuple(threads)
        group_size = (group_size,) if isinstance(group_size, int) else tuple(group_size or (1,) * len(threads))
        if not 1 <= len(threads) <= 3 or len(group_size) != len(
            threads
        ):  # Module.cpp: "threads and group_size must have the same length"
            raise RuntimeError("threads and group_size have to have the same number of elements, up to 3")
        if any(type(one) is not int or one < 0 for one in (*threads, *group_size)):  # Module.cpp: uint64_t by pybind11
            raise TypeError("incompatible function arguments")
        if 0 in threads or 0 in group_size:  # Metal's validation: dispatchThreads of an empty grid
            raise RuntimeError("a grid without threads")
        if int(np.prod(group_size)) > self.max_threads_per_threadgroup:  # Metal's validation
            raise RuntimeError(f"{group_size} are more than {self.max_threads_per_threadgroup} threads")
        return threads, group_size

    def _argument(self, value: Any) -> np.ndarray:
        if isinstance(value, torch.Tensor):
            if value.device.type != "mps":  # OperationUtils.mm: setArg asks for an MPS tensor
                raise RuntimeError("Tensor must be on MPS device")
            return host(value)
        if isinstance(value, bool) or type(value) is int:
            return np.array([value], np.int64)  # Module.cpp: py::int_ as int64_t
        if type(value) is float:
            return np.array([value], np.float32)  # Module.cpp: py::float_ as float
        if isinstance(value, (list, tuple)) and value and all(isinstance(one, torch.Tensor) for one in value):
            return np.array(
                [host(one).ctypes.data for one in value], np.uint64
            )  # OperationUtils.mm: gpuAddress of each
        raise TypeError(f"Unsupported argument type {type(value).__name__}")  # Module.cpp: the last branch


def torch_with_mps() -> Any:
    """A torch that has an MPS device: its tensors are this machine's, and texts run in the emulator."""

    def zeros(*shape: Any, device: Any = None, **named: Any) -> Any:
        made = torch.zeros(*shape, **named)
        return on_mps(made) if device == "mps" else made

    return types.SimpleNamespace(
        Tensor=torch.Tensor, zeros=zeros, uint8=torch.uint8, from_numpy=lambda a: _ToMps(torch.from_numpy(a)),
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: True)),
        mps=types.SimpleNamespace(compile_shader=Library),
        **{name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "int32", "int64", "bool")},
    )  # fmt: skip


class _ToMps:
    """A tensor on its way to the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: str) -> MpsTensor:
        assert device == "mps"
        return on_mps(self.tensor.clone())
