"""What every instruction says that multiplies matrices, of every machine: shape, types, rate, place and operands."""

from __future__ import annotations

import math

import pytest

from tilewright.ir.dtypes import FLOAT16, FLOAT32, INT8, INT32
from tilewright.machine import Arch, DotInstruction, MatrixInstruction, MatrixProduct, TileInstruction
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES as APPLE
from tilewright.machine.instructions import REGISTERS, SHARED
from tilewright.machine.tile import TILES
from tilewright.targets.cpu.arch import PRESETS
from tilewright.targets.cpu.arch import arch as processor
from tilewright.targets.cuda.arch import ARCHITECTURES as NVIDIA
from tilewright.targets.cuda.arch import named

MACHINES = [*map(named, NVIDIA), *AMD.values(), *APPLE.values(), *(processor({"arch": name}) for name in PRESETS)]
KINDS = (MatrixInstruction, DotInstruction, TileInstruction)
MEMBERS = {name for name in vars(MatrixProduct) if not name.startswith("_")}


@pytest.mark.parametrize("arch", MACHINES, ids=[arch.name for arch in MACHINES])
def test_instructions_of_every_machine_say_the_same_five_things(arch: Arch) -> None:
    assert {"shape", "types", "rate", "place", "operands"} == MEMBERS
    every = (*arch.matrix_instructions, *arch.sparse_instructions, *arch.untried_instructions)
    for one in every:
        assert type(one) in KINDS
        assert len(one.shape) == 3 and min(one.shape) >= 1
        left, right, total = one.types
        assert left.is_float == right.is_float == total.is_float and total.bits >= max(left.bits, right.bits)
        assert one.place in (REGISTERS, TILES) and set(one.operands) <= {REGISTERS, SHARED, TILES}
        assert one.rate > 0 or one in arch.untried_instructions
        assert isinstance(one, DotInstruction) != arch.has_threads
    assert all(arch.product_rate(*one.types[:2]) > 0 for one in arch.matrix_instructions)
    assert set(arch.products(MatrixInstruction)) == {one for one in arch.matrix_instructions if arch.has_threads}


def test_shapes_and_rates_by_hand() -> None:
    """AMX multiplies tiles of 16 rows of 64 bytes in 16 cycles; a vector of 64 bytes adds four products in each lane."""
    (amx, *_) = processor({"arch": "avx512-vnni-bf16-amx"}).products(TileInstruction)
    assert (amx.shape, amx.types, amx.place, amx.operands) == ((16, 16, 64), (INT8, INT8, INT32), TILES, (TILES, TILES))
    assert amx.rate == 2 * math.prod(amx.shape) / 16
    dots = [one for one in processor({"arch": "avx512-vnni"}).products(DotInstruction) if one.types[0] == INT8]
    assert (dots[0].shape, dots[0].rate) == ((1, 16, 4), 128)
    wgmma = next(
        one for one in named("sm_90a").products(MatrixInstruction) if one.function == "wgmma_ss" and one.a == FLOAT16
    )
    assert (wgmma.shape[0], wgmma.shape[2], wgmma.types) == (64, 16, (FLOAT16, FLOAT16, FLOAT32))
    assert (wgmma.place, wgmma.operands) == (REGISTERS, (SHARED, SHARED))
