"""``tilewright inspect FILE:KERNEL``: the program after every pass, and the text made of it."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from tilewright.cli.terminal import BadCommand, Terminal
from tilewright.errors import Span, TilewrightError, near
from tilewright.ir.dtypes import ALL, dtype
from tilewright.ir.printer import print_program
from tilewright.language.mistakes import WrongArguments
from tilewright.language.trace import PrimFunc
from tilewright.runtime.arguments import Binder
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import JITFactory, JITFunction, compile

Made = TypeVar("Made")


def run_inspect(given: argparse.Namespace, terminal: Terminal) -> int:
    """Print the kernel's program stage by stage, as the options of the command line ask."""
    found, file = _find(given.kernel), Path(given.kernel.rpartition(":")[0])
    kernel = _by_author(lambda: compiled(found, read_arguments(given.arguments), given.target), file)
    program = kernel.program
    if given.source:
        terminal.write(terminal.c_source(kernel.get_kernel_source()))
        return 0
    steps = [("traced", "what the author wrote", program.traced, 0.0, True)]
    steps += [(trace.name, trace.why, trace.function, trace.seconds, trace.changed) for trace in program.traces]
    if given.after is not None:
        known = [name for name, *_ in steps]
        if given.after not in known:
            raise BadCommand(
                f"no pass {given.after!r} ran", hint=near(given.after, known) or f"passes: {', '.join(known)}"
            )
        steps = [step for step in steps if step[0] == given.after]
    before = ""
    for name, why, function, seconds, changed in steps:
        text = print_program(function, spans=given.spans)
        terminal.write(_headline(terminal, name, why, seconds))
        if not changed:
            terminal.write(terminal.paint("(unchanged)", "dim"))
        elif given.diff and before:
            terminal.write(terminal.difference(list(_difference(before, text))))
        else:
            terminal.write(terminal.program(text.rstrip("\n")))
        before = text
        terminal.write()
    if given.after is None:
        terminal.write(_headline(terminal, f"{kernel.target.name} text", f"for {kernel.arch.name}", 0.0))
        terminal.write(terminal.c_source(kernel.get_kernel_source()))
    return 0


def _headline(terminal: Terminal, name: str, why: str, seconds: float) -> str:
    time = f"  {1e3 * seconds:.1f} ms" if seconds else ""
    return terminal.paint(f"== {name}{time}", "bold") + (f"  {terminal.paint(why, 'dim')}" if why else "")


def _difference(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    return [line for line in lines if not line.startswith(("---", "+++"))]


def _find(place: str) -> Any:
    """What stands under the name in ``FILE:KERNEL``."""
    file, _, name = place.rpartition(":")
    if not file:
        raise BadCommand(f"{place!r} does not name a kernel", hint="write FILE:KERNEL, as in kernels.py:matmul")
    path = Path(file)
    if not path.is_file():
        raise BadCommand(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadCommand(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    loader = spec.loader
    _by_author(lambda: loader.exec_module(module), path)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if key[0] != "_" and not isinstance(value, ModuleType)]
        raise BadCommand(f"{file} has no {name!r}", hint=near(name, known) or f"it has: {', '.join(known)}")
    return getattr(module, name)


def _by_author(run: Callable[[], Made], path: Path) -> Made:
    """What the author's file does, whose mistakes are shown where they stand in it.  Raises BadCommand."""
    try:
        return run()
    except TilewrightError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [one.lineno for one in frames if Path(one.filename).resolve() == path.resolve()]
        said = str(error)
        if isinstance(error, SyntaxError) and error.filename in (str(path), None):
            lines, said = [error.lineno], error.msg
        if not lines:  # nothing of the author's was running
            raise
        raise BadCommand(
            f"{path} does not run: {type(error).__name__}: {said}",
            span=Span(str(path), lines[-1]) if lines[-1] else None,
        ) from None


_TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\]")


def read_arguments(words: Sequence[str]) -> dict[str, object]:
    """``NAME=VALUE`` words as values: tensors of zeros for ``float32[128,64]``, else Python literals, else texts.
    Raises BadCommand, and UnknownDType for a tensor of no known type."""
    values: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadCommand(f"{word!r} is not an argument", hint="write NAME=VALUE, as in A=float32[128,64]")
        if name in values:
            raise BadCommand(f"{name} is given twice")
        tensor = _TENSOR.fullmatch(text)
        if tensor is not None:
            shape = [int(extent) for extent in tensor[2].split(",") if extent.strip()]
            values[name] = zeros(tensor[1], shape)
        else:
            try:
                values[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                if re.match(rf"({'|'.join(ALL)})?\s*\[", text):
                    raise BadCommand(
                        f"{word!r} is no tensor", hint=f"its type and its extents, as in {name}=float32[128,64]"
                    ) from None
                values[name] = text
    return values


def zeros(of: str, shape: Sequence[int]) -> np.ndarray:
    """An array as it crosses the boundary: elements of less than a byte packed along the last dimension."""
    record = dtype(of)
    if not record.is_packed or not shape:
        return np.zeros(tuple(shape), record.numpy)
    return np.zeros((*shape[:-1], -(-shape[-1] // record.per_byte)), np.uint8)


def compiled(found: Any, arguments: dict[str, object], target: str | None) -> Kernel:
    """The kernel object of whatever stands under the name: a kernel, a program, or a function that makes one."""
    wanted = target or "auto"
    if isinstance(found, (JITFunction, JITFactory)):
        wanted = target or found.target
        if isinstance(found, JITFactory):
            _must_fit(found.function, arguments)
        try:
            traced = found.trace(**arguments)
            if isinstance(found, JITFunction) and not found.direct.split_partly(**arguments)[2]:
                runtime, _ = found.direct.split(**arguments)  # tensors that a call would refuse are refused here
                Binder(traced.function, "cpu").bind([*runtime.values()], {})
        except WrongArguments as error:
            raise _wrong_arguments(error.message, error.hint or "") from None
        found = traced
    elif callable(found) and not isinstance(found, (Kernel, PrimFunc)):
        _must_fit(found, arguments)
        found = found(**arguments)
    elif isinstance(found, (Kernel, PrimFunc)) and arguments:
        Binder(found.function, "cpu").bind([], arguments)
    if isinstance(found, Kernel) and target is None:
        return found
    return compile(found.function if isinstance(found, Kernel) else found, target=wanted)


def _must_fit(function: Callable[..., object], arguments: dict[str, object]) -> None:
    try:
        signature(function).bind(**arguments)
    except TypeError as error:
        form = f"{function.__name__}{signature(function)}"
        raise _wrong_arguments(f"{function.__name__}: {error}", form) from None


def _wrong_arguments(problem: str, form: str) -> BadCommand:
    return BadCommand(problem, hint=f"{form}; after FILE:KERNEL write NAME=VALUE, a tensor as in A=float32[128,64]")
