"""Libraries that a program need not have: each is imported when something of it is first asked for."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Library:
        """Stands for a library until somebody asks for what it has."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            known = self._name in sys.modules  # what torch's compiler follows finds it there
            return getattr(sys.modules[self._name] if known else importlib.import_module(self._name), name)

    torch = _Library("torch")


def is_compiling() -> bool:
    """Whether torch's compiler follows what runs."""
    loaded = sys.modules.get("torch")
    return loaded is not None and loaded.compiler.is_compiling()


def is_mlx(value: object) -> bool:
    """Whether `value` is an array of MLX's, without importing it."""
    return type(value).__module__ == "mlx.core"
