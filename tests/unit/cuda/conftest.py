"""Programs that several of these folders compile stand in one of their own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "programs"))
