"""BitBLAS's constants."""

from __future__ import annotations

from tilewright.options import options

BITBLAS_DEFAULT_CACHE_PATH = str(options().cache_dir / "bitblas")

MAX_ERROR_MESSAGE_LENGTH = 500
