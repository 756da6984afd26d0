"""What TileLang's modules have besides the language: names to import, questions to ask, results to keep."""

import importlib

import numpy as np
import pytest
import tilewright.compat.tilelang.language as T
import torch

import tilewright.compat.tilelang as tilelang
from tilewright.compat.tilelang.autotuner import AutoTuner, AutotuneResult, CompileArgs
from tilewright.compat.tilelang.carver import Device
from tilewright.compat.tilelang.tensors import ResultsDiffer
from tilewright.errors import TilewrightError
from tilewright.specialization import InvalidUse
from tilewright.targets.cuda.compiler import compile_text

HERE = tilelang.__name__


def module(name):
    return importlib.import_module(f"{HERE}.{name}")


def scaled(N, factor=2, block=16):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as b:
            for i in T.Parallel(block):
                C[b * block + i] = A[b * block + i] * factor

    return main


@pytest.mark.parametrize(
    "name, inside, advice",
    [
        ("transform", "LetInline", "part of TileLang's compiler"), ("jit.adapter.cython", "CythonKernelAdapter", "part of TileLang's compiler"),
        ("cuda.intrinsics.macro.wgmma_macro_generator", "TensorCoreIntrinEmitter", "or T.gemm"),
        ("tileop.gemm.registry", "resolve_gemm_impl", "part of TileLang's compiler"),
        ("cuda.language.gemm_op", "tcgen05_gemm", "no tensor memory"),
    ],
)  # fmt: skip
def test_names_of_a_compilers_insides_import_and_say_so_when_used(name, inside, advice):
    found = getattr(module(name), inside)
    assert not isinstance(3, found) and (found | None) is found and (None | found) is found
    with pytest.raises(InvalidUse) as error:
        found(1, b=2)
    assert inside in str(error.value) and advice in str(error.value.hint)


def test_a_module_named_like_a_word_leaves_the_word():
    assert callable(module("language.allocate").allocate) and callable(T.allocate)
    assert module("engine.lower").lower is tilelang.engine.lower is tilelang.lower


