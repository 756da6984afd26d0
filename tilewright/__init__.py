"""tilewright: kernels over tiles, compiled in pure Python, and mixed-precision matmuls written with them."""

__version__ = "0.1.0"

from tilewright.errors import TilewrightError
from tilewright.ir.dtypes import dtype, pack, unpack
from tilewright.jit import compile, jit
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.profiler import do_bench

__all__ = [
    "Kernel",
    "TilewrightError",
    "__version__",
    "compile",
    "do_bench",
    "dtype",
    "jit",
    "pack",
    "unpack",
]
