"""Kernels written in the language, and what they share: epilogues, recipes, and the model of how long they take."""

from tilewright.kernels.epilogue import *
from tilewright.kernels.hopper import *
from tilewright.kernels.recipe import *
from tilewright.kernels.roofline import *
from tilewright.kernels.values import *
