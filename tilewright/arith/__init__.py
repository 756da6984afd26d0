"""Integer simplification, bounds and proofs about index expressions."""

from tilewright.arith.analyzer import Analyzer

__all__ = ["Analyzer"]
