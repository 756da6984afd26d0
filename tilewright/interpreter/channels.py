"""Channels while a program runs: how far each role has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.errors import RolesDeadlocked
from tilewright.ir.nodes import Channel

Line = tuple[str, int]
"""A role's name and the number of its instance."""


class ChannelState:
    """The state of one channel of one block: iterations that each writer published and each reader released.

    Parameters
    ----------
    instances : of each role, by its name.
    """

    def __init__(self, channel: Channel, instances: Mapping[str, int]) -> None:
        self.channel = channel
        self.published = {(name, i): 0 for name in channel.writers for i in range(instances[name])}
        self.released = {(name, i): 0 for name in channel.readers for i in range(instances[name])}
        self.read: set[int] = set()
        """What some instance has released of a channel whose readers alternate."""

    def is_free(self, role: Line, number: int) -> bool:
        """Whether a writer may fill the slot of iteration `number`."""
        if self.channel.alternate:
            return number < self.channel.stages or number - self.channel.stages in self.read
        return all(count > number - self.channel.stages for count in self._others(self.released, role))

    def is_full(self, role: Line, number: int) -> bool:
        """Whether a reader may read the slot of iteration `number`."""
        return all(count > number for count in self._others(self.published, role))

    def _others(self, counts: dict[Line, int], role: Line) -> Iterable[int]:
        """How far those have come that share slots with a line of execution: itself alone where slots are private."""
        return [counts[role]] if self.channel.is_private else counts.values()

    def pass_on(self, role: Line, number: int, verb: str) -> None:
        """A role publishes or releases iteration `number`.

        Raises
        ------
        RolesDeadlocked : it is not the role's next one.
        """
        if self.channel.alternate and verb == "release":
            self._read(role, number)
            return
        counts = self.published if verb == "publish" else self.released
        if counts[role] != number:
            raise RolesDeadlocked(
                f"the role {role[0]!r} means to {verb} iteration {number} of {self.channel.name!r}, but its next "
                f"is {counts[role]}",
                hint="every role goes through the iterations 0, 1, 2, ... of a channel, one after the other",
            )
        counts[role] += 1

    def _read(self, role: Line, number: int) -> None:
        """An instance of readers that alternate releases iteration `number`; the others leave it out."""
        if number in self.read or number < self.released[role]:
            raise RolesDeadlocked(
                f"the role {role[0]!r} releases iteration {number} of {self.channel.name!r} for the second time",
                hint="each iteration of a channel whose readers alternate belongs to one of them",
            )
        self.read.add(number)
        self.released[role] = number + 1
