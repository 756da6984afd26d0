"""tilewright: kernels over tiles, compiled in pure Python, and mixed-precision matmuls written with them."""

__version__ = "0.1.0"
