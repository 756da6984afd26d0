"""Choosing among ways to run a kernel: candidates are built, measured on real operands, and the best is remembered."""

from tilewright.tuning.database import Database
from tilewright.tuning.measure import time_call
from tilewright.tuning.search import Candidate, Outcome, search

__all__ = ["Candidate", "Database", "Outcome", "search", "time_call"]
