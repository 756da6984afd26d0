"""Call plans: what a call with arguments of known shapes, types and devices has left to do.

The first call with some combination checks everything (`arguments`).  Later ones only look up the combination,
read addresses, allocate the outputs and launch; addresses are checked again, since they change.

All of that is Python, and on a GPU it is as long as the kernel runs, so it is written for the arguments at hand:
functions of so many tensors and scalars, with every lookup that can be made beforehand made beforehand.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.ir.nodes import GLOBAL_ALIGNMENT, Buffer, Function
from tilewright.runtime.arguments import byte_range
from tilewright.runtime.call_keys import MISSED, CallPlan, guarded, key_function, kind_of, made_function, no_key
from tilewright.runtime.tensors import tensor_view


@dataclass(frozen=True, slots=True)
class Device:
    """Which of several devices a call's tensors are on, where that can differ from the current one.

    Attributes
    ----------
    index : the tensors' device.
    current : gives the index of the calling thread's current device.
    on : makes a context in which the tensors' device is current.
    """

    index: int
    current: Callable[[], int]
    on: Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a plan launches.

    Attributes
    ----------
    run : a function of one value a parameter, addresses for buffers.
    binding : how it is called from C, as the target says; None where it is not.
    residues : what addresses of tensors leave modulo the widest access: it serves no others.
    """

    run: Callable[..., None]
    binding: object = None
    residues: tuple[int, ...] = ()


class Plans:
    """The plans of one function's kernel.

    Parameters
    ----------
    function : its parameters are what a call passes, but for its outputs.
    written : arguments that the kernel writes, so that overlaps must be looked for.
    widest : addresses modulo this many bytes decide which variant a kernel runs (`facts`).

    Attributes
    ----------
    arity : how many arguments a call passes.
    run : runs the plan for so many arguments, or answers `MISSED`.
    """

    def __init__(self, function: Function, written: Collection[Buffer], widest: int = GLOBAL_ALIGNMENT) -> None:
        self.function, self.written, self.widest = function, written, widest
        inputs = function.inputs
        self.arity = len(inputs)
        self._strided = [i for i, p in enumerate(inputs) if isinstance(p, Buffer) and p.strides is not None]
        self._free = [i for i, p in enumerate(inputs) if not isinstance(p, Buffer) and p.dtype.is_float]
        self._kinds: tuple[str | None, ...] = ()
        self._plans: dict[object, CallPlan] = {}
        self._others: dict[object, dict[tuple[int, ...], CallPlan]] = {}
        self._launches: dict[CallPlan, Launch] = {}
        self.key: Callable[..., Any] = no_key
        self.run: Callable[..., Any] = self._by_key

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, *arguments: object) -> CallPlan | None:
        """What calls with arguments like these run; None where they are checked in full."""
        return self._plans.get(self.key(*arguments)) if len(arguments) == self.arity else None

    def launch(self, *arguments: object) -> Launch | None:
        """What the plan of such arguments launches; None where there is no plan."""
        residues = _residues(arguments, self.widest)
        plan = self._others.get(self.key(*arguments), {}).get(residues) if len(arguments) == self.arity else None
        return None if plan is None else self._launches[plan]

    def _by_key(self, *arguments: object) -> Any:
        plan = self._plans.get(self.key(*arguments))
        return MISSED if plan is None else plan(*arguments)

    def remember(
        self, arguments: Sequence[object], outputs: Sequence[object], launch: Launch, device: Device | None
    ) -> None:
        """Keep the plan of a call that was checked.

        Parameters
        ----------
        device : where its tensors are; None where there is only one.
        """
        kinds = tuple(map(kind_of, arguments))
        if any(kind is None or kind == "str" for kind in kinds):
            return
        if kinds != self._kinds:
            self._plans, self._others, self._launches = {}, {}, {}  # True and 1 are equal as keys
            self._kinds, self.key = kinds, key_function(kinds, self._strided, self._free)
        key = self.key(*arguments)
        if len(self._plans) > MOST_PLANS:
            self._plans.clear()
            self._others.clear()
            self._launches.clear()
        others = self._others.setdefault(key, {})
        residues = _residues(arguments, self.widest)
        planner = _Planner(self.function, arguments, outputs, launch.run, device, residues, others, self.widest)
        others[residues] = self._plans[key] = plan = planner.plan(self.written)
        self._launches[plan] = replace(launch, residues=residues)
        quick = guarded(arguments, range(len(arguments)), plan, self._free, otherwise=self._by_key)
        self.run = quick or self._by_key


