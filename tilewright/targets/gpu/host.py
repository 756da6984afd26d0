"""Runs the host program of a compiled function, on a GPU that a driver library drives or elsewhere: which kernels,
with which grids and arguments.

One plan serves the driver and the emulator; they differ in what a launch is and where workspaces come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import AssertionFailed, InternalError
from tilewright.ir import entry_parameters, evaluate, find, kernels, root, walk
from tilewright.ir import nodes as ir
from tilewright.ir.nodes import Buffer, Function
from tilewright.machine.arch import Arch
from tilewright.ops.prints import line, show_number, words_of
from tilewright.passes.lower.flatten_buffers import stored_shape, strides_of
from tilewright.targets.gpu.emit import is_narrow_float, kernel_parameters
from tilewright.targets.gpu.library import DriverLibrary

Launch = Callable[[int, tuple[int, int, int], list[Any]], None]
"""Called with a kernel's number, its grid and its argument values."""

Describe = Callable[[ir.TensorMap, Any, tuple[int, ...], tuple[int, ...]], Any]
"""Called with a tensor map, the tensor's own argument, and its extents and strides in elements, outermost first."""


def no_map(node: ir.TensorMap, *_: object) -> object:
    """What would describe a tensor to a copy engine."""
    raise InternalError(f"a map of {node.tensor.name} on a machine that has no copy engine")


class HostProgram:
    """The host statements of a final function, ready to be run many times.

    Parameters
    ----------
    function : the final program.
    launch : what to do for each kernel.
    allocate : makes the memory of a workspace, which has so many bytes; its result is passed to kernels.
    describe : makes a tensor map's argument; its result is passed to kernels. Machines without a copy engine have none.
    """

    def __init__(
        self,
        function: ir.Function,
        launch: Launch,
        allocate: Callable[[ir.Buffer, int], object],
        describe: Describe = no_map,
    ) -> None:
        self.function, self.launch, self.allocate, self.describe = function, launch, allocate, describe
        self.parameters = entry_parameters(function)
        self.numbers = {kernel: number for number, kernel in enumerate(kernels(function))}
        self.arguments = {kernel: kernel_parameters(kernel) for kernel in self.numbers}
        outside = walk(function.body, lambda node: not isinstance(node, ir.Kernel))
        self.prints = any(isinstance(node, ir.Print) or _asks_floats(node) for node in outside)
        """Whether the host program itself has something to do in calls of the same sizes: to say, or to check."""

    def run(self, entry: Sequence[object]) -> None:
        """Run with the entry arguments of `ir.signature`."""
        values = dict(zip(self.parameters, entry, strict=True))
        self._statement(self.function.body, values)

    def _statement(self, statement: ir.Statement, values: dict[ir.Buffer | ir.Var, object]) -> None:
        method = _METHODS.get(type(statement))
        if method is None:
            raise InternalError(f"{type(statement).__name__} in a host program", span=statement.span)
        method(self, statement, values)

    def _seq(self, body: ir.Seq, values: dict[ir.Buffer | ir.Var, object]) -> None:
        for statement in body.statements:
            self._statement(statement, values)

    def _let(self, let: ir.Let, values: dict[ir.Buffer | ir.Var, object]) -> None:
        values[let.var] = evaluate(let.value, _scalars(values))

    def _if(self, branch: ir.If, values: dict[ir.Buffer | ir.Var, object]) -> None:
        if evaluate(branch.condition, _scalars(values)):
            self._statement(branch.then, values)
        elif branch.otherwise is not None:
            self._statement(branch.otherwise, values)

    def _for(self, loop: ir.For, values: dict[ir.Buffer | ir.Var, object]) -> None:
        start, stop, step = (evaluate(end, _scalars(values)) for end in (loop.start, loop.stop, loop.step))
        for value in range(start, stop, step):
            values[loop.var] = value
            self._statement(loop.body, values)

    def _allocation(self, allocate: ir.Allocate, values: dict[ir.Buffer | ir.Var, object]) -> None:
        buffer = allocate.buffer
        count = math.prod(evaluate(extent, _scalars(values)) for extent in stored_shape(buffer))
        values[buffer] = self.allocate(buffer, buffer.dtype.nbytes(count))

    def _kernel(self, kernel: ir.Kernel, values: dict[ir.Buffer | ir.Var, object]) -> None:
        grid = [evaluate(extent, _scalars(values)) for extent in kernel.grid]
        grid += [1] * (3 - len(grid))
        given = [self._map(p, values) if isinstance(p, ir.TensorMap) else values[p] for p in self.arguments[kernel]]
        self.launch(self.numbers[kernel], (grid[0], grid[1], grid[2]), given)

    def _map(self, node: ir.TensorMap, values: dict[ir.Buffer | ir.Var, object]) -> object:
        """The argument that describes a tensor as it is in this call."""
        scalars, tensor = _scalars(values), node.tensor
        extents = tuple(evaluate(extent, scalars) for extent in tensor.shape)
        strides = tuple(evaluate(stride, scalars) for stride in strides_of(tensor))
        return self.describe(node, values[root(tensor)], extents, strides)

    def _print(self, statement: ir.Print, values: dict[ir.Buffer | ir.Var, object]) -> None:
        """A line of the host program's own, which names no block."""
        words, numbers = words_of(statement.values)
        scalars = _scalars(values)
        shown = [show_number(evaluate(number, scalars), number.dtype) for number in numbers]
        print(line(words).format(*shown))

    def _assert(self, check: ir.Assert, values: dict[ir.Buffer | ir.Var, object]) -> None:
        if not evaluate(check.condition, _scalars(values)):
            raise AssertionFailed(check.message or "an assertion failed", span=check.span)

    def _nothing(self, statement: ir.Statement, values: dict[ir.Buffer | ir.Var, object]) -> None:
        """Assumptions have done their work in the passes."""


