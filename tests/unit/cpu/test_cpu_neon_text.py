"""The text for machines that are not here compiles with a compiler that knows them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.targets.cpu.compiler import DEVICE


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize(("arch", "cpu"), [("neon", "generic"), ("neon-dotprod", "generic+dotprod+fullfp16")])
def test_quantised_product_for_arm(tmp_path: Path, arch: str, cpu: str):
    program = quant_matmul.trace(64, 256, "uint4", 128, 8)
    (tmp_path / "kernel.c").write_text(
        tilewright.compile(program, target=f"cpu -arch={arch}").get_kernel_source(),
    )
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-gnu",
        f"-mcpu={cpu}",
        "-std=gnu11",
        "-O0",
    ]
    made = subprocess.run(
        [*command, f"-I{DEVICE}", "-c", "kernel.c", "-o", "kernel.o"], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