MOST_PLANS = 1024
"""Combinations of arguments that a kernel remembers before it begins anew."""


def _residues(arguments: Sequence[object], widest: int) -> tuple[int, ...]:
    """Addresses of the tensors, as far as they decide the variant."""
    return tuple([address_of(value) % widest for value in arguments if kind_of(value) in ("numpy", "torch")])


def address_of(tensor: Any) -> int:  # of any library
    return int(tensor.ctypes.data if type(tensor) is np.ndarray else tensor.data_ptr())


def extent_of(tensor: Any) -> tuple[int, int]:  # of any library
    """The bytes of a tensor, relative to its address."""
    view = tensor_view(tensor)
    low, high = byte_range(view)
    return low - view.pointer, high - view.pointer


_ADDRESS_TEXT = {"numpy": "{0}.ctypes.data", "torch": "{0}.data_ptr()", "buffer": "addressof(first_byte({0}))"}


def address_text(value: Any, name: str) -> str | None:  # of any library
    """Text of the address of a tensor like `value`; None for other arguments.

    NumPy makes an object with a Python constructor for ``ctypes.data``; the buffer protocol takes a quarter of the
    time, and serves arrays whose flags, which are part of a plan's key, and types allow it.
    """
    kind = kind_of(value)
    if kind == "numpy":
        try:
            ctypes.c_char.from_buffer(value)
            kind = "buffer"
        except (TypeError, ValueError, BufferError):
            pass
    text = _ADDRESS_TEXT.get(kind or "")
    return None if text is None else text.format(name)


NAMES: Mapping[str, object] = {
    "MISSED": MISSED, "empty": np.empty, "addressof": ctypes.addressof, "first_byte": ctypes.c_char.from_buffer
}  # fmt: skip
"""What lines of a plan mention."""


class _Planner:
    """Writes the plan of one combination of arguments."""

    def __init__(
        self,
        function: Function,
        arguments: Sequence[Any],
        outputs: Sequence[object],
        launch: Callable[..., None],
        device: Device | None,
        residues: tuple[int, ...],
        others: dict[tuple[int, ...], CallPlan],
        widest: int,
    ) -> None:
        self.widest = widest
        self.function, self.arguments, self.outputs = function, arguments, outputs
        self.device, self.residues = device, residues
        self.names: dict[str, Any] = {**NAMES, "launch": launch, "others": others}
        self.lines: list[str] = []

    def plan(self, written: Collection[Buffer]) -> CallPlan:
        """The plan.

        Its text, for two tensors on a GPU and one output::

            def plan(a0, a1):
                if current() != index: return elsewhere(a0, a1)
                p0 = a0.data_ptr()
                p1 = a1.data_ptr()
                if not (p0 and p1): return MISSED
                if (p0 | p1) & 15: return otherwise(a0, a1)
                o0 = allocate(shape0, strides0, dtype0)
                launch(p0, p1, o0.data_ptr())
                return o0
        """
        given = ", ".join(f"a{i}" for i in range(len(self.arguments)))
        if self.device is not None:
            self._on_device()
            # Where no tensor says where a call belongs, its outputs are made on the device that is current.
            elsewhere = f"elsewhere({given})" if self.residues else "MISSED"
            self.line(f"if current() != index: return {elsewhere}")
        pointers = self._addresses(given)
        for one, other, low, high in _overlap_pairs(self.function, self.arguments, written):
            self.names |= {f"low{one}_{other}": low, f"high{one}_{other}": high}
            distance = f"{pointers[other]} - {pointers[one]}"
            self.line(f"if low{one}_{other} < {distance} < high{one}_{other}: return MISSED")
        made = [allocation(f"o{i}", output, i, self.names) for i, output in enumerate(self.outputs)]
        self.lines += [line for line, _ in made]
        values = iter([pointers.get(i, f"a{i}") for i in range(len(self.arguments))])
        addresses = iter([address for _, address in made])
        passed = [next(addresses) if param in self.function.outputs else next(values) for param in self.function.params]
        self.line(f"launch({', '.join(passed)})")
        self.line(f"return {', '.join(f'o{i}' for i in range(len(self.outputs))) or None}")
        self.names["plan"] = made_plan = made_function("plan", [given], self.lines, self.names)
        return made_plan

    def line(self, text: str) -> None:
        self.lines.append(text)

    def _on_device(self) -> None:
        device, names = self.device, self.names
        assert device is not None

        def elsewhere(*arguments: object) -> Any:
            with device.on(device.index):
                return names["plan"](*arguments)

        names.update(index=device.index, current=device.current, elsewhere=elsewhere)

    def _addresses(self, given: str) -> dict[int, str]:
        """Reads the addresses of the tensors, and sends calls with others than these modulo the widest access
        elsewhere."""
        # Functions that stay must not hold `self`, which has the arguments of one call.
        others, widest = self.names["others"], self.widest

        def otherwise(*arguments: object) -> Any:
            found = others.get(_residues(arguments, widest))
            return MISSED if found is None else found(*arguments)

        self.names["otherwise"] = otherwise
        pointers = {}
        for position, value in enumerate(self.arguments):
            text = address_text(value, f"a{position}")
            if text is not None:
                pointers[position] = f"p{position}"
                self.line(f"p{position} = {text}")
        held = [f"p{i}" for i in pointers if kind_of(self.arguments[i]) == "torch" and self.arguments[i].numel()]
        tests = {text: (rest, widest) for text, rest in zip(pointers.values(), self.residues, strict=True)}
        self.lines += address_tests(held, tests, f"otherwise({given})")
        return pointers


