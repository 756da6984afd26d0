"""Conversions between number types, in vectors and one by one, bit for bit as `cast_array` makes them."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_programs import AVX2, compiled

from tilewright.ir import INT32, DType, dtype, dtypes
from tilewright.ir.nodes import Buffer, For, Function, Kernel, Parallel, Store, Var, cast, const, load, seq
from tilewright.machine.arch import Arch
from tilewright.ops.rounding import cast_array
from tilewright.targets.cpu.arch import host, runs_here

COUNT = 1003
EVERY = list(dtypes.ALL.values())


def values_of(kind: DType, rng: np.random.Generator) -> np.ndarray:
    """All values of narrow types; of wide ones a sample with the ends, halves and what does not fit elsewhere."""
    if kind.kind == "bool":
        return rng.random(COUNT) < 0.5
    if kind.bits <= 8:
        codes = np.resize(np.arange(1 << kind.bits), COUNT)
        return (
            codes.astype(np.uint8).view(kind.numpy) if kind.is_float else (codes + int(kind.minimum)).astype(kind.numpy)
        )
    if kind.bits == 16:
        return rng.permutation(1 << 16).astype(np.uint16)[:COUNT].view(kind.numpy)
    return _integers(kind, rng) if kind.is_integer else _floats(kind, rng)


def _integers(kind: DType, rng: np.random.Generator) -> np.ndarray:
    wide = rng.integers(int(kind.minimum), int(kind.maximum), COUNT, dtype=kind.numpy, endpoint=True)
    wide[::2] >>= kind.numpy.type(kind.bits // 2)
    wide[::7] &= kind.numpy.type(0xFF)
    wide[:4] = [kind.minimum, kind.maximum, 0, 1]
    return wide


def _floats(kind: DType, rng: np.random.Generator) -> np.ndarray:
    wide = rng.standard_normal(COUNT) * np.exp2(rng.integers(-145, 125, COUNT))
    wide[::3] = rng.standard_normal(len(wide[::3])) * 100
    wide[1::5] = np.round(rng.standard_normal(len(wide[1::5])) * 300) / 2
    wide[2::9] = rng.integers(-(2**33), 2**33, len(wide[2::9]))
    wide[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2.0**31]
    with np.errstate(over="ignore"):
        return cast_array(wide.astype(kind.numpy), dtype("float64" if kind.bits == 64 else "float32"), kind)


def conversions(source: DType, targets: list[DType]) -> Function:
    """One kernel a target, its loop for vectors and then one by one."""
    given = Buffer("given", (COUNT,), source)
    made: list[Buffer] = []
    kernels = []
    for target in targets:
        for way in ("vectors", "singly"):
            out, i = Buffer(f"{target}_{way}", (COUNT,), target), Var(INT32, "i")
            body = seq(Store(out, (i,), cast(load(given, i), target)))
            loop = (
                Parallel((i,), (COUNT,), body) if way == "vectors" else For(i, const(0), const(COUNT), const(1), body)
            )
            threads = tuple(Var(INT32, name) for name in ("tx", "ty", "tz"))
            kernels.append(Kernel((Var(INT32, "bx"),), (1,), threads, (1, 1, 1), seq(loop)))  # type: ignore[arg-type]
            made.append(out)
    return Function("convert", (given, *made), seq(*kernels), outputs=tuple(made))


def check(source: DType, targets: list[DType], machine: Arch) -> None:
    values = values_of(source, np.random.default_rng(1))
    found = compiled(conversions(source, targets), machine)(np.ascontiguousarray(dtypes.pack(values, source)))
    for position, result in enumerate(found):
        target = targets[position // 2]
        with np.errstate(all="ignore"):
            expected = np.asarray(cast_array(values, source, target)).astype(target.numpy)
        numbers = dtypes.unpack(result, target, COUNT) if target.is_packed else result.view(target.numpy)
        unsigned = f"u{max(target.bits, 8) // 8}"
        equal = numbers.view(unsigned) == expected.view(unsigned)
        if target.is_float:
            equal |= np.isnan(numbers.astype(np.float64)) & np.isnan(expected.astype(np.float64))
        wrong = np.flatnonzero(~equal)[:3]
        assert equal.all(), (source, target, values[wrong], numbers[wrong], expected[wrong])


SOME = ("bool", "int4", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "float8_e4m3fn", "float64")
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu", "int4", "uint1")


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_from_float32_to_every_type() -> None:
    check(dtype("float32"), EVERY, host())


@pytest.mark.parametrize("source", ["float64", "int64", "uint64", "int32"])
def test_from_wide_types(source: str) -> None:
    check(dtype(source), [dtype(name) for name in SOME], host())


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("source", NARROW)
def test_from_narrow_types(source: str) -> None:
    targets = ["bool", "uint8", "int2", "int32", "float32", "float64", "bfloat16", "float8_e5m2fnuz"]
    check(dtype(source), [dtype(name) for name in targets], host())


@pytest.mark.skipif(not runs_here(AVX2), reason="this CPU cannot run AVX2 code")
def test_with_vectors_of_eight() -> None:
    targets = ["float16", "bfloat16", "float8_e4m3fnuz", "float8_e5m2", "tfloat32", "int8", "uint32", "uint2"]
    check(dtype("float32"), [dtype(name) for name in targets], AVX2)


def test_rounded_numbers_become_bytes_in_one_step() -> None:
    """What is no number is 0; halves go to even, as rounding and converting do one after the other."""
    machine = host()
    text = """
def f(X: float32[1003], C: int8[1003]) -> C:
    with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
        for i in parallel(1003):
            C[i] = int8(round(X[i]))
"""
    values = values_of(dtype("float32"), np.random.default_rng(2))
    values[8:14] = [0.5, 1.5, -2.5, 127.5, -128.5, 1e38]
    kernel = compiled(text, machine)
    assert "i8_rounded" in kernel.get_kernel_source()
    whole = cast_array(np.rint(values), dtype("float32"), dtype("int8"))
    np.testing.assert_array_equal(kernel(values), whole)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_narrow_integers_are_widened_by_instructions(kind: str) -> None:
    """GCC 12 converts a vector of bytes to one of floats an element at a time."""
    text = f"""
def f(X: {kind}[1003], C: float32[1003]) -> C:
    with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
        for i in parallel(1003):
            C[i] = float32(X[i])
"""
    kernel, values = compiled(text), values_of(dtype(kind), np.random.default_rng(3))
    short = f"{kind[0]}{kind.removeprefix('u').removeprefix('int')}"
    assert f"tw_{kind[0]}32_of_{short}x" in kernel.get_kernel_source()
    np.testing.assert_array_equal(kernel(values), values.astype(np.float32))
