"""A product run again: what is left to do of a call whose activations are as they were before.

The launches of a prepared product are written down without running them.  Each has a function that launches it again with other
addresses (`runtime.plans`); so a later call allocates the result, and launches.  What kernels hand to one another lies in memory
that their stream has for that, as workspaces do.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import Unsupported
from tilewright.matmul.tiers.base import Operands
from tilewright.runtime.call_keys import made_function, tensor_guard
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.plans import allocator_text
from tilewright.runtime.tensors import is_torch
from tilewright.targets.cuda.workspaces import MEMORY

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
            if current() != index: return None
            px = x.data_ptr()
            p2 = given2.data_ptr()
            p3 = given3.data_ptr()
            if (px | p2 | p3) & 15: return None
            out = allocate(shape, strides, dtype)
            po = out.data_ptr()
            handed = memory(HANDED, 4352, index, stream(index))
            launch0(px, handed, handed + 4096)
            launch1(handed, p2, handed + 4096, p3, po)
            return out
    """

    def __init__(self, operands: Operands, shape: Sequence[int]) -> None:
        self.names: dict[str, Any] = {"HANDED": HANDED}
        self.addresses = {operands.activations.data_ptr(): "px", operands.out.data_ptr(): "po"}
        self.given = ["px = x.data_ptr()"]
        self.calls: list[str] = []
        self.tests: dict[str, tuple[int, int]] = {}
        """Addresses that come from outside: what they must leave modulo how much."""
        self.handed: list[tuple[str, Any, int]] = []
        """What kernels hand to one another: the text of an address, a tensor like it, and where it begins."""
        self.device = operands.out.device
        self.out = self._allocation("out", operands.out.new_empty(shape), "")

    def _allocation(self, name: str, like: Any, number: Any) -> str:
        own = f"shape{number}", f"strides{number}", f"dtype{number}"
        self.names |= dict(zip(own, (tuple(like.shape), tuple(like.stride()), like.dtype), strict=True))
        return f"{name} = {allocator_text(like, *own, self.names)}"

    def launch(self, kernel: Kernel, arguments: Sequence[Any], again: Sequence[Any]) -> bool:
        """Whether a launch could be written: each argument is x, out, one that never changes, or what a launch has written."""
        found = kernel.plans.launch(*arguments)
        if found is None or kernel.function.outputs:
            return False
        number, passed = len(self.calls), []
        self.names[f"launch{number}"], residues = found[0], iter(found[1])
        for value, other, param in zip(arguments, again, kernel.function.inputs, strict=True):
            if not is_torch(value):
                name = f"given{len(self.names)}"
                self.names[name] = value
                passed.append(name)
                continue
            rest = next(residues)
            text = self.addresses.get(value.data_ptr()) or self._address(value, other, param in kernel.plans.written)
            if text is None or (rest and not text.startswith("p")):
                return False
            if text.startswith("p"):
                self.tests[text] = rest, kernel.plans.widest
            passed.append(text)
        self.calls.append(f"launch{number}({', '.join(passed)})")
        return True

    def _address(self, value: Any, other: Any, written: bool) -> str | None:
        """The address of a tensor that was not met before: one of the weight's, or what a launch makes for the next."""
        if value is other:
            number = len(self.names)
            self.names[f"given{number}"] = value
            self.given.append(f"p{number} = given{number}.data_ptr()")
            text = f"p{number}"
        elif written:
            begins = sum(-(-like.nbytes // APART) * APART for _, like, _ in self.handed)
            text = f"handed + {begins}" if self.device.type == "cuda" else f"handed{len(self.handed)}"
            self.handed.append((text, value, begins))
        else:
            return None
        self.addresses[value.data_ptr()] = text
        return text

    def function(self) -> Callable[[Any], Any]:
        """The function written."""
        lines = [
            *self.given,
            *self._checks(),
            self.out,
            "po = out.data_ptr()",
            *self._memory(),
            *self.calls,
            "return out",
        ]
        torch = sys.modules["torch"]
        if self.device.type == "cuda" and torch.cuda.device_count() > 1:
            self.names["current"] = torch.cuda.current_device
            lines.insert(0, "if current() != index: return None")
        self.names["index"] = self.device.index
        return made_function("run", ["x"], lines, self.names)

    def _checks(self) -> list[str]:
        """Whether addresses are of the classes that the kernels were compiled for; a result that is new is."""
        own = {text: test for text, test in self.tests.items() if text != "po"}
        lines = []
        for widest in {widest for _, widest in own.values()}:
            even = [text for text, test in own.items() if test == (0, widest)]
            if even:
                lines.append(f"if ({' | '.join(even)}) & {widest - 1}: return None")
        uneven = [(text, *test) for text, test in own.items() if test[0]]
        return [*lines, *(f"if {text} % {widest} != {rest}: return None" for text, rest, widest in uneven)]

    def _memory(self) -> list[str]:
        """Makes what kernels hand to one another."""
        if self.device.type != "cuda":
            made = [self._allocation(f"t{n}", like, n) for n, (_, like, _) in enumerate(self.handed)]
            return [*made, *(f"{text} = t{n}.data_ptr()" for n, (text, _, _) in enumerate(self.handed))]
        if not self.handed:
            return []
        self.names |= {"memory": MEMORY.address, "stream": sys.modules["torch"]._C._cuda_getCurrentRawStream}
        _, like, begins = self.handed[-1]
        return [f"handed = memory(HANDED, {begins + like.nbytes}, index, stream(index))"]


class Replays:
    """The replays of a layer, by what its activations are; that of the last call is found without a look-up."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: something else than the activations has changed."""
        self._known: dict[Any, Callable[[Any], Any]] = {}
        self._met: set[Any] = set()
        self._last: tuple[Callable[[Any], bool], Callable[[Any], Any]] = _never, _nothing

    def __call__(self, x: Any) -> Any:
        """The product of `x`; None where the call must be checked and prepared, or activations are cast or want a gradient."""
        check, run = self._last  # of one call, whatever kind another thread calls meanwhile
        return run(x) if check(x) else self._by_kind(x)

    def _by_kind(self, x: Any) -> Any:
        torch, run = sys.modules["torch"], self._known.get(_kind(x))
        differs = (x.requires_grad and torch.is_grad_enabled()) or torch.is_autocast_enabled(x.device.type)
        if run is None or differs or is_watched() or not x.is_contiguous() or x.is_neg() or x._is_zerotensor():
            return None
        # What torch remembers of a tensor says as well that it wants no gradient, that nothing is cast and nobody watches.
        guard = None if x.requires_grad else tensor_guard([x])
        if guard is not None:
            self._last = guard.check, run
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


def is_watched() -> bool:
    """Whether a tracer, a transform or a mode of torch follows what is computed, so that tensors may have no memory to be read."""
    inner = sys.modules["torch"]._C
    return (
        inner._get_tracing_state() is not None
        or inner._functorch.peek_interpreter_stack() is not None
        or inner._len_torch_dispatch_stack() > 0
    )


def check_transforms(*tensors: Any, of: str) -> None:
    """Raise Unsupported where torch takes gradients by transforms of functions, or forwards, which an operator would answer with 0."""
    torch = sys.modules["torch"]
    transform, kinds = torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.TransformType
    if transform is not None and transform.key() in (kinds.Grad, kinds.Jvp):
        raise Unsupported(f"torch.func.grad, vjp and jvp of {of}", ("tensor.backward()", "torch.vmap"))
    forward = torch.autograd.forward_ad
    if forward._current_level >= 0 and any(
        isinstance(tensor, torch.Tensor) and forward.unpack_dual(tensor).tangent is not None for tensor in tensors
    ):
        raise Unsupported(f"forward-mode gradients of {of}", ("tensor.backward()", "torch.vmap"))


def _kind(x: Any) -> Any:
    return type(x), x.shape, x.dtype, x.device, x.layout


def _never(x: Any) -> bool:
    return False


def _nothing(x: Any) -> None:
    return None