def allocation(name: str, like: Any, number: object, names: dict[str, Any]) -> tuple[str, str]:  # of any library
    """The line that makes a tensor like another, and the text of its address; what the line mentions joins `names`.

    On a GPU the other's device must be the current one.
    """
    shape, strides, dtype = f"shape{number}", f"strides{number}", f"dtype{number}"
    names |= {shape: tuple(like.shape), dtype: like.dtype}
    if type(like) is np.ndarray:
        return f"{name} = empty({shape}, {dtype})", str(address_text(like, name))
    names[strides], allocate = tuple(like.stride()), _quick_allocator(like.device.type)
    if allocate is not None:
        names["allocate"] = allocate
        return f"{name} = allocate({shape}, {strides}, {dtype})", f"{name}.data_ptr()"
    names |= {"allocate": sys.modules["torch"].empty_strided, "device": like.device}
    return f"{name} = allocate({shape}, {strides}, dtype={dtype}, device=device)", f"{name}.data_ptr()"


def address_tests(
    held: Sequence[str], tests: Mapping[str, tuple[int, int]], otherwise: str = "MISSED"
) -> Iterator[str]:
    """Lines that send calls with other addresses than a plan serves elsewhere.

    Parameters
    ----------
    held : texts of addresses that must be some: freed tensors have none, and those on ``meta`` look like a CPU's.
    tests : what texts of addresses must leave modulo how much.
    otherwise : what the plan returns for others.
    """
    if held:
        yield f"if not ({' and '.join(held)}): return MISSED"
    for widest in {widest for _, widest in tests.values() if widest > 1}:
        even = [text for text, test in tests.items() if test == (0, widest)]
        if even:
            yield f"if ({' | '.join(even)}) & {widest - 1}: return {otherwise}"
    yield from (f"if {text} % {widest} != {rest}: return {otherwise}" for text, (rest, widest) in tests.items() if rest)


def _quick_allocator(kind: str) -> Callable[..., Any] | None:
    """Torch's own quick way to an uninitialised tensor on the processor or the current GPU, which its compiled programs
    take."""
    try:
        return getattr(sys.modules["torch"]._C._dynamo.guards, f"_empty_strided_{kind}", None)
    except AttributeError:
        return None


def _overlap_pairs(
    function: Function, arguments: Sequence[object], written: Collection[Buffer]
) -> list[tuple[int, int, int, int]]:
    """For each written argument and each other one, the differences of their addresses between which they overlap."""
    tensors = {}
    for position, (param, value) in enumerate(zip(function.inputs, arguments, strict=True)):
        if isinstance(param, Buffer):
            tensors[position] = (param, *extent_of(value))
    pairs = []
    for one, (param, low, high) in tensors.items():
        for other, (_, other_low, other_high) in tensors.items():
            if param in written and other != one and low < high and other_low < other_high:
                pairs.append((one, other, low - other_high, high - other_low))
    return pairs
