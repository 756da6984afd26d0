"""Running Metal programs on arrays of MLX: each kernel is the body of an ``mx.fast.metal_kernel``, whose signature MLX
writes.

Sources: `mlx/backend/common/metal_kernel.cpp` and `mlx/backend/metal/custom_kernel.cpp` of MLX's public code. Inputs of
fewer than eight elements lie in constant memory. Outputs are always new arrays, so a program can return what it makes
and change nothing that it is given. ``grid`` counts threads.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tilewright.errors import MissingCapability
from tilewright.ir import UINT8, Buffer, Function, TensorMap, Var, counted_workspaces, kernels, written_parameters
from tilewright.machine.arch import Arch
from tilewright.targets.base import Promised
from tilewright.targets.gpu.emit import kernel_parameters
from tilewright.targets.gpu.host import HostProgram
from tilewright.targets.metal.emit import MlxKernel, scalar_type

FEW = 8
"""Inputs of fewer elements are in constant memory."""


class MlxDoor:
    """Runs a function's host program in MLX's current stream; called with the entry arguments, arrays and `Promised`
    ones for buffers.

    Raises
    ------
    MissingCapability : the program changes what it is given, or memory that another of its kernels has written.
    """

    def __init__(self, function: Function, entries: Sequence[str], arch: Arch) -> None:
        self.function, self.entries, self.arch = function, list(entries), arch
        self.core = importlib.import_module("mlx.core")
        changed = [param for param in written_parameters(function) if param not in function.outputs]
        if changed:
            name = sorted(param.name for param in changed)[0]
            raise MissingCapability(
                f"{function.name} writes its argument {name!r}, and arrays of MLX are never changed in place",
                span=function.span,
                hint=f"let it return {name}: out_idx=, or T.empty in a direct function; torch's MPS tensors can "
                "be changed",
            )
        self.kernels = list(kernels(function))
        self.counted = counted_workspaces(function)
        self.made: dict[tuple[int, tuple[int, ...]], tuple[object, MlxKernel]] = {}
        self.program = HostProgram(function, self._launch, self._workspace)

    def __call__(self, *entry: object) -> None:
        self.program.run(entry)
        for value in entry:
            if isinstance(value, Promised) and value.value is None:  # no block ran
                value.value = self.core.zeros(value.shape, self._type(value.dtype.name))

    def _launch(self, number: int, grid: tuple[int, int, int], given: list[Any]) -> None:
        if min(grid) < 1:
            return
        kernel, values = self.kernels[number], dict(zip(kernel_parameters(self.kernels[number]), given, strict=True))
        inputs = [one for one in MlxKernel(self.function, kernel, self.arch).inputs if not isinstance(one, TensorMap)]
        arrays = [self._array(one, values[one]) for one in inputs]
        small = tuple(place for place, array in enumerate(arrays) if array.size < FEW)
        call, text = self._kernel(number, small)
        outputs = [values[one] for one in text.outputs]
        again = next((one for one, value in zip(text.outputs, outputs, strict=True) if value.value is not None), None)
        if again is not None:
            raise MissingCapability(
                f"{again.name} is written by two kernels of {self.function.name}: outputs of MLX's kernels are "
                "new arrays",
                span=kernel.span,
                hint="let the second one write memory of its own, or pass tensors of torch's MPS",
            )
        threads = kernel.num_threads
        found = call(
            inputs=arrays,
            output_shapes=[one.shape for one in outputs],
            output_dtypes=[self._type(one.dtype.name) for one in outputs],
            grid=(grid[0] * threads, grid[1], grid[2]),
            threadgroup=(threads, 1, 1),
            **({"init_value": 0} if self.counted.intersection(text.outputs) else {}),
        )
        for output, array in zip(outputs, found, strict=True):
            output.value = array

    def _kernel(self, number: int, small: tuple[int, ...]) -> tuple[Any, MlxKernel]:
        """A kernel for inputs of which these are small."""
        found = self.made.get((number, small))
        if found is None:
            text = MlxKernel(self.function, self.kernels[number], self.arch, small)
            header, body = text.body()
            made = self.core.fast.metal_kernel(
                name=self.entries[number],
                input_names=text.input_names,
                output_names=text.output_names,
                source=body,
                header=header,
                ensure_row_contiguous=False,  # strides are the program's own affair
            )
            found = self.made[number, small] = (made, text)
        return found

    def _array(self, param: Buffer | Var, value: Any) -> Any:
        """What a kernel is handed for a parameter: numbers as arrays of one element."""
        if isinstance(param, Var):
            kind = scalar_type(param)
            number = float(value) if kind == "float" else (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
            return self.core.array([number], self._type("float32" if kind == "float" else "int64"))
        if isinstance(value, Promised):
            if value.value is None:
                value.value = self.core.zeros(value.shape, self._type(value.dtype.name))
            value = value.value
        return value if value.ndim else value.reshape(1)  # one without dimensions would be a reference there

    def _type(self, name: str) -> Any:
        return getattr(self.core, {"bool": "bool_"}.get(name, name))

    def _workspace(self, buffer: Buffer, size: int) -> Promised:
        """Memory that kernels of one call share."""
        return Promised((max(size, 1),), UINT8)
