"""Which of AMD's machines a request means, and which is here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from tilewright.machine.amd import ARCHITECTURES, AmdArch
from tilewright.targets.base import arch_of, known_name
from tilewright.targets.hip.driver import Driver, find_driver


def arch(options: Mapping[str, str]) -> AmdArch:
    """The architecture for a target's options.

    Parameters
    ----------
    options : ``arch`` names it, as torch does (``"gfx942"``, ``"gfx942:sramecc+:xnack-"``); without it, the device
        present. ``cores`` sets the number of compute units.

    Raises
    ------
    UnknownTarget : no such architecture or option, or none named and no device here.
    """
    return arch_of("hip", options, named, detect, "compute units", "gfx942")


def named(name: str) -> AmdArch:
    """The architecture of this name, whatever features stand behind it.  Raises UnknownTarget."""
    plain = name.split(":")[0]
    full = plain if plain.startswith("gfx") else f"gfx{plain}"
    return ARCHITECTURES[known_name("hip", name, ARCHITECTURES, full)]


def detect(device: int = 0) -> AmdArch | None:
    """The architecture of a device of this machine; None where there is none that is known."""
    driver = find_driver()
    return None if driver is None or device >= driver.device_count() else _detected(driver, device)


@functools.cache
def _detected(driver: Driver, device: int) -> AmdArch | None:
    found = ARCHITECTURES.get(driver.architecture(device).split(":")[0])
    return None if found is None else replace(found, cores=driver.compute_units(device))
