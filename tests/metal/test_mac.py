"""What only a Mac can say: ``pytest -m metal tests/metal``, about ten minutes on an M1.  Skipped where there is none.

Each test's first line is what it checks.  `tests/unit/metal/test_metal_on_a_mac.py` runs them against stand-ins, so that what fails on a
Mac is not the test.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit" / room) for room in ("metal", "emulator", "matmul")]

import test_metal_headers as headers  # noqa: E402
from repository_programs import ALL, Program, differences, run  # noqa: E402
from test_metal_direct import product, stored  # noqa: E402
from test_metal_programs import PORTABLE, ROUNDING  # noqa: E402

import tilewright  # noqa: E402
import tilewright.language as T  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402
from tilewright.ir.dtypes import dtype as of  # noqa: E402
from tilewright.layout.digits import REGISTER, THREAD  # noqa: E402
from tilewright.machine.apple import PLACES  # noqa: E402
from tilewright.matmul.packed import PackedWeight  # noqa: E402

pytestmark = pytest.mark.metal

LANES = """#include <metal_stdlib>
using namespace metal;
kernel void lanes(device float* to [[buffer(0)]], device float* back [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
  simdgroup_matrix<float, 8, 8> matrix;
  matrix.thread_elements()[0] = float(2 * t);
  matrix.thread_elements()[1] = float(2 * t + 1);
  simdgroup_store(matrix, to, 8ul);
  threadgroup_barrier(mem_flags::mem_device);
  back[2 * t] = matrix.thread_elements()[0];
  back[2 * t + 1] = matrix.thread_elements()[1];
}
"""


def test_lanes_hold_the_elements_that_the_record_says(mac: Any) -> None:
    """`machine.apple.PLACES`: row and column of each lane's two elements of an 8 x 8 matrix."""
    to, back = (mac.tensor(np.zeros(64, np.float32)) for _ in range(2))
    mac.compile_shader(LANES).lanes(to, back, threads=32, group_size=32)
    lane, register = np.indices((32, 2))
    rows, columns = PLACES.coordinates(**{THREAD: lane, REGISTER: register})
    expected = np.zeros((8, 8))
    expected[rows, columns] = 2 * lane + register
    assert np.array_equal(mac.array(to).reshape(8, 8), expected) and np.array_equal(mac.array(back), np.arange(64))


def test_every_function_of_the_vocabulary(mac: Any) -> None:
    """The device's header: each function, on numbers of every size, as the emulator gives it; 2 units in the last place for those of
    floats, whose last place is Apple's affair."""
    given, numbers, results, tensors = headers.arguments()
    text = headers.HEAD.split("#undef")[0] + "using namespace metal;\n" + headers.VOCABULARY + headers.TEXT
    there = [mac.tensor(one) for one in (*given, numbers, results, *tensors)]
    mac.compile_shader(text).every_function(*there, threads=headers.THREADS, group_size=headers.THREADS)
    expected = headers.arguments()
    headers.emulated(expected)
    wanted = [expected[1], expected[2], *expected[3]]
    found = [mac.array(one) for one in there[len(given) :]]
    np.testing.assert_array_max_ulp(found[0], wanted[0], 4)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


@pytest.mark.parametrize("program", PORTABLE, ids=lambda program: program.name)
def test_programs_of_the_repository(mac: Any, program: Program) -> None:
    """The tables of programs that CUDA's GPU runs, against the interpreter: products, attention, reductions, scans, atomics."""
    kernel, arguments = program.make("apple7")
    expected = run(kernel.interpret, arguments)
    assert not differences(mac.run(kernel, arguments), expected, max(program.bound, ROUNDING))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_out_of_device_memory(mac: Any, dtype: str, layout: str) -> None:
    """Operands read by simdgroups from tensors, masked at their edges, in every order of their dimensions."""
    M, N, K = 50, 72, 40
    rng = np.random.default_rng(M)
    a, b = (rng.integers(-4, 5, shape).astype(of(dtype).numpy) for shape in ((M, K), (K, N)))
    given = [np.ascontiguousarray(one.T if turned == "t" else one) for one, turned in zip((a, b), layout)]
    kernel = tilewright.compile(product(M, N, K, dtype, layout, (32, 32, 16)), target="metal -arch=apple7")
    *_, c = mac.run(kernel, [*given, np.full((M, N), 77, np.float32)])
    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("by", ["copy", "loop", "tile"])
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("sizes", [(64, 64), (50, 72), (33, 31)])
def test_sums_stored_as_matrices(mac: Any, sizes: tuple[int, int], out: str, by: str) -> None:
    """``simdgroup_store`` to device and threadgroup memory, at rows of any alignment."""
    M, N = sizes
    rng = np.random.default_rng(N)
    a, b = rng.integers(-4, 5, (M, 16)).astype(np.float16), rng.integers(-4, 5, (N, 16)).astype(np.float16)
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64).T) + 1
    expected = (np.maximum(expected, -3) if by == "loop" else expected).astype(of(out).numpy)
    kernel = tilewright.compile(stored(M, N, out, (32, 32), by), target="metal -arch=apple7")
    *_, c = mac.run(kernel, [a, b, np.full((M, N), 77, of(out).numpy)])
    assert np.array_equal(c, expected)


