"""Which of Apple's GPUs a request means."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.machine.apple import CHIPS, FAMILIES, AppleArch, of_chip
from tilewright.targets.base import arch_of, known_name
from tilewright.targets.metal.runtime import present_chip


def arch(options: Mapping[str, str]) -> AppleArch:
    """The machine for a target's options.

    Parameters
    ----------
    options : ``arch`` names a family (``"apple7"`` to ``"apple10"``) or a chip (``"m1-max"``); without it, the one
        present, else ``apple7``, which runs on all. ``cores`` sets the number of GPU cores.

    Raises
    ------
    UnknownTarget : no such family, chip or option.
    """
    return arch_of("metal", options, named, lambda: detect() or FAMILIES["apple7"], "cores")


def named(name: str) -> AppleArch:
    """The family or chip of this name.  Raises UnknownTarget."""
    found = known_name("metal", name, (*FAMILIES, *CHIPS))
    return FAMILIES[found] if found in FAMILIES else of_chip(found)


def detect() -> AppleArch | None:
    """The GPU of this machine; None where it is none of Apple's."""
    chip = present_chip()
    return None if chip is None else of_chip(chip) if chip in CHIPS else FAMILIES["apple7"]
