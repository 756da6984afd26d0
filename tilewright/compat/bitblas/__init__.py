"""Stands in for ``import bitblas``: its names, its packed bytes, its operators, served by tilewright.

::

    from tilewright.compat import bitblas

Differences that programs can see: results are right for every type (see ``docs/from_bitblas.md``), sums are taken in
float32 or int32 whatever ``accum_dtype`` says, nothing is tuned before it is asked for, every number of rows is served,
a processor will do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tilewright.compat.bitblas import base, cache, common, module, ops, quantization, testing, tvm, utils
from tilewright.compat.bitblas.base import OptimizeStrategy, TransformKind
from tilewright.compat.bitblas.cache import global_operator_cache
from tilewright.compat.bitblas.ops.general_flashatten import FlashAtten, FlashAttenConfig
from tilewright.compat.bitblas.ops.general_matmul import Matmul, MatmulConfig
from tilewright.compat.bitblas.ops.general_matmul_splitk import MatmulConfigWithSplitK, MatmulWithSplitK
from tilewright.compat.bitblas.utils import auto_detect_nvidia_target
from tilewright.errors import WrongArgumentKind

__version__ = "0.1.0.post1"

__all__ = [
    "FlashAtten", "FlashAttenConfig", "Linear", "Matmul", "MatmulConfig", "MatmulConfigWithSplitK", "MatmulWithSplitK",
    "OptimizeStrategy", "TransformKind", "apply_transform_on_input",
    "auto_detect_nvidia_target", "base", "cache", "common", "global_operator_cache", "module", "ops", "quantization",
    "set_debug_level", "set_log_level", "testing", "tvm", "utils",
]  # fmt: skip

if TYPE_CHECKING:
    from tilewright.compat.bitblas.nn import Linear

logger = logging.getLogger("bitblas")


def __getattr__(name: str) -> Any:
    if name == "Linear":  # torch comes with it
        return module.Linear
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_log_level(level: str | int = "WARNING") -> None:
    """Which messages of this module are shown: a name in any case, or a number of `logging`; names that it lacks are
    INFO, as in BitBLAS. Raises WrongArgumentKind for what is neither a name nor a number."""
    if isinstance(level, bool) or not isinstance(level, (str, int)):
        raise WrongArgumentKind.given(level, "a log level", hint="'DEBUG', or logging.DEBUG")
    found = logging.getLevelName(level.upper()) if isinstance(level, str) else level
    logger.setLevel(found if isinstance(found, int) else logging.INFO)


set_debug_level = set_log_level


def apply_transform_on_input(inputs: Any, index_map: Any) -> object:
    """Move the elements of a tensor whose last two dimensions are a tile to the places that ``index_map(row, column)``,
    a function or an object with ``map_indices``, says: from a new place to the old one."""
    rows, columns = inputs.shape[-2:]
    moved = inputs.clone() if hasattr(inputs, "clone") else inputs.copy()
    where = getattr(index_map, "map_indices", None) or (lambda place: index_map(*place))
    for row in range(rows):
        for column in range(columns):
            old_row, old_column = (int(index) for index in where([row, column]))
            moved[..., row, column] = inputs[..., old_row, old_column]
    return moved
