"""What the ways to run a program make of it: the interpreter, and every target and architecture that is registered."""

from __future__ import annotations

import contextlib
import io
import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from tile_programs import TileProgram

from tilewright.errors import (
    DeviceCompilationFailed,
    EmulationError,
    EmulationFailed,
    ExecutionError,
    InternalError,
    TilewrightError,
)
from tilewright.interpreter import arguments as interpreter_arguments
from tilewright.interpreter import poisoned
from tilewright.ir.dtypes import ALL
from tilewright.language.mistakes import AuthorError, IndexOutOfRange, MisplacedRole, PassesTheEnd, SymbolicExtent
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES
from tilewright.runtime.kernel import Kernel
from tilewright.targets.base import TARGETS
from tilewright.targets.cpu.arch import PRESETS, host
from tilewright.targets.cpu.compiler import CompilerFailed
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.registry import resolve

SCHEDULES = (("late", 0), ("early", 1), ("random", 2), ("random", 3))
"""What a program is run under; `POISON` makes what nobody wrote differ from run to run."""

POISON = 0x9E3779B97F4A7C15
BROKEN = (InternalError, CompilerFailed, DeviceCompilationFailed, EmulationFailed)
"""Errors that are never an author's."""

DRAWN = (PassesTheEnd, IndexOutOfRange, MisplacedRole, SymbolicExtent)
"""Mistakes of authors that programs here make: they name places that a tensor has not, and divide warps where no role can be."""


def is_ours(error: TilewrightError) -> bool:
    """Whether no author of a program here can have made a mistake: limits of machines are told of by other errors."""
    return isinstance(error, BROKEN) or (isinstance(error, AuthorError) and not isinstance(error, DRAWN))


@dataclass(frozen=True)
class Verdict:
    """``agrees``, ``refused`` (a limit that the compiler tells of), ``invalid`` (the interpreter finds the author at fault), or ``fails``."""

    kind: str
    way: str = ""
    what: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind, self.way, self.what) if part)

    @property
    def family(self) -> tuple[str, str, str]:
        """What two failures of one cause have in common."""
        parts = self.what.split(":")
        word = ":".join(parts[:3]) if parts[0] == "traceback" else parts[0].split(" in ")[0]
        return self.kind, self.way.split(" ")[0], word[:60]


def machines() -> dict[str, tuple[str, ...]]:
    """Every target that is registered, with the architectures of it whose programs run here."""
    runnable = tuple(name for name in PRESETS if _runs_here(name))
    known = {"cpu": ("native", *runnable), "cuda": tuple(ARCHITECTURES), "metal": tuple(FAMILIES), "hip": tuple(AMD)}
    return {name: known.get(name, ("",)) for name in TARGETS}


def _runs_here(preset: str) -> bool:
    return resolve(f"cpu -arch={preset}")[1].features <= host().features


def targets_of(seed: int, each: int = 2) -> tuple[str, ...]:
    """Targets for a seed's program: of every one that is registered, some architectures, which change from seed to seed."""
    chosen: list[str] = []
    for name, known in machines().items():
        if name == "cuda":  # the machine with roles has more to go wrong
            chooser = random.Random(f"targets {seed} {name}")
            first = chooser.choice(("sm_90a", "sm_90a", "sm_90", "sm_80"))
            rest = [one for one in known if one != first]
            chosen += [f"{name} -arch={one}" for one in (first, *chooser.sample(rest, each - 1))]
        elif known == ("",):
            chosen.append(name)
        else:  # by a number for each, so that where some do not run here the others are chosen as elsewhere
            first = min(known, key=lambda one: random.Random(f"targets {seed} {one}").random())
            chosen.append(f"{name} -arch={first}")
    return tuple(chosen)


def run(way: Callable[..., Any], arguments: Sequence[Any], **options: Any) -> list[np.ndarray]:
    """What one way returns, and leaves in the arrays given."""
    given = [_copied(argument) for argument in arguments]
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = way(*given, **options)
    results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    return [np.asarray(array) for array in (*results, *given) if isinstance(array, np.ndarray)]


def _copied(argument: Any) -> Any:
    if isinstance(argument, list):
        return [one.copy() for one in argument]
    return _same_strides(argument) if isinstance(argument, np.ndarray) else argument


