"""Kinds of file tests that go all the way: the emitted text, and the program run in every way there is.

``# emit cpu arch=avx2`` gives a target's text.  ``# run M=5 seed=1`` runs the program on random arguments,
sizes as given: on the interpreter as it stands and after the last pass, on every machine that is present, and
emulated.  All must agree; the file shows the interpreter's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tile_files.kinds import Read, kind, with_fields
from tilewright.compiler import compile_function
from tilewright.errors import TilewrightError
from tilewright.interpreter import interpret
from tilewright.ir import Buffer, DType, Expr, Function, Var, evaluate, pack, size_variables, unpack
from tilewright.ir.verifier import verify
from tilewright.runtime.kernel import Kernel
from tilewright.targets.base import TARGETS
from tilewright.targets.registry import resolve

MACHINE_OPTIONS = ("arch",)
EMULATED = ("cuda -arch=sm_90a",)
"""Machines whose text is run on this CPU."""


class Disagreement(TilewrightError):
    """Two ways of running one program gave different results."""


@kind("emit")
def _emit(read: Read, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """The text that a target emits for the program; options that the target does not take set fields of `Arch`."""
    request: dict[str, str] = {"kind": arguments[0], **{k: v for k, v in options.items() if k in MACHINE_OPTIONS}}
    target, arch = resolve(request)
    arch = with_fields(arch, {k: v for k, v in options.items() if k not in MACHINE_OPTIONS})
    function = read()
    verify(function)
    return compile_function(function, target, arch).source.text


@kind("run")
def _run(read: Read, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """The outputs, the same in every way of running."""
    function = read()
    verify(function)
    given = random_arguments(function, {name: int(text) for name, text in options.items()})
    printed: list[str] = []
    expected = interpret(function, _copies(given), report=printed.append)
    for way, outputs in _other_ways(function, given):
        for output, ours, theirs in zip(function.outputs, expected, outputs, strict=True):
            if not agree(ours, theirs, output.dtype):
                raise Disagreement(
                    f"{output.name} differs between the interpreter and {way}:\n"
                    f"{show(ours, output)}\nand\n{show(theirs, output)}"
                )
    return "\n".join(
        [*printed, *(f"{b.name} = {show(array, b)}" for b, array in zip(function.outputs, expected, strict=True))]
    )


def _other_ways(function: Function, given: Sequence[object]) -> Iterator[tuple[str, Sequence[np.ndarray]]]:
    """Each way of running the program beside the first, with its outputs."""
    for target in list(TARGETS.values()):
        arch = target.detect()
        if arch is None:
            continue
        kernel = Kernel(function, target, arch)
        if target.name == "cpu":
            yield (
                "the interpreter after the last pass",
                interpret(kernel.program.final, _copies(given), report=_nothing),
            )
        yield f"{target.name} ({arch.name})", _as_tuple(kernel(*_copies(given)))
    for request in EMULATED:
        kernel = Kernel(function, *resolve(request))
        yield f"{request}, emulated", _as_tuple(kernel.emulate(*_copies(given)))


def _as_tuple(outputs: object) -> tuple[np.ndarray, ...]:
    return outputs if isinstance(outputs, tuple) else () if outputs is None else (outputs,)


def _nothing(line: str) -> None:
    """Where printed lines go that were shown already."""


def _copies(given: Sequence[object]) -> list[object]:
    return [value.copy() if isinstance(value, np.ndarray) else value for value in given]


def random_arguments(function: Function, options: Mapping[str, int]) -> list[object]:
    """Arrays and numbers for ``function.inputs``: small integers, so that sums are exact in every float type.

    Parameters
    ----------
    options : values of the size variables and scalar parameters by name, and ``seed``.

    Raises
    ------
    Disagreement : a size without a value.
    """
    generator = np.random.default_rng(options.get("seed", 0))
    values: dict[Var, int] = {}
    for var in (*size_variables(function), *(p for p in function.params if isinstance(p, Var))):
        if var.name not in options:
            raise Disagreement(f"the header gives no value for {var.name}", hint=f"write `# run {var.name}=37`")
        values[var] = options[var.name]
    given: list[object] = []
    for param in function.inputs:
        if isinstance(param, Buffer):
            shape = [evaluate(extent, values) if isinstance(extent, Expr) else extent for extent in param.shape]
            given.append(random_array(generator, shape, param.dtype))
        else:
            given.append(values[param])
    return given


def random_array(generator: np.random.Generator, shape: Sequence[int], of: DType) -> np.ndarray:
    """Small whole numbers of a dtype, in the form that crosses the boundary."""
    low, high = max(-4, int(of.minimum)), min(4, int(of.maximum))
    numbers = generator.integers(low, high + 1, size=tuple(shape)).astype(np.float64 if of.is_float else np.int64)
    return pack(numbers.astype(of.numpy), of)


def agree(ours: np.ndarray, theirs: np.ndarray, of: DType) -> bool:
    """Whether two results are the same: exactly for integers, to a few units in the last place for floats."""
    if not of.is_float or of.is_packed:
        return bool(np.array_equal(ours, theirs))
    close = 2.0 ** -(of.mantissa_bits - 2)
    wide = (np.asarray(ours).astype(np.float64), np.asarray(theirs).astype(np.float64))
    return bool(np.allclose(*wide, rtol=close, atol=close, equal_nan=True))


def show(array: np.ndarray, buffer: Buffer) -> str:
    """An output as text; the middle of large ones is left out."""
    values = np.asarray(array)
    if buffer.dtype.is_packed:
        values = unpack(values, buffer.dtype, values.shape[-1] * buffer.dtype.per_byte)
    if values.dtype.kind not in "biufc":
        values = values.astype(np.float64)
    return np.array2string(values, max_line_width=100, threshold=64, precision=6)
