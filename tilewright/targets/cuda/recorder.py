"""Launches written out: the function that launches a kernel again, with other addresses and numbers, and nothing to
spare."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.generated import made_function
from tilewright.targets.cuda.driver import LaunchConfig
from tilewright.targets.cuda.launcher import LaunchState, PreparedKernel
from tilewright.targets.cuda.workspaces import OfStream
from tilewright.targets.gpu.host import POINTER


@dataclass(frozen=True, slots=True)
class Given:
    """Stands for what a later call passes, in values that are recorded: which of the parameters it is."""

    number: int


@dataclass(frozen=True, slots=True)
class MapOfGiven:
    """Stands for the tensor map of a buffer in values that are recorded: which parameter, and how an address is
    encoded."""

    number: int
    encode: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class MapOfStream:
    """Stands for the tensor map of a workspace, which lies elsewhere on each stream, and how an address is encoded."""

    workspace: OfStream
    encode: Callable[[int], bytes]


class _EncodedMap:
    """A tensor map in argument memory; encoded once for each address that the tensor is met at."""

    __slots__ = ("_encode", "_known", "_place", "last")

    def __init__(self, place: int, encode: Callable[[int], bytes], known: dict[int, bytes]) -> None:
        self._place, self._encode, self._known, self.last = place, encode, known, -1

    def set(self, address: int) -> None:
        encoded = self._known.get(address)
        if encoded is None:
            if len(self._known) > MOST_MAPS:
                self._known.clear()
            encoded = self._known[address] = self._encode(address)
        ctypes.memmove(self._place, encoded, 128)
        self.last = address


STREAM_WORD = LaunchConfig.stream.offset // 8
"""Place of the stream among the words of argument memory."""

MOST_MAPS = 256
"""Addresses for which a launch keeps the encoded map of a tensor."""


def record(
    prepared: PreparedKernel, grid: tuple[int, int, int], values: Sequence[object], count: int, device: int
) -> Callable[..., None]:
    """A function of `count` values that launches with this grid on a device, which has to be the current one.

    Values of the types `Given` and `MapOfGiven` say which of them stands in their place.
    """
    if min(grid) < 1:
        return lambda *given: None
    return _Recorder(prepared, grid, values, device).function(count)


class _Recorder:
    """Writes the function that launches one kernel again with other addresses and numbers.

    Its text, for two addresses, a number and a tensor map of the first::

        def run(v0, v1, v2):
            try: state = states.pop()
            except IndexError: state = fresh()
            words, number2, map3, config, addresses = state
            words[7] = v0
            words[8] = v1
            number2.value = v2
            if v0 != map3.last: map3.set(v0)
            words[4] = stream = current_stream(device)
            result = launch(config, kernel, addresses, None)
            if result: again(result, config, kernel, addresses)
            states.append(state)
    """

    def __init__(
        self, prepared: PreparedKernel, grid: tuple[int, int, int], values: Sequence[object], device: int
    ) -> None:
        self.prepared, self.grid, self.values, self.device = prepared, grid, values, device
        self.codes = prepared.kernel.codes
        self.encoded: dict[int, dict[int, bytes]] = {}
        self.kept: list[LaunchState] = []
        """What the driver reads by address: launch attributes live as long as their state."""
        self.fixed = [
            bytes(128)
            if isinstance(value, (MapOfGiven, MapOfStream))
            else 0
            if isinstance(value, (Given, OfStream))
            else value
            for value in values
        ]

    def fresh(self) -> tuple[Any, ...]:
        """The memory of one launch, and what of it changes."""
        state = LaunchState(self.codes, self.prepared.shape)
        state.set(self.grid, 0, self.fixed)
        self.kept.append(state)
        slots: list[object] = []
        for place, value in enumerate(self.values):
            address = state.addresses[place] or 0
            if isinstance(value, (MapOfGiven, MapOfStream)):
                slots.append(_EncodedMap(address, value.encode, self.encoded.setdefault(place, {})))
                slots += [value.workspace.address] if isinstance(value, MapOfStream) else []
            elif isinstance(value, OfStream):
                slots.append(value.address)
            elif isinstance(value, Given) and self.codes[place] != POINTER:
                slots.append(_NUMBERS[self.codes[place]].from_address(address))
        return (state.words, *slots, state.config, state.addresses)

    def function(self, parameters: int) -> Callable[..., None]:
        shape = LaunchState(self.codes, self.prepared.shape)
        names: list[str] = []
        lines: list[str] = []
        late: list[str] = []
        for place, value in enumerate(self.values):
            if isinstance(value, MapOfGiven):
                names.append(f"map{place}")
                lines.append(f"if v{value.number} != map{place}.last: map{place}.set(v{value.number})")
            elif isinstance(value, MapOfStream):
                names += [f"map{place}", f"workspace{place}"]
                late.append(f"at = workspace{place}(device, stream)")
                late.append(f"if at != map{place}.last: map{place}.set(at)")
            elif isinstance(value, OfStream):
                names.append(f"workspace{place}")
                late.append(f"words[{shape.word(place)}] = workspace{place}(device, stream)")
            elif isinstance(value, Given) and self.codes[place] == POINTER:
                lines.append(f"words[{shape.word(place)}] = v{value.number}")
            elif isinstance(value, Given):
                names.append(f"number{place}")
                lines.append(f"number{place}.value = v{value.number}")
        lines = [
            "try: state = states.pop()",
            "except IndexError: state = fresh()",
            f"{', '.join(['words', *names, 'config', 'addresses'])} = state",
            *lines,
            f"words[{STREAM_WORD}] = stream = current_stream(device)",
            *late,
            "result = launch(config, kernel, addresses, None)",
            "if result: again(result, config, kernel, addresses)",
            "states.append(state)",
        ]
        prepared = self.prepared
        given: dict[str, object] = {
            "states": [], "fresh": self.fresh, "device": self.device, "current_stream": prepared.current_stream,
            "launch": prepared.launch, "kernel": prepared.function_on(self.device), "again": self._again,
        }  # fmt: skip
        return made_function("run", [f"v{i}" for i in range(parameters)], lines, given)

    def _again(self, result: int, config: object, function: object, addresses: object) -> None:
        self.prepared.refused(result, config, function, addresses, self.grid)


_NUMBERS: dict[str, Any] = {
    "?": ctypes.c_bool, "b": ctypes.c_int8, "B": ctypes.c_uint8, "h": ctypes.c_int16, "H": ctypes.c_uint16,
    "i": ctypes.c_int32, "I": ctypes.c_uint32, "q": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double,
}  # fmt: skip
"""What writes a number of each `struct` code into argument memory."""
