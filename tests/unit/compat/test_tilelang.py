"""Programs of TileLang's, with another import: decorators, kernel objects, profiler, tuner."""

import os

import numpy as np
import pytest
import tilewright.compat.tilelang.language as T

import tilewright.compat.tilelang as tilelang
from tilewright.compat.tilelang.profiler import ResultsDiffer
from tilewright.errors import TilewrightError
from tilewright.specialization import InvalidUse

SWITCHES = {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True, "tl.enable_fast_math": True}


@tilelang.jit(out_idx=[-1], target="cpu", pass_configs=SWITCHES, verbose=False)
def scaled(N, by=2.0, block=64, threads=64, dtype=T.float32):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * by

    return main


def test_a_factory_gives_kernels_with_a_profiler():
    kernel = scaled(300, by=3.0)
    assert np.array_equal(kernel(np.ones(300, np.float32)), np.full(300, 3, np.float32))
    assert "main" in kernel.get_kernel_source(kernel_only=True)
    profiler = kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Integer)
    profiler.assert_allclose(lambda a: a * 3, rtol=0, atol=0)
    with pytest.raises(ResultsDiffer) as error:
        profiler.assert_allclose(lambda a: a * 3 + 1)
    assert "300 of 300 elements differ" in str(error.value)
    assert profiler.do_bench(warmup=1, rep=1) > 0


def test_the_fastest_configuration_is_taken_once():
    calls = []

    def reference(a):
        calls.append(len(a))
        return a * 2

    tuned = tilelang.autotune(
        configs={"block": [32, 128], "threads": [32]}, warmup=1, rep=1, ref_prog=reference, timeout=10
    )(scaled)
    kernel = tuned(200)
    assert kernel.config["block"] in (32, 128) and kernel.config["threads"] == 32 and kernel.latency > 0
    assert kernel.ref_latency > 0  # the reference is timed, too
    before = len(calls)
    assert tuned(200) is kernel and len(calls) == before > 2
    assert tuned(200, block=16).config is None


def test_a_direct_function_is_tuned_on_its_arguments():
    @tilelang.autotune(configs=[{"block": 32}, {"block": 64}], warmup=1, rep=1)
    @tilelang.jit
    def doubled(A, block=16):
        N = T.const("N")
        A: T.Tensor[[N], T.float32]
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, block), threads=64) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2
        return B

    a = np.arange(100, dtype=np.float32)
    assert np.array_equal(doubled(a), a * 2) and np.array_equal(doubled(a, block=8), a * 2)


def test_tuning_step_by_step():
    def factory(block=32):
        @T.prim_func
        def main(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32")):
            with T.Kernel(T.ceildiv(100, block), threads=32) as bx:
                for i in T.Parallel(block):
                    B[bx * block + i] = A[bx * block + i]

        return main

    tuner = tilelang.AutoTuner.from_kernel(factory, configs=[{"block": 64}, {"block": 32}])
    result = tuner.set_compile_args(out_idx=[-1], target="cpu").set_profile_args(skip_check=True).run(warmup=1, rep=1)
    assert result.config["block"] in (32, 64) and result.latency > 0
    assert np.array_equal(result.kernel(np.ones(100, np.float32)), np.ones(100, np.float32))


def test_what_is_misspelt_is_refused():
    with pytest.raises(InvalidUse) as error:
        tilelang.jit(pass_configs={"tl.disable_warp_specialised": True})
    assert "no key 'tl.disable_warp_specialised'" in str(error.value)
    with pytest.raises(InvalidUse):
        tilelang.autotune(scaled)


@pytest.mark.parametrize("columns, dtype", [(64, "float16"), (32, "float16"), (48, "float32"), (20, "float16")])
def test_a_swizzled_layout_moves_chunks_and_loses_none(columns, dtype):
    @T.prim_func
    def main(A: T.Tensor((32, columns), dtype), B: T.Tensor((32, columns), dtype)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, columns), dtype)
            T.annotate_layout({tile: tilelang.layout.make_swizzled_layout(tile).layout})
            T.copy(A, tile)
            T.copy(tile, B)

    kernel = tilelang.compile(main, target="cuda -arch=sm_80", execution_backend="cython")
    a = np.random.default_rng(0).standard_normal((32, columns)).astype(dtype)
    b = np.zeros_like(a)
    kernel.emulate(a, b)
    assert np.array_equal(a, b)


def test_the_cache_and_small_words(monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_CACHE", raising=False)
    tilelang.disable_cache()
    assert os.environ["TILEWRIGHT_CACHE"] == "0"
    tilelang.enable_cache()
    assert "TILEWRIGHT_CACHE" not in os.environ
    assert tilelang.cdiv(7, 2) == 4 and tilelang.next_power_of_2(5) == 8
    with pytest.raises(TilewrightError) as error:
        T.coppy
    assert "test_tilelang.py" in str(error.value)
