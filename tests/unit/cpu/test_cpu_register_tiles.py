"""The choice of register tiles: within the registers, covering all rows, as the measurements say."""

from __future__ import annotations

import pytest

from tilewright.ir.dtypes import dtype
from tilewright.machine.dot import DotInstruction, match_operands
from tilewright.targets.cpu.arch import arch, make_arch
from tilewright.targets.cpu.instructions import dot_instructions
from tilewright.targets.cpu.register_tiles import SPARE, RegisterTile, TileModel

PRESETS = ("avx2", "avx512-vnni", "neon-dotprod", "x86_64")


def instructions(preset: str) -> tuple[DotInstruction, ...]:
    machine = arch({"arch": preset})
    return dot_instructions(machine.features, machine.vector_bytes)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("rows", [1, 3, 4, 16, 37, 128])
@pytest.mark.parametrize("unpack", [0.0, 1.5])
def test_tiles_fit_the_registers_and_cover_the_rows(preset: str, rows: int, unpack: float) -> None:
    machine = arch({"arch": preset})
    for instruction in instructions(preset):
        tiles = TileModel(machine, instruction, unpack, columns=6).choose(rows)
        left = rows
        for tile in tiles:
            live = tile.rows * tile.vectors + tile.vectors * (2 if unpack else 1) + 1
            assert live <= machine.registers
            left %= tile.rows
        assert left == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_any_number_of_rows_ends_with_single_rows(preset: str) -> None:
    machine = arch({"arch": preset})
    for instruction in instructions(preset):
        tiles = TileModel(machine, instruction, 0.0, columns=6).choose(None)
        assert [tile.rows for tile in tiles] == sorted({tile.rows for tile in tiles}, reverse=True)
        assert tiles[-1].rows == 1
        assert tiles[0].rows <= 8


def test_the_measured_winners_with_avx512() -> None:
    machine = arch({"arch": "avx512-vnni"})
    dot = instructions("avx512-vnni")[0]
    codes = TileModel(machine, dot, 1.5, columns=6)
    assert (codes.choose(16)[0].rows, codes.choose(16)[0].vectors) == (8, 3)
    assert codes.choose(1)[0].vectors >= 3
    near = TileModel(machine, dot, 0.0, columns=6, vector_bytes=machine.l1_bytes // 4)
    assert near.choose(128)[0].vectors * near.vector_bytes <= machine.l1_bytes


def test_sums_beside_totals_leave_registers_to_the_compiler() -> None:
    machine, dot = arch({"arch": "avx512-vnni"}), instructions("avx512-vnni")[0]
    for unpack in (0.0, 1.5):
        for columns in (4, 6):
            for rows in (1, 16, 128, None):
                for tile in TileModel(machine, dot, unpack, columns, totals=2).choose(rows, 128):
                    live = 2 * tile.rows * tile.vectors + tile.vectors * (2 if unpack else 1) + 1
                    assert live + SPARE <= machine.registers


def test_cores_that_multiply_one_vector_a_cycle_unpack_beside() -> None:
    """Sixteen rows of codes: 4 x 4 took 1.26 ms on a Zen 4 where 8 x 2 took 1.37."""
    machine, dot = arch({"arch": "avx512-vnni"}), instructions("avx512-vnni")[0]
    halved = make_arch("x86_64", machine.features | {"halved_vectors"})
    assert TileModel(machine, dot, 1.5, columns=4).choose(None, 16)[0] == RegisterTile(8, 2)
    assert TileModel(halved, dot, 1.5, columns=4).choose(None, 16)[0] == RegisterTile(4, 4)


def test_operands_meet_instructions() -> None:
    dot = instructions("avx512-vnni")[0]
    assert (dot.function, dot.depth, dot.lanes) == ("cpu.dot4_u8_s8", 4, 16)
    plan = match_operands(dot, dtype("int8"), dtype("uint4"))
    assert plan is not None and plan.offset == 0
    plan = match_operands(dot, dtype("int8"), dtype("int4"))
    assert plan is not None and plan.offset == 8
    plan = match_operands(dot, dtype("int8"), dtype("int8"))
    assert plan is not None and plan.offset == 128
    assert match_operands(dot, dtype("uint8"), dtype("int8")) is None
    assert match_operands(dot, dtype("float32"), dtype("uint4")) is None
    multiply_add = next(i for i in instructions("avx512-vnni") if i.vector == dtype("float32"))
    assert match_operands(multiply_add, dtype("bfloat16"), dtype("float16")) is not None
    assert match_operands(multiply_add, dtype("float32"), dtype("int32")) is None


def test_saturating_pairs_take_only_small_codes() -> None:
    small = instructions("avx2")[0]
    assert small.function == "cpu.dot4_u4_s8"
    assert match_operands(small, dtype("int8"), dtype("uint4")) is not None
    assert match_operands(small, dtype("int8"), dtype("uint8")) is None
