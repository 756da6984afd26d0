"""Fast lowerings of the cpu target by operator; an operator without one, or whose own answers None, is lowered
generically."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Statement
from tilewright.ops import Copy, Decode, Gemm
from tilewright.passes.context import Override
from tilewright.targets.cpu.copy import lower_copy
from tilewright.targets.cpu.decode import lower_decode
from tilewright.targets.cpu.tile_products import lower_product

OVERRIDES: Mapping[type[Statement], Override] = {Copy: lower_copy, Decode: lower_decode, Gemm: lower_product}
"""Operator class to ``function(operator, context) -> Statement | None``."""
