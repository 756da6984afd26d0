"""Which of Apple's GPUs a request means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.errors import near
from tilewright.machine.apple import CHIPS, FAMILIES, AppleArch, of_chip
from tilewright.targets.base import UnknownTarget
from tilewright.targets.metal.runtime import present_chip


def arch(options: Mapping[str, str]) -> AppleArch:
    """The machine for a target's options.

    Parameters
    ----------
    options : ``arch`` names a family (``"apple7"`` to ``"apple10"``) or a chip (``"m1-max"``); without it, the one present, else
        ``apple7``, which runs on all.  ``cores`` sets the number of GPU cores.

    Raises
    ------
    UnknownTarget : no such family, chip or option.
    """
    unknown = set(options) - {"arch", "cores"}
    if unknown:
        raise UnknownTarget(f"the metal target has no option {sorted(unknown)[0]!r}", hint="known: arch, cores")
    found = named(options["arch"]) if "arch" in options else detect() or FAMILIES["apple7"]
    if "cores" in options:
        if not str(options["cores"]).isdigit() or int(options["cores"]) < 1:
            raise UnknownTarget(f"cores={options['cores']!r} is not a number of cores")
        found = replace(found, cores=int(options["cores"]))
    return found


def named(name: str) -> AppleArch:
    """The family or chip of this name.  Raises UnknownTarget."""
    if name in FAMILIES:
        return FAMILIES[name]
    if name in CHIPS:
        return of_chip(name)
    known = [*FAMILIES, *CHIPS]
    close = near(name, known)
    raise UnknownTarget(
        f"the metal target has no architecture {name!r}",
        hint=f"{close + ' ' if close else ''}known: {', '.join(known)}",
    )


def detect() -> AppleArch | None:
    """The GPU of this machine; None where it is none of Apple's."""
    chip = present_chip()
    return None if chip is None else of_chip(chip) if chip in CHIPS else FAMILIES["apple7"]
