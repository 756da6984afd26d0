"""What a kernel tells of its machine code, on a machine without a GPU."""

import dataclasses
import inspect
import warnings
from pathlib import Path

import numpy as np
import pytest
from cuda_gemm import matmul, on, operands

import tilewright
import tilewright.language as T
from tilewright.errors import DeviceCompilationFailed, DriverError, NoDeviceCode, TilewrightWarning
from tilewright.kernels.softmax import softmax_of_short_rows
from tilewright.targets.cuda.arch import detect
from tilewright.targets.cuda.target import CUDA


@pytest.fixture(scope="module")
def kernel():
    a, b = operands(256, 256, 128, "float16")
    return on("sm_90a", matmul).compile(a, b, block=(128, 128, 64), threads=256)


def test_assembly_and_machine_code(kernel):
    assert ".target sm_90a" in kernel.ptx()
    assert "HGMMA" in kernel.sass() and "UTMALDG" in kernel.sass()


def test_resources(kernel):
    (facts,) = kernel.resources().values()
    assert facts["spill_store_bytes"] == 0 and 0 < facts["registers"] <= 255
    assert facts["shared_bytes"] > 2 * 128 * 64 * 2 and facts["occupancy"] >= 1


def test_a_kernel_for_the_cpu_has_none():
    x = np.ones((2, 128), np.float32)
    with pytest.raises(NoDeviceCode, match="a kernel for cpu has no assembly of a GPU"):
        softmax_of_short_rows.compile(x).ptx()


@pytest.mark.skipif(detect() is not None, reason="a GPU is here")
def test_launching_without_a_gpu_says_so(kernel):
    with pytest.raises(DriverError, match="GPU"):
        kernel.launcher(0, 0, 0)


def line_of(function, words):
    """Number of the first line of a function's source with these words."""
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if words in line)


def test_spills_are_said_with_the_operator_that_spills():
    a, b = operands(256, 256, 256, "float16")
    kernel = on("sm_80", matmul).compile(a, b, block=(256, 128, 32), threads=128)
    with pytest.warns(
        TilewrightWarning, match=r"registers do not suffice \(255 a thread\): \d+ bytes are stored"
    ) as said:
        (resources,) = kernel.resources().values()
    assert resources["spill_store_bytes"] > 0
    message = str(said[0].message)
    assert "cuda_gemm.py" in message and "T." in message
    assert message.endswith("help: it fits with 256 threads, or C_local of half its size")


def test_users_hear_nothing_of_spills_in_the_librarys_own_kernels(monkeypatch):
    a, b = operands(256, 256, 256, "float16")
    kernel = on("sm_80", matmul).compile(a, b, block=(256, 128, 32), threads=128)
    monkeypatch.setattr("tilewright.runtime.kernel._LIBRARY", Path(inspect.getsourcefile(matmul)).resolve().parent)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        (resources,) = kernel.resources().values()
    assert resources["spill_store_bytes"] > 0


def scaled_in_flight(A, B):
    A: T.Tensor((64, 256), "float16")
    B: T.Tensor((64, 256), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=256):
        A_ring = T.alloc_shared((2, 64, 64), "float16")
        B_ring = T.alloc_shared((2, 64, 64), "float16")
        ring = T.channel(A_ring, B_ring, writers="producer", readers="consumer")
        with T.roles():
            with T.role("consumer", warps=4):
                total = T.alloc_fragment((64, 64), "float32")
                T.clear(total)
                for k in T.serial(4):
                    slot = ring.receive(k)
                    T.wgmma_gemm(A_ring[slot, :, :], B_ring[slot, :, :], total, transpose_B=True)
                    for i, j in T.Parallel(64, 64):
                        total[i, j] = total[i, j] * 2
                    T.wait_wgmma(0)
                    ring.release(k)
                T.copy(total, C)
            with T.role("producer", warps=4):
                for k in T.serial(4):
                    slot = ring.acquire(k)
                    T.copy(A[0, k * 64], A_ring[slot, :, :])
                    T.copy(B[0, k * 64], B_ring[slot, :, :])
                    ring.publish(k)
    return C


