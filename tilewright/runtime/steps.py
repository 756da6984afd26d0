"""Plans of calls: what a call with arguments of known shapes, types and devices has left to do.

The first call with some combination checks everything (`arguments`).  Later ones only read addresses, which are tested
again, since they change, make the results, and launch.  All of that is Python, and on a GPU it is as long as the kernel
runs, so it is written for the arguments at hand, with every lookup that can be made beforehand made beforehand.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.generated import made_function
from tilewright.runtime.arguments import byte_range
from tilewright.runtime.call_keys import MISSED, CallPlan, kind_of
from tilewright.runtime.tensors import is_torch, tensor_view


class Steps:
    """The steps of one plan, in the order of their kinds: addresses, tests of them, results, launches.

    A kernel's, for two tensors on a GPU and one result::

        def plan(a0, a1):
            if current() != index: return elsewhere(a0, a1)
            pa0 = a0.data_ptr()
            pa1 = a1.data_ptr()
            if not (pa0 and pa1): return MISSED
            if (pa0 | pa1) & 15: return otherwise(a0, a1)
            o0 = allocate(shape0, strides0, dtype0)
            po0 = o0.data_ptr()
            launch(pa0, pa1, po0)
            return o0

    Parameters
    ----------
    passed : the arguments of a call, by the plan's parameters.
    otherwise : text of what the plan returns for tensors at other addresses modulo its kernels' widest accesses.

    Attributes
    ----------
    names : what lines mention.
    """

    def __init__(self, passed: Mapping[str, object], otherwise: str = "MISSED") -> None:
        self.passed, self._otherwise = passed, otherwise
        self.names: dict[str, object] = {
            "MISSED": MISSED, "empty": np.empty, "addressof": ctypes.addressof, "first_byte": ctypes.c_char.from_buffer
        }  # fmt: skip
        self.made: list[str] = []
        """Lines that make results, and what kernels hand to one another."""
        self._first: list[str] = []
        self._apart: list[str] = []
        self._launches: list[str] = []
        self._held: list[str] = []
        self.counts: list[str] = []
        """Lines that let torch count writes to what is passed."""
        self.tests: dict[str, tuple[int, int]] = {}
        """What addresses must leave, modulo how much."""
        for name, value in passed.items():
            text = address_text(value, name)
            if text is not None:
                self.address(name, text)
                if is_torch(value) and value.numel():
                    self._held.append(f"p{name}")

    def on_device(self, current: Callable[[], int], index: int | None, elsewhere: str = "MISSED") -> None:
        """Let a plan return something else where another device is current."""
        self.names |= {"current": current, "index": index}
        self._first.insert(0, f"if current() != index: return {elsewhere}")

    def named(self, value: object) -> str:
        """A name for something that stays."""
        name = f"given{len(self.names)}"
        self.names[name] = value
        return name

    def address(self, name: str, text: str) -> str:
        """Read an address; returns its name."""
        self._first.append(f"p{name} = {text}")
        return f"p{name}"

    def keep_apart(self, one: str, other: str) -> None:
        """Miss calls in which two of what is passed overlap."""
        (low, high), (other_low, other_high) = (extent_of(self.passed[name]) for name in (one, other))
        if low < high and other_low < other_high:
            least, most = f"low_{one}_{other}", f"high_{one}_{other}"
            self.names |= {least: low - other_high, most: high - other_low}
            self._apart.append(f"if {least} < p{other} - p{one} < {most}: return MISSED")

    def writes(self, name: str) -> None:
        """Something that is passed is written to."""
        if is_torch(self.passed[name]):
            self.names["count_write"] = sys.modules["torch"].autograd.graph.increment_version
            self.counts.append(f"count_write({name})")

    def make(self, name: str, like: Any) -> str:  # of any library
        """Make a tensor like another; returns the name of its address. On a GPU the other's device must be current."""
        shape, strides, dtype = f"shape_{name}", f"strides_{name}", f"dtype_{name}"
        self.names |= {shape: tuple(like.shape), dtype: like.dtype}
        if type(like) is np.ndarray:
            self.made.append(f"{name} = empty({shape}, {dtype})")
        else:
            quick = _quick_allocator(like.device.type)
            self.names |= {strides: tuple(like.stride()), "device": like.device}
            self.names["allocate"] = quick or sys.modules["torch"].empty_strided
            self.made.append(
                f"{name} = allocate({shape}, {strides}, {dtype if quick else f'dtype={dtype}, device=device'})"
            )
        self.made.append(f"p{name} = {address_text(like, name)}")
        return f"p{name}"

    def launch(self, run: Callable[..., None], values: Sequence[str]) -> None:
        """Launch with values of these texts."""
        name = f"launch{len(self._launches) or ''}"
        self.names[name] = run
        self._launches.append(f"{name}({', '.join(values)})")

    def before(self) -> list[str]:
        """All that is left to do before anything is launched."""
        return [*self._first, *self._address_tests(), *self._apart, *self.made]

    def plan(self, result: str) -> CallPlan:
        """The plan, which returns what a text says."""
        lines = [*self.before(), *self._launches, *self.counts, f"return {result}"]
        return made_function("plan", list(self.passed), lines, self.names)

    def _address_tests(self) -> list[str]:
        """Freed tensors have no address, and those on ``meta`` look like a CPU's."""
        lines = [f"if not ({' and '.join(self._held)}): return MISSED"] if self._held else []
        for widest in {widest for rest, widest in self.tests.values() if not rest and widest > 1}:
            even = [text for text, test in self.tests.items() if test == (0, widest)]
            lines.append(f"if ({' | '.join(even)}) & {widest - 1}: return {self._otherwise}")
        for text, (rest, widest) in self.tests.items():
            if rest:
                lines.append(f"if {text} % {widest} != {rest}: return {self._otherwise}")
        return lines


def residues(arguments: Sequence[object], widest: int) -> tuple[int, ...]:
    """Addresses of the tensors among arguments, as far as they decide which variant of a kernel runs."""
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


def _quick_allocator(kind: str) -> Callable[..., Any] | None:
    """Torch's own quick way to an uninitialised tensor on the processor or the current GPU, which its compiled programs
    take."""
    try:
        return getattr(sys.modules["torch"]._C._dynamo.guards, f"_empty_strided_{kind}", None)
    except AttributeError:
        return None
