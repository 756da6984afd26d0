"""Integer simplification, bounds and proofs about index expressions."""

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.state import common_knowledge

__all__ = ["Analyzer", "common_knowledge"]
