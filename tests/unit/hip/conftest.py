"""Programs of other rooms' tests are compiled here for AMD's machines."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("cuda", "kernels", "language", "emulator")]
