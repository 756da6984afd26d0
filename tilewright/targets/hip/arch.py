"""Which of AMD's machines a request means, and which is here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from tilewright.errors import near
from tilewright.machine.amd import ARCHITECTURES, AmdArch
from tilewright.targets.base import UnknownTarget
from tilewright.targets.hip.driver import Driver, find_driver


def arch(options: Mapping[str, str]) -> AmdArch:
    """The architecture for a target's options.

    Parameters
    ----------
    options : ``arch`` names it, as torch does (``"gfx942"``, ``"gfx942:sramecc+:xnack-"``); without it, the device present.
        ``cores`` sets the number of compute units.

    Raises
    ------
    UnknownTarget : no such architecture or option, or none named and no device here.
    """
    unknown = set(options) - {"arch", "cores"}
    if unknown:
        raise UnknownTarget(f"the hip target has no option {sorted(unknown)[0]!r}", hint="known: arch, cores")
    found = named(options["arch"]) if "arch" in options else detect()
    if found is None:
        raise UnknownTarget(
            "target 'hip' names no architecture, and there is no AMD GPU here to take it from",
            hint='write for example target="hip -arch=gfx942": only launching needs the GPU',
        )
    if "cores" in options:
        if not str(options["cores"]).isdigit() or int(options["cores"]) < 1:
            raise UnknownTarget(f"cores={options['cores']!r} is not a number of compute units")
        found = replace(found, cores=int(options["cores"]))
    return found


def named(name: str) -> AmdArch:
    """The architecture of this name, whatever features stand behind it.  Raises UnknownTarget."""
    plain = name.split(":")[0]
    full = plain if plain.startswith("gfx") else f"gfx{plain}"
    if full not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        close = near(full, list(ARCHITECTURES))
        raise UnknownTarget(
            f"the hip target has no architecture {name!r}", hint=f"{close + ' ' if close else ''}known: {known}"
        )
    return ARCHITECTURES[full]


def detect(device: int = 0) -> AmdArch | None:
    """The architecture of a device of this machine; None where there is none that is known."""
    driver = find_driver()
    return None if driver is None or device >= driver.device_count() else _detected(driver, device)


@functools.cache
def _detected(driver: Driver, device: int) -> AmdArch | None:
    found = ARCHITECTURES.get(driver.architecture(device).split(":")[0])
    return None if found is None else replace(found, cores=driver.compute_units(device))
