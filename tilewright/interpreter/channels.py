"""Channels while a program runs: how far each role has come."""

from __future__ import annotations

from tilewright.errors import RolesDeadlocked
from tilewright.ir.nodes import Channel


class Ring:
    """The state of one channel of one block: iterations that each writer published and each reader released."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.published = dict.fromkeys(channel.writers, 0)
        self.released = dict.fromkeys(channel.readers, 0)

    @property
    def passed(self) -> int:
        """How often anything was handed on."""
        return sum(self.published.values()) + sum(self.released.values())

    def is_free(self, number: int) -> bool:
        """Whether a writer may fill the slot of iteration `number`."""
        return all(count > number - self.channel.stages for count in self.released.values())

    def is_full(self, number: int) -> bool:
        """Whether a reader may read the slot of iteration `number`."""
        return all(count > number for count in self.published.values())

    def pass_on(self, role: str, number: int, verb: str) -> None:
        """A role publishes or releases iteration `number`.

        Raises
        ------
        RolesDeadlocked : it is not the role's next one.
        """
        counts = self.published if verb == "publish" else self.released
        if counts[role] != number:
            raise RolesDeadlocked(
                f"the role {role!r} means to {verb} iteration {number} of {self.channel.name!r}, but its next is {counts[role]}",
                hint="every role goes through the iterations 0, 1, 2, ... of a channel, one after the other",
            )
        counts[role] += 1
