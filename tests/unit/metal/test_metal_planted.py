"""Faults planted in programs for Apple's machines are found, as those in programs for NVIDIA's and AMD's are."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
from planted_faults import in_child
from planted_programs import judge, prepare
from repository_programs import ALL

import tilewright
import tilewright.language as T
from tilewright.errors import EmulationError
from tilewright.runtime.arguments import Binder
from tilewright.runtime.emulation import emulate_program

PROGRAMS = {program.name: program for program in ALL}
NAMES = ["gemm float16 nt", "gemm in one slot", "planned", "softmax_of_long_rows", "flash_attention"]


def hunted(name: str, most: int) -> Counter[str]:
    """What becomes of so many faults of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = prepare(PROGRAMS[name], "apple7", most)
        return Counter(in_child(judge, one, site, 3)[0] for site in one.sites)


def test_a_sample_of_faults_is_found() -> None:
    counts = hunted("planned", 12)
    assert counts["missed"] == counts["crashed"] == 0 and counts["reported"] + counts["wrong"] > 5, counts


@pytest.mark.proof
@pytest.mark.parametrize("name", NAMES)
def test_faults_are_found(name: str) -> None:
    counts = hunted(name, 50)
    found = counts["reported"] + counts["wrong"] + counts["hung"]
    assert counts["crashed"] == 0 and found >= 0.97 * (found + counts["missed"]), counts


@T.prim_func
def turned(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float16")):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(X, tile)
        for i, j in T.Parallel(64, 64):
            Y[i, j] = tile[j, i]


@T.prim_func
def handed_over(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float16")):
    """Threads read what others wrote to a tensor, and what others wrote to a tile."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((64,), "float16")
        tile[tx] = X[0, tx]
        Y[1, tx] = X[1, tx]
        T.sync_threads()
        Y[0, tx] = tile[63 - tx] + Y[1, 63 - tx]


@T.prim_func
def within_a_simdgroup(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float16")):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((32,), "float16")
        tile[tx] = X[0, tx]
        Y[1, tx] = X[1, tx]
        T.sync_warp()
        Y[0, tx] = tile[31 - tx] + Y[1, 31 - tx]


def reported(changes: dict[str, str], program: Any = turned) -> str:
    """What the emulator says of the program's text with some words changed."""
    kernel = tilewright.compile(program, target="metal -arch=apple7")
    source = kernel.program.source
    for words, others in changes.items():
        assert words in source.text
        source = replace(source, text=source.text.replace(words, others))
    given = [np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)]
    bound = Binder(kernel.function, "cpu").bind(given, {})
    with pytest.raises(EmulationError) as found:
        emulate_program(replace(kernel.program, source=source), given, bound)
    return str(found.value)


def test_reports_speak_of_the_authors_line() -> None:
    said = reported({"tw::sync_shared();": ""})
    lines = Path(__file__).read_text().split("\n")
    reads = 1 + next(number for number, line in enumerate(lines) if "Y[i, j] = tile[j, i]" in line)
    assert (
        "race" in said and f"test_metal_planted.py:{reads - 2}" in said and f"test_metal_planted.py:{reads}" in said
    ), said


DEVICE, SHARED = "mem_flags::mem_device", "mem_flags::mem_threadgroup"
FLAGS = {
    f"{where}, {flags}": (program, f"{word}({DEVICE} | {SHARED})", f"{word}({flags})", memory)
    for where, program, word in (
        ("block", handed_over, "threadgroup_barrier"), ("simdgroup", within_a_simdgroup, "simdgroup_barrier")
    )
    for flags, memory in ((DEVICE, "shared"), (SHARED, "Y["), ("mem_flags::mem_none", "shared"))
}  # fmt: skip


@pytest.mark.parametrize("which", FLAGS)
def test_a_barrier_orders_the_memory_that_its_flags_name(which: str) -> None:
    program, words, others, memory = FLAGS[which]
    alone = (
        {"  tw::sync_threads();\n": ""} if program is within_a_simdgroup else {}
    )  # the compiler's own, behind the author's
    said = reported({**alone, words: others}, program)
    assert "race" in said and memory in said, said


def test_a_barrier_for_tiles_is_none_for_tensors() -> None:
    said = reported({"tw::sync_threads();": "tw::sync_shared();"}, handed_over)
    assert "race" in said and "Y[1, " in said, said


@pytest.mark.parametrize("program", [handed_over, within_a_simdgroup])
def test_with_both_flags_nothing_is_reported(program: Any) -> None:
    x, y = np.arange(4096).reshape(64, 64).astype(np.float16) % 50, np.zeros((64, 64), np.float16)
    tilewright.compile(program, target="metal -arch=apple7").emulate(x, y)
    n = 64 if program is handed_over else 32
    assert np.array_equal(y[0, :n], x[0, :n][::-1] + x[1, :n][::-1])


@pytest.mark.parametrize("index", ["4096", "-1"])
def test_an_element_that_no_fragment_has_is_reported(index: str) -> None:
    """Registers lie on the thread's stack here: a wild index once ended the process."""
    text = tilewright.compile(turned, target="metal -arch=apple7").get_kernel_source()
    call = next(line.strip() for line in text.split("\n") if line.strip().startswith("tw::load_fragment"))
    name, _, rest = call.split(", ", 2)
    assert "register" in reported({call: f"{name}, {index}, {rest}"})
