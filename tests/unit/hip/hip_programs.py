"""Programs for AMD's machines: a function of the language on an architecture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tilewright.specialization import JITFunction

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda" / "programs"))

WAVES = ("gfx942", "gfx1100")
"""One architecture with waves of 64 lanes, and one of 32."""

EVERY = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


def on(architecture: str, function: Any) -> JITFunction:
    """A direct function compiled for an architecture of AMD."""
    function = getattr(getattr(function, "direct", None), "function", function)
    return JITFunction(function, f"hip -arch={architecture}", None)
