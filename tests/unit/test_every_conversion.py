"""Small floats on every target: every code to float32, and float32 to the nearest code, at every number, middle and edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir.dtypes import pack
from tilewright.ops.rounding import cast_array

TYPES = [
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn", "float16", "bfloat16",
]  # fmt: skip
TARGETS = [
    "cpu",
    "cuda -arch=sm_80",
    "cuda -arch=sm_90a",
    "hip -arch=gfx942",
    "hip -arch=gfx1100",
    "hip -arch=gfx950",
    "hip -arch=gfx1201",
    "metal -arch=apple7",
]


def codes(name: str) -> np.ndarray:
    """Every code of a type; of 16 bits a sample with all exponents."""
    record = tilewright.dtype(name)
    if record.bits == 16:
        return np.arange(0, 1 << 16, 37).astype(np.uint16).view(record.numpy)
    return np.arange(1 << record.code_bits).astype(np.uint8).view(record.numpy)


def numbers(name: str) -> np.ndarray:
    """Numbers of a type, what lies in the middle between them, their neighbours in float32, and the edges of float32."""
    exact = np.unique(codes(name).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    largest = exact.max()
    middles = np.concatenate([(exact[1:] + exact[:-1]) / 2, [largest * 1.0625, largest * 1.25, largest * 4]])
    with np.errstate(over="ignore"):
        near = np.concatenate([exact, middles]).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.1754944e-38], np.float32
    )
    return np.concatenate([near, -near, edges])


def bits(array: np.ndarray) -> np.ndarray:
    """What tells numbers apart: their bits, those of every NaN alike."""
    found = array.view(f"u{array.dtype.itemsize}").astype(np.int64)
    return np.where(array.astype(np.float64) != array.astype(np.float64), -1, found)


def converting(name: str, n: int, m: int, wide: str) -> T.PrimFunc:
    """Codes to wider floats, and numbers of four types to the nearest codes."""
    saturates = tilewright.dtype(name).bits > 8 or not tilewright.dtype(name).nans

    @T.prim_func
    def program(
        C: T.Tensor((n,), name), F: T.Tensor((n,), "float32"), H: T.Tensor((n,), "float16"), B: T.Tensor((n,), "bfloat16"),
        X: T.Tensor((m,), wide), Y: T.Tensor((m,), "float32"), Z: T.Tensor((m,), "float32"), I: T.Tensor((m,), "float32"),
        L: T.Tensor((m,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                F[i] = T.cast(C[i], "float32")
                H[i] = T.cast(C[i], "float16")
                B[i] = T.cast(C[i], "bfloat16")
            for i in T.Parallel(m):
                Y[i] = T.cast(T.cast(X[i], name), "float32")
                Z[i] = T.cast(T.cast(X[i], name, saturate=saturates), "float32")
                I[i] = T.cast(T.cast(T.cast(X[i], "int32"), name), "float32")
                L[i] = T.cast(T.cast(T.cast(X[i], "float16"), name), "float32")

    return program


@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_every_conversion(name: str, target: str, wide: str) -> None:
    """float32 to e8m0 once gave NaN for -0, for what is too large, and another power of two at the least ones."""
    if wide == "float64" and target.startswith("metal"):
        pytest.skip("Metal has no doubles")
    known, given = codes(name), numbers(name).astype(wide)
    if wide == "float64":  # what a float does not have
        given = np.concatenate(
            [given, np.nextafter(given, np.inf), np.nextafter(given, -np.inf), [1e300, -1e300, 1e-300]]
        )
    program = converting(name, len(known), len(given), wide)
    record = tilewright.dtype(name)
    packed = pack(known, record) if record.is_packed else known
    kernel = tilewright.compile(program, target=target)
    outputs = []
    for way in (lambda *a: interpret(program.function, list(a)), kernel if target == "cpu" else kernel.emulate):
        decoded = [np.full(len(known), 7, tilewright.dtype(to).numpy) for to in ("float32", "float16", "bfloat16")]
        encoded = [np.full(len(given), 7, np.float32) for _ in range(4)]
        way(packed.copy(), *decoded, given.copy(), *encoded)
        outputs.append((*decoded, *encoded))
    for column, (exact, found) in enumerate(zip(*outputs)):
        wrong = np.flatnonzero(bits(found) != bits(exact))
        source = known if column < 3 else given
        assert not wrong.size, (column, [(source[i], found[i], exact[i]) for i in wrong[:4]])


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("name", TYPES)
def test_the_headers_own_text_compiles(name: str, architecture: str) -> None:
    """The emulator's conversions of 16 bits are not the device's, and neither are its instructions."""
    text = tilewright.compile(converting(name, 32, 32, "float64"), target=f"cuda -arch={architecture}").ptx()
    assert ("satfinite" in text) == (name in ("float8_e4m3fn", "float8_e5m2") and architecture != "sm_80")


SMALL = [name for name in TYPES if tilewright.dtype(name).bits <= 8]


@pytest.mark.parametrize("name", [name for name in SMALL if tilewright.dtype(name).nans])
def test_what_does_not_saturate_is_what_numpy_gives(name: str) -> None:
    given = numbers(name)
    given = given[given >= 0] if name == "float8_e8m0fnu" else given  # NumPy takes a negative number's exponent
    program = converting(name, 1, len(given), "float32")
    found = np.empty((4, len(given)), np.float32)
    record = tilewright.dtype(name)
    interpret(
        program.function,
        [
            codes(name)[:1],
            *(np.empty(1, tilewright.dtype(to).numpy) for to in ("float32", "float16", "bfloat16")),
            given,
            *found,
        ],
    )
    with np.errstate(over="ignore", invalid="ignore"):
        expected = given.astype(record.numpy).astype(np.float32)
    if name == "float8_e8m0fnu":
        beyond = np.abs(given) > float(record.maximum) * 1.5
        assert np.isnan(found[1][beyond]).all()
        return
    np.testing.assert_array_equal(bits(found[1]), bits(expected))


@pytest.mark.parametrize("name", ["float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn"])
def test_types_that_torch_lacks_are_bytes_there(name: str) -> None:
    torch = pytest.importorskip("torch")
    known = codes(name)
    n = len(known)

    @T.prim_func
    def program(C: T.Tensor((n,), name), F: T.Tensor((n,), "float32"), D: T.Tensor((n,), name)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                F[i] = T.cast(C[i], "float32")
                D[i] = C[i]

    kernel = tilewright.compile(program, target="cpu")
    given = torch.from_numpy(known.view(np.uint8).copy())
    for way in (kernel, kernel.interpret):
        floats, copied = torch.zeros(n), torch.zeros(n, dtype=torch.uint8)
        way(given, floats, copied)
        np.testing.assert_array_equal(floats.numpy(), known.astype(np.float32))
        assert torch.equal(copied, given)
    assert T.dtype(name).as_torch() is torch.uint8


def table() -> str:
    """The page's table of small floats, out of their records and the interpreter's conversions."""
    lines = [
        "| type | bits: exponent, mantissa | bias | largest | least normal, least | zeros | infinity | NaN | 1e30, infinity, NaN become |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in SMALL:
        record, values = tilewright.dtype(name), codes(name).astype(np.float64)
        with np.errstate(invalid="ignore"):
            zeros, positive = values[values == 0], values[(values > 0) & np.isfinite(values)]
        specials = [[f"0x{code:02X}" for code in np.flatnonzero(kind(values))] for kind in (np.isinf, np.isnan)]
        shown = [" ".join(found if len(found) < 4 else [found[0], "to", found[len(found) // 2 - 1] + ",", found[len(found) // 2], "to", found[-1]]) or "none" for found in specials]  # fmt: skip
        least = record.minimum if record.minimum > 0 else 2.0 ** (1 - record.bias)
        becomes = cast_array(np.array([1e30, np.inf, np.nan]), tilewright.dtype("float64"), record).astype(np.float64)
        if name == "float8_e8m0fnu":
            becomes[0] = cast_array(np.array([1e39]), tilewright.dtype("float64"), record).astype(np.float64)[0]
        sign = {0: "none", 1: "+0", 2: "+0, -0"}[len(zeros)]
        lines.append(
            f"| `{name}` | {record.code_bits}: {record.exponent_bits}, {record.mantissa_bits} | {record.bias} | {positive.max():g} | "
            f"{least:g}, {positive.min():g} | {sign} | {shown[0]} | {shown[1]} | {', '.join(f'{one:g}' for one in becomes)} |"
        )
    return "\n".join(lines)


def test_the_table_of_the_page() -> None:
    """``python tests/unit/test_every_conversion.py`` prints it."""
    assert table() in (Path(tilewright.__file__).parents[1] / "docs" / "fp8.md").read_text()


if __name__ == "__main__":
    print(table())
