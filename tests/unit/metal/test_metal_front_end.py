"""Emitted Metal texts, and the whole vocabulary, before a strict front end; and that it is strict."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from stand_in_mlx import ATTRIBUTES, UTILS

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
from front_end import complaints
from repository_programs import ALL, Program

from tilewright.errors import TilewrightError
from tilewright.ir import Buffer, Function, Var, kernels
from tilewright.machine.apple import FAMILIES
from tilewright.targets.metal.emit import PARTS, MlxKernel, part_text

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_the_whole_vocabulary_is_accepted() -> None:
    parts = [part_text(name) for name, _ in PARTS]
    assert not complaints("\n".join([HEAD, *parts]))


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_texts_are_accepted(program: Program) -> None:
    try:
        kernel, _ = program.make("apple7")
    except TilewrightError:
        return  # test_metal_programs says which, and why
    text = kernel.get_kernel_source()
    assert text.isascii() and set(re.findall(r"#include <(.*)>", text)) == {"metal_stdlib"}
    assert text.count("[[max_total_threads_per_threadgroup(") == text.count("kernel void ")
    assert not complaints(text)


MISTAKES = {
    "a device pointer from a threadgroup array": "kernel void f() { threadgroup float s[4]; device float* p = s; p[0] = 1.0f; }",
    "a threadgroup pointer from device memory": "kernel void f(device float* a) { threadgroup float* p = a; p[0] = 1.0f; }",
    "a store through const": "kernel void f(device const float* a) { a[0] = 1.0f; }",
    "a store to constant memory": "kernel void f(constant float* a) { a[0] = 1.0f; }",
    "a cast between memories": "kernel void f(device float* a) { threadgroup float* p = (threadgroup float*)a; p[0] = 1.0f; }",
    "a double": "kernel void f(device float* a) { double x = a[0]; a[1] = float(x * x); }",
    "a long long": "kernel void f(device long* a) { a[0] = 1ll; }",
    "a shuffle of a bool": "kernel void f(device int* a) { a[0] = int(simd_shuffle_xor(a[0] > 0, ushort(1))); }",
    "a shuffle of 64 bits": "kernel void f(device long* a) { a[0] = simd_shuffle_xor(a[0], ushort(1)); }",
    "a matrix of integers": "kernel void f(device int* a) { simdgroup_matrix<int, 8, 8> m; }",
    "a matrix of another size": "kernel void f(device float* a) { simdgroup_matrix<float, 16, 8> m; }",
    "matrices of two types multiplied": (
        "kernel void f(device float* a) { simdgroup_matrix<half, 8, 8> x; simdgroup_matrix<bfloat, 8, 8> y; "
        "simdgroup_matrix<float, 8, 8> z; simdgroup_multiply_accumulate(z, x, y, z); }"
    ),
    "an atomic sum of floats in threadgroup memory": (
        "kernel void f() { threadgroup float s[4]; "
        "atomic_fetch_add_explicit(reinterpret_cast<threadgroup atomic_float*>(s), 1.0f, memory_order_relaxed); }"
    ),
    "an order that Metal lacks": (
        "kernel void f(device int* a) { "
        "atomic_fetch_add_explicit(reinterpret_cast<device atomic_int*>(a), 1, memory_order_seq_cst); }"
    ),
    "a barrier without flags": "kernel void f(device int* a) { threadgroup_barrier(); a[0] = 1; }",
    "as_type between sizes": "kernel void f(device int* a) { a[0] = as_type<int>(half(1.0f)); }",
    "a name that is not used": "kernel void f(device int* a) { const int b = a[1]; a[0] = 1; }",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake: str) -> None:
    assert complaints(HEAD + MISTAKES[mistake])


def mlx_text(function: Function, number: int, *, constant: bool) -> str:
    """A kernel as MLX hands it over, its inputs all in device memory or all in constant memory."""
    kernel = list(kernels(function))[number]
    count = len(MlxKernel(function, kernel, FAMILIES["apple7"]).inputs)
    text = MlxKernel(function, kernel, FAMILIES["apple7"], range(count) if constant else ())
    header, body = text.body()
    lines = []
    for name, param in zip([*text.input_names, *text.output_names], [*text.inputs, *text.outputs], strict=True):
        made = param in text.outputs
        kind = carried(param)
        space = "device" if made or not (constant or isinstance(param, Var)) else "constant"
        lines.append(f"{'' if made else 'const '}{space} {kind}* {name} [[buffer({len(lines)})]]")
    lines += [f"{kind} {name} [[{name}]]" for name, kind in ATTRIBUTES.items() if name in body]
    return f"{UTILS}{header}\nkernel void custom_kernel_body({', '.join(lines)}) {{\n{body}\n}}\n"


def carried(param: object) -> str:
    """The type that MLX declares for a parameter."""
    if isinstance(param, Var):
        return "float" if param.dtype.is_float else "int64_t"
    assert isinstance(param, Buffer)
    names = {"float16": "float16_t", "bfloat16": "bfloat16_t", "float32": "float", "bool": "bool"}
    whole = param.dtype.is_integer and not param.dtype.is_packed
    return names.get(param.dtype.name) or (f"{param.dtype.name}_t" if whole else "uint8_t")


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_bodies_for_mlx_are_accepted(program: Program) -> None:
    try:
        kernel, _ = program.make("apple7")
    except TilewrightError:
        return
    final = kernel.program.final
    for number, _ in enumerate(kernels(final)):
        for constant in (False, True):
            text = mlx_text(final, number, constant=constant)
            assert text.isascii() and not complaints(text)
