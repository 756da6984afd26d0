"""TileLang's modules: one copy of each under every name, what they say of machines, and a program that runs as it is."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import tilewright.compat.tilelang as tilelang
import tilewright.language as T
from tilewright.compat.tilelang.modules import MODULES
from tilewright.compat.tilelang.targets import Target, determine_target, request
from tilewright.compat.tilelang.tensors import ResultsDiffer
from tilewright.errors import TilewrightError
from tilewright.specialization import InvalidUse

PROGRAM = """
import tilelang, tilelang.testing, tilelang.language as T
import tilewright.compat.tilelang as ours
from tilelang.utils.target import determine_target
from tilelang.language.fp8 import determine_fp8_type
from tilelang.transform import PassConfigKey
from tilelang.jit import JITKernel
from tilelang.autotuner.param import AutotuneResult
from tilelang.carver.arch import driver
from tilelang import tvm, jit
import tilewright.compat.tilelang.autotuner
import tilewright.language
assert tilelang is ours and T is tilewright.language is tilelang.language
assert tilelang.autotuner is tilewright.compat.tilelang.autotuner and AutotuneResult is tilelang.autotuner.AutotuneResult
assert JITKernel is tilelang.JITKernel is ours.JITKernel and callable(tilelang.jit) and jit is ours.jit
assert __name__ == "__main__" and __import__("sys").argv[1:] == ["an argument"]
assert determine_fp8_type() == "float8_e4m3fn"
assert tilelang.DataType("float16") is T.float16 and tilelang.dtypes.float16 == "float16"
print("right", T.float16)
"""


def test_a_program_that_imports_tilelang_runs_as_it_is(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "tilewright.compat.tilelang", str(file), "an argument"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "right float16\n", done.stderr


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_of_the_table_is_imported(name):
    parent, _, last = f"{tilelang.__name__}.{name}".rpartition(".")
    before = getattr(__import__(parent, fromlist=["x"]), "__dict__", {}).get(last)
    assert before is None or isinstance(before, ModuleType) or name in ("env", "language.allocate"), (
        "a module in place of a word"
    )
    module = __import__(f"{tilelang.__name__}.{name}", fromlist=["x"])
    with pytest.raises((AttributeError, TilewrightError)):
        module.no_such_name()


@pytest.mark.parametrize(
    "asked, meant",
    [
        ("c", "cpu"), ("llvm -mcpu=skylake", "cpu"), ("cpu", "cpu"), ("cpu -arch=avx2", "cpu -arch=avx2"), ({"kind": "c"}, "cpu"),
        ('{"kind": "llvm", "mtriple": "x"}', "cpu"), ("cuda", "cuda"), ("cuda -keys=cuda,gpu -arch=sm_90", "cuda -arch=sm_90a"),
        ({"kind": "cuda", "arch": "sm_80", "max_num_threads": 1024}, "cuda -arch=sm_80"), (Target("cuda -arch=sm_80"), "cuda -arch=sm_80"),
        ("nvidia/nvidia-a100", "cuda -arch=sm_80"), (Target({"kind": "c"}), "cpu"), ("cutedsl", "cuda"), ({"kind": "hip", "mcpu": "gfx942"}, "hip -arch=gfx942"),
    ],
)  # fmt: skip
def test_targets_by_all_their_spellings(asked, meant):
    assert request(asked) == meant
    assert str(Target(asked)) == str(Target(str(Target(asked))))


def test_the_environment_has_the_default(monkeypatch):
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", '{"kind": "c"}')
    assert request(None) == request("auto") == "cpu"
    with pytest.raises(InvalidUse, match="no target 'webgpu'"):
        request("webgpu")
    assert determine_target("cuda -arch=sm_90", return_object=True).kind.name == "cuda"


def test_a_function_changes_the_text_that_is_compiled():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                A[i] = 40.0

    @tilelang.jit(target="c")
    def directly(A):
        A: T.Tensor[[8], T.float32]
        B = T.empty([8], T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = A[i] + 40.0
        return B

    seen = []

    @tilelang.engine.register_c_postproc_callback
    def change(code, target):
        seen.append(target.kind.name)
        return code.replace("40", "41")

    try:
        a = np.zeros(8, np.float32)
        tilelang.compile(main, target="c")(a)
        b = directly(a)
    finally:
        tilelang.engine._CHANGES.clear()
    assert seen == ["cpu", "cpu"] and (a == 41).all() and (b == 82).all()
    artifact = tilelang.lower(main, target="cuda -arch=sm_90")
    assert (
        "main" in artifact.kernel_source
        and artifact.params[0].shape == (8,)
        and artifact.params[0].torch_dtype() is torch.float32
    )


def test_automatic_inputs_are_small():
    @T.prim_func
    def main(
        A: T.Tensor((64, 8), "float16"),
        B: T.Tensor((64,), "int8"),
        C: T.Tensor((64,), "uint8"),
        D: T.Tensor((64,), "float8_e4m3fn"),
    ):
        with T.Kernel(1, threads=32):
            A[0, 0] = 1

    kernel = tilelang.compile(main, target="c")
    a, b, c, d = kernel.get_profiler().arguments()
    assert a.abs().max() <= 1 < 64 * a.abs().max() and a.dtype is torch.float16 and d.dtype is torch.float8_e4m3fn
    assert set(b.tolist()) == {-2, -1, 0, 1, 2} and set(c.tolist()) == {0, 1, 2}
    a, b, *_ = kernel.get_profiler(tilelang.TensorSupplyType.One).arguments()
    assert (a == 1).all() and (b == 1).all()


def test_close_tensors():
    from tilewright.compat.tilelang.utils.tensor import torch_assert_close

    one = torch.ones(100)
    other = one.clone()
    other[3] = 2
    assert torch_assert_close(one, other, max_mismatched_ratio=0.01)
    with pytest.raises(ResultsDiffer, match=r"1 of 100 elements differ, where 0 may; at \(3,\)"):
        torch_assert_close(one, other)
    with pytest.raises(AssertionError, match="dtype"):
        torch_assert_close(one, one.half())


def test_facts_of_a_device():
    from tilewright.compat.tilelang.carver.arch import driver

    assert driver.get_max_dynamic_shared_size_bytes() > 48 * 1024 and driver.get_num_sms() > 0
