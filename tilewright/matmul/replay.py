"""A product run again: what is left to do of a call whose tensors are as they were before (`known_calls`).

The launches of a prepared product are written down without running them. Each has a function that launches it again
with other addresses (`runtime.plans`); so a later call allocates the result, and launches. What kernels hand to one
another lies in memory that their stream has for that, as workspaces do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.generated import made_function
from tilewright.matmul.results import Result
from tilewright.matmul.tiers.base import Operands, Ready
from tilewright.runtime.call_keys import MISSED, CallPlan, kind_of, missed
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.steps import Steps, address_of, extent_of
from tilewright.runtime.tensors import Array, is_torch
from tilewright.targets.cpu.again import MISSED_STATUS, Binding, Passed, bound
from tilewright.targets.cuda.workspaces import MEMORY


def replay(prepared: Ready, operands: Operands, made: Result, passed: Mapping[str, object]) -> tuple[CallPlan, bool]:
    """A function of tensors like those of a call that has run, `passed` by their names in `quant_matmul`, which answers
    `MISSED` for others, and whether it compares arrays of NumPy itself. It makes a new result where none is passed.

    `missed` where the call's launches cannot be told from its tensors alone: one that was converted or copied for the
    call, for example.
    """
    read = {
        "x": operands.activations,
        "activation_scales": operands.activation_scales,
        "bias": operands.bias,
        "residual": operands.residual,
    }
    places = {name: address_of(value) for name, value in passed.items()}
    is_read = all(address_of(read[name]) == place for name, place in places.items() if name != "out")
    # Which of two at one place a kernel is given is not seen.
    if made.copied or not is_read or len(set(places.values())) < len(places):
        return missed, False
    first, second = list(prepared.launches(operands)), list(prepared.launches(operands))
    writer = _Writer(operands, made, passed, prepared.is_owned)
    for (kernel, arguments), (_, again) in zip(first, second, strict=True):
        if not writer.launch(kernel, arguments, again):
            return missed, False
    return writer.function()


WORKSPACE = -1
"""The piece of a stream's memory in which kernels hand something to one another."""

APART = 256
"""Bytes at multiples of which that begins."""


