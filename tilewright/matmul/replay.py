"""A product run again: what is left to do of a call whose activations are as they were before.

The launches of a prepared product are written down without running them.  Each has a plan (`runtime.plans`), a function that only
reads addresses; so a later call allocates the result and what kernels hand to one another, and runs the plans.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.matmul.tiers.base import Operands
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.plans import MISSED, allocator_text, made_function, tensor_guard
from tilewright.runtime.tensors import is_torch

Launch = tuple[Kernel, tuple[Any, ...]]


class _Recorder:
    """Stands in the place of a kernel and writes down what it is called with."""

    def __init__(self, kernel: Kernel, log: list[Launch]) -> None:
        self.kernel, self.log = kernel, log

    def __call__(self, *arguments: Any) -> None:
        self.log.append((self.kernel, arguments))


def launches(prepared: Any, operands: Operands) -> list[Launch]:
    """What a prepared product launches for these operands; nothing runs."""
    log: list[Launch] = []

    def recording(part: Any) -> Any:
        changes: dict[str, Any] = {}
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, Kernel):
                changes[field.name] = _Recorder(value, log)
            elif dataclasses.is_dataclass(value) and hasattr(value, "kernels"):
                changes[field.name] = recording(value)
        return dataclasses.replace(part, **changes)

    recording(prepared)(operands)
    return log


def replay(prepared: Any, operands: Operands, shape: Sequence[int]) -> Callable[[Any], Any] | None:
    """A function of activations like those of a call that has run, which gives a new result of `shape`, or None where it cannot.

    None instead of a function where the call's launches cannot be told from its operands alone, a conversion of the bias for example.
    """
    first, second = launches(prepared, operands), launches(prepared, operands)
    writer = _Writer(operands, shape)
    for (kernel, arguments), (_, again) in zip(first, second, strict=True):
        plan = kernel.plans.get(*arguments)
        if plan is None or not writer.launch(kernel, plan, arguments, again):
            return None
    return writer.function()


class _Writer:
    """Writes the function, launch by launch.

    Its text, for a product behind the quantisation of its activations on one of several GPUs::

        def run(x):
            if current() != index: return None
            out = allocate(shape0, strides0, dtype0)
            t1 = allocate(shape1, strides1, dtype1)
            t2 = allocate(shape2, strides2, dtype2)
            if plan0(x, t1, t2) is MISSED: return None
            if plan1(t1, given2, t2, given4, out) is MISSED: return None
            return out
    """

    def __init__(self, operands: Operands, shape: Sequence[int]) -> None:
        self.names: dict[str, Any] = {"MISSED": MISSED}
        self.tensors = {operands.activations.data_ptr(): "x"}
        self.allocations: list[str] = []
        self.calls: list[str] = []
        self.device = operands.out.device
        self.tensors[operands.out.data_ptr()] = self._allocate("out", operands.out.new_empty(shape))

    def _allocate(self, name: str, like: Any) -> str:
        number = len(self.allocations)
        self.names |= {f"shape{number}": tuple(like.shape), f"strides{number}": tuple(like.stride())}
        self.names[f"dtype{number}"] = like.dtype
        text = allocator_text(like, f"shape{number}", f"strides{number}", f"dtype{number}", self.names)
        self.allocations.append(f"{name} = {text}")
        return name

    def launch(self, kernel: Kernel, plan: Any, arguments: Sequence[Any], again: Sequence[Any]) -> bool:
        """Whether a launch could be written: each argument is x, out, one that never changes, or what a launch has written."""
        number, given = len(self.calls), []
        self.names[f"plan{number}"] = plan
        for place, (value, other, param) in enumerate(zip(arguments, again, kernel.function.inputs, strict=True)):
            name = self.tensors.get(value.data_ptr()) if is_torch(value) else None
            if name is None and value is other:
                name = f"given{len(self.names)}"
                self.names[name] = value
            elif name is None:
                if not is_torch(value) or param not in kernel.plans.written:
                    return False
                name = self.tensors[value.data_ptr()] = self._allocate(f"t{number}_{place}", value)
            given.append(name)
        self.calls.append(f"if plan{number}({', '.join(given)}) is MISSED: return None")
        return True

    def function(self) -> Callable[[Any], Any]:
        """The function written."""
        lines = [*self.allocations, *self.calls, "return out"]
        torch = sys.modules["torch"]
        if self.device.type == "cuda" and torch.cuda.device_count() > 1:
            self.names |= {"current": torch.cuda.current_device, "index": self.device.index}
            lines.insert(0, "if current() != index: return None")
        return made_function("run", ["x"], lines, self.names)


class Replays:
    """The replays of a layer, by what its activations are; that of the last call is found without a look-up."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: something else than the activations has changed."""
        self._known: dict[Any, Callable[[Any], Any]] = {}
        self._met: set[Any] = set()
        self._check: Callable[[Any], bool] = _never
        self._run: Callable[[Any], Any] = _nothing

    def __call__(self, x: Any) -> Any:
        """The product of `x`; None where the call must be checked and prepared."""
        return self._run(x) if self._check(x) else self._by_kind(x)

    def _by_kind(self, x: Any) -> Any:
        run = self._known.get(_kind(x))
        if run is None or not x.is_contiguous():
            return None
        guard = tensor_guard([x])
        if guard is not None:
            self._check, self._run = guard.check, run
        return run(x)

    def met(self, x: Any, prepared: Any, operands: Operands, shape: Sequence[int]) -> None:
        """Take notice of a call that has run: the second of its kind is written down."""
        kind = _kind(x)
        if len(self._met) >= MOST:
            self.clear()
        if kind not in self._met:
            self._met.add(kind)
        elif kind not in self._known and x.is_contiguous():
            self._known[kind] = replay(prepared, operands, shape) or _nothing


MOST = 256
"""Kinds of activations that a layer remembers before it begins anew."""


def _kind(x: Any) -> Any:
    return type(x), x.shape, x.dtype, x.device


def _never(x: Any) -> bool:
    return False


def _nothing(x: Any) -> None:
    return None
