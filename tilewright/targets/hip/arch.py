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


def detect() -> AmdArch | None:
    """The architecture of this machine's first device; None where there is none that is known."""
    driver = find_driver()
    return None if driver is None or driver.device_count() == 0 else _detected(driver)


@functools.cache
def _detected(driver: Driver) -> AmdArch | None:
    found = ARCHITECTURES.get(driver.architecture(0).split(":")[0])
    return None if found is None else replace(found, cores=driver.compute_units(0))