def _same_strides(array: np.ndarray) -> np.ndarray:
    """A copy with the rows as far apart as in the array given."""
    if array.flags.c_contiguous or not array.size:
        return array.copy()
    reach = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True))
    made: np.ndarray = np.ndarray(
        array.shape, array.dtype, np.zeros(reach + array.itemsize, np.uint8), 0, array.strides
    )
    made[...] = array
    return made


def different(program: TileProgram, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
    """Where two results differ; zeros have no sign, and one NaN is like another."""
    names = [name for name, _, _ in program.outputs]
    names += [param.name for param in program.used if isinstance(param.value, np.ndarray)]
    for name, one, other in zip(names, found, expected, strict=True):
        if one.tobytes() == other.tobytes():
            continue
        if one.shape != other.shape:
            return f"{name} has shape {one.shape}, not {other.shape}"
        same = _alike(one, other, _places(one.dtype) if name in program.near else 0.0)
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            return f"differs in {name}: {int((~same).sum())} of {one.size} places, at {at} {one[at]} instead of {other[at]}"
    return None


def _alike(one: np.ndarray, other: np.ndarray, tolerance: float) -> np.ndarray:
    if np.issubdtype(one.dtype, np.integer) or one.dtype == bool:
        return one == other
    with np.errstate(all="ignore"):
        a, b = one.astype(np.float64), other.astype(np.float64)
        close = (a == b) | (np.isnan(a) & np.isnan(b))
        return close | (np.abs(a - b) <= tolerance * np.maximum(np.abs(b), tolerance)) if tolerance else close


def _places(dtype: np.dtype) -> float:
    """Some places of a type's numbers."""
    record = next(one for one in ALL.values() if one.numpy == dtype and one.is_float)
    return max(2.0 ** -(record.mantissa_bits - 3), 2.0**-20)


def judged(program: TileProgram, targets: Sequence[str], schedules: Sequence[tuple[str, int]] = SCHEDULES) -> Verdict:
    """What the targets make of a program, the first that is not as the interpreter says."""
    expected: list[np.ndarray] | None = None
    refused: list[str] = []
    for target in targets:
        try:
            kernel = program.compile(target)
        except TilewrightError as error:
            if is_ours(error):
                return Verdict("fails", target, f"{type(error).__name__}: {_short(error)}")
            refused.append(f"{target}: {type(error).__name__}: {_short(error)}")
            continue
        except Exception as error:
            return Verdict("fails", target, f"traceback: {type(error).__name__}: {_short(error)}")
        if expected is None:
            try:
                expected = run(kernel.interpret, program.arguments)
            except ExecutionError as error:
                return Verdict("invalid", "interpreter", f"{type(error).__name__}: {_short(error)}")
            except Exception as error:
                return Verdict("fails", "interpreter", f"traceback: {type(error).__name__}: {_short(error)}")
        ways: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [(target, kernel, {})]
        if kernel.target.emulation is not None:
            ways = [
                (
                    f"{target} {name} {seed}",
                    kernel.emulate,
                    {"schedule": name, "seed": seed, "poison": POISON * (number + 1) % 2**64, "seconds": 30.0},
                )
                for number, (name, seed) in enumerate(schedules)
            ]
        for name, way, options in ways:
            try:
                wrong = different(program, run(way, program.arguments, **options), expected)
            except EmulationError as error:
                reports = "; ".join(sorted({str(report).splitlines()[0][:160] for report in error.reports}))
                return Verdict("fails", name, f"emulator: {reports[:400]}")
            except Exception as error:
                return Verdict("fails", name, f"{type(error).__name__}: {_short(error)}")
            if wrong:
                return unwritten(program, kernel, expected) or Verdict("fails", name, wrong)
    if refused:
        return Verdict("refused" if len(refused) == len(targets) else "agrees", "", "; ".join(refused))
    return Verdict("agrees")


def unwritten(program: TileProgram, kernel: Kernel, expected: Sequence[np.ndarray]) -> Verdict | None:
    """Whether a program leaves places of its outputs as it finds them, which is an author's mistake, though none that the interpreter tells."""
    with mock.patch.object(
        interpreter_arguments, "poisoned", lambda shape, dtype: np.zeros_like(poisoned(shape, dtype))
    ):
        otherwise = run(kernel.interpret, program.arguments)
    left = different(replace(program, near=frozenset()), otherwise, expected)
    return Verdict("invalid", "interpreter", f"unwritten output: {left}") if left else None


def _short(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error)
    told = re.search(r"error: .*", str(error))  # what a compiler says
    return " ".join(f"{told.group() if told and told.group() not in text else ''} {text}".split())[:300]
