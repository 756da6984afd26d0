"""``tilewright calibrate``: the rates of the GPU at hand, measured and kept for it."""

from __future__ import annotations

import argparse
import importlib.util

from tilewright.cache import CacheUnavailable
from tilewright.cli.terminal import Terminal
from tilewright.machine.nvidia import MEASURED, keep
from tilewright.machine.rates import Rates
from tilewright.targets.cuda.arch import detect
from tilewright.targets.cuda.driver import find_driver

UNITS = {
    "cycles": ("clock under products", 1e9, "GHz"),
    "bytes": ("memory", 1e9, "GB/s"),
    "launch": ("a launch", 1.0, "cycles"),
}
"""How each rate is called, and in what it is told."""


def run_calibrate(given: argparse.Namespace, terminal: Terminal) -> int:
    """Measure, keep, and say what changed; 1 where there is nothing to measure on."""
    arch, driver = detect(), find_driver()
    if arch is None or driver is None or arch.rates is None:
        terminal.write("There is no NVIDIA GPU here whose rates could be measured.")
        return 1
    if importlib.util.find_spec("torch") is None:
        terminal.write("Measuring needs torch, which holds the tensors: pip install torch")
        return 1
    from tilewright.matmul.calibration import calibrated

    name = driver.name(0)
    terminal.write(f"{name}, {arch.cores} multiprocessors; rates so far: {arch.rates.source}")
    found = calibrated(arch)
    for line in comparison(arch.rates, found):
        terminal.write(line)
    try:
        terminal.write(f"kept for later processes in {keep(name, found)}")
    except (CacheUnavailable, OSError) as error:
        terminal.write(f"not kept: {error}")
        return 1
    return 0


def comparison(before: Rates, after: Rates) -> list[str]:
    """What was measured beside what was known."""
    lines = []
    for one in MEASURED:
        called, unit, word = UNITS[one]
        was, now = getattr(before, one), getattr(after, one)
        lines.append(f"{called:22}{now / unit:10.2f} {word:7} (before: {was / unit:.2f}, {now / was - 1:+.0%})")
    return lines
