"""Thread programs: vectors, flat buffers, strict bounds, registers with and without a thread index."""

from __future__ import annotations

import numpy as np
import pytest
from programs import run, run_block

from tilewright import errors
from tilewright.ir import INTRINSICS, Intrinsic, dtypes, register


def test_a_dot_product_in_vectors() -> None:
    text = """
    @stage("threaded")
    def dot(x: float32[n], y: float32[n], out: float32[1], *, n: int32) -> out:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            total = register(float32[8])
            total[0].x8 = broadcast(0.0, 8)
            for i in range(0, n // 8 * 8, 8):
                total[0].x8 = fma(x[i].x8, y[i].x8, total[0].x8)
            last = scalar(float32[1], initial=0.0)
            for j in unroll(8):
                last[0] = last[0] + total[j]
            for i in range(n // 8 * 8, n):
                last[0] = last[0] + x[i] * y[i]
            out[0] = last[0]
    """
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(101).astype(np.float32) for _ in range(2))
    (out,) = run(text, x, y)
    exact = float(x.astype(np.float64) @ y.astype(np.float64))
    assert abs(float(out[0]) - exact) <= 24 * 2.0**-24 * float(np.abs(x.astype(np.float64)) @ np.abs(y))


def test_vectors_of_every_width_of_type() -> None:
    for name in ("float16", "int8", "float64", "uint4", "int2", "float4_e2m1fn"):
        dtype = dtypes.dtype(name)
        values = np.random.default_rng(0).integers(0, 2, 32)
        x = dtypes.pack(values.astype(dtype.numpy).reshape(4, 8), dtype)
        text = f"""
        @stage("final")
        def f(X: {name}[4, 8], Y: {name}[32]) -> Y:
            with kernel(blocks={{bx: 4}}, threads={{tx: 1, ty: 1, tz: 1}}):
                r = register({name}[8])
                r[0].x4 = X[bx * 8 + 4].x4
                r[4].x4 = X[bx * 8].x4
                Y[bx * 8].x8 = r[0].x8
        """
        (y,) = run(text, x)
        expected = values.reshape(4, 2, 4)[:, ::-1].reshape(-1)
        np.testing.assert_array_equal(dtypes.unpack(y, dtype, 32).astype(np.float64), expected)


def test_selects_and_masks_on_vectors() -> None:
    body = """
    lanes: int32x8 = lane_index(dtype=int32x8)
    m: boolx8 = lanes < broadcast(n, 8)
    Y[0].x8 = X[0].x8 if m else broadcast(-1.0, 8)
    """
    text = f"""
    @stage("threaded")
    def f(X: float32[5], n: int32, Y: float32[8]) -> Y:
        with kernel(blocks={{bx: 1}}, threads={{tx: 1, ty: 1, tz: 1}}):
    {body.replace(chr(10), chr(10) + " " * 8)}
    """
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(_final(text, x, 5)[0], [0, 1, 2, 3, 4, -1, -1, -1])
    with pytest.raises(errors.OutOfBounds, match=r"this reads X\[5\]"):
        _final(text, x, 6)


def _final(text: str, *arguments: object) -> tuple[np.ndarray, ...]:
    return run(text.replace('"threaded"', '"final"'), *arguments)


def test_folds_over_the_lanes_of_a_vector() -> None:
    text = """
    @stage("final")
    def f(X: float32[8], I: int32[8], Y: float32[3], Z: int32[2]) -> (Y, Z):
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            Y[0] = lanes_add(X[0].x8, dtype=float32)
            Y[1] = lanes_max(X[0].x8, dtype=float32)
            Y[2] = lanes_min(X[0].x8, dtype=float32)
            Z[0] = lanes_add(I[0].x8, dtype=int32)
            Z[1] = lanes_xor(I[0].x8, dtype=int32)
    """
    rng = np.random.default_rng(0)
    x, i = rng.standard_normal(8).astype(np.float32), rng.integers(-(1 << 31), 1 << 31, 8).astype(np.int32)
    y, z = run(text, x, i)
    np.testing.assert_array_equal(y, [np.float32(x.astype(np.float64).sum()), x.max(), x.min()])
    np.testing.assert_array_equal(z, [i.sum(dtype=np.int64).astype(np.int32), np.bitwise_xor.reduce(i)])


