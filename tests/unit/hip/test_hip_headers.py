"""Every constant of the device headers counts: each is changed in turn, and what the functions give changes too.

One text calls every function of the headers; the emulator runs it above our models of AMD's built-ins.  A changed constant must alter a
result, be reported, or not compile.
"""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hip_programs import EVERY

from tilewright.emulator import run
from tilewright.errors import EmulationFailed
from tilewright.targets.hip.arch import named
from tilewright.targets.hip.compiler import compile_text
from tilewright.targets.hip.emulation import HIP
from tilewright.targets.hip.headers import FOLDERS, SHARED

THREADS = 128
TEXT = (Path(__file__).parent / "every_function.hip").read_text()

HEADERS = ("convert", "packed", "math", "warp", "barrier", "memory", "atomic", "matrix")
"""Those that both device and emulator compile; the mathematical library has a test of its own."""

_CONSTANT = re.compile(r"(?<![\w.])(0x[0-9A-Fa-f]+|\d+)(u|ull)?(?![\w.])")


def constants(text: str) -> list[tuple[int, int, str]]:
    """Where the numbers of a header stand, comments and directives left out, and what they become."""
    found = []
    at = 0
    for line in text.split("\n"):
        code = line.split("//")[0]
        if not code.lstrip().startswith(("#if", "#elif", "#endif", "#pragma", "#include", "#undef")):
            for match in _CONSTANT.finditer(code):
                value = int(match[1], 0)
                found.append((at + match.start(1), at + match.end(1), str(value ^ 1 if value < 32 else value + 1)))
        at += len(line) + 1
    return found


def outcome(vocabulary, arch: str) -> bytes | str:
    """What the text leaves in its arrays, or the first report."""
    random = np.random.default_rng(1)
    floats = (random.standard_normal(4 * THREADS) * 8).astype(np.float32)
    floats[:6] = [0.0, np.inf, -np.inf, np.nan, 500.0, 1e-9]
    words = random.integers(0, 2**32, 4 * THREADS, dtype=np.uint64).astype(np.uint32)
    numbers, results = np.zeros(320 * THREADS, np.float64), np.zeros(320 * THREADS, np.uint32)
    tensors = [
        np.zeros(64, kind)
        for kind in (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, np.float16, np.uint16, np.uint8)
    ]
    found = run(
        f'#include "tilewright_{arch}.h"\n{TEXT}', "every_function", [floats, words, numbers, results, *tensors], grid=(1,), block=(THREADS,),
        shared_bytes=8192, registers=0, vocabulary=vocabulary, seconds=20,
    )  # fmt: skip
    if found.reports:
        return found.reports[0].kind
    return b"".join(one.tobytes() for one in (numbers, results, *tensors))


ARCHITECTURES = ("gfx942", "gfx1100", "gfx1201")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_text_runs(arch):
    assert right(arch)


@pytest.mark.parametrize("arch", EVERY)
def test_the_text_compiles_for_every_architecture(arch):
    binary = compile_text(f'#include "tilewright_{arch}.h"\n{TEXT}', named(arch))
    packed = set(re.findall(r"global_atomic_pk_add_(b?f16)", binary.machine_code()))
    assert packed == {"gfx90a": {"f16"}, "gfx1100": set()}.get(arch, {"f16", "bf16"})
    assert binary.resources["every_function"].vector_spills == 0
    # Sums of floats are the machine's own in memory and in LDS, not loops of compare and exchange.
    assert re.search(r"global_atomic_add_f32", binary.machine_code())
    assert not re.search(r"^\s*flat_", binary.machine_code(), re.M)  # every access says which memory it means


def test_the_text_calls_every_function():
    names = set()
    for folder in FOLDERS:
        for path in folder.glob("tilewright_*.h"):
            if path.stem.removeprefix("tilewright_") in HEADERS:
                for line in path.read_text().split("\n"):
                    match = re.search(r"TW_DEVICE (?:static )?[\w:<> ]+[ &*](\w+)\(", line)
                    names |= {match[1]} if match else set()
    inner = {"trap", "assertion_failed", "read", "of", "operator", "NAME"}
    called = {name for name in names if name.islower()} - inner
    used_below = "".join(path.read_text() for folder in SHARED for path in folder.glob("*.*h"))
    missing = [
        name
        for name in called
        if not re.search(rf"\b{name}\b", TEXT) and len(re.findall(rf"\b{name}\b", used_below)) < 2
    ]
    assert len(called) > 90 and missing == []


_FUNCTION = re.compile(r"TW_DEVICE (?:static |constexpr )?[\w:<> ]+?[ &*](\w+)\(")


def functions_with_constants() -> dict[tuple[str, str], list[tuple[int, int, str]]]:
    """For each function of a header, by its first line, the constants in it."""
    found: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for header in HEADERS:
        text = (SHARED[0] / f"tilewright_{header}.h").read_text()
        for start, end, other in constants(text):
            line = text.rfind("\n", 0, start) + 1
            before = list(_FUNCTION.finditer(text, 0, text.index("\n", line)))
            if before:
                place = text[: before[-1].start()].count("\n") + 1
                found.setdefault((header, f"{before[-1][1]}:{place}"), []).append((start, end, other))
    return found


FUNCTIONS = functions_with_constants()
ALIKE = {"global_timer", "bits_of", "schedule_fence", "settled"}
"""What no result shows: the rate of a clock, what a value's own bits are written over, what a compiler may move, where
it waits for a value."""


@functools.cache
def right(arch: str) -> bytes:
    found = outcome(HIP, arch)
    assert isinstance(found, bytes), found
    return found


@pytest.mark.parametrize(("header", "function"), FUNCTIONS)
def test_a_changed_constant_is_found(header, function, tmp_path):
    path = SHARED[0] / f"tilewright_{header}.h"
    text = path.read_text()
    tried = []
    for number, (start, end, other) in enumerate(FUNCTIONS[header, function]):
        arch = next((one for one in ARCHITECTURES if not of_other_machines(text, start, one)), None)
        if arch is None:
            continue  # the built-ins of machines that share their headers with these
        folder = tmp_path / str(number)
        shutil.copytree(SHARED[0], folder)
        (folder / path.name).write_text(text[:start] + other + text[end:])
        try:
            found: bytes | str = outcome(replace(HIP, shared=(folder, *SHARED[1:])), arch)
        except EmulationFailed:
            found = "does not compile"
        if found != right(arch):
            return
        tried.append(f"{text[start:end]} -> {other}")
    assert not tried or function.split(":")[0] in ALIKE, tried


def of_other_machines(text: str, at: int, arch: str) -> bool:
    """Whether a place of a header is meant for machines with other lanes, or another name."""
    open_conditions: list[bool] = []
    for line in text[:at].split("\n"):
        directive = line.strip()
        if directive.startswith(("#if", "#ifdef", "#ifndef")):
            open_conditions.append(_holds(directive, arch))
        elif directive.startswith("#elif"):
            open_conditions[-1] = _holds(directive, arch)
        elif directive.startswith("#else"):
            open_conditions[-1] = not open_conditions[-1]
        elif directive.startswith("#endif"):
            open_conditions.pop()
    return not all(open_conditions)


def _holds(directive: str, arch: str) -> bool:
    lanes = 64 if arch == "gfx942" else 32
    if "TW_WARP_SIZE" in directive:
        return directive.endswith(str(lanes))
    if "TW_COUNT_THREADS" in directive:
        return True
    if "__clang_major__" in directive:
        return False
    return f"TW_{arch.upper()}" in directive
