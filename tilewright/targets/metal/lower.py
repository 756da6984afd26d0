"""How the metal target lowers operators: products of simdgroups, reductions over threads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.interpreter.collectives import each_offset, read_each, whole_warps
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.ir import Call, Intrinsic, Statement, register
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.machine.apple import FAMILIES, LANES, PLACES
from tilewright.machine.instructions import MatrixInstruction
from tilewright.ops import Gemm, Reduce
from tilewright.passes.context import Override
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.reduce import lower_reduce

for _arch in FAMILIES.values():
    register_products(_arch.products(MatrixInstruction))


def _store_matrix(state: Evaluator, node: Call) -> int:
    """Each lane's two elements of a matrix, at the places that the machine's layout gives them."""
    first, second, part = node.regions
    whole_warps(state, node.function)
    values = read_each(state, part)
    memory, begins = each_offset(state, first)
    apart = each_offset(state, second)[1][..., :1] - begins[..., :1]
    lane = np.arange(state.lanes[-1]) % LANES
    rows, columns = PLACES.coordinates(**{THREAD: lane[:, None], REGISTER: np.arange(values.shape[-1])[None]})
    places = begins[..., :1] + rows * apart + columns * memory.strides[-1]
    active = np.broadcast_to(state.active[..., None], places.shape)
    memory.scatter(places[active], values[active])
    return 0


register(Intrinsic("simdgroup_store", 3, None, pure=False, collective=True, reads_only=(2,), fills=(0, 1)))
SPECIAL_CALLS["simdgroup_store"] = _store_matrix

OVERRIDES: Mapping[type[Statement], Override] = {Gemm: lower_gemm, Reduce: lower_reduce}
