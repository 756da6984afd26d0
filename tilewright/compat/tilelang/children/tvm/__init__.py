"""``import tvm`` in a process that a program started, as ``import tilelang`` beside it."""

import importlib
import sys

importlib.import_module("tilelang")
sys.modules[__name__] = importlib.import_module("tilewright.compat.tilelang.tvm")