def test_vectorize_loops_are_lanes() -> None:
    text = """
    @stage("final")
    def f(X: float32[20], Y: float32[20]) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for r in range(4):
                for i in vectorize(5):
                    t = scalar(float32[1], initial=0.0)
                    for k in range(5):
                        t[0] = t[0] + X[r * 5 + k] * float32(i)
                    Y[r * 5 + i] = t[0]
    """
    x = np.arange(20, dtype=np.float32)
    (y,) = run(text, x)
    np.testing.assert_array_equal(y.reshape(4, 5), x.reshape(4, 5).sum(axis=1)[:, None] * np.arange(5))


def test_reinterpret_between_vectors() -> None:
    text = """
    @stage("final")
    def f(X: uint32[4], Y: int8[16], Z: uint4[32]) -> (Y, Z):
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            Y[0].x16 = reinterpret(int8x16, X[0].x4)
            Z[0].x32 = reinterpret(uint4x32, X[0].x4)
    """
    x = np.array([0x01020304, 0xFFEEDDCC, 7, 0x89ABCDEF], np.uint32)
    y, z = run(text, x)
    np.testing.assert_array_equal(y, x.view(np.int8))
    np.testing.assert_array_equal(z, x.view(np.uint8))


@pytest.mark.parametrize(
    ("access", "what"),
    [("Y[0] = X[n]", r"reads X\[5\]"), ("Y[n] = X[0]", r"writes Y\[5\]"), ("Y[0].x4 = X[2].x4", r"reads X\[5\]")],
)
def test_final_programs_stay_in_bounds(access: str, what: str) -> None:
    with pytest.raises(errors.OutOfBounds, match=what):
        run_block(
            access,
            np.zeros(5, np.float32),
            5,
            params="(X: float32[5], n: int32, Y: float32[5]) -> Y",
            threads=1,
            stage="final",
        )


def test_registers_that_were_never_written() -> None:
    body = "r = register(float32[8])\nr[0].x4 = broadcast(1.0, 4)\nY[0].x4 = r[2].x4"
    with pytest.raises(errors.UninitializedRead, match=r"r\[4\] is read but was never written"):
        run_block(body, params="(Y: float32[4]) -> Y", threads=1, stage="final")


# With threads -----------------------------------------------------------------------------------


def test_registers_of_many_threads() -> None:
    text = """
    @stage("final")
    def f(X: float32[256], Y: float32[256]) -> Y:
        with kernel(blocks={bx: 2}, threads={tx: 32, ty: 1, tz: 1}):
            tile = shared(float32[128])
            r = register(float32[4])
            r[0].x4 = X[bx * 128 + tx * 4].x4
            for j in unroll(4):
                tile[tx + j * 32] = r[j] * 2.0
            sync_threads()
            r[0].x4 = tile[tx * 4].x4
            if tx % 2 == 0:
                r[0].x2 = r[2].x2
            Y[bx * 128 + tx * 4].x4 = r[0].x4
    """
    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    (y,) = run(text, x)
    tile = (2 * x).reshape(2, 32, 4).transpose(0, 2, 1).reshape(2, 32, 4)
    expected = tile.copy()
    expected[:, ::2, :2] = tile[:, ::2, 2:]
    np.testing.assert_array_equal(y, expected.reshape(-1))


def test_vectors_under_a_mask_of_threads() -> None:
    body = """
    if tx < n:
        Y[tx * 4].x4 = X[tx * 4].x4 + broadcast(float32(tx), 4)
    """
    x = np.arange(12, dtype=np.float32)
    (y,) = run_block(body, x, 3, params="(X: float32[12], n: int32, Y: float32[12]) -> Y", threads=8, stage="final")
    np.testing.assert_array_equal(y, x + np.repeat(np.arange(3), 4))


def test_machine_functions_that_move_values_between_threads() -> None:
    name = "test.rotate"
    if name not in INTRINSICS:
        register(Intrinsic(name, 2, lambda value, step: np.roll(value, -int(np.max(step)), axis=-1), collective=True))
    params = "(X: int32[32], Y: int32[32]) -> Y"
    (y,) = run_block("Y[tx] = test.rotate(X[tx], 3)", np.arange(32, dtype=np.int32), params=params)
    np.testing.assert_array_equal(y, (np.arange(32) + 3) % 32)


def test_registers_of_idle_threads_hold_poison() -> None:
    body = """
    r = register(float32[2])
    if tx < 3:
        r[0] = float32(tx)
    r[1] = r[0] * 2.0
    Y[tx] = r[1]
    """
    (y,) = run_block(body, params="(Y: float32[4]) -> Y", threads=4, stage="final")
    np.testing.assert_array_equal(y, [0, 2, 4, np.nan])
