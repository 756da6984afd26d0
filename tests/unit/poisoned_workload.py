"""What a process with a cache does: kernels of two factors on a CPU, lowered for a GPU, and emulated where asked.  Prints its results."""

import os
import sys

if "BEGUN" in os.environ:  # who interrupts this process waits until its signals are Python's
    open(os.environ["BEGUN"], "w").close()

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.tuning import Database

ROWS = 8


def scaled(factor):
    @T.prim_func
    def scale(X: T.Tensor((ROWS, 32), "float32"), Y: T.Tensor((ROWS, 32), "float32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(ROWS, 32):
                Y[i, j] = X[i, j] * factor

    return scale


def main() -> None:
    x = np.arange(ROWS * 32, dtype=np.float32).reshape(ROWS, 32)
    found = []
    for factor in (2.0, 3.0):
        found.append(tilewright.compile(scaled(factor), out_idx=-1, target="cpu")(x))
        kernel = tilewright.compile(scaled(factor), out_idx=-1, target="cuda -arch=sm_80")
        found.append(
            kernel.emulate(x, check=False) if "emulate" in sys.argv else kernel.get_kernel_source().count(f"{factor}")
        )
    database = Database()
    for key in ("a", "b"):
        chosen = database.get(key)
        assert chosen in (None, {"key": key}), chosen
        database.put(key, {"key": key})
    print([float(np.sum(one)) for one in found])


if __name__ == "__main__":
    main()
