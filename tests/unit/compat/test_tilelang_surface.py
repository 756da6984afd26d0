"""What stands around kernels, as programs of TileLang's use it: modules, profilers, results of tuning, buffers, kernels without `T.Kernel`."""

import importlib

import numpy as np
import pytest
import tilewright.compat.tilelang.language as T

import tilewright
import tilewright.compat.tilelang as tilelang
from tilewright.errors import CompilerNotFound, TilewrightWarning
from tilewright.specialization import InvalidUse
from tilewright.targets.cuda.nvrtc import find_nvrtc

WAYS = ("interpreted", "on the CPU", "emulated")


def run(program, way, *arrays):
    """A program on copies of arrays, which come back."""
    kernel = tilewright.compile(program, target="cpu" if way == "on the CPU" else "cuda -arch=sm_90a")
    given = [array.copy() for array in arrays]
    {"interpreted": kernel.interpret, "on the CPU": kernel, "emulated": getattr(kernel, "emulate", None)}[way](*given)
    return given


@tilelang.jit(out_idx=[-1], target="c")
def add_one(N, block=16):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as b:
            for i in T.Parallel(block):
                C[b * block + i] = A[b * block + i] + 1

    return main


NAMES = {
    "language.copy_op": "copy", "language.warp_specialize": "WSSchedule", "language.eager.builder": "macro", "language.tir.op": "exp2",
    "dtypes": "float16", "utils.deprecated": "deprecated", "utils.language": "is_fragment", "utils": "torch_assert_close",
    "engine": "lower", "autotuner.param": "AutotuneResult", "autotuner.tuner": "AutoTuner", "rocm.language": "gemm", "cuda.target": "Target",
    "jit.param": "JITKernel", "utils.device": "get_current_device", "profiler": "torch_assert_close", "jit": "determine_target",
    "autotuner": "get_tensor_supply", "carver.arch.cdna": "CUDA", "layout": "make_gemm_fragment_8x8", "profiler.wall": "do_bench", "layout.fragment": "Fragment", "testing": "requires_cdna",
}  # fmt: skip


@pytest.mark.parametrize("module", NAMES)
def test_modules_have_their_names(module):
    assert getattr(importlib.import_module(f"tilewright.compat.tilelang.{module}"), NAMES[module]) is not None


def test_modules_are_there_without_an_import():
    assert tilelang.transform.PassConfigKey is tilelang.PassConfigKey and tilelang.tools is not None
    with pytest.raises(AttributeError, match=r"tilewright has no tilelang\.nothing"):
        tilelang.nothing


def test_times_come_as_they_are_asked_for():
    profiler = add_one(64).get_profiler()
    options = {"warmup": 0.1, "rep": 1}
    least, most = (profiler.do_bench(return_mode=mode, **options) for mode in ("min", "max"))
    assert least > 0 and most > 0
    quantiles = profiler.do_bench(quantiles=[0.0, 0.5, 1.0], backend="cupti", **options)
    assert quantiles == sorted(quantiles) and len(quantiles) == 3
    assert tilelang.profiler.do_bench(lambda: None, 0.1, 0.1, return_mode="mean") >= 0
    with pytest.raises(InvalidUse, match="there is no return_mode 'best'"):
        profiler.do_bench(return_mode="best")


def test_sizes_of_a_call_may_be_said():
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 4), "float32"), C: T.Tensor((m, 4), "float32")):
        with T.Kernel(T.ceildiv(m, 8)) as b:
            T.copy(A[b * 8 : b * 8 + 8, :], C[b * 8, 0])

    profiler = tilelang.compile(main, out_idx=[1], target="c").get_profiler()
    assert [tuple(one.shape) for one in profiler.arguments({"m": 77})] == [(77, 4)]
    assert profiler.do_bench(dynamic_symbolic_constraints={"m": 33}, warmup=0.1, rep=0.1) > 0


def test_kernels_tell_what_they_are(tmp_path):
    kernel = add_one(64)
    assert list(kernel.out_idx) == [1] and kernel.n_max_threads == 1 and "main" in kernel.host_source
    kernel.print_source_code("both", str(tmp_path / "text"))
    assert kernel.get_kernel_source() in (tmp_path / "text").read_text()
    kernel.kernel.begin()
    kernel(np.zeros(64, np.float32))
    kernel.export_library(str(tmp_path / "kernel.so"))
    assert (tmp_path / "kernel.so").read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(InvalidUse, match="this kernel was not tuned"):
        kernel.get_tuner_result()
    kernel.update_tuner_result(1.5, {"block": 16}, None)
    assert kernel.get_tuner_result() == {"latency": 1.5, "config": {"block": 16}, "ref_latency": None}
    with pytest.raises(InvalidUse, match="there is no source 'device'"):
        kernel.show_source("device")


