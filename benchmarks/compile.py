"""What compiling costs: lowering, NVRTC, the cold total, and a warm start from the cache on disk.  No GPU is needed.

    python benchmarks/compile.py

Milliseconds, the median of several runs, each in a fresh process and measured after the imports; processor time, which a
busy machine does not lengthen.  The last lines are the size of the package and what its extra ``cuda`` brings.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
KERNELS = ("gemm", "attention")
ARCHITECTURES = ("sm_80", "sm_90a")
ROUNDS = 3


def make(kernel: str, architecture: str):
    """Compile one kernel, text and machine code."""
    import numpy as np

    sys.path.insert(0, str(REPOSITORY / "tests" / "unit" / "cuda" / "programs"))
    from cuda_gemm import matmul, on

    from tilewright.kernels.attention import flash_attention

    target = on(architecture, matmul if kernel == "gemm" else flash_attention)
    size = (4096, 4096) if kernel == "gemm" else (4, 32, 4096, 128)
    given = [np.lib.stride_tricks.as_strided(np.zeros(1, np.float16), size, [0] * len(size))] * (2 + (kernel != "gemm"))
    given = [type("Shape", (), {"shape": one.shape, "dtype": one.dtype})() for one in given]
    options = {"block": (128, 128, 64), "threads": 256, "num_stages": 3} if kernel == "gemm" else {"dtype": "float16"}
    target.direct.names("tensor")

    started = time.process_time()
    made = target.compile(*given, **options)
    lowered = time.process_time()
    made.resources()
    return lowered - started, time.process_time() - lowered


def measured(kernel: str, architecture: str, cache: str, compiled: str) -> tuple[float, float]:
    """Seconds of lowering and of the rest in a process of its own, with a directory as the cache, and one for Python's."""
    command = [sys.executable, __file__, kernel, architecture]
    environment = {
        **os.environ, "TILEWRIGHT_CACHE_DIR": cache, "PYTHONPATH": str(REPOSITORY), "PYTHONPYCACHEPREFIX": compiled,
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    lowering, rest = json.loads(done.stdout.splitlines()[-1])
    return lowering, rest


def main() -> None:
    """Print the table; Python's own compiled files are warm, as those of an installed package are."""
    with tempfile.TemporaryDirectory() as compiled, tempfile.TemporaryDirectory() as cache:
        measured(KERNELS[0], ARCHITECTURES[0], cache, compiled)
        table(compiled)


def table(compiled: str) -> None:
    print("| | lowering | NVRTC | cold total | warm start from disk |\n| --- | --- | --- | --- | --- |")
    for kernel in KERNELS:
        for architecture in ARCHITECTURES:
            cold, warm = [], []
            for _ in range(ROUNDS):
                with tempfile.TemporaryDirectory() as cache:
                    cold.append(measured(kernel, architecture, cache, compiled))
                    warm.append(sum(measured(kernel, architecture, cache, compiled)))
            lowering, rest = (statistics.median(part) * 1e3 for part in zip(*cold))
            again = statistics.median(warm) * 1e3
            total = lowering + rest
            print(f"| {kernel}, {architecture} | {lowering:.0f} | {rest:.0f} | {total:.0f} | {again:.0f} |", flush=True)
    package = REPOSITORY / "tilewright"
    size = sum(path.stat().st_size for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    print(f"\npackage: {size / 1e6:.2f} MB")
    brought = re.search(r"^cuda = (\[.*?\])", (REPOSITORY / "pyproject.toml").read_text(), re.M | re.S)
    print("extra cuda:", brought[1] if brought else "nothing")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(make(*sys.argv[1:])))
    else:
        main()