def test_serialised_products_are_said_with_their_line():
    a, b = operands(64, 64, 256, "float16")
    kernel = on("sm_90a", scaled_in_flight).compile(a, b)
    with pytest.warns(TilewrightWarning, match="are serialized|warpgroup.wait is injected") as said:
        kernel.ptx()
    lines = [line_of(scaled_in_flight, words) for words in ("T.wgmma_gemm", "total[i, j] * 2")]
    assert any(f"test_cuda_resources.py:{line}:" in str(said[0].message) for line in lines)


def test_a_text_that_the_compiler_refuses_is_said_in_the_authors_terms(kernel):
    """Not 200 lines of C++: one sentence, the operator, the author's line."""

    def emit(function, arch):
        source = CUDA.emit(function, arch)
        return dataclasses.replace(source, text=source.text.replace("tw::wgmma_commit()", "tw::wgmma_comit()"))

    broken = type(kernel)(kernel.function, dataclasses.replace(CUDA, emit=emit), kernel.arch)
    with pytest.raises(DeviceCompilationFailed) as caught:
        broken.ptx()
    line = line_of(matmul, "T.gemm(")
    assert (caught.value.span.line, len(str(caught.value).splitlines())) == (line, 6)
    assert caught.value.message.startswith("the CUDA compiler refused the text in the code of `cuda_gemm.py:")
    assert "wgmma_comit" in caught.value.message


def attention_of_a_warp(blocks, size=64, heads=16, width=128):
    @T.prim_func
    def main(
        Q: T.Tensor((heads, width), "float16"), K: T.Tensor((blocks * size, width), "float16"),
        V: T.Tensor((blocks * size, width), "float16"), Chosen: T.Tensor((blocks,), "int32"), O: T.Tensor((heads, width), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            q, k, v = (T.alloc_shared((rows, width), "float16") for rows in (heads, size, size))
            scores, weights = T.alloc_fragment((heads, size), "float32"), T.alloc_fragment((heads, size), "float16")
            sums, total = T.alloc_fragment((heads, width), "float32"), T.alloc_fragment((heads,), "float32")
            T.copy(Q, q)
            T.clear(sums)
            T.clear(total)
            for i in T.serial(blocks):
                first = Chosen[i] * size
                if first >= 0:
                    T.copy(K[first, 0], k)
                    T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                    for h, j in T.Parallel(heads, size):
                        scores[h, j] = T.exp2(scores[h, j] * 0.125)
                    T.reduce_sum(scores, total, dim=1, clear=False)
                    T.copy(scores, weights)
                    T.copy(V[first, 0], v)
                    T.gemm(weights, v, sums)
            for h, c in T.Parallel(heads, width):
                sums[h, c] /= total[h]
            T.copy(sums, O)

    return main


def test_addresses_of_many_pieces_do_not_take_the_registers():
    """A warp that loads tiles of 64 x 128 kept the addresses of all 64 pieces and spilled."""
    blocks = 3
    kernel = tilewright.compile(attention_of_a_warp(blocks), target="cuda -arch=sm_90a")
    (facts,) = kernel.resources().values()
    assert facts["spill_store_bytes"] == 0
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((rows, 128)).astype(np.float16) for rows in (16, 192, 192))
    chosen, o = np.array([2, -1, 0], np.int32), np.full((16, 128), np.nan, np.float16)
    kernel.emulate(q, k, v, chosen, o)
    rows = np.r_[128:192, 0:64]
    weights = np.exp2(q.astype(float) @ k[rows].astype(float).T * 0.125)
    np.testing.assert_allclose(o, weights / weights.sum(1, keepdims=True) @ v[rows].astype(float), rtol=2e-2, atol=2e-2)
