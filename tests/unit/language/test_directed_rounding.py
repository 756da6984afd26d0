"""`T.ieee_add` and its kin against exact rational numbers, on the interpreter, the CPU and CUDA text in the emulator."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import tilewright
import tilewright.language as T

MODES = ["rn", "rz", "ru", "rd"]
COUNT = 512


def neighbours(exact: Fraction, dtype: np.dtype) -> tuple[float, float]:
    """The greatest number of a type that is not above an exact one, and the least that is not below."""
    with np.errstate(over="ignore"):
        near = dtype.type(float(exact)) if abs(exact) < Fraction(2) ** 1023 else dtype.type(np.copysign(np.inf, exact))
    down = up = near
    while not np.isneginf(down) and (np.isposinf(down) or Fraction(float(down)) > exact):
        down = np.nextafter(down, dtype.type(-np.inf))
    while not np.isposinf(up) and (np.isneginf(up) or Fraction(float(up)) < exact):
        up = np.nextafter(up, dtype.type(np.inf))
    return down, up


def expected(exact: Fraction, mode: str, dtype: np.dtype) -> float:
    down, up = neighbours(exact, dtype)
    return {"rz": down if exact > 0 else up, "ru": up, "rd": down}[mode]


def operands(dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Numbers of all sizes, subnormal ones too, some of them the same or close to one another."""
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), (3, COUNT), dtype=np.uint64)
    values = bits.astype(f"u{dtype.itemsize}").view(dtype)
    values = np.where(np.isfinite(values), values, dtype.type(1))
    with np.errstate(over="ignore"):
        plain = rng.standard_normal((3, COUNT)).astype(dtype)
        values[:, ::2] = plain[:, ::2]
        values[1, ::8] = -values[0, ::8]
        values[2, ::8] = -(values[0, ::8] * values[1, ::8])
    values = np.where(np.isfinite(values), values, dtype.type(1))
    values[1] = np.where(values[1] == 0, dtype.type(3), values[1])
    return values


def exact_results(a: Fraction, b: Fraction, c: Fraction) -> dict[str, Fraction]:
    return {"add": a + b, "sub": a - b, "mul": a * b, "fdiv": a / b, "fmaf": a * b + c, "frcp": 1 / b}


def program(dtype: str):
    @T.prim_func
    def main(A: T.Tensor((3, COUNT), dtype), R: T.Tensor((4, 7, COUNT), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(COUNT):
                for number, mode in enumerate(MODES):
                    R[number, 0, i] = T.ieee_add(A[0, i], A[1, i], mode)
                    R[number, 1, i] = T.ieee_sub(A[0, i], A[1, i], rounding_mode=mode)
                    R[number, 2, i] = T.ieee_mul(A[0, i], A[1, i], mode)
                    R[number, 3, i] = T.ieee_fdiv(A[0, i], A[1, i], mode)
                    R[number, 4, i] = T.ieee_fmaf(A[0, i], A[1, i], A[2, i], mode)
                    R[number, 5, i] = T.ieee_frcp(A[1, i], mode)
                    R[number, 6, i] = T.ieee_fsqrt(T.abs(A[0, i]), mode)

    return main


@pytest.mark.parametrize("target", ["interpreter", "cpu", "cuda -arch=sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_rounding_of_every_operation(dtype, target):
    kind = np.dtype(dtype)
    values = operands(kind, np.random.default_rng(7))
    kernel = tilewright.compile(program(dtype), target="cpu" if target == "interpreter" else target)
    found = np.full((4, 7, COUNT), np.nan, kind)
    run = kernel.interpret if target == "interpreter" else kernel.emulate if "cuda" in target else kernel
    run(values, found)
    for i in range(COUNT):
        a, b, c = (Fraction(float(value)) for value in values[:, i])
        results = list(exact_results(a, b, c).values())
        for number, mode in list(enumerate(MODES))[1:]:
            for operation, exact in enumerate(results):
                wanted = expected(exact, mode, kind)
                got = found[number, operation, i]
                assert got == wanted, (mode, operation, values[:, i], got, wanted)
            root = found[number, 6, i]
            square = Fraction(float(abs(values[0, i])))
            below, above = (np.nextafter(root, kind.type(end)) for end in (-1.0, np.inf))
            if mode == "ru":
                assert Fraction(float(root)) ** 2 >= square and (root == 0 or Fraction(float(below)) ** 2 < square)
            else:
                assert Fraction(float(root)) ** 2 <= square < Fraction(float(above)) ** 2


def test_zeros_infinities_and_nan():
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45], np.float32)
    pairs = np.array(list(product(values, values)), np.float32).T.copy()
    count = pairs.shape[1]

    @T.prim_func
    def main(A: T.Tensor((2, count), "float32"), R: T.Tensor((4, count), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(count):
                for number, mode in enumerate(MODES):
                    R[number, i] = T.ieee_add(A[0, i], A[1, i], mode)

    found = np.zeros((4, count), np.float32)
    tilewright.compile(main, target="cpu")(pairs, found)
    with np.errstate(all="ignore"):
        total = pairs[0] + pairs[1]
    largest = np.finfo(np.float32).max
    big = np.isinf(total) & np.isfinite(pairs).all(0)
    down = np.where(big & (total > 0), largest, total)
    down = np.where((total == 0) & ~((np.signbit(pairs) == 0).all(0)), np.float32(-0.0), down)
    up = np.where(big & (total < 0), -largest, total)
    for one, wanted in zip(found, (total, np.where(big, np.sign(total) * largest, total), up, down), strict=True):
        differ = ~((np.isnan(one) & np.isnan(wanted)) | ((one == wanted) & (np.signbit(one) == np.signbit(wanted))))
        tiny = (np.abs(pairs) == np.float32(1e-45)).any(0) & (np.abs(pairs) > 1).any(0)
        assert not (differ & ~tiny).any(), pairs[:, differ & ~tiny]


def test_doubles_are_rounded_as_exactly():
    rng = np.random.default_rng(3)
    values = rng.standard_normal((3, COUNT)) * 10.0 ** rng.integers(-20, 20, (3, COUNT))
    found = np.zeros((4, 7, COUNT))
    tilewright.compile(program("float64"), target="cpu")(values, found)
    for i in range(COUNT):
        a, b, c = map(Fraction, values[:, i])
        for number, mode in list(enumerate(MODES))[1:]:
            for operation, exact in enumerate(exact_results(a, b, c).values()):
                assert found[number, operation, i] == expected(exact, mode, np.dtype("float64")), (mode, operation)


def test_what_is_no_rounding_is_refused():
    with pytest.raises(tilewright.TilewrightError, match=r"rounding of T\.ieee_add is 'nearest'"):

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                A[0] = T.ieee_add(A[0], A[1], "nearest")
