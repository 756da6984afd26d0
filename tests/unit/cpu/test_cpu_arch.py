"""What CPUs are described as, and that text for each of them can be emitted anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_programs import program

from tilewright.ir.dtypes import dtype
from tilewright.machine import first_match
from tilewright.machine.dot import MULTIPLY_ADD
from tilewright.passes.context import Context
from tilewright.passes.manager import run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.targets.base import UnknownTarget
from tilewright.targets.cpu import arch as cpu
from tilewright.targets.cpu.arch import (
    AMD_TRAITS,
    HALVED_TRAITS,
    INTEL_TRAITS,
    PRESETS,
    WIDE_TRAITS,
    arch,
    compiler_flags,
    host,
    make_arch,
    runs_here,
    traits_in,
)
from tilewright.targets.cpu.launcher import WrongMachine, load
from tilewright.targets.cpu.target import CPU

SLOW = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "vnni", "bf16", "slow_bf16"})


def best_for_bfloat16(features: frozenset[str]) -> str:
    """The instruction that products of bfloat16 take on a machine."""
    plan = first_match(dtype("bfloat16"), dtype("bfloat16"), make_arch("x86_64", features))
    assert plan is not None
    return plan.instruction.function


def test_bfloat16_is_widened_where_its_own_instruction_is_slower_than_that() -> None:
    assert best_for_bfloat16(SLOW) == MULTIPLY_ADD
    assert best_for_bfloat16(SLOW - {"slow_bf16"}) == "cpu.dot2_bf16"


def test_what_cores_are_known_for() -> None:
    zen4 = "vendor_id : AuthenticAMD\ncpu family\t: 25\nflags : avx2 avx512f"
    assert traits_in(zen4) == AMD_TRAITS | HALVED_TRAITS
    assert traits_in(zen4.replace("25", "26")) == AMD_TRAITS | WIDE_TRAITS
    assert traits_in(zen4.replace("25", "27")) == traits_in(zen4.replace(" avx512f", "")) == AMD_TRAITS
    assert traits_in(zen4.replace("AuthenticAMD", "GenuineIntel")) == INTEL_TRAITS


SCALE = """
def f(X: float32[n], Y: float32[n], *, n: int32) -> Y:
    with kernel(blocks={bx: (n + 63) // 64}, threads={tx: 1, ty: 1, tz: 1}):
        for i in parallel(64):
            Y[bx * 64 + i] = X[bx * 64 + i] * 2.0
"""


def test_this_machine() -> None:
    here = host()
    assert here.target == "cpu" and here.cores >= 1 and not here.has_threads and not here.shared_bytes
    assert runs_here(here)
    assert arch({}) == here == arch({"arch": "native"})


@pytest.mark.parametrize("name, vector_bytes", [("x86_64", 16), ("avx2", 32), ("avx512-vnni", 64), ("neon", 16)])
def test_presets(name: str, vector_bytes: int) -> None:
    assert arch({"arch": name}).vector_bytes == vector_bytes


def test_features_become_flags() -> None:
    assert compiler_flags(arch({"arch": "avx2"}))[0] == "-march=x86-64"
    assert "-mavx2" in compiler_flags(arch({"arch": "avx2"}))
    assert "-mavx512f" not in compiler_flags(arch({"arch": "avx2"}))
    assert "-mavxvnni" in compiler_flags(arch({"arch": "avx2+avxvnni"}))
    assert compiler_flags(arch({"arch": "neon-i8mm-bf16"})) == ("-march=armv8.2-a+dotprod+fp16+i8mm+bf16",)


def test_caches_are_as_linux_describes_them(tmp_path: Path) -> None:
    """Of an instruction cache nothing is asked; what is not described is not known."""
    for number, (level, kind, size, line) in enumerate((("1", "Data", "96K", "128"), ("1", "Instruction", "1K", ""), ("2", "Unified", "12M", "128"))):  # fmt: skip
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size), ("coherency_line_size", line)):
            if text:
                (folder / name).write_text(f"{text}\n")
    assert cpu._linux_caches(tmp_path) == {"l1_bytes": 96 << 10, "l2_bytes": 12 << 20, "line_bytes": 128}
    assert cpu._linux_caches(tmp_path / "nothing") == {}


def test_unknown_machines() -> None:
    with pytest.raises(UnknownTarget, match="unknown CPU architecture 'avx521'"):
        arch({"arch": "avx521"})
    with pytest.raises(UnknownTarget, match="unknown x86_64 feature 'vnnni'"):
        arch({"arch": "avx512+vnnni"})
    with pytest.raises(UnknownTarget, match="the cpu target has no option 'cpu'"):
        arch({"cpu": "avx2"})


@pytest.mark.parametrize("name", list(PRESETS))
def test_text_for_every_machine(name: str) -> None:
    machine = arch({"arch": name})
    final, _ = run_passes(program(SCALE), PIPELINE, Context(machine, overrides=CPU.overrides))
    source = CPU.emit(final, machine)
    lanes = machine.vector_bytes // 4
    assert f"f32x{lanes}" in source.text and source.flags == compiler_flags(machine)


def test_code_for_another_machine_is_not_run(tmp_path: object) -> None:
    other = arch({"arch": "neon" if host().has("x86_64") else "avx2"})
    final, _ = run_passes(program(SCALE), PIPELINE, Context(other, overrides=CPU.overrides))
    with pytest.raises(WrongMachine, match="cannot run on this CPU"):
        load(tmp_path, CPU.emit(final, other), final, other)  # type: ignore[arg-type]
