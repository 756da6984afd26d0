"""Every mistake a user can make, one class each, and how it is shown.

A message has four parts: one sentence that says what is wrong, the author's source line with a caret,
what was expected, and what to do.  Classes fix the sentence; the place comes from a `Span`.
"""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.texts import readable


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the author's file: 1-based line, 0-based columns."""

    file: str
    line: int
    column: int = 0
    end_column: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def show(self) -> str:
        """The place, its source line and a caret under the columns meant."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text:
            return f"  --> {self}"
        end = min(self.end_column if self.end_column is not None else len(text), len(text))
        # Of a whole line, what is written there: not its indentation.
        start = self.column or (len(text) - len(text.lstrip()) if self.end_column is None else 0)
        caret = " " * start + "^" * max(1, end - start)
        gutter = " " * len(str(self.line))
        return f"  --> {self}\n{gutter} |\n{self.line} | {text}\n{gutter} | {caret}"


class TilewrightError(Exception):
    """Base of all errors that a user of tilewright can meet.

    Parameters
    ----------
    message : what is wrong, one sentence.
    span : where, in the author's file.
    hint : what was expected and what to write or do instead.
    """

    def __init__(self, message: str, *, span: Span | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.span, self.hint = message, span, hint

    def at(self, span: Span | None) -> TilewrightError:
        """This error, with a place if it has none yet."""
        if self.span is None:
            self.span = span
        return self

    def __str__(self) -> str:
        parts = [readable(self.message)]
        if self.span is not None:
            parts.append(self.span.show())
        if self.hint:
            parts.append(f"  help: {readable(self.hint)}")
        return "\n".join(parts)


class TilewrightWarning(UserWarning):
    """Something that works and that the author should know: slower than it need be, or not as asked."""


def an(name: str) -> str:
    """A name with its article: ``an int``, ``a list``, ``an ndarray``."""
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'nd')) else 'a'} {name}"


def near(name: str, known: Sequence[str]) -> str:
    """`` Did you mean ...?`` where a known name is close, else nothing."""
    matches = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


class UnknownDType(TilewrightError):
    """A number type that does not exist."""

    def __init__(self, name: object, known: Sequence[str], hint: str | None = None) -> None:
        hint = hint or near(str(name), known) or "known types: " + ", ".join(known)
        super().__init__(f"unknown dtype {name!r}", hint=hint)


class ProgramSyntaxError(TilewrightError):
    """The text of a program that cannot be read back."""


class CannotQuantize(TilewrightError):
    """A weight, type or group from which no codes can be made."""


class InvalidCheckpoint(TilewrightError):
    """A file of weights that cannot be read or written, or whose parts contradict one another."""


class InvalidTensor(TilewrightError, ValueError):
    """A tensor of a checkpoint with another shape, element type or contents than its format has."""


class MissingTensor(TilewrightError):
    """A tensor that a checkpoint's format needs and that is not there."""


class OutOfRange(TilewrightError, ValueError):
    """A number that its type cannot hold."""

    def __init__(self, value: object, place: tuple[int, ...], name: str, limits: tuple[object, object]) -> None:
        super().__init__(
            f"the value {value} at index {place} does not fit {name}, which holds {limits[0]} to {limits[1]}"
        )


class UnknownFormat(TilewrightError):
    """A number format, a scale scheme or a layout id that does not exist."""

    def __init__(self, name: str, known: Sequence[str], what: str = "format") -> None:
        hint = near(name, known) or "known: " + ", ".join(known)
        super().__init__(f"unknown {what} {name!r}", hint=hint)


class Unsupported(TilewrightError):
    """A combination of types or options that no kernel computes."""

    def __init__(self, what: str, known: Sequence[str]) -> None:
        super().__init__(
            f"{what} are not supported" if not what.startswith(("quantising", "the ")) else f"{what} is not supported",
            hint="supported: " + ", ".join(known),
        )


class NotRepresentable(OutOfRange):
    """A value that a number format does not have."""

    def __init__(self, value: object, place: tuple[int, ...], name: str, values: str) -> None:
        TilewrightError.__init__(
            self, f"the value {value} at index {list(place)} is none of {name}'s", hint=f"{name} has {values}"
        )


class InvalidCode(OutOfRange):
    """A code that stands for nothing in its format."""

    def __init__(self, code: int, place: tuple[int, ...], name: str, allowed: str) -> None:
        TilewrightError.__init__(
            self, f"the code {code} at index {list(place)} is none of {name}'s", hint=f"{name} has the codes {allowed}"
        )


class InvalidProgram(TilewrightError):
    """The verifier found a program that its stage does not allow: a defect of a pass, not of the author."""


class InternalError(TilewrightError):
    """Something that must not happen in tilewright itself; please report it."""


class ArgumentError(TilewrightError, ValueError, RuntimeError):
    """Base of what can be wrong with the arguments of a call; a RuntimeError, as callers of TileLang's kernels expect,
    too."""


class WrongArgumentCount(ArgumentError):
    """Too few or too many arguments, or a name that is no parameter."""


class MissingOperand(ArgumentError):
    """A tensor that a product needs and was not given, or was given and has no place for."""


class NotPrepared(ArgumentError):
    """What must run once before it can be part of a captured graph."""


class WeightIsGone(ArgumentError):
    """A packed weight that a compiled graph or a gradient asks for, and that no longer exists or has other numbers."""


class WrongArgumentKind(ArgumentError):
    """A scalar where a tensor is due, or the other way round, or an object that is neither."""

    @classmethod
    def given(cls, value: object, due: str, hint: str | None = None) -> WrongArgumentKind:
        """The error that a value was given for what is due."""
        return cls(f"{an(type(value).__name__)} was given for {due}", hint=hint)