_METHODS: Mapping[type, Callable[[HostProgram, Any, dict[ir.Buffer | ir.Var, Any]], None]] = {
    ir.Seq: HostProgram._seq, ir.Let: HostProgram._let, ir.If: HostProgram._if, ir.For: HostProgram._for,
    ir.Allocate: HostProgram._allocation, ir.Kernel: HostProgram._kernel, ir.Assume: HostProgram._nothing,
    ir.Print: HostProgram._print, ir.Assert: HostProgram._assert,
}  # fmt: skip


def _asks_floats(node: object) -> bool:
    """Whether a check asks for parameters that are not whole numbers, which calls of the same sizes may change."""
    return isinstance(node, ir.Assert) and any(
        isinstance(one, ir.Var) and one.dtype.is_float for one in walk(node.condition)
    )


def _scalars(values: Mapping[ir.Buffer | ir.Var, Any]) -> dict[ir.Var, int]:
    return {thing: value for thing, value in values.items() if isinstance(thing, ir.Var)}


def cluster_of(kernel: ir.Kernel, arch: Arch) -> tuple[int, int, int]:
    """Blocks of a kernel's clusters along x, y, z, as far as the machine has clusters."""
    x, y, z = kernel.attribute("cluster", (1, 1, 1)) if arch.clusters else (1, 1, 1)
    return x, y, z


def prints(kernel: ir.Kernel) -> bool:
    """Whether a kernel shows lines."""
    return any(node.function == "print_line" for node in find(kernel, ir.Call))


def is_dependent(kernel: ir.Kernel) -> bool:
    """Whether a kernel waits itself for those before it."""
    return any(node.function == "grid_wait" for node in find(kernel, ir.Call))


POINTER, TENSOR_MAP = "Q", "128s"
"""How `struct` spells an address, and an encoded map of a tensor."""

_CODES = {"bool": "?", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
          "int8": "b", "uint8": "B", "int16": "h", "uint16": "H"}  # fmt: skip


def code_of(param: ir.Buffer | ir.Var | ir.TensorMap) -> str:
    """How a launch is handed a parameter, as `struct` spells it."""
    if not isinstance(param, ir.Var):
        return TENSOR_MAP if isinstance(param, ir.TensorMap) else POINTER
    if param.dtype.is_packed:
        return _CODES[f"{param.dtype.kind}8"]
    return _CODES["float32" if is_narrow_float(param) else param.dtype.name]


class HostLauncher:
    """Runs a function's host program on the current GPU; called with the entry arguments.

    Parameters
    ----------
    prepared : what launches each of its kernels, of a grid and the values of parameters.
    allocate, describe : as those of `HostProgram`.

    Attributes
    ----------
    current_device, on_device : the index of the calling thread's device, and a context in which another is current.
    """

    def __init__(
        self,
        function: Function,
        driver: DriverLibrary,
        prepared: Sequence[Callable[[tuple[int, int, int], list[Any]], None]],
        allocate: Callable[[Buffer, int], object],
        describe: Describe = no_map,
    ) -> None:
        self.function, self.prepared = function, prepared
        self.current_device, self.on_device = driver.streams()[0], driver.on_device
        self.program = HostProgram(function, self._launch, allocate, describe)

    def __call__(self, *entry: object) -> None:
        self.program.run(entry)

    def _launch(self, number: int, grid: tuple[int, int, int], values: list[Any]) -> None:
        self.prepared[number](grid, values)
