"""Whole programs on the CPU against the interpreter: loops, guards, types, views, host programs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cpu_programs import AVX2, check, compiled

from tilewright.errors import TilewrightError

rng = np.random.default_rng(0)


def block(body: str, params: str, threads: int = 32, grid: str = "bx: 1") -> str:
    lines = "\n".join(" " * 8 + line for line in body.strip("\n").splitlines())
    return f"def f{params}:\n    with kernel(blocks={{{grid}}}, threads={{tx: {threads}, ty: 1, tz: 1}}):\n{lines}\n"


@pytest.mark.parametrize("n", [0, 1, 15, 16, 63, 64, 65, 200])
def test_tails_of_a_dynamic_size(n: int) -> None:
    text = """
    def f(X: float32[n], Y: float32[n], *, n: int32) -> Y:
        with kernel(blocks={bx: (n + 63) // 64}, threads={tx: 1, ty: 1, tz: 1}):
            tile = shared(float32[64])
            copy(source=X[bx * 64 : +64], destination=tile)
            for i in parallel(64):
                tile[i] = tile[i] * 2.0 + 1.0
            copy(source=tile, destination=Y[bx * 64 : +64])
    """
    x = rng.standard_normal(n).astype(np.float32)
    check(text, x, after_passes=n in (0, 65), machines=[AVX2] if n == 65 else [])


def test_two_dimensions_hang_over_both_edges() -> None:
    text = """
    def f(X: float32[M, N], Y: float32[N, M], *, M: int32, N: int32) -> Y:
        with kernel(blocks={bx: (N + 31) // 32, by: (M + 15) // 16}, threads={tx: 1, ty: 1, tz: 1}):
            tile = fragment(float32[16, 32])
            copy(source=X[by * 16 : +16, bx * 32 : +32], destination=tile)
            for i, j in parallel(16, 32):
                Y[bx * 32 + j, by * 16 + i] = tile[i, j] + 1.0
    """
    check(text, rng.standard_normal((37, 45)).astype(np.float32))


def test_indices_below_zero_and_a_safe_value() -> None:
    text = """
    def f(X: float32[n], Y: float32[n], *, n: int32) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}, safe_values={X: 7.0}):
            for i in parallel(100):
                Y[i] = X[i - 3] + X[i + 2] * 10.0
    """
    x = rng.standard_normal(90).astype(np.float32)
    (y,) = check(text, x)
    padded = np.concatenate([np.full(3, 7, np.float32), x, np.full(2, 7, np.float32)])
    np.testing.assert_array_equal(y, padded[:90] + padded[5:] * np.float32(10))


def test_gathered_rows_are_guarded() -> None:
    text = """
    def f(X: float32[m, 40], I: int32[8], Y: float32[8, 40], *, m: int32) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i, j in parallel(8, 40):
                Y[i, j] = X[I[i], j]
    """
    x = rng.standard_normal((5, 40)).astype(np.float32)
    check(text, x, np.array([0, 4, 5, -1, 2, 100, 3, 1], np.int32))


def test_reversed_and_strided_accesses_stay_correct() -> None:
    text = """
    def f(X: float32[n], Y: float32[n], Z: float32[n], *, n: int32) -> (Y, Z):
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(70):
                Y[i] = X[69 - i]
                Z[i] = X[2 * i] + X[i // 2]
    """
    check(text, rng.standard_normal(61).astype(np.float32))


def test_broadcasts_rows_columns_and_scalars() -> None:
    text = """
    def f(X: float32[30, 50], row: float32[50], column: float32[30], a: float32, Y: float32[30, 50]) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i, j in parallel(30, 50):
                Y[i, j] = X[i, j] * a + row[j] - column[i]
    """
    values = [rng.standard_normal(shape).astype(np.float32) for shape in ((30, 50), 50, 30)]
    check(text, *values, 1.5)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "absmax"])
def test_reductions(dim: int, kind: str) -> None:
    shape = (37, 45)
    kept = shape[1 - dim]
    text = block(f"""
tile = shared(float32[37, 45])
result = fragment(float32[{kept}])
copy(source=X, destination=tile)
reduce(source=tile, destination=result, kind="{kind}", dim={dim})
copy(source=result, destination=Y)
""", f"(X: float32[37, 45], Y: float32[{kept}]) -> Y")  # fmt: skip
    x = rng.standard_normal(shape).astype(np.float32)
    x[3, 5] = np.nan if kind != "sum" else 0
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if kind == "sum" else {}
    check(text, x, **tolerance, machines=[AVX2], after_passes=dim == 1)


@pytest.mark.parametrize("kind, op", [("bitxor", np.bitwise_xor), ("sum", np.add), ("max", np.maximum)])
def test_integer_reductions_are_exact(kind: str, op: np.ufunc) -> None:
    text = block(f"""
tile = shared(int32[9, 100])
result = fragment(int32[9])
copy(source=X, destination=tile)
reduce(source=tile, destination=result, kind="{kind}", dim=1)
copy(source=result, destination=Y)
""", "(X: int32[9, 100], Y: int32[9]) -> Y")  # fmt: skip
    x = rng.integers(-(2**31), 2**31, (9, 100)).astype(np.int32)
    (y,) = check(text, x)
    np.testing.assert_array_equal(y, op.reduce(x, axis=1, dtype=np.int32))


@pytest.mark.parametrize("a, b", [("False", "False"), ("True", "False"), ("False", "True")])
def test_a_product_of_types_without_instruction(a: str, b: str) -> None:
    """float64 accumulators of float16 tiles: whatever path is taken, the numbers are right."""
    shapes = {"False": ("24, 20", "20, 33"), "True": ("20, 24", "33, 20")}
    left, right = shapes[a][0], shapes[b][1]
    text = block(f"""
l = shared(float16[{left}])
r = shared(float16[{right}])
c = fragment(float64[24, 33])
copy(source=X, destination=l)
copy(source=W, destination=r)
gemm(a=l, b=r, c=c, transpose_a={a}, transpose_b={b}, clear=True)
copy(source=c, destination=Y)
""", f"(X: float16[{left}], W: float16[{right}], Y: float64[24, 33]) -> Y")  # fmt: skip
    x = rng.standard_normal([int(e) for e in left.split(",")]).astype(np.float16)
    w = rng.standard_normal([int(e) for e in right.split(",")]).astype(np.float16)
    check(text, x, w, rtol=1e-12, atol=1e-12, after_passes=False)


def test_softmax_like() -> None:
    text = """
    def f(X: float32[m, 100], Y: float32[m, 100], *, m: int32) -> Y:
        with kernel(blocks={bx: (m + 3) // 4}, threads={tx: 1, ty: 1, tz: 1}):
            tile = fragment(float32[4, 100])
            top = fragment(float32[4])
            total = fragment(float32[4])
            copy(source=X[bx * 4 : +4, :], destination=tile)
            reduce(source=tile, destination=top, kind="max", dim=1)
            for i, j in parallel(4, 100):
                tile[i, j] = exp(tile[i, j] - top[i])
            reduce(source=tile, destination=total, kind="sum", dim=1)
            for i, j in parallel(4, 100):
                tile[i, j] = tile[i, j] / total[i]
            copy(source=tile, destination=Y[bx * 4 : +4, :])
    """
    check(text, rng.standard_normal((10, 100)).astype(np.float32) * 10, rtol=1e-5, atol=1e-9, machines=[AVX2])


def test_selects_read_only_where_they_may() -> None:
    text = block("""
tile = shared(float32[64])
copy(source=X, destination=tile)
for i in parallel(64):
    Y[i] = tile[i - 32] if i >= 32 else -tile[i]
for i in parallel(64):
    Z[i] = tile[i] if tile[i] > 0.0 and i % 3 != 0 else 0.0
""", "(X: float32[64], Y: float32[64], Z: float32[64]) -> (Y, Z)")  # fmt: skip
    check(text, rng.standard_normal(64).astype(np.float32))


def test_conditional_stores_in_parallel() -> None:
    text = block("""
tile = shared(float32[100])
copy(source=X, destination=tile)
for i in parallel(100):
    if tile[i] < 0.0:
        tile[i] = tile[i] * 0.5
    else:
        tile[i] = tile[i] + 1.0
for i in parallel(100):
    if X[i] > 0.5:
        Y[i] = tile[i]
    else:
        Y[i] = 3.0
""", "(X: float32[100], Y: float32[100]) -> Y")  # fmt: skip
    check(text, rng.standard_normal(100).astype(np.float32))


def test_while_break_continue_and_scalars() -> None:
    text = block("""
n = scalar(int32[1], initial=27)
steps = scalar(int32[1], initial=0)
while n[0] != 1:
    n[0] = n[0] // 2 if n[0] % 2 == 0 else 3 * n[0] + 1
    steps[0] = steps[0] + 1
Y[0] = steps[0]
for i in range(100):
    if i % 2 == 1:
        continue
    if i > 10:
        break
    Y[1] = i
""", "(Y: int32[2]) -> Y")  # fmt: skip
    (y,) = check(text)
    assert list(y) == [111, 10]


def test_integer_division_rounds_down() -> None:
    text = """
    def f(X: int32[n], D: int32[n], Y: int32[4, n], *, n: int32) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(101):
                Y[0, i] = X[i] // D[i]
                Y[1, i] = X[i] % D[i]
            for i in parallel(101):
                Y[2, i] = X[i] // 8
                Y[3, i] = X[i] % 8
    """
    x = rng.integers(-1000, 1000, 101).astype(np.int32)
    d = rng.integers(1, 50, 101).astype(np.int32) * rng.choice([-1, 1], 101).astype(np.int32)
    (y,) = check(text, x, d)
    np.testing.assert_array_equal(y, [x // d, x % d, x // 8, x % 8])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "tfloat32"])
def test_narrow_floats_round_after_every_operation(dtype: str) -> None:
    text = f"""
    def f(X: float32[n], Y: float32[n], Z: {dtype}[n], *, n: int32) -> Z:
        with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
            for i in parallel(100):
                a: {dtype} = {dtype}(X[i])
                b: {dtype} = {dtype}(Y[i])
                Z[i] = max(a * b + a, -b) / (b * b + {dtype}(1.0)) - a
    """
    values = [rng.standard_normal(99).astype(np.float32) for _ in range(2)]
    check(text, *values, machines=[AVX2], after_passes=dtype == "bfloat16")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint64", "int4", "uint2"])
def test_integers_wrap(dtype: str) -> None:
    text = f"""
    def f(X: int32[n], Y: int32[n], Z: int64[n], *, n: int32) -> Z:
        with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
            for i in parallel(100):
                a: {dtype} = {dtype}(X[i])
                b: {dtype} = {dtype}(Y[i])
                Z[i] = int64((a * b + a) ^ (b - a)) + int64(min(a, b)) * int64(100000)
    """
    values = [rng.integers(-(2**31), 2**31, 99).astype(np.int32) for _ in range(2)]
    check(text, *values, machines=[AVX2] if dtype == "int8" else [], after_passes=dtype == "int4")


@pytest.mark.parametrize(
    "dtype, per_byte", [("int4", 2), ("uint4", 2), ("uint2", 4), ("int1", 8), ("float4_e2m1fn", 2)]
)
def test_packed_tiles_and_tensors(dtype: str, per_byte: int) -> None:
    text = f"""
    def f(X: {dtype}[6, 64], Y: float32[6, 64], Z: {dtype}[6, 64]) -> (Y, Z):
        with kernel(blocks={{bx: 2}}, threads={{tx: 1, ty: 1, tz: 1}}):
            tile = shared({dtype}[3, 64])
            copy(source=X[bx * 3 : +3, :], destination=tile)
            for i, j in parallel(3, 64):
                Y[bx * 3 + i, j] = float32(tile[i, j])
            for i, j in parallel(3, 64):
                Z[bx * 3 + i, j] = tile[i, 63 - j]
    """
    codes = rng.integers(0, 256, (6, 64 // per_byte)).astype(np.uint8)
    check(text, codes, machines=[AVX2], after_passes=dtype == "int4")


def test_rows_of_packed_elements_end_with_a_byte() -> None:
    text = """
    def f(X: int4[m, 7], Y: int8[m, 7], Z: uint2[m, 8], *, m: int32) -> (Y, Z):
        with kernel(blocks={bx: (m + 3) // 4}, threads={tx: 1, ty: 1, tz: 1}):
            tile = shared(int4[4, 7])
            copy(source=X[bx * 4 : +4, :], destination=tile)
            for i, j in parallel(4, 7):
                Y[bx * 4 + i, j] = int8(tile[i, j])
            for i, j in parallel(4, 8):
                Z[bx * 4 + i, j] = uint2(X[bx * 4 + i, j])
    """
    check(text, rng.integers(0, 256, (10, 4)).astype(np.uint8))


def test_decode_with_groups() -> None:
    text = block("""
codes = shared(uint4[8, 64])
scales = shared(float16[8, 2])
result = fragment(float32[8, 64])
copy(source=W, destination=codes)
copy(source=S, destination=scales)
decode(destination=result, source=codes, scale=scales, zero=float32(8.0), group_size=32)
copy(source=result, destination=Y)
""", "(W: uint4[8, 64], S: float16[8, 2], Y: float32[8, 64]) -> Y")  # fmt: skip
    check(text, rng.integers(0, 256, (8, 32)).astype(np.uint8), rng.standard_normal((8, 2)).astype(np.float16))


def test_views_read_the_same_bytes() -> None:
    text = block("""
tile = shared(float32[4, 8])
flat = view(tile, float32[32])
bits = view(tile, int32[32])
copy(source=X, destination=tile)
for i in parallel(32):
    Y[i] = flat[i] * 2.0
for i in parallel(32):
    Z[i] = bits[i] ^ 1
""", "(X: float32[4, 8], Y: float32[32], Z: int32[32]) -> (Y, Z)")  # fmt: skip
    check(text, rng.standard_normal((4, 8)).astype(np.float32))


def test_strided_tensors() -> None:
    text = """
    def f(X: tensor(float32[M, 20], strides=(32, 1)), Y: float32[M, 20], *, M: int32) -> Y:
        with kernel(blocks={bx: (M + 7) // 8}, threads={tx: 1, ty: 1, tz: 1}):
            for i, j in parallel(8, 20):
                Y[bx * 8 + i, j] = X[bx * 8 + i, j] + 1.0
    """
    big = rng.standard_normal((13, 32)).astype(np.float32)
    found = compiled(text)(big[:, :20])
    np.testing.assert_array_equal(found, big[:, :20] + 1)


def test_a_host_program_of_several_kernels() -> None:
    text = """
    def f(X: float32[n], rounds: int32, Y: float32[n], *, n: int32) -> Y:
        work = tensor(float32[n])
        blocks: int32 = (n + 31) // 32
        with kernel(blocks={bx: blocks}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(32):
                work[bx * 32 + i] = X[bx * 32 + i] * 2.0
        for r in range(rounds):
            if r % 2 == 0:
                with kernel(blocks={bx: blocks}, threads={tx: 1, ty: 1, tz: 1}):
                    for i in parallel(32):
                        work[bx * 32 + i] = work[bx * 32 + i] + 1.0
            else:
                with kernel(blocks={bx: blocks}, threads={tx: 1, ty: 1, tz: 1}):
                    for i in parallel(32):
                        work[bx * 32 + i] = work[bx * 32 + i] * 3.0
        with kernel(blocks={bx: blocks}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(32):
                Y[bx * 32 + i] = work[bx * 32 + i]
    """
    (y,) = check(text, np.ones(50, np.float32), 3)
    np.testing.assert_array_equal(y, np.full(50, 10, np.float32))


def test_atomics_from_many_blocks() -> None:
    text = """
    def f(X: int32[n], H: int32[16], *, n: int32):
        with kernel(blocks={bx: (n + 99) // 100}, threads={tx: 1, ty: 1, tz: 1}):
            for i in range(100):
                if bx * 100 + i < n:
                    atomic_add(H[X[bx * 100 + i] % 16 : +1], 1, "relaxed")
    """
    x = rng.integers(0, 1000, 20011).astype(np.int32)
    counts = np.zeros(16, np.int32)
    compiled(text)(x, counts)
    np.testing.assert_array_equal(counts, np.bincount(x % 16, minlength=16))


def test_prints_show_texts_scalars_and_tiles(capfd: pytest.CaptureFixture[str]) -> None:
    text = block("""
tile = shared(float16[2, 2])
copy(source=X, destination=tile)
print("100% of", bx, X[1, 0], tile, Y)
""", "(X: float16[2, 2], Y: int4[3])")  # fmt: skip
    compiled(text)(np.array([[1, 2], [3.5, 4]], np.float16), np.array([0x21, 0x0F], np.uint8))
    assert capfd.readouterr().out == (
        "[block 0] 100% of 0 3.5 tile[0, 0:2] = 1 2\n[block 0] 100% of 0 3.5 tile[1, 0:2] = 3.5 4\n"
        "[block 0] 100% of 0 3.5 Y[0:3] = 1 2 -1\n"
    )


def test_a_failed_assertion_names_its_line() -> None:
    text = """
    def f(X: int32[n], *, n: int32):
        with kernel(blocks={bx: n}, threads={tx: 1, ty: 1, tz: 1}):
            assert X[bx] >= 0, "negative"
    """
    kernel = compiled(text)
    kernel(np.ones(5, np.int32))
    with pytest.raises(TilewrightError) as caught:
        kernel(np.array([1, -1, 3], np.int32))
    assert caught.value.message == "negative"
    assert caught.value.span is not None and caught.value.span.line == 3


@pytest.mark.parametrize("scale_a, scale_b", [("6, 3", "2, 3"), ("6", "4")])
def test_scales_of_fewer_columns_than_a_vector_has(scale_a: str, scale_b: str) -> None:
    text = block(f"""
a = shared(float8_e4m3fn[6, 12])
b = shared(float8_e4m3fn[4, 12])
s = shared(float32[{scale_a}])
t = shared(float32[{scale_b}])
c = shared(float32[6, 4])
copy(source=A, destination=a)
copy(source=B, destination=b)
copy(source=S, destination=s)
copy(source=U, destination=t)
gemm(a=a, b=b, c=c, transpose_b=True, scale_a=s, scale_b=t, promote_every=4, clear=True)
copy(source=c, destination=C)
""", f"(A: float8_e4m3fn[6, 12], B: float8_e4m3fn[4, 12], S: float32[{scale_a}], U: float32[{scale_b}], C: float32[6, 4]) -> C")  # fmt: skip
    codes = [rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((6, 12), (4, 12))]
    scales = [
        rng.standard_normal([int(e) for e in shape.split(",")]).astype(np.float32) for shape in (scale_a, scale_b)
    ]
    check(text, *codes, *scales, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_scaled_sums_wider_than_their_tile(dtype: str) -> None:
    """Products of int32 by float32 are summed in float64; scaled part by part, these sums were kept as float32."""
    text = block(f"""
a = shared({dtype}[16, 32])
b = shared(float32[32, 16])
t = shared(float32[16, 4])
c = shared(float32[16, 16])
copy(source=A, destination=a)
copy(source=B, destination=b)
copy(source=U, destination=t)
gemm(a=a, b=b, c=c, scale_b=t, clear=True)
copy(source=c, destination=C)
""", f"(A: {dtype}[16, 32], B: float32[32, 16], U: float32[16, 4], C: float32[16, 16]) -> C")  # fmt: skip
    left = rng.integers(-9, 9, (16, 32)).astype(dtype)
    check(text, left, *(rng.standard_normal(shape).astype(np.float32) for shape in ((32, 16), (16, 4))), rtol=1e-5, atol=1e-5)  # fmt: skip
