"""A GPU's kernel where there is no GPU: its text, and a run of that text under the emulator."""

import numpy as np
from add import add

if __name__ == "__main__":
    A, B = np.random.default_rng(0).standard_normal((2, 1500), dtype="float32")
    for target in ("cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"):
        kernel = add.on(target).compile(A, B)
        assert np.array_equal(kernel.emulate(A, B), A + B)
        print(target, "runs", len(kernel.get_kernel_source().splitlines()), "lines")
    print(add.on("cuda -arch=sm_90a").compile(A, B).get_kernel_source()[-900:])
