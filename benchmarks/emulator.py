"""What the emulator takes: a tile of a product and a tile of attention for Hopper, with and without compilation and checks.

    PYTHONPATH=. python benchmarks/emulator.py

Wall-clock seconds of whole calls of `Kernel.emulate`, the emitted text compiled anew for "first" (the emulator's core is built before);
medians of five where nothing is compiled.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.emulator.toolchain import core_path
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.matmul import matmul
from tilewright.options import options, override
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import JITFunction

REPEATS = 5


def product() -> tuple[Kernel, tuple[Any, ...]]:
    """A tile of 128 x 128 x 64 with K = 512."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 512)).astype(ml_dtypes.bfloat16) for _ in range(2))
    jitted = JITFunction(matmul.direct.function, "cuda -arch=sm_90a", None)
    sizes = {"dtype": "bfloat16", "block_M": 128, "block_N": 128, "block_K": 64, "threads": 256, "transpose_B": True}
    return jitted.compile(a, b, **sizes), (a, b)


def attention() -> tuple[Kernel, tuple[Any, ...]]:
    """A tile of 64 queries against 512 keys, heads of 64."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((1, 1, 64, 64)).astype(np.float16)
    k, v = (rng.standard_normal((1, 1, 512, 64)).astype(np.float16) for _ in range(2))
    return JITFunction(flash_attention.direct.function, "cuda -arch=sm_90a", None).compile(q, k, v, dtype="float16"), (
        q,
        k,
        v,
    )


def seconds(kernel: Kernel, arguments: tuple[Any, ...], **how: Any) -> float:
    started = time.perf_counter()
    kernel.emulate(*arguments, **how)
    return time.perf_counter() - started


def main() -> None:
    core_path(options().compiler)
    with tempfile.TemporaryDirectory() as fresh, override(cache_dir=Path(fresh)):
        for name, make in (
            ("product 128 x 128 x 64, K = 512", product),
            ("attention 64 x 512, heads of 64", attention),
        ):
            kernel, arguments = make()
            first = seconds(kernel, arguments)
            cached = statistics.median(seconds(kernel, arguments) for _ in range(REPEATS))
            seconds(kernel, arguments, check=False)
            unchecked = statistics.median(seconds(kernel, arguments, check=False) for _ in range(REPEATS))
            times = cached / unchecked
            print(
                f"{name}: first {first:.2f} s, again {cached:.2f} s, without checks {unchecked:.3f} s ({times:.1f} times)"
            )


if __name__ == "__main__":
    main()