def test_kernels_of_a_gpu_tell_what_they_take():
    try:
        find_nvrtc()
    except CompilerNotFound:
        pytest.skip("NVRTC is not installed")
    kernel = tilelang.compile(add_one.get_tir(64), target="cuda -arch=sm_90")
    assert 0 < kernel.n_regs <= 255 and kernel.n_spills == 0 and kernel.n_max_threads == 32


@pytest.mark.parametrize("configs", [[{"block": 8}, {"block": 32}], {"block": [8, 32]}, lambda N: [{"block": N // 4}]])
def test_tuning_by_every_kind_of_configurations(configs):
    tuned = tilelang.autotune(configs=configs, warmup=0.1, rep=0.1, timeout=10, ref_prog=lambda a: a + 1)(add_one)
    kernel = tuned(64)
    assert kernel.latency > 0 and kernel.config["block"] in (8, 16, 32)


def test_results_of_the_tuner_have_their_fields():
    def factory(block=16):
        return add_one.get_tir(64, block)

    tuner = tilelang.AutoTuner(fn=factory, configs=[{"block": 8}, {"block": 16}])
    result = tuner.set_compile_args(out_idx=[-1], target="c").set_profile_args(skip_check=True).run(warmup=0.1, rep=0.1)
    assert result.latency > 0 and result.config in tuner.configs and result.ref_latency is None
    assert "main" in result.libcode and result.func.function.name == "main"
    np.testing.assert_array_equal(result.kernel(np.zeros(64, np.float32)), np.ones(64))


def test_what_is_asked_of_buffers():
    from tilewright.compat.tilelang.utils import language as ask

    @T.prim_func
    def main(A: T.Tensor((8, 4, 2), "float32"), S: T.StridedTensor((4, 4), (1, 8), "float32")):
        with T.Kernel(1, threads=32):
            tile, own = T.alloc_shared((8, 4), A.dtype), T.alloc_local((2,), "int32")
            part, count = T.alloc_fragment((8, 4), "float32"), T.alloc_var("int32", 0)
            assert [one.scope() for one in (A, tile, part, own)] == ["global", "shared.dyn", "local.fragment", "local"]
            assert A.strides == (8, 2, 1) and S.strides == (1, 8) and tile.strides == (4, 1)
            assert ask.is_global(A) and ask.is_shared(tile) and ask.is_shared_dynamic(tile[0, 0:4])
            assert (
                ask.is_fragment(part)
                and ask.is_local(own)
                and ask.is_local_var(count)
                and not ask.is_tensor_memory(tile)
            )
            assert ask.retrieve_shape(A[0, 0:4, :]) == [1, 4, 2] and ask.retrieve_shape(A[1, 2, 1]) == [1, 1, 1]
            assert ask.retrieve_stride(tile) == [4, 1] and ask.get_buffer_elems(A) == 64
            T.clear(part)

    assert ask.bits_product((4, 8), "float16") == 512 and ask.array_reduce((2, 3, 4)) == 24
    assert ask.get_prim_func_name(main) == "main" and ask.get_prim_func_name(None, "x") == "x"


@pytest.mark.parametrize("way", ["emulated"])
def test_places_in_buffers(way):
    text = "template <typename A, typename B> __device__ void move(A* to, const B* from) { *to = *from; }"

    @T.prim_func
    def main(A: T.Tensor((8, 4), "float32"), C: T.Tensor((8, 4), "float32")):
        with T.Kernel(1, threads=32):
            T.import_source(text)
            tx = T.get_thread_binding()
            T.call_extern("void", "move", C.access_ptr("w", offset=tx), A.access_ptr("r", offset=31 - tx, extent=1))

    a = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(main, way, a, np.zeros_like(a))[1], a[::-1, ::-1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_extremes_that_keep_nan(dtype, clear, way):
    M, N = 8, 36

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), C: T.Tensor((3, M), dtype)):
        with T.Kernel(1, threads=64):
            tile, out = T.alloc_fragment((M, N), dtype), T.alloc_fragment((M,), dtype)
            T.copy(A, tile)
            T.copy(C[0, 0:M], out)
            T.reduce_max(tile, out, dim=1, clear=clear, nan_propagate=True)
            T.copy(out, C[0, 0:M])
            T.copy(C[1, 0:M], out)
            T.reduce_min(tile, out, 1, clear, 1, True)
            T.copy(out, C[1, 0:M])
            T.copy(C[2, 0:M], out)
            T.reduce_absmax(tile, out, dim=-1, clear=clear, nan_propagate=True, annotations={})
            T.copy(out, C[2, 0:M])

    rng = np.random.default_rng(1)
    a, c = (rng.standard_normal(shape) * 9 for shape in ((M, N), (3, M)))
    if dtype != "int32":
        a[2, 5] = a[7, 35] = a[0, 0] = c[1, 4] = np.nan
    a, c = a.astype(dtype), c.astype(dtype)
    wanted = np.stack([a.max(1), a.min(1), abs(a).max(1)])
    if not clear:
        wanted = np.stack([np.maximum(wanted[0], c[0]), np.minimum(wanted[1], c[1]), np.maximum(wanted[2], c[2])])
    np.testing.assert_array_equal(run(main, way, a, c)[1], wanted)


@pytest.mark.parametrize("way", WAYS)
def test_a_function_without_a_kernel_is_one_thread(way):
    n = T.dynamic("n")

    with pytest.warns(TilewrightWarning, match="one thread does the work of main, which has no T.Kernel"):

        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32"), N: T.Tensor((1,), "int32")):
            count = T.alloc_var("int32", 0)
            for i in T.serial(n):
                if A[i] > 0:
                    C[i] = A[i] * 2
                    count += 1
            N[0] = count

    a = np.random.default_rng(2).standard_normal(37).astype(np.float32)
    _, c, count = run(main, way, a, np.zeros_like(a), np.zeros(1, np.int32))
    np.testing.assert_array_equal(c, np.where(a > 0, a * 2, 0))
    assert count[0] == (a > 0).sum()


@pytest.mark.parametrize("way", ["interpreted", "emulated"])
def test_a_wait_for_stores_that_nobody_made_is_nothing(way):
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(A, 3)
            T.tma_store_arrive()
            T.tma_store_wait(0)

    np.testing.assert_array_equal(run(main, way, np.zeros(4, np.float32))[0], [3] * 4)


def test_layouts_are_made_of_layouts():
    swizzled = T.Layout((4, 8), lambda i, j: i * 8 + (j ^ i))
    assert isinstance(swizzled, T.Layout) and not isinstance(swizzled, T.Fragment)
    assert swizzled.get_input_shape() == [4, 8] and swizzled.get_output_shape() == [32]
    assert swizzled.map_forward_index([3, 1]) == [26]
    many = swizzled.expand([2, 3])
    assert many.get_input_shape() == [2, 3, 4, 8] and many.map_forward_index([1, 2, 3, 1]) == [1, 2, 26]
    assert swizzled.repeat(1, 3).map_forward_index([3, 17]) == [2, 26]
    assert swizzled.repeat(-2, 2).map_forward_index([7, 1]) == [1, 26]
    assert swizzled.reshape((32,)).map_forward_index([25]) == [26]
    assert swizzled.is_equal(T.Layout((4, 8), lambda i, j: i * 8 + (i ^ j))) and swizzled != many
    turned = T.Layout((4, 8), lambda i, j: j * 4 + i)
    assert turned.inverse().map_forward_index([5]) == [1, 1]


def test_fragments_are_made_of_fragments():
    base = T.Fragment((8, 8), forward_thread_fn=lambda i, j: i * 4 + j // 2, forward_index_fn=lambda i, j: j % 2)
    assert base.get_thread_size() == 32 and base.get_output_shape() == [2]
    registers = base.repeat([2, 3])
    assert (registers.map_forward_thread([9, 17]), registers.map_forward_index([9, 17])) == (4, [(1 * 3 + 2) * 2 + 1])
    other = base.repeat([2, 3], lower_dim_first=False)
    assert other.map_forward_index([9, 17]) == [(2 * 2 + 1) * 2 + 1]
    threads = base.repeat([2, 1], repeat_on_thread=True)
    assert threads.get_thread_size() == 64 and threads.map_forward_thread([9, 1]) == 36
    assert base.replicate(2).condense_rep_var().get_thread_size() == 64
    with pytest.raises(tilewright.TilewrightError, match="expected 2 numbers"):
        base.repeat([2])


@pytest.mark.parametrize("way", WAYS)
def test_a_made_fragment_is_kept_to(way):
    base = T.Fragment((8, 8), forward_thread_fn=lambda i, j: i * 4 + j // 2, forward_index_fn=lambda i, j: j % 2)

    @T.prim_func
    def main(A: T.Tensor((16, 16), "float32"), C: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((16, 16), "float32")
            T.annotate_layout({tile: base.repeat([2, 1], repeat_on_thread=True).repeat([1, 2])})
            T.copy(A, tile)
            for i, j in T.Parallel(16, 16):
                C[i, j] = tile[i, j] * 2

    a = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)
    np.testing.assert_array_equal(run(main, way, a, np.zeros_like(a))[1], a * 2)


def test_a_tensor_that_is_left_out_is_none():
    @tilelang.jit(target="c")
    def add(A, B, twice: bool = False):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B: T.Tensor((N,), "float32")
        C = T.empty((N,), "float32")
        with T.Kernel(1):
            for i in T.Parallel(N):
                C[i] = A[i] if B is None else A[i] + B[i]
        return C

    a = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(add(a, None), a)
    np.testing.assert_array_equal(add(a, a), a * 2)


def test_configurations_say_how_things_are_made_and_may_fail():
    @tilelang.jit(out_idx=[-1], target="c")
    def factory(N, block=16):
        if block > 32:
            raise ValueError("too large")
        return add_one.get_tir(N, block)

    configs = [{"block": 16, "pass_configs": {"tl.disable_tma_lower": True}}, {"block": 64}]
    tuned = tilelang.autotune(configs=configs, warmup=0.1, rep=0.1, ref_prog=lambda a: a + 1)(factory)
    kernel = tuned(64)
    assert kernel.config == configs[0] and kernel.ref_latency > 0 and kernel.get_tuner_result()["config"] == configs[0]
    with pytest.raises(tilewright.TilewrightError, match="makes no kernel: ValueError: too large"):
        tilelang.autotune(configs=[{"block": 64}], warmup=0.1, rep=0.1)(factory)(64)
    with pytest.raises(tilewright.TilewrightError, match=r"pass_configs has no key 'tl\.nothing'"):
        tilelang.autotune(configs=[{"block": 8, "pass_configs": {"tl.nothing": 1}}], warmup=0.1, rep=0.1)(factory)(64)


@pytest.mark.parametrize("make", [tilelang.compile, tilelang.jit])
def test_pass_configs_that_are_no_dict(make):
    with pytest.raises(tilewright.TilewrightError, match="pass_configs is a list, expected a dict"):
        make(add_one, target="c", pass_configs=["tl.disable_tma_lower"])


@pytest.mark.parametrize("out_idx", [5, [3], "x", [0.5], [-4]])
def test_outputs_that_are_no_parameters(out_idx):
    with pytest.raises(ValueError, match="is no tensor parameter of main"):
        tilelang.compile(add_one.get_tir(8), out_idx=out_idx, target="c")


def test_wrong_arguments_are_what_callers_of_tilelang_catch():
    kernel = tilelang.compile(add_one.get_tir(8), target="c")
    given = np.zeros(8, np.float32)
    for wrong in ((given,), (given, given[:4].copy()), (given, given.astype(np.float16)), (given, "x"), (given, None)):
        with pytest.raises(RuntimeError):
            kernel(*wrong)


def test_names_of_the_environment():
    from tilewright.compat.tilelang.cache import cached

    from tilewright.compat.tilelang import env as module

    assert module.is_cache_enabled() in (True, False) and module.CUDA_HOME_OF_NOBODY is None
    assert cached(add_one.get_tir(8), out_idx=-1, target="c")(np.zeros(8, np.float32)).sum() == 8


def test_devices_of_torch():
    torch = pytest.importorskip("torch")
    from tilewright.compat.tilelang.utils import device, tensor

    here = device.get_current_device()
    assert (here is None) == (not torch.cuda.is_available() and not torch.backends.mps.is_available())
    assert (
        torch.cuda.is_available() == device.IS_CUDA and device.IS_NPU is False and device.get_available_cpu_count() > 0
    )
    if here is None:
        with pytest.raises(InvalidUse, match="there is no device of torch to wait for"):
            device.device_synchronize()
    zeros = torch.tensor([-0.0, 1.0, 0.0, -2.0]).to(torch.float8_e4m3fn)
    tensor.fp8_remove_negative_zeros_(zeros)
    assert zeros.view(torch.uint8).tolist() == [0, 0x38, 0, 0xC0]
    with pytest.raises(InvalidUse, match="has no floats of eight bits"):
        tensor.fp8_remove_negative_zeros_(torch.zeros(3))


def test_what_is_asked_of_functions():
    @T.prim_func
    def main(A: T.Tensor((8, 4), "float16"), B: T.Tensor((8, 4), "float16")):
        T.func_attr({"kind": 3})
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    assert main.attrs == {"global_symbol": "main", "kind": 3}
    assert [main.buffer_map[one].shape for one in main.params] == [(8, 4)] * 2 and main.buffer_map[
        main.params[0]
    ].dtype == "float16"
    other = main.with_attr("global_symbol", "other").with_attr("more", 1)
    assert other.attrs == {"global_symbol": "other", "kind": 3, "more": 1} and main.attrs["global_symbol"] == "main"
    kernel = tilelang.compile(other, out_idx=-1, target="c")
    assert kernel.out_idx == [1] and kernel.prim_func.attrs["global_symbol"] == "other"
    a = np.arange(32, dtype=np.float16).reshape(8, 4)
    np.testing.assert_array_equal(kernel(a), a)
