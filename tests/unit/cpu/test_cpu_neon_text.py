"""The text for machines that are not here compiles with a compiler that knows them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_programs import program

from tilewright.ir.nodes import Function
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cpu.arch import arch
from tilewright.targets.cpu.compiler import DEVICE
from tilewright.targets.cpu.target import CPU

ROWS = """
def f(X: float32[n], B: bfloat16[n], I: int8[37], Y: float32[n], J: int8[37], *, n: int32) -> (Y, J):
    with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
        for i in parallel(n):
            Y[i] = X[i] + float32(B[i])
        for i in parallel(37):
            J[i] = I[i] + I[i]
"""


def compile_for(source: str, tmp_path: Path, target: str, cpu: str) -> None:
    (tmp_path / "kernel.c").write_text(source)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, f"-mcpu={cpu}", "-std=gnu11", "-O0"]
    made = subprocess.run(
        [*command, f"-I{DEVICE}", "-c", "kernel.c", "-o", "kernel.o"], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


def text_for(function: Function, name: str) -> str:
    return Kernel(function, CPU, arch({"arch": name})).get_kernel_source()


ARM = [("neon", "generic"), ("neon-dotprod", "generic+dotprod+fullfp16")]


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize(("name", "cpu"), ARM)
def test_quantised_product_for_arm(tmp_path: Path, name: str, cpu: str) -> None:
    """Codes of a table, which a machine with dot products looks up in a register."""
    function = quant_matmul.trace(64, 256, "uint4", 128, 8, codebook=tuple(range(-9, 7))).function
    source = text_for(function, name)
    assert ("tw_look_up_u8x16(" in source) == ("dotprod" in name)
    compile_for(source, tmp_path, "aarch64-linux-gnu", cpu)


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize(
    ("target", "name", "cpu"), [("aarch64-linux-gnu", *ARM[0]), ("x86_64-linux-gnu", "avx2", "haswell")]
)
def test_ends_of_rows(tmp_path: Path, target: str, name: str, cpu: str) -> None:
    source = text_for(program(ROWS), name)
    assert "tw_store_first_f32x" in source and "tw_store_first_i8x" in source
    compile_for(source, tmp_path, target, cpu)
