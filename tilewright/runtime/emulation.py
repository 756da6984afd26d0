"""Running a compiled program's device text under the emulator, host program included."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.compiler import Program
from tilewright.emulator import Named, emulate
from tilewright.emulator.reports import Labels, make_report
from tilewright.errors import EmulationError, EmulationFailed
from tilewright.interpreter import poison
from tilewright.interpreter.memory import as_row
from tilewright.ir import POINTERS, Buffer, Function, TensorMap, Var, counted_workspaces, kernels, written_parameters
from tilewright.machine import Arch
from tilewright.passes.thread.add_dependent_launch import waits_at_its_end
from tilewright.passes.thread.plan_shared_memory import shared_places
from tilewright.runtime.arguments import Binder, Bound
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor, descriptor
from tilewright.targets.gpu.emit import is_narrow_float, kernel_parameters, with_lines
from tilewright.targets.gpu.host import HostProgram, cluster_of, is_dependent
from tilewright.tracebacks import without_our_frames


@without_our_frames
def emulate_program(
    program: Program,
    values: list[Any],
    bound: Bound | None = None,
    *,
    launches: int = 1,
    unsettled: Sequence[object] = (),
    **options: Any,
) -> list[np.ndarray]:
    """Run on host arrays, written in place where the program writes them; returns its outputs, those of `bound` where a
    call is bound already.

    With several `launches` every one begins with the same values, and finds what the one before left in the workspaces
    that are kept between launches: what it returns is the last one's. `unsettled` are those of the values that a kernel
    of another program, which may be running still, is about to write.

    Raises
    ------
    EmulationFailed : the target's programs are no device text.
    EmulationError : the emulator found mistakes.
    """
    vocabulary = program.target.emulation
    if vocabulary is None:
        raise EmulationFailed(
            f"{program.target.name} code runs on this machine as it is", hint='compile with target="cuda -arch=sm_80"'
        )
    text = with_lines(program.source)
    shared = dict(program.source.metadata)["shared_bytes"]
    blocks = [kernel.threads for kernel in kernels(program.final)]
    beside = [waits_at_its_end(kernel) for kernel in kernels(program.final)]
    dependent = [is_dependent(kernel) and not waits_at_its_end(kernel) for kernel in kernels(program.final)]
    parameters = [kernel_parameters(kernel) for kernel in kernels(program.final)]
    tiles = [shared_places(kernel) for kernel in kernels(program.final)]
    clusters = [cluster_of(kernel, program.arch) for kernel in kernels(program.final)]
    binder = Binder(program.traced, "cpu")
    pointed = _pointed_to(program.traced, values)
    values = binder.with_tables(values)
    bound = _poisoned(bound or binder.bind(values, {}), program.traced)
    arrays = dict(zip(program.final.params, binder.arguments(values, bound.outputs), strict=True))
    entry = [arrays.get(param, value) for param, value in zip(binder.entry_parameters, bound.entry, strict=True)]

    def launch(number: int, grid: tuple[int, int, int], given: list[object]) -> None:
        if min(grid) < 1:
            return
        x, y, z = blocks[number]
        # What no kernel of the program writes, any of them may read at once, as the first one may.
        awaited = [*written, *workspaces, *foreign] if dependent[number] else []
        numbers = {
            place: _number(param, given[place], vocabulary.scalars_in_memory)
            for place, param in enumerate(parameters[number])
            if isinstance(param, Var)
        }
        in_memory = [value for value in numbers.values() if isinstance(value, np.ndarray)]
        memory = [*flat.values(), *workspaces, *pointed, *in_memory]

        def run() -> None:
            emulate(
                text,
                program.source.entries[number],
                [numbers.get(place, flat.get(id(value), value)) for place, value in enumerate(given)],
                grid=grid,
                block=(x * y * z, 1, 1),
                cluster=clusters[number],
                shared_bytes=shared[number],
                memory=memory,
                tables=tables,
                unsettled=awaited,
                named=tensors,
                tiles=tiles[number],
                vocabulary=vocabulary,
                **options,
            )

        if beside[number]:
            runs.run_beside(run, memory)
        else:
            runs.run(run, memory if any(beside[number + 1 : number + 2]) else ())

    runs = SideBySide()
    workspaces: list[np.ndarray] = []
    left: dict[int, np.ndarray] = {}  # kept workspaces, by the order in which they are asked for
    kept = counted_workspaces(program.final)

    def workspace(buffer: Buffer, size: int) -> np.ndarray:
        # Numbers out of other programs are no numbers here: memory that is not the program's own is full of ones.
        made = np.full(size, 0 if buffer in kept else 255, np.uint8)
        if buffer in kept:
            made = left.setdefault(len(workspaces), made)
        workspaces.append(made)
        tensors.append((made, Named(buffer.name, *_rows(buffer, size))))
        return made

    flat = {id(value): as_row(value) for value in entry if isinstance(value, np.ndarray)}
    if any(id(one) not in flat for one in unsettled):
        raise EmulationFailed(
            "unsettled= names what is no array among the arguments", hint="give the very arrays again"
        )
    foreign = [flat[id(one)] for one in unsettled]
    by_author = written_parameters(program.traced)
    pairs = list(zip(program.traced.params, arrays.values(), strict=True))
    written = [flat[id(array)] for traced, array in pairs if traced in by_author]
    of_pointers = program.traced.attribute(POINTERS, ())
    tables = [flat[id(array)] for traced, array in pairs if traced.name in of_pointers]
    tensors = [
        (flat[id(array)], Named(param.name, array.shape, array.strides, param.dtype.per_byte))
        for param, array in arrays.items()
        if isinstance(param, Buffer) and isinstance(array, np.ndarray) and not param.packed
    ]
    first = [array.copy() for array in flat.values()]
    for _ in range(launches):
        for array, value in zip(flat.values(), first, strict=True):
            if array.flags.writeable:
                array[...] = value
        workspaces.clear()
        HostProgram(program.final, launch, workspace, partial(_describe, program.arch)).run(entry)
    return bound.outputs


def _poisoned(bound: Bound, function: Function) -> Bound:
    """A call whose outputs show where they are read before they are written."""
    for made, output in zip(bound.outputs, function.outputs, strict=True):
        poison(made, output.dtype)
    return bound


def _number(param: Var, value: Any, in_memory: bool) -> Any:
    """A number as the kernel's parameter takes it: of the parameter's type, or in memory as int64 or float32."""
    dtype = param.dtype
    if in_memory:
        return np.array([value], np.float32) if dtype.is_float else np.array([int(value) & (1 << 64) - 1], np.uint64)
    if dtype.is_packed:
        return (np.int8 if dtype.is_signed else np.uint8)(value)
    return (np.float32 if is_narrow_float(param) else dtype.numpy.type)(value)


def _rows(buffer: Buffer, size: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Extents of a workspace and its strides in bytes, and the elements of a byte; one row where extents are known only
    at launch."""
    bits, per_byte = buffer.dtype.stored_bits, buffer.dtype.per_byte
    if per_byte > 1 or not all(isinstance(extent, int) for extent in buffer.shape):
        step = max(bits // 8, 1)
        return (size // step,), (step,), per_byte
    extents = buffer.static_shape
    return extents, tuple(bits // 8 * math.prod(extents[axis + 1 :]) for axis in range(len(extents))), 1


def _pointed_to(function: Function, values: list[object]) -> list[np.ndarray]:
    """The arrays that tables of pointers point to."""
    found: list[np.ndarray] = []
    for param, value in zip(function.inputs, values, strict=True):
        if param.name in function.attribute(POINTERS, ()):
            if not isinstance(value, (list, tuple)):
                raise EmulationFailed(
                    f"argument {param.name!r} is a tensor of addresses, which do not say how much memory is there",
                    hint="pass the list of tensors that they point to",
                )
            found += [one.reshape(-1) for one in value if all(one is not known for known in found)]
    return found


def _describe(arch: Arch, node: TensorMap, array: np.ndarray, *sizes: tuple[int, ...]) -> BoxDescriptor:
    """The map of a tensor at its address here; the emulator moves it to where it puts the array."""
    assert arch.copy_engine is not None
    return descriptor(node, arch.copy_engine, array.ctypes.data, *sizes)


Run = Callable[[], None]


class SideBySide:
    """Runs kernels of a program one after the other, and those that may be beside the one before them in both
    orders."""

    def __init__(self) -> None:
        self.earlier: Run | None = None
        self.before: list[np.ndarray] = []

    def run(self, kernel: Run, memory: Sequence[np.ndarray]) -> None:
        """Run a kernel; `memory` is all that it and the one launched beside it, if there is one, touch."""
        self.earlier, self.before = kernel, [array.copy() for array in memory]
        kernel()

    def run_beside(self, kernel: Run, memory: Sequence[np.ndarray]) -> None:
        """Run a kernel that may begin before the one before it has ended.

        Raises
        ------
        EmulationError : one of them uses what the other writes.
        """
        if self.earlier is None:
            return kernel()
        before = self.before + [array.copy() for array in memory[len(self.before) :]]
        kernel()
        found = [array.copy() for array in memory]
        _put(memory, before)
        kernel()
        self.earlier()
        places = [place for place, (one, other) in enumerate(zip(memory, found)) if one.tobytes() != other.tobytes()]
        _put(memory, found)
        self.earlier = None
        if places:
            facts = {"kind": "kernels-not-independent", "site": 0, "argument": places[0]}
            raise EmulationError([make_report(facts, Labels(()), lambda site: None)])


def _put(memory: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
    for array, value in zip(memory, values, strict=True):
        if array.flags.writeable:
            array[...] = value