class _Writer:
    """Writes the plan (`Steps`), launch by launch.

    Its text, for a product behind the quantisation of its activations on one of several GPUs::

        def plan(x):
            if current() != index: return MISSED
            px = x.data_ptr()
            p2 = given2.data_ptr()
            p3 = given3.data_ptr()
            if not px: return MISSED
            if (px | p2 | p3) & 15: return MISSED
            out = allocate(shape_out, strides_out, dtype_out)
            pout = out.data_ptr()
            workspace = memory(WORKSPACE, 4352, index, stream(index))
            launch(px, workspace, workspace + 4096)
            launch1(workspace, p2, workspace + 4096, p3, pout)
            return out
    """

    def __init__(self, operands: Operands, made: Result, passed: Mapping[str, Any], is_owned: bool) -> None:
        self.is_owned, self.of_call = is_owned, {id(getattr(operands, one)) for one in operands.__dataclass_fields__}
        self.steps = Steps(passed)
        self.addresses = {address_of(value): f"p{name}" for name, value in passed.items()}
        self.tensors = {"pout": made.given} | {f"p{name}": value for name, value in passed.items()}
        """What differs from call to call, by its address."""
        self.outside = {f"p{name}" for name in passed}
        """Addresses that may be others modulo the widest access of a kernel."""
        self.device = operands.out.device if is_torch(operands.out) else None
        self._on_gpu = self.device is not None and self.device.type == "cuda"
        if "out" not in passed:
            self.addresses[address_of(operands.out)] = self.steps.make("out", made.given)
        else:
            self.addresses[address_of(operands.out)] = "pout"
            self.steps.writes("out")
            for name in [name for name in passed if name != "out"]:
                self.steps.keep_apart(name, "out")
        self.launched = list[tuple[object, list[str]]]()
        self.between: list[tuple[Array, int]] = []
        """What kernels hand to one another on a GPU: a tensor like it, and where it begins."""

    def launch(self, kernel: Kernel, arguments: Sequence[object], again: Sequence[object]) -> bool:
        """Whether a launch could be written: each argument is passed, out, one that never changes, or what a launch has
        written."""
        found = kernel.plans.launch(*arguments)
        if found is None or kernel.function.outputs:
            return False
        values, widest = list[str](), kernel.plans.widest
        for value, other, param in zip(arguments, again, kernel.function.inputs, strict=True):
            if kind_of(value) not in ("numpy", "torch"):
                values.append(self.steps.named(value))
                continue
            place = address_of(value)
            text = self.addresses.get(place) or self._found(value, other, param in kernel.plans.written)
            if text is None or (place % widest and text not in self.outside):
                return False
            if text in self.outside:
                tests = self.steps.tests.get(text, (0, 1)), (place % widest, widest)
                self.steps.tests[text] = max(tests, key=lambda test: test[1])
            values.append(text)
        self.steps.launch(found.run, values)
        self.launched.append((found.binding, values))
        return True

    def _found(self, value: Any, other: object, written: bool) -> str | None:
        """The address of a tensor that was not met before: one of the weight's, or what a launch makes for the next."""
        if value is other:
            name = self.steps.named(value)
            if is_torch(value) and not (self.is_owned and id(value) not in self.of_call):
                text = self.steps.address(name, f"{name}.data_ptr()")
                self.outside.add(text)
            else:  # memory of NumPy's arrays stays where it is, and so does what nobody else has
                text = str(address_of(value))
        elif not written:
            return None
        elif self._on_gpu:
            begins = sum(-(-like.nbytes // APART) * APART for like, _ in self.between)
            text = f"workspace + {begins}"
            self.between.append((value, begins))
        else:
            text = self.steps.make(f"workspace{len(self.steps.made)}", value)
        self.addresses[address_of(value)] = text
        return text

    def function(self) -> tuple[CallPlan, bool]:
        """The plan written."""
        made = self._bound(*self.launched[0]) if len(self.launched) == 1 else None
        if made is not None:
            return made
        steps, index = self.steps, self.device.index if self.device is not None else None
        if self.between:
            like, begins = self.between[-1]
            torch = sys.modules["torch"]
            steps.names |= {"memory": MEMORY.address, "stream": torch._C._cuda_getCurrentRawStream}
            steps.names |= {"WORKSPACE": WORKSPACE, "index": index}
            steps.made.append(f"workspace = memory(WORKSPACE, {begins + like.nbytes}, index, stream(index))")
        if self._on_gpu and sys.modules["torch"].cuda.device_count() > 1:
            steps.on_device(sys.modules["torch"].cuda.current_device, index)
        return steps.plan("out"), False

    def _bound(self, binding: object, values: Sequence[str]) -> tuple[CallPlan, bool] | None:
        """The only launch, with all that stays bound, in one step of C. None where that cannot be.

        Its text for arrays, which are compared with those of the first call there::

            def plan(x, bias):
                out = empty(shape_out, dtype_out)
                status = again(record, x, bias, out)
                return failed(status) if status else out
        """
        steps, is_numpy = self.steps, self.device is None
        texts = [*dict.fromkeys(value for value in values if value in self.tensors)]
        found = [0 if v in texts else int(v) if v.isdigit() else steps.names.get(v) for v in values]
        constants = [value for value in found if type(value) is int]
        if not isinstance(binding, Binding) or "pout" not in texts or len(constants) < len(values):
            return None
        arrays = (kind_of(value) == "numpy" and f"p{name}" in texts for name, value in steps.passed.items())
        if is_numpy and not all(arrays):
            return None
        made = bound(binding, constants, [self._passed(text, values) for text in texts], texts.index("pout"))
        if made is None:
            return None
        function, (record, *kept) = made

        def failed(status: int) -> object:
            if status == MISSED_STATUS:
                return MISSED
            raise binding.failed(status)

        steps.names |= {"again": function, "record": record, "kept": kept, "failed": failed}
        given = ", ".join(text.removeprefix("p") if is_numpy else text for text in texts)
        lines = [*(steps.made[:1] if is_numpy else steps.before()), f"status = again(record, {given})"]
        lines += [*steps.counts, "return failed(status) if status else out"]
        return made_function("plan", list(steps.passed), lines, steps.names), is_numpy

    def _passed(self, text: str, values: Sequence[str]) -> Passed:
        """What a launch is given, by its text."""
        slots = tuple(place for place, value in enumerate(values) if value == text)
        if self.device is not None:
            return Passed(slots)
        like, (rest, widest) = self.tensors[text], self.steps.tests.get(text, (0, 1))
        return Passed(slots, widest - 1, rest, extent_of(like), like)
