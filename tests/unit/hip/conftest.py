"""Programs of other rooms' tests are compiled here for AMD's machines."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("kernels", "language", "emulator")]
sys.path[:0] = [str(Path(__file__).parents[1] / "cuda" / folder) for folder in ("programs", "products")]
