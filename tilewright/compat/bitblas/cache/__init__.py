"""BitBLAS's operator cache."""

from tilewright.compat.bitblas.cache.operator import (
    OperatorCache,
    get_database_path,
    global_operator_cache,
    load_global_ops_cache,
    set_database_path,
)

__all__ = [
    "OperatorCache", "get_database_path", "global_operator_cache", "load_global_ops_cache", "set_database_path",
]  # fmt: skip
