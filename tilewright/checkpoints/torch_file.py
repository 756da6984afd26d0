"""HQQ's ``qmodel.pt``: a pickle, read by torch's own reader of tensors, which runs nothing that is in it.

The file is a table of layers, each a table of tensors and plain values. It becomes what transformers writes of the same
model as safetensors: ``layer.W_q``, ``layer.nbits``, ...
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints.directory import Checkpoint
from tilewright.errors import InvalidCheckpoint


class TorchCheckpoint(Checkpoint):
    """The tensors of such a file.

    Raises
    ------
    InvalidCheckpoint : torch is not there, the file holds anything but tables of tensors and values, or is damaged.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        try:
            import torch
        except ImportError:
            raise InvalidCheckpoint(
                f"{path} is a file of torch, which is not installed", hint="pip install torch"
            ) from None
        try:
            held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # a stranger's bytes: torch's reader has no class of errors of its own
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise InvalidCheckpoint(
                f"{path} cannot be read without running what is in it ({said[0][:120]})",
                hint="save the model again as safetensors",
            ) from None
        self.directory, self.config, self._files = path.parent, config, {}
        self._tensors: dict[str, np.ndarray] = {}
        self._take(path, "", held)
        self.shards = {path.name: list(self._tensors)}
        self._home = dict.fromkeys(self._tensors, path.name)

    def _take(self, path: Path, name: str, value: object) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self._take(path, f"{name}.{key}".lstrip("."), inner)
        elif type(value).__module__.startswith("torch") and hasattr(value, "numpy"):
            self._tensors[name] = _array(value)
        elif isinstance(value, str):
            self._tensors[name] = np.frombuffer(value.encode(), np.uint8)
        elif (
            isinstance(value, (bool, int, float))
            and (isinstance(value, float) or abs(value) < 1 << 63)
            and math.isfinite(value)
        ):
            self._tensors[name] = np.asarray(value)
        elif isinstance(value, (tuple, list)) and all(type(one) is int for one in value):
            self._tensors[name] = np.asarray(value, np.int64)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name]

    @property
    def metadata(self) -> dict[str, str]:
        return {}

    def release(self) -> None:
        """One shard, which is mapped."""


def _array(tensor: Any) -> np.ndarray:
    """A tensor as an array, of bfloat16 too, which NumPy knows by another package."""
    import torch

    plain = tensor.detach().contiguous()
    if plain.dtype is torch.bfloat16:
        return np.asarray(plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(plain.numpy())