def test_switches_are_those_of_the_environment(monkeypatch):
    env = tilelang.env
    assert importlib.import_module("tilewright.compat.tilelang.env").env is env is tilelang.env
    for name in ("TILELANG_VERBOSE", "TILELANG_DEFAULT_TARGET", "TL_LOWER_TRACE", "TILELANG_COMPILE_TIMEOUT_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_default_target() == "auto" and env.get_default_verbose() is False and env.is_span_enable() is True
    assert (
        env.get_lower_trace_mode() is None
        and env.get_compile_timeout_seconds() is None
        and env.is_light_import() is False
    )
    monkeypatch.setenv("TILELANG_VERBOSE", "1")
    monkeypatch.setenv("TILELANG_COMPILE_TIMEOUT_SECONDS", "2.5")
    assert (
        env.get_default_verbose() is True
        and env.TILELANG_DEFAULT_VERBOSE == "1"
        and env.get_compile_timeout_seconds() == 2.5
    )
    monkeypatch.setattr(env, "TILELANG_PASS_PROFILE", "1", raising=False)
    assert env.is_pass_profile_enabled() and env.get_pass_profile_threshold_ms() == 0.0
    with pytest.raises(AttributeError, match=r"no tilelang\.env\.get_nothing"):
        env.get_nothing()


def test_compute_capabilities_and_texts_of_cuda(tmp_path):
    nvcc = module("contrib.nvcc")
    assert nvcc.parse_compute_version(compute_version="9.0") == (9, 0) and nvcc.get_target_arch((9, 0)) == "90a"
    assert nvcc.have_fp8("8.9") and not nvcc.have_bf16("7.5") and nvcc.have_fp16("7.0") and nvcc.have_int8("6.1")
    assert (
        nvcc.is_hopper("cuda -arch=sm_90")
        and not nvcc.have_pdl("cuda -arch=sm_80")
        and nvcc.have_tensorcore(target="cuda -arch=sm_80")
    )
    try:
        version = nvcc.get_cuda_version()
    except TilewrightError:
        pytest.skip("no NVRTC")
    assert version >= (12, 0)
    text = 'extern "C" __global__ void f(float* x) { x[threadIdx.x] += 1.0f; }'
    ptx = nvcc.compile_cuda(text, target_format="ptx", arch="sm_90a", path_target=tmp_path / "f.ptx")
    assert b".target sm_90a" in ptx and (tmp_path / "f.ptx").read_bytes() == ptx
    assert module("contrib.nvrtc").compile_cuda(text, "cubin", 80, options=["-DX=1"])[:4] == b"\x7fELF"
    for mistake, said in (
        ({"arch": "gfx942"}, "no architecture 'gfx942'"),
        ({"target_format": "sass"}, "no format 'sass'"),
    ):
        with pytest.raises(InvalidUse, match=said):
            nvcc.compile_cuda(text, **mistake)


def test_what_a_machine_multiplies():
    arch = module("carver.arch.cuda")
    hopper, ampere, cpu = (Device(name) for name in ("cuda -arch=sm_90a", "cuda -arch=sm_80", "c"))
    assert (
        arch.is_hopper_arch(hopper)
        and arch.is_ampere_arch(ampere)
        and not arch.is_cuda_arch(cpu)
        and arch.check_sm_version("sm_90a") == 90
    )
    assert arch.is_tensorcore_supported_precision("float8_e4m3fn", "float32", hopper)
    assert not arch.is_tensorcore_supported_precision("int8", "float16", hopper)
    assert module("carver.arch.driver").get_registers_per_block() == 65536
    assert (
        arch.is_tensorcore_supported_precision(T.float16, "float32", ampere) and arch.check_sm_version("gfx942") == -1
    )


def test_several_functions_of_which_one_is_wrong():
    functions = [scaled(32), None, scaled(64)]
    kernels = tilelang.par_compile(functions, out_idx=[1], target="c", ignore_error=True, num_workers=2)
    assert [one is None for one in kernels] == [False, True, False]
    assert np.array_equal(kernels[2](np.ones(64, np.float32)), np.full(64, 2, np.float32))
    with pytest.raises(TilewrightError):
        tilelang.par_compile(functions, out_idx=[1], target="c")
    decorated = tilelang.jit(scaled, out_idx=[1], target="c", pass_configs={"tl.disable_tma_lower": True})
    made = decorated.par_compile([(32, 3), {"N": 32, "factor": 4}, {"N": "none"}], ignore_error=True)
    assert made[2] is None and made[0](np.ones(32, np.float32))[0] == 3 and made[1](np.ones(32, np.float32))[0] == 4
    assert (
        decorated.is_lazy_mode()
        and decorated.mode == "lazy"
        and decorated.pass_configs == {"tl.disable_tma_lower": True}
    )
    assert "def scaled" in decorated.func_source and decorated.parse_cache_key(32) == decorated.parse_cache_key(
        32, factor=2
    )


def test_a_kernel_object_of_a_traced_function():
    kernel = tilelang.JITKernel(scaled(16), out_idx=[1], target="c", execution_backend="cython")
    assert np.array_equal(kernel(np.ones(16, np.float32)), np.full(16, 2, np.float32))
    kernel.run_once()


def test_a_tuner_step_by_step_and_its_result_on_disk(tmp_path):
    tuner = AutoTuner(scaled, [{"block": 16}, {"block": 32}]).set_compile_args(out_idx=[1], target="c")
    tuner.set_profile_args(warmup=0.1, rep=0.1).set_kernel_parameters(((48,), (("factor", 5),)), {})
    result = tuner()
    assert result.config in ({"block": 16}, {"block": 32}) and result.latency > 0
    result.save_to_disk(tmp_path / "kept")
    again = AutotuneResult.load_from_disk(tmp_path / "kept", CompileArgs(target="c"))
    assert (again.latency, again.config) == (result.latency, result.config)
    assert np.array_equal(again.kernel(np.ones(48, np.float32)), np.full(48, 5, np.float32))
    with pytest.raises(InvalidUse, match="holds no result of tuning"):
        AutotuneResult.load_from_disk(tmp_path, CompileArgs())


def regression_of_this_file():
    tilelang.testing.process_func(lambda n: n / 2, "halves", n=3)
    tilelang.testing.process_func(lambda: 4.0)


def test_latencies_of_a_file_are_a_table(capsys):
    tilelang.testing.regression()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["| halves (n=3) | 1.5 |", "| <lambda> | 4 |"]
    with pytest.raises(InvalidUse, match="measured 0"):
        tilelang.testing.process_func(lambda: 0.0)
    assert module("testing.perf_regression").regression is tilelang.testing.regression


def test_other_clocks():
    bench = module("profiler.torch_bench")
    calls = []
    assert (
        module("profiler.wall").bench_with_wall(lambda: calls.append(1), 5, return_mode="max") >= 0 and len(calls) == 5
    )
    assert bench.bench_with_cuda_events(lambda: None, None, 3) >= 0
    with bench.suppress_stdout_stderr():
        print("nobody sees this")


def test_arguments_of_a_profiler():
    import torch  # whose tensors a profiler makes once a program has it

    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 4), "float32"), s: T.float32, C: T.Tensor((m, 2), "float16")):
        with T.Kernel(1, threads=32):
            C[0, 0] = A[0, 0] * s

    profiler = tilelang.compile(main, out_idx=[2], target="c").get_profiler()
    a, s = profiler._get_inputs(dynamic_symbolic_constraints={"m": 6})
    assert tuple(a.shape) == (6, 4) and s == 1
    whole = profiler._get_inputs(with_output=True, dynamic_symbolic_constraints={"m": 5})
    assert [tuple(getattr(one, "shape", ())) for one in whole] == [(5, 4), (), (5, 2)] and whole[
        2
    ].dtype == torch.float16


