"""Every constant of the device vocabulary counts: each is changed in turn, and what the functions give changes too.

One text calls every function; the emulator runs it above our models of Metal's own library, and the strict front end reads it.  A changed
constant must alter a result, be reported, or not compile.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
from changed_constants import Constant, constants
from front_end import complaints

from tilewright.emulator import run
from tilewright.emulator.launch import Emulation
from tilewright.errors import EmulationFailed
from tilewright.targets.metal.emit import PARTS, part_text
from tilewright.targets.metal.emulation import METAL

THREADS = 64
TEXT = (Path(__file__).parent / "every_function.metal").read_text()
HEAD = "#include <metal_stdlib>\n#undef TW_SET_BITS\n#undef TW_GET_BITS\nusing namespace metal;\n"  # the emulator's own ways are not ours
VOCABULARY = "\n".join(part_text(name) for name, _ in PARTS)
CONSTANTS = constants(VOCABULARY)

ALIKE = {
    "(found & 0x80000000 ->": "an infinity's other bits are zeros",
    "uint32_t(128 -> 129 - BIAS)": "the smallest normal numbers lie as far apart as the subnormal ones",
    "rounded < 0xFE -> 255u": "the largest code is what it becomes anyway",
    "(x < 0 -> 1 ?": "zero is its own opposite",
    "return x < 0 -> 1 ?": "zero is its own opposite",
    "truncated<int8_t>(x, -128.0 ->": "numbers above -129 become -128 by truncation",
    "truncated<int16_t>(x, -32768.0 ->": "numbers above -32769 become -32768 by truncation",
    "truncated<int32_t>(x, -2147483648.0 ->": "the host's conversion gives the least number there",
    "truncated<int64_t>(x, -9223372036854775808.0 ->": "the host's conversion gives the least number there",
    "int64_t(~0 -> 1ul >> 1)": "the bit is shifted out",
    "j < 8 -> 9 / BITS": "a byte has no ninth bit",
    "row < 8 -> 9;": "the table has no ninth bit",
    "T(-1 -> 0) < T(0)": "what the least number divided by -1 gives is the host's affair",
    "< T(0 -> 1)": "-1 is less than 1 as well",
    "b == T(-1 -> 0)": "what the least number divided by -1 gives is the host's affair",
    "(a < 0 -> 1)": "a multiple has no rest",
    "(b < 0 -> 1)": "nothing is divided by zero",
    "(rest < 0 -> 1)": "a rest is not zero there",
    "a < 4.0 -> 5.0f": "erf is 1 from 4 on",
    "a : 4.0 -> 5.0f": "erf is 1 from 4 on",
    "x < 0.0 -> 1.0f ? -magnitude": "numbers up to 1 have a polynomial of their own",
    "i < 2 -> 3; ++i) d[i] =": "nothing reads the register behind the fragment",
    "address & 2 -> 3u": "a half lies at an even address",
    "lane < 32 -> 33; ++lane) same": "there is no such lane",
    "int(sizeof(T) * N / 4 -> 5": "indices that are looked at are right",
}
"""What no result shows, and why: a part of a line, with what it becomes."""

_SHOWN = [one for one in CONSTANTS if not any(words in one.words(VOCABULARY) for words in ALIKE)]


def arguments() -> tuple[list[np.ndarray], np.ndarray, np.ndarray, list[np.ndarray]]:
    """What the text is given, and what it fills: numbers, words, and tensors that atomics change."""
    random = np.random.default_rng(1)
    floats = (random.standard_normal(4 * THREADS) * 2).astype(np.float32)
    floats[:8] = [0.0, np.inf, -np.inf, np.nan, 500.0, 1e-9, 1e6, -0.0]
    words = random.integers(0, 2**32, 4 * THREADS, dtype=np.uint64).astype(np.uint32)
    numbers, results = np.zeros(260 * THREADS, np.float32), np.zeros(600 * THREADS, np.uint32)
    tensors = [np.zeros(64, kind) for kind in (np.int32, np.uint32, np.float32, np.float16, np.uint16)]
    tensors.append(np.zeros(80, np.uint8))
    tensors[3][40:] = np.arange(24)
    return [floats, words, floats[100:116].copy()], numbers, results, tensors


def emulated(
    given: tuple[list[np.ndarray], np.ndarray, np.ndarray, list[np.ndarray]], vocabulary: str = VOCABULARY
) -> Emulation:
    """Runs the text on arguments."""
    inputs, numbers, results, tensors = given
    return run(
        HEAD + vocabulary + TEXT, "every_function", [*inputs, numbers, results, *tensors], grid=(1,), block=(THREADS,),
        shared_bytes=4096, registers=0, vocabulary=METAL, seconds=20,
    )  # fmt: skip


def outcome(vocabulary: str) -> bytes | str:
    """What the text leaves in its arrays, or the first report."""
    given = arguments()
    found = emulated(given, vocabulary)
    _, numbers, results, tensors = given
    return str(found.reports[0]) if found.reports else b"".join(one.tobytes() for one in (numbers, results, *tensors))


@functools.cache
def right() -> bytes:
    found = outcome(VOCABULARY)
    assert isinstance(found, bytes), found
    return found


def test_the_text_runs_and_the_strict_front_end_accepts_it():
    assert np.count_nonzero(np.frombuffer(right(), np.uint8)) > 10_000
    assert complaints(HEAD + VOCABULARY + TEXT) == []


def test_the_text_calls_every_function():
    names = set(re.findall(r"TW_DEVICE [^;{}()\n]*?\b([a-z_]\w*)\(", VOCABULARY))
    missing = [name for name in names if not re.search(rf"\b{name}\b", TEXT) and VOCABULARY.count(name) < 2]
    assert len(names) > 80 and not missing


def test_what_no_result_shows_is_in_the_vocabulary():
    lines = [one.words(VOCABULARY) for one in CONSTANTS]
    assert [words for words in ALIKE if not any(words in line for line in lines)] == []


@pytest.mark.parametrize("constant", _SHOWN, ids=lambda one: f"{one.function}-{one.line}-{one.start}")
def test_a_changed_constant_is_found(constant: Constant):
    try:
        found: bytes | str = outcome(constant.changed(VOCABULARY))
    except EmulationFailed:
        found = "does not compile"
    assert found != right(), constant.words(VOCABULARY)
