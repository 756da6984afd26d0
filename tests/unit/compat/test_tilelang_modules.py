"""TileLang's modules: one copy of each under every name, what they say of machines, and a program that runs as it is."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import tilewright
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


FOUND = """
import importlib, importlib.util, sys
import tilelang, tvm.tir, tvm.tirx.stmt_functor, tilelang.intrinsics
for name in ("tilelang", "tilelang.intrinsics", "tilelang.language", "tvm", "tvm.tir", "tvm.tirx.stmt_functor"):
    assert importlib.util.find_spec(name) is sys.modules[name].__spec__ is not None, name
import torch._dynamo
print("right")
"""


def test_answered_modules_are_found_by_whoever_asks_for_them(tmp_path):
    """torch's compiler asks whether there is a tvm, and ended in a ValueError where one was answered."""
    file = tmp_path / "program.py"
    file.write_text(FOUND)
    command = [sys.executable, "-m", "tilewright.compat.tilelang", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr


STARTS = """
import subprocess, sys
import multiprocessing as processes

def of_a_spawned_process():
    import tilelang
    assert tilelang.cdiv(3, 2) == 2

if __name__ == "__main__":
    code = "import tvm, tilelang; from tvm import tir; assert tilelang.tvm is tvm and tir.const(3, 'int32') is not None"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    child = processes.get_context("spawn").Process(target=of_a_spawned_process)
    child.start()
    child.join(100)
    assert child.exitcode == 0
    print("right")
"""


def test_processes_that_a_program_starts_are_answered_too(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(STARTS)
    done = subprocess.run(
        [sys.executable, "-m", "tilewright.compat.tilelang", str(file)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "right\n", done.stderr


def test_workers_of_pytest_are_answered(tmp_path):
    """They get the list of folders of the process that starts them, and nothing else of it."""
    (tmp_path / "test_one.py").write_text("import tilelang\n\n\ndef test_it():\n    assert tilelang.cdiv(3, 2) == 2\n")
    command = [
        sys.executable,
        "-m",
        "tilewright.compat.tilelang",
        "-m",
        "pytest",
        "-q",
        "-n",
        "1",
        "-p",
        "no:cacheprovider",
    ]
    env = os.environ | {"PYTHONPATH": str(Path(tilewright.__file__).parents[1])}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


WORDS_OF_TVM = """
import tvm, torch, tilelang, tilelang.language as T
import tvm.tir as same
from tvm import DataType, IRModule, arith, te, tir
from tvm.script import ir as I
from tvm.tir import Buffer, BufferLoad, IndexMap, PrimExpr, stmt_functor

def of_a_type(region: tir.BufferRegion, value: "tvm.tir.PrimExpr") -> tvm.IRModule: ...

@tilelang.jit(out_idx=-1, target="c")
def codes(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "uint8"), B: T.Tensor((n,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                two = (A[i] >> tir.const(2, "uint8")) & tir.const(3, T.uint8)
                inner = tir.all(A[i] > tir.IntImm("int32", 5), A[i] < 200, tir.Not(A[i] == 7))
                few = tir.any(A[i] == 3, tir.EQ(A[i], 4))
                few = T.And(few, T.Or(T.Not(A[i] != 3), T.EQ(A[i], T.IntImm("int32", 4))))
                B[i] = T.Select(inner, two.astype("int32"), -1) + tir.if_then_else(few, 100, 0) + tir.FloorMod(T.Cast("int32", A[i]), 5)
    return main

assert tvm is tilelang.tvm and tir is same and not isinstance(3, tir.BufferLoad)
found = codes(256)(torch.arange(256, dtype=torch.uint8)).tolist()
for i, value in enumerate(found):
    assert value == (i // 4 % 4 if 5 < i < 200 and i != 7 else -1) + 100 * (i in (3, 4)) + i % 5
try:
    tvm.relax.build()
except Exception as error:
    print("right", "tvm.relax.build" in str(error))
"""


def test_words_of_tvm(tmp_path):
    """``tir.const`` gave the language's `T.const`, most modules and classes of TVM's did not import, and ``T.And`` was
    no word."""
    file = tmp_path / "program.py"
    file.write_text(WORDS_OF_TVM)
    command = [sys.executable, "-W", "ignore", "-m", "tilewright.compat.tilelang", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "right True\n", done.stderr


NAMED_AS_MODULES = [
    (parent, tail)
    for parent, _, tail in (name.rpartition(".") for name in MODULES)
    for source in MODULES.get(parent, ())
    if not isinstance(vars(importlib.import_module(source)).get(tail, sys), ModuleType)
]


@pytest.mark.parametrize(("parent", "tail"), NAMED_AS_MODULES)
def test_a_module_below_takes_no_name_away(parent, tail):
    """As `tools.Analyzer`, a class, when `tools.Analyzer`, a module, was imported."""
    above = importlib.import_module(f"tilewright.compat.tilelang.{parent}")
    importlib.import_module(f"tilewright.compat.tilelang.{parent}.{tail}")
    assert not isinstance(getattr(above, tail), ModuleType)


def test_numbers_are_of_the_classes_of_constants():
    from tilewright.compat.tilelang.expressions import FloatImm, IntImm

    assert (
        isinstance(IntImm("int32", 5), IntImm)
        and isinstance(3, IntImm)
        and isinstance(FloatImm("float32", 2.5), FloatImm)
    )
    assert not isinstance(True, IntImm) and not isinstance(2, FloatImm) and not isinstance(T.dynamic("n"), IntImm)


def test_some_modules_have_the_name_of_a_word():
    assert ("tools", "Analyzer") in NAMED_AS_MODULES


def test_modules_are_attributes_without_an_import():
    program = "import tilelang; assert tilelang.carver.arch.CUDA and tilelang.carver.template and tilelang.utils.target"
    command = [sys.executable, "-c", f"import tilewright.compat.tilelang.modules as m; m.answer_tilelang(); {program}"]
    assert subprocess.run(command, check=False).returncode == 0


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
