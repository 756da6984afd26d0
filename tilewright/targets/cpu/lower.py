"""Fast lowerings of the cpu target by operator; an operator without one, or whose own answers None, is lowered generically."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import TileOperator
from tilewright.passes.context import Override

OVERRIDES: Mapping[type[TileOperator], Override] = {}
"""Operator class to ``function(operator, context) -> Statement | None``."""
