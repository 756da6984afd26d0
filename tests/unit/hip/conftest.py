"""Programs of the cuda target's tests are compiled here for AMD's machines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda"))
