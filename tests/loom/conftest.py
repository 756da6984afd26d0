"""Programs of other rooms' tests are compiled for the machine that nobody makes."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "fuzz"), *(str(TESTS / "unit" / room) for room in ("emulator", "cuda/programs", "kernels"))]
