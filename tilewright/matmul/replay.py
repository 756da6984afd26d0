"""A product run again: what is left to do of a call whose tensors are as they were before (`known_calls`).

The launches of a prepared product are written down without running them. Each has a function that launches it again
with other addresses (`runtime.plans`); so a later call allocates the result, and launches. What kernels hand to one
another lies in memory that their stream has for that, as workspaces do.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.matmul.known_calls import Written
from tilewright.matmul.results import Result
from tilewright.matmul.tiers.base import Operands, Prepared, Ready
from tilewright.runtime.call_keys import MISSED, kind_of, made_function
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.plans import NAMES, address_of, address_tests, address_text, allocation, extent_of
from tilewright.runtime.tensors import Array, is_torch
from tilewright.targets.cpu.again import MISSED_STATUS, Binding, Passed, bound
from tilewright.targets.cuda.workspaces import MEMORY

Launch = tuple[Kernel, tuple[Any, ...]]


class _Recorder:
    """Stands in the place of a kernel and writes down what it is called with."""

    def __init__(self, kernel: Kernel, log: list[Launch]) -> None:
        self.kernel, self.log = kernel, log

    def __call__(self, *arguments: Array) -> None:
        self.log.append((self.kernel, arguments))


def launches(prepared: Ready, operands: Operands) -> list[Launch]:
    """What a prepared product launches for these operands; nothing runs."""
    log: list[Launch] = []
    _recording(prepared, log)(operands)
    return log


def _recording(part: Any, log: list[Launch]) -> Prepared:
    """A prepared product with recorders in the place of its kernels."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Kernel):
            changes[field.name] = _Recorder(value, log)
        elif dataclasses.is_dataclass(value) and hasattr(value, "kernels"):
            changes[field.name] = _recording(value, log)
    return dataclasses.replace(part, **changes)


def replay(prepared: Any, operands: Operands, made: Result, passed: Mapping[str, object]) -> Written | None:
    """A function of tensors like those of a call that has run, which answers `MISSED` for others; None where there can
    be none.

    None instead of a function where the call's launches cannot be told from its tensors alone: one that was converted
    or copied for the call, for example.

    Parameters
    ----------
    made : the result; the function makes a new one where none is passed.
    passed : the call's tensors by their names in `quant_matmul`.
    """
    read = {
        "x": operands.activations,
        "activation_scales": operands.activation_scales,
        "bias": operands.bias,
        "residual": operands.residual,
    }
    places = {name: address_of(value) for name, value in passed.items()}
    is_read = all(address_of(read[name]) == place for name, place in places.items() if name != "out")
    if (
        made.copied or not is_read or len(set(places.values())) < len(places)
    ):  # which of two at one place a kernel is given is not seen
        return None
    first, second = launches(prepared, operands), launches(prepared, operands)
    writer = _Writer(operands, made, passed, getattr(prepared, "is_owned", False))
    for (kernel, arguments), (_, again) in zip(first, second, strict=True):
        if not writer.launch(kernel, arguments, again):
            return None
    return writer.function()


HANDED = -1
"""The piece of a stream's memory in which kernels hand something to one another."""

APART = 256
"""Bytes at multiples of which that begins."""