N_ = T.dynamic("N")


@T.prim_func
def scaled(
    X: T.Tensor((N_,), "float16"), scale: T.float32, shift: T.int8, big: T.uint64, Y: T.Tensor((N_,), "float32")
):
    with T.Kernel(T.ceildiv(N_, 64), threads=64) as block:
        for i in T.Parallel(64):
            more = T.if_then_else(big > T.cast(1 << 62, "uint64"), 1.0, 0.0)
            Y[block * 64 + i] = T.cast(X[block * 64 + i], "float32") * scale + T.cast(shift, "float32") + more


@pytest.mark.parametrize("size", [0, 1, 63, 64, 150])
def test_sizes_and_scalars_arrive(mac: Any, size: int) -> None:
    """Sizes known at launch alone, 0 and 1 among them, and numbers of 8 and 64 bits."""
    x = (np.arange(size) % 50).astype(np.float16)
    kernel = tilewright.compile(scaled, target="metal -arch=apple7")
    *_, y = mac.run(kernel, [x, 0.5, -3, (1 << 63) + 5, np.full(size, np.nan, np.float32)])
    assert np.array_equal(y, x.astype(np.float32) * 0.5 - 2)


@pytest.mark.parametrize("size", [1, 7, 8, 150])
def test_arrays_of_mlx(mlx: Any, size: int) -> None:
    """The body for ``mx.fast.metal_kernel``: inputs in constant and in device memory, outputs new."""
    x = (np.arange(size) % 50).astype(np.float16)
    found = tilewright.compile(scaled, target="metal -arch=apple7", out_idx=[-1])(mlx.array(x), 0.5, -3, (1 << 63) + 5)
    assert np.array_equal(mlx.numpy(found), x.astype(np.float32) * 0.5 - 2)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_subnormal_numbers_are_kept(mac: Any, kind: str) -> None:
    """Conversions are exact to the last subnormal number of a type, though the device takes subnormal floats for zeros."""
    count = 256 if of(kind).bits == 8 else 65536

    @T.prim_func
    def converted(X: T.Tensor((count,), kind), Y: T.Tensor((count,), "float32"), Z: T.Tensor((count,), kind)):
        with T.Kernel(count // 128, threads=128) as block:
            for i in T.Parallel(128):
                Y[block * 128 + i] = T.cast(X[block * 128 + i], "float32")
                Z[block * 128 + i] = T.cast(T.cast(X[block * 128 + i], "float32"), kind)

    bits = np.arange(count, dtype=np.uint8 if count == 256 else np.uint16)
    x = bits.view(of(kind).numpy)
    kernel = tilewright.compile(converted, target="metal -arch=apple7")
    _, y, z = mac.run(kernel, [x, np.zeros(count, np.float32), np.zeros(count, of(kind).numpy)])
    exact = x.astype(np.float32)
    small = (np.abs(exact) < np.finfo(np.float32).tiny) & (exact != 0)  # bfloat16 has subnormal floats itself
    same = (y == exact) | np.isnan(exact) | small
    assert same.all() and ((z.view(bits.dtype) == bits) | np.isnan(exact) | small).all()


@pytest.mark.parametrize("rows", [1, 4, 70])
@pytest.mark.parametrize("scheme", ["w4a16", "mxfp4", "nvfp4", "mxfp8"])
def test_products_with_quantised_weights(mac: Any, monkeypatch: pytest.MonkeyPatch, scheme: str, rows: int) -> None:
    """The library's entry: one, few and many rows by weights of every kind, against float64."""
    rng = np.random.default_rng(rows)
    dense = tilewright.quantize(rng.standard_normal((48, 160)).astype(np.float32), scheme)
    weight = PackedWeight.pack(dense)
    weight.held = {name: mac.tensor(np.asarray(one)) if one is not None else None for name, one in weight.held.items()}
    x = rng.standard_normal((rows, 160)).astype(np.float16)
    if mac.place.__name__ == "on_mps":  # torch's own names of devices, where there is no such device
        from tilewright.matmul import arrays

        made, moved = mac.torch.empty, arrays.as_torch
        monkeypatch.setattr(mac.torch, "empty", lambda *sizes, device=None, **named: mac.place(made(*sizes, **named)))
        monkeypatch.setattr(arrays, "as_torch", lambda array, device: mac.place(moved(array, "cpu")))
    found = mac.array(tilewright.quant_matmul(mac.tensor(x), weight, out_dtype="float32"))
    exact = x.astype(np.float64) @ dense.to_dense().T
    assert np.abs(found - exact).max() <= 1e-3 * np.abs(exact).max()


@T.prim_func
def handed_over(X: T.Tensor((256,), "float32"), Y: T.Tensor((2, 256), "float32"), H: T.Tensor((5,), "float16")):
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((256,), "float32")
        tile[tx] = X[tx]
        Y[1, tx] = X[tx] * 2.0
        T.sync_threads()
        Y[0, tx] = tile[255 - tx] + Y[1, 255 - tx]
        T.atomic_add(H[tx % 5], T.cast(1, "float16"))


def test_barriers_and_atomics(mac: Any) -> None:
    """Threads of eight simdgroups hand over tiles and tensors, and count in halves, whose words are exchanged."""
    kernel = tilewright.compile(handed_over, target="metal -arch=apple7")
    x = np.arange(256, dtype=np.float32)
    for _ in range(20):
        _, y, h = mac.run(kernel, [x, np.zeros((2, 256), np.float32), np.zeros(5, np.float16)])
        assert np.array_equal(y[0], 3 * x[::-1]) and np.array_equal(h, [52, 51, 51, 51, 51])


@pytest.mark.skipif(shutil.which("xcrun") is None, reason="Apple's compiler is on Macs alone")
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_apples_compiler_accepts_texts(program: Program, tmp_path: Path) -> None:
    """Offline, without a GPU: ``xcrun metal`` of every emitted text."""
    try:
        kernel, _ = program.make("apple7")
    except TilewrightError:
        return  # test_metal_programs says which, and why
    source = tmp_path / "kernel.metal"
    source.write_text(kernel.get_kernel_source())
    command = [
        "xcrun",
        "-sdk",
        "macosx",
        "metal",
        "-std=metal3.2",
        "-c",
        str(source),
        "-o",
        str(tmp_path / "kernel.air"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_timing_script_runs(mac: Any) -> None:
    """`benchmarks/metal.py` beside torch's MPS and MLX, on a small product, each component by itself."""
    if mac.place.__name__ == "on_mps":
        pytest.skip("there is nothing to time")
    script = TESTS.parent / "benchmarks" / "metal.py"
    done = subprocess.run(
        [sys.executable, str(script), "256", "--components"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "torch.mm" in done.stdout, done.stdout + done.stderr
