"""Every name of the device vocabulary assembles on every architecture that has it, and the page that documents it is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.errors import CompilerNotFound
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.cuda.compiler import Toolchain, compile_text
from tilewright.targets.cuda.headers import DIRECTORIES, WgmmaShape, header_text, headers_of, wgmma_header
from tilewright.targets.cuda.nvrtc import find_nvrtc

HEADERS = [path for folder in DIRECTORIES for path in folder.glob("*.cuh")]
TEXT = Path(__file__).with_name("every_function.cu").read_text()
PAGE = (Path(__file__).parents[4] / "docs" / "cuda_vocabulary.md").read_text()
INTERNAL = {
    "decode", "encode", "words", "odd", "to_float_odd", "from_float", "round_to_format", "to_integer", "shuffle_word", "shuffle_value", "load_words",
    "fragment_alignment", "slice_vector", "halves", "read", "of", "bits_of", "hold_register", "rounded", "truncated", "main", "fused",
}  # fmt: skip
"""Helpers of the headers that emitted text does not call."""

try:
    find_nvrtc()
    NVRTC = True
except CompilerNotFound:
    NVRTC = False

needs_nvrtc = pytest.mark.skipif(not NVRTC, reason="NVRTC is not installed")


@needs_nvrtc
@pytest.mark.parametrize(
    "name",
    [
        "sm_80",
        "sm_90a",
        *(pytest.param(name, marks=pytest.mark.proof) for name in ("sm_89", "sm_90", "sm_100a", "sm_120a")),
    ],
)
def test_every_function_assembles(name):
    arch = ARCHITECTURES[name]
    numbers = name in ("sm_80", "sm_90a")  # which convert in different ways
    binary = compile_text(TEXT, arch, toolchain=Toolchain(flags=("-DNUMBERS",) if numbers else ()))
    kernels = {"matrices", "words", "memory", "updates", *(["numbers"] if numbers else [])}
    kernels |= {"copies"} if arch.copy_engine else set()
    kernels |= {"budgets"} if arch.role_registers else set()
    kernels |= {"warpgroups"} if arch.has("wgmma") else set()
    assert set(binary.resources) == kernels
    assert all(resources.spill_store_bytes == 0 for resources in binary.resources.values())


def functions_of_headers():
    names = set()
    for path in HEADERS:
        for line in path.read_text().splitlines():
            if "TW_DEVICE" in line and not line.lstrip().startswith(("#", "//")):
                match = re.search(r"(\w+)\(", line.split("TW_DEVICE", 1)[1])
                if match and "operator" not in line:
                    names.add(match[1])
    return {name for name in names if name.islower()} - INTERNAL


def documented(name):
    """Whether the page names a function, perhaps by a pattern such as ``cp_async_hint`` or ``min_ / max_``."""
    stems = [name, name.rsplit("_", 1)[0], name.split("_")[0]]
    return any(re.search(rf"\b{re.escape(stem)}", PAGE) for stem in stems)


def test_the_page_names_every_function_and_the_test_uses_it():
    names = functions_of_headers()
    assert len(names) > 150
    missing = sorted(name for name in names if not documented(name))
    elsewhere = {"in_toolkit"}  # test_cuda_words.py: it needs the toolkit's headers
    unused = sorted(name for name in names - elsewhere if not re.search(rf"\b{name}\b", TEXT))
    assert (missing, unused) == ([], [])


def test_inline_assembly_stands_in_the_headers_alone():
    assert "asm" not in TEXT
    for path in (Path(__file__).parents[3] / "gpu" / "texts").glob("*.cu"):
        assert not re.search(r"\basm\b", path.read_text()), path


@pytest.mark.parametrize(
    ("n", "accumulator", "a", "b", "message"),
    [
        (12, "f32", "f16", "f16", "no n = 12"), (264, "f32", "f16", "f16", "no n = 264"), (40, "s32", "s8", "s8", "no n = 40"),
        (64, "f16", "bf16", "bf16", "no f16"), (64, "f32", "f16", "bf16", "cannot mix"), (64, "s32", "s8", "e4m3", "cannot mix"),
    ],
)  # fmt: skip
def test_instructions_that_do_not_exist(n, accumulator, a, b, message):
    with pytest.raises(ValueError, match=message):
        WgmmaShape(n, accumulator, a, b)


@pytest.mark.parametrize(("n", "count"), [(8, 4), (96, 48), (256, 128)])
def test_generated_lists_name_each_register_once(n, count):
    text = wgmma_header(WgmmaShape(n, "f32", "bf16", "bf16"))
    assert text.count('"+f"(d[') == 2 * count  # operands from shared memory, and from registers
    for index in range(count):
        assert text.count(f'"+f"(d[{index}])') == 2
    assert f"m64n{n}k16.f32.bf16.bf16" in text


@pytest.mark.parametrize(("form", "words"), [("ss", 1), ("rs", 12)])
def test_several_steps_name_the_accumulators_once(form, words):
    shape = WgmmaShape(64, "f32", "f16", "f16")
    text = header_text(shape.header(form, 3))
    assert text.count("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16") == 3
    assert text.count('"+f"(d[0])') == 1 and text.count(f"(a[{words - 1}])" if form == "rs" else '"l"(a)') == 1
    assert f"struct Wgmma{form.upper()}<3, 64, float, half, half>" in text


def test_a_text_brings_exactly_the_headers_it_names():
    text = '#include "tilewright_cuda.cuh"\n  #include "tilewright_wgmma_n64_f32_f16_f16.cuh"\n'
    found = headers_of(text)
    assert {path.name for path in HEADERS} - {"tilewright_debug.cuh", "tilewright_toolkit.cuh"} <= set(found)
    assert [name for name in found if "wgmma_n" in name] == ["tilewright_wgmma_n64_f32_f16_f16.cuh"]