class _Writer:
    """Writes the function, launch by launch.

    Its text, for a product behind the quantisation of its activations on one of several GPUs::

        def run(x):
            if current() != index: return MISSED
            px = x.data_ptr()
            if not px: return MISSED
            p2 = given2.data_ptr()
            p3 = given3.data_ptr()
            if (px | p2 | p3) & 15: return MISSED
            out = allocate(shape, strides, dtype)
            pout = out.data_ptr()
            handed = memory(HANDED, 4352, index, stream(index))
            launch0(px, handed, handed + 4096)
            launch1(handed, p2, handed + 4096, p3, pout)
            return out
    """

    def __init__(self, operands: Operands, made: Result, passed: Mapping[str, Any], is_owned: bool) -> None:
        self.is_owned, self.of_call = is_owned, {id(getattr(operands, one)) for one in operands.__dataclass_fields__}
        self.names: dict[str, object] = {**NAMES, "HANDED": HANDED}
        self.passed, self.is_new = passed, "out" not in passed
        self.addresses = {address_of(value): f"p{name}" for name, value in passed.items()} | {
            address_of(operands.out): "pout"
        }
        self.given = [f"p{name} = {address_text(value, name)}" for name, value in passed.items()]
        self.calls: list[str] = []
        self.bound: list[str] | None = None
        self.tests: dict[str, tuple[int, int]] = {}
        """Addresses that come from outside: what they must leave modulo how much."""
        self.handed: list[tuple[str, Any, int]] = []
        """What kernels hand to one another: the text of an address, a tensor like it, and where it begins."""
        self.result = made.given
        self.device = operands.out.device if is_torch(operands.out) else None
        self.out = self._allocation("out", "pout", made.given, "") if self.is_new else []

    def _allocation(self, name: str, address: str, like: Any, number: object) -> list[str]:
        """Lines that make a tensor like another, and take its address."""
        line, place = allocation(name, like, number, self.names)
        return [line, f"{address} = {place}"]

    def launch(self, kernel: Kernel, arguments: Sequence[object], again: Sequence[object]) -> bool:
        """Whether a launch could be written: each argument is passed, out, one that never changes, or what a launch has
        written."""
        found = kernel.plans.launch(*arguments)
        if found is None or kernel.function.outputs:
            return False
        number, values = len(self.calls), list[str]()
        self.names[f"launch{number}"], residues = found.run, iter(found.residues)
        for value, other, param in zip(arguments, again, kernel.function.inputs, strict=True):
            if kind_of(value) not in ("numpy", "torch"):
                name = f"given{len(self.names)}"
                self.names[name] = value
                values.append(name)
                continue
            rest = next(residues)
            text = self.addresses.get(address_of(value)) or self._found(value, other, param in kernel.plans.written)
            if text is None or (rest and not text.startswith("p")):
                return False
            if text.startswith("p"):
                self.tests[text] = rest, kernel.plans.widest
            values.append(text)
        self.calls.append(f"launch{number}({', '.join(values)})")
        self.bound = None if number else self._bound(found.binding, values)
        return True

    def _bound(self, binding: object, values: Sequence[str]) -> list[str] | None:
        """Bind all that stays of the only launch; the texts of what it is given still, arrays of NumPy or addresses.
        None where that cannot be."""
        texts = [*dict.fromkeys(value for value in values if value.startswith("p"))]
        found = [0 if v in texts else int(v) if v.isdigit() else self.names.get(v) for v in values]
        constants = [value for value in found if type(value) is int]
        if not isinstance(binding, Binding) or not texts or len(constants) < len(values):
            return None
        is_numpy = self.device is None
        tensors = {"pout": self.result} | {f"p{name}": value for name, value in self.passed.items()}
        if is_numpy and not all(f"p{name}" in texts for name in self.passed):
            return None
        passed = [self._passed(text, values, tensors[text] if is_numpy else None) for text in texts]
        made = bound(binding, constants, passed, texts.index("pout")) if "pout" in texts else None
        if made is None:
            return None
        function, (record, *kept) = made

        def failed(status: int) -> object:
            if status == MISSED_STATUS:
                return MISSED
            raise binding.failed(status)

        self.names |= {"again": function, "record": record, "kept": kept, "failed": failed}
        return texts

    def _passed(self, text: str, values: Sequence[str], like: Any) -> Passed:
        """What a launch is given, by its text."""
        slots = tuple(place for place, value in enumerate(values) if value == text)
        rest, widest = (0, 1) if text == "pout" and self.is_new else self.tests[text]
        if like is None:
            return Passed(slots)
        return Passed(slots, widest - 1, rest, extent_of(like), like)

    def _found(self, value: object, other: object, written: bool) -> str | None:
        """The address of a tensor that was not met before: one of the weight's, or what a launch makes for the next."""
        if value is other:
            number = len(self.names)
            self.names[f"given{number}"] = value
            if is_torch(value) and not (self.is_owned and id(value) not in self.of_call):
                self.given.append(f"p{number} = given{number}.data_ptr()")
                text = f"p{number}"
            else:  # memory of NumPy's arrays stays where it is, and so does what nobody else has
                text = str(address_of(value))
        elif written:
            begins = sum(-(-like.nbytes // APART) * APART for _, like, _ in self.handed)
            text = f"handed + {begins}" if self._on_gpu else f"at{len(self.handed)}"
            self.handed.append((text, value, begins))
        else:
            return None
        self.addresses[address_of(value)] = text
        return text

    @property
    def _on_gpu(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def function(self) -> Written:
        """The function written."""
        if self.bound is not None and len(self.calls) == 1:
            return self._function_of_bound(self.bound)
        lines = [*self.given, *self._checks(), *self.out, *self._memory(), *self.calls, "return out"]
        if self._on_gpu and sys.modules["torch"].cuda.device_count() > 1:
            self.names["current"] = sys.modules["torch"].cuda.current_device
            lines.insert(0, "if current() != index: return MISSED")
        self.names["index"] = self.device.index if self.device is not None else None
        return Written(made_function("run", list(self.passed), lines, self.names))

    def _function_of_bound(self, texts: Sequence[str]) -> Written:
        """Of arrays::

        def run(x, bias):
            out = empty(shape, dtype)
            status = again(record, x, bias, out)
            return failed(status) if status else out
        """
        given = texts if self.device is not None else [text.removeprefix("p") for text in texts]
        lines = [*self.given, *self._checks(), *self.out] if self.device is not None else self.out[:1]
        lines += [f"status = again(record, {', '.join(given)})", "return failed(status) if status else out"]
        # Arrays are compared with those of the first call.
        return Written(made_function("run", list(self.passed), lines, self.names), compares=self.device is None)

    def _checks(self) -> Iterator[str]:
        """Whether addresses are of the classes that the kernels were compiled for, and nothing read is written; a new
        result is fine."""
        held = [f"p{name}" for name, value in self.passed.items() if is_torch(value)]
        own = {text: test for text, test in self.tests.items() if not (text == "pout" and self.is_new)}
        yield from address_tests(held, own)
        if not self.is_new:
            low, high = extent_of(self.passed["out"])
            for name, value in self.passed.items():
                if name != "out":
                    own_low, own_high = extent_of(value)
                    yield f"if {own_low - high} < pout - p{name} < {own_high - low}: return MISSED"

    def _memory(self) -> list[str]:
        """Makes what kernels hand to one another."""
        if not self._on_gpu:
            made = [self._allocation(f"handed{n}", f"at{n}", like, n) for n, (_, like, _) in enumerate(self.handed)]
            return [line for lines in made for line in lines]
        if not self.handed:
            return []
        self.names |= {"memory": MEMORY.address, "stream": sys.modules["torch"]._C._cuda_getCurrentRawStream}
        _, like, begins = self.handed[-1]
        return [f"handed = memory(HANDED, {begins + like.nbytes}, index, stream(index))"]