class WrongArgumentDType(ArgumentError):
    """A tensor of another element type."""


class WrongArgumentRank(ArgumentError):
    """A tensor with another number of dimensions."""


class WrongArgumentShape(ArgumentError):
    """An extent that differs from the declared one, or from the same size in another argument."""


class WrongArgumentStrides(ArgumentError):
    """A tensor whose memory order is not the declared one."""


class WrongArgumentDevice(ArgumentError):
    """A tensor in a memory that the kernel cannot reach, or tensors on several devices."""


class MisalignedArgument(ArgumentError):
    """A tensor whose address is not a multiple of its element size."""


class ReadOnlyArgument(ArgumentError):
    """A tensor that the kernel writes and that may not be written."""


class OverlappingArguments(ArgumentError):
    """A tensor that the kernel writes shares memory with another argument."""


class ExecutionError(TilewrightError):
    """Base of what an interpreted program may be caught at."""


class UninitializedRead(ExecutionError):
    """A tile element that is read before anything was written to it."""

    def __init__(self, name: str, element: str) -> None:
        super().__init__(
            f"{name}{element} is read but was never written",
            hint=f"write it first, for example with T.clear({name}), T.fill or T.copy",
        )


class OutOfBounds(ExecutionError):
    """An access outside a tile, or outside any buffer in a thread program."""

    def __init__(self, name: str, element: str, shape: Sequence[int], verb: str) -> None:
        super().__init__(
            f"this {verb}s {name}{element}, outside its shape ({', '.join(map(str, shape))})",
            hint="only global tensors may be accessed out of bounds; guard the access or enlarge the tile",
        )


class WrongPointer(ExecutionError):
    """An entry of a table of pointers that points to nothing, to too little, or to an address that is not aligned."""


class ConflictingWrites(ExecutionError):
    """Iterations or threads that run at once and write different values to one element."""

    def __init__(self, name: str, element: str) -> None:
        super().__init__(
            f"iterations that run at once write different values to {name}{element}",
            hint="iterations of T.Parallel and threads are independent: use a reduction, an atomic or T.serial",
        )


class DependentIterations(ExecutionError):
    """An iteration of a parallel loop that reads what another one changes."""

    def __init__(self, name: str, element: str) -> None:
        super().__init__(
            f"an iteration reads {name}{element}, and another one changes it: they run in no order",
            hint="store to a second tile and copy it back behind the loop, add by T.atomic_add, or loop with T.serial",
        )


class DivergentThreads(ExecutionError):
    """Divergence where control flow or operands must be uniform: at a barrier, or in an operand of a tile operator."""


class AssertionFailed(ExecutionError):
    """`T.device_assert` on a condition that does not hold."""


class WrongAssumption(ExecutionError):
    """`T.assume` on a condition that does not hold."""


class RolesDeadlocked(ExecutionError):
    """A deadlock between the roles of a block, or roles that use a channel out of order."""


class BarrierMisuse(ExecutionError):
    """A barrier at which more threads arrive than it counts, or one that is not there."""


class ForeignFunction(ExecutionError):
    """A function of a device's own language, where there is no device."""


class CompilerNotFound(TilewrightError):
    """A compiler that the target needs is not on this machine; the hint says how to get it."""


class DeviceCompilationFailed(TilewrightError):
    """The device's compiler refused emitted text: a defect of tilewright, or of text that the author wrote."""


class DriverError(TilewrightError):
    """The device's driver is absent, too old, or refused a call."""


class NoDevice(DriverError):
    """Something that only a device can tell, asked where there is none."""


class LaunchFailed(DriverError):
    """The device refused or broke off a launch."""


class InvalidTensorMap(TilewrightError):
    """A tensor or a box that the copy engine cannot describe."""


class InvalidLayout(TilewrightError):
    """A layout that does not map every element, or that is incompatible with its use."""


class EmulationFailed(TilewrightError):
    """A run of the emulator that cannot begin: text that does not compile, or a launch that does not fit it."""


class EmulationError(TilewrightError):
    """Mistakes that the emulator found in a kernel; `reports` lists them all.

    Parameters
    ----------
    reports : records of `tilewright.emulator.reports.Report`, the most telling first.
    """

    def __init__(self, reports: Sequence[Any]) -> None:
        first, others = reports[0], len(reports) - 1
        super().__init__(first.message, span=first.span, hint=first.hint)
        self.reports = tuple(reports)
        self.others = others

    def __str__(self) -> str:
        return "\n\n".join(str(report) for report in self.reports)


class ChannelMisuse(TilewrightError):
    """A channel whose buffers are used out of protocol, or of a kind that the machine does not support."""


class NotAsynchronous(TilewrightError):
    """An operator that the author wants asynchronous, and that the machine cannot execute so."""


class GridTooLarge(TilewrightError):
    """A grid whose blocks must all run at once, and do not fit on the machine."""


class MissingCapability(TilewrightError):
    """A function of the language that the target machine does not support."""


class DivergentWork(TilewrightError):
    """An operation of the whole block in divergent code."""


class LayoutConflict(TilewrightError):
    """Two statements need one fragment in different registers."""


class PipelinePlanError(TilewrightError):
    """An ``order=`` or ``stage=`` of T.Pipelined that does not fit the loop's body, or breaks a dependence in it."""


class SharedMemoryExceeded(TilewrightError):
    """Tiles that need more shared memory at once than a block of the machine has."""


class RegistersExceeded(TilewrightError):
    """Warps that together ask for more registers than their block has; they would wait for them for ever."""


class NoDeviceCode(TilewrightError):
    """A question about a GPU's code, asked of a kernel for another machine."""
