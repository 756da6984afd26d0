"""The emulator: a kernel's device text compiled for this machine's CPU and run under a scheduler that finds its
mistakes."""

from tilewright.emulator.launch import EXPLORED, Emulation, emulate, run
from tilewright.emulator.reports import Named, Place, Report
from tilewright.emulator.structures import Fault
from tilewright.emulator.tensor_map import TensorMap

__all__ = ["EXPLORED", "Emulation", "Fault", "Named", "Place", "Report", "TensorMap", "emulate", "run"]
