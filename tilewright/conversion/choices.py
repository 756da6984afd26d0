"""Which layers were taken and which were not, and why, as lines for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

SKIPPED_BY_NAME = "skip= has its name"
LOOKED_UP = "its rows are looked up"


@dataclass(frozen=True, slots=True)
class Choices:
    """What was decided for each layer of a model or a checkpoint.

    Attributes
    ----------
    reasons : why a layer stays as it is, by its name; None for those that are of codes now.

    Examples
    --------
    >>> print(Choices({"layers.0.up": None, "layers.1.up": None, "head": "skip= has its name"}))
    taken  2 x layers.*.up
    left   1 x head: skip= has its name
    """

    reasons: Mapping[str, str | None]

    @property
    def taken(self) -> list[str]:
        """Names of the layers that are of codes now."""
        return [name for name, reason in self.reasons.items() if reason is None]

    @property
    def left(self) -> dict[str, str]:
        """Why the others are not, by name."""
        return {name: reason for name, reason in self.reasons.items() if reason is not None}

    def __str__(self) -> str:
        # Layers of a model's blocks differ in numbers: one line tells of all.
        alike = Counter((re.sub(r"(?<![^.])\d+(?![^.])", "*", name), reason) for name, reason in self.reasons.items())
        width = max((len(str(count)) for count in alike.values()), default=1)
        taken = [f"taken  {count:{width}} x {name}" for (name, reason), count in alike.items() if reason is None]
        left = [f"left   {count:{width}} x {name}: {reason}" for (name, reason), count in alike.items() if reason]
        return "\n".join([*taken, *left])
