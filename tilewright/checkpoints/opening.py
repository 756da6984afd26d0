"""Opening a checkpoint, whatever holds it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints.bounds import is_file, is_named, read_json
from tilewright.checkpoints.directory import (
    HQQS_OWN,
    INDEX,
    SINQS_OWN,
    Checkpoint,
    GGUFCheckpoint,
    arrays_of,
    config_of,
    open_files,
)
from tilewright.errors import InvalidCheckpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a safetensors or GGUF file, or a directory of safetensors files with or without an index.

    Raises
    ------
    InvalidCheckpoint : there is no such file, a shard is missing, damaged or not what the index says.
    """
    path = Path(path)
    if is_file(path) and path.suffix == ".gguf":
        return GGUFCheckpoint(path)
    if is_file(path) and path.suffix in (".bin", ".pt", ".pth", ".ckpt"):
        raise InvalidCheckpoint(
            f"{path} is a pickle, which may run code",
            hint="save the model again as safetensors (safe_serialization=True)",
        )
    if is_file(path):
        return open_files([path])
    if not path.is_dir():
        raise InvalidCheckpoint(f"there is no checkpoint {path}", hint="a safetensors file, or a directory of them")
    found = sorted(path.glob("*.safetensors"))
    index, whole = path / INDEX, path / "model.safetensors"
    if not is_named(index):
        if not found and is_file(path / HQQS_OWN):
            return TorchCheckpoint(path / HQQS_OWN, config_of(path))
        if not found:
            raise InvalidCheckpoint(f"{path} holds no safetensors file", hint=_what_else(path))
        # Beside transformers' file lie others for other libraries, adapters, variants.
        return open_files([whole] if whole in found else found)
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise InvalidCheckpoint(f"{index} has no weight_map")
    shards = sorted({str(name) for name in where.values()})
    for shard in shards:
        if Path(shard).name != shard or not is_file(path / shard):
            raise InvalidCheckpoint(f"{path} lacks the shard {shard} that its index names")
    made = open_files([path / shard for shard in shards])
    if is_named(path / SINQS_OWN):
        made.add(dict(arrays_of("", read_json(path / SINQS_OWN))))
    for name, shard in where.items():
        if name not in made:
            raise InvalidCheckpoint(f"{shard} of {path} lacks {name}, which the index says is in it")
    return made


def _what_else(path: Path) -> str:
    """What a directory without safetensors files holds, and what to do with it."""
    pickled = [file.name for file in sorted(path.iterdir()) if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
    if pickled:
        return f"{pickled[0]} is a pickle, which may run code: save the model again with safe_serialization=True"
    gguf = [file.name for file in sorted(path.glob("*.gguf"))]
    return f"name the file itself: {path / gguf[0]}" if gguf else "a safetensors or GGUF file, or a directory of shards"


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
        else:
            self._tensors.update(arrays_of(name, value))

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
