"""Layers for torch models: `Linear`, and `Experts` for the weights of a mixture of experts."""

from tilewright.nn.experts import Experts, ExpertWeights
from tilewright.nn.linear import Linear, linears

__all__ = ["ExpertWeights", "Experts", "Linear", "linears"]
