"""``python emulated_program.py PROGRAM``: a program of TileLang's kind whose kernels run as emulated texts for Hopper.

``--real-sizes`` compiles the kernels of its list ``REAL_SIZES`` instead, for tensors and tiles as models have them.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

os.environ["TILEWRIGHT_TARGET"] = "cuda -arch=sm_90a"

from tilewright.compat.tilelang.modules import answer_tilelang
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cuda.compiler import compile_text


def emulated(self: Kernel, *arguments: Any, **named: Any) -> Any:
    """What a call of a kernel does where there is no device."""
    return self.emulate(*self._binder.in_order(arguments, named))


if __name__ == "__main__":
    program, real = sys.argv[1], "--real-sizes" in sys.argv
    answer_tilelang()
    if not real:
        Kernel.__call__ = emulated  # type: ignore[method-assign]
        runpy.run_path(program, run_name="__main__")
    for name, make in runpy.run_path(program)["REAL_SIZES"] if real else ():
        kernel = make().kernel
        compile_text(kernel.get_kernel_source(), kernel.arch)
        print(name)
