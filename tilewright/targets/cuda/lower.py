"""How the cuda target lowers operators and waits: matrix instructions, reductions over threads, asynchronous copies."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Commit, Statement, Wait
from tilewright.ops.copy import Copy
from tilewright.ops.gemm import Gemm
from tilewright.ops.reduce import Reduce
from tilewright.passes.context import Override
from tilewright.targets.cuda import functions as _functions  # noqa: F401  registers what lowering calls
from tilewright.targets.cuda.async_copy import lower_commit, lower_copy, lower_wait
from tilewright.targets.cuda.gemm import lower_gemm
from tilewright.targets.cuda.reduce import lower_reduce

OVERRIDES: Mapping[type[Statement], Override] = {
    Gemm: lower_gemm, Reduce: lower_reduce, Copy: lower_copy, Commit: lower_commit, Wait: lower_wait,
}  # fmt: skip