def test_a_profiler_compares_what_kernel_and_reference_leave_in_their_arguments():
    @T.prim_func
    def main(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                B[i] = A[i] * 2

    def reference(a, b):
        b[:] = a * 2

    profiler = tilelang.compile(main, target="c").get_profiler()
    profiler.assert_allclose(reference)
    with pytest.raises(ResultsDiffer):
        profiler.assert_allclose(lambda a, b: b.__setitem__(slice(None), a * 3))
    with pytest.raises(InvalidUse, match="returns nothing to compare"):
        profiler.assert_allclose(lambda a, b: a * 2)
    a, b = profiler.arguments()
    assert profiler(a, b) is None and torch.equal(b, a * 2)


def test_texts_have_cudas_own_words_and_compile():
    kernel = tilelang.compile(scaled(64), target="cuda -arch=sm_90a")
    text = kernel.get_kernel_source()
    assert text == kernel.kernel_source == tilelang.lower(scaled(64), target="cuda -arch=sm_90a").kernel_source
    assert 'extern "C" __global__ void __launch_bounds__(32, ' in text and "TW_KERNEL" not in text
    compile_text(text, kernel.kernel.arch)
    assert "__global__" not in tilelang.compile(scaled(64), target="c").get_kernel_source()


def test_state_of_a_class_and_named_parts():
    @T.meta_class
    class Counter:
        def __init__(self, first, name=None):
            self.value = T.alloc_var("int32", init=first)

        def add(self, number):
            self.value[0] += number

    @T.prim_func
    def main(C: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=32), T.sblock("counted"):
            T.reads()
            T.writes(C[0:2])
            counter = Counter(5, name="counter")
            for i in T.serial(3):
                counter.add(i)
            C[0] = counter.value[0]
            C[1] = counter.value + 1

    found = np.zeros(2, np.int32)
    tilelang.compile(main, target="c")(found)
    assert found.tolist() == [8, 9]


def test_strides_of_annotations():
    from tilewright.compat.tilelang.buffers import retrieve_stride

    assert retrieve_stride(T.Tensor((), "float32")) == []
    assert retrieve_stride(T.Tensor((4, 8), "float32")) == [8, 1]
