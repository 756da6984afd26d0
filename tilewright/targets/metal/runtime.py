"""Running Metal texts on a Mac: through torch's MPS backend."""

from __future__ import annotations

import functools
import platform
import subprocess


@functools.cache
def present_chip() -> str | None:
    """The chip of this machine as `machine.apple.CHIPS` writes it (``"m1-max"``), None where it is none of Apple's."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return None
    done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
    return done.stdout.strip().lower().removeprefix("apple ").replace(" ", "-") or None
