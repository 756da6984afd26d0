"""Opening a checkpoint, whatever holds it."""

from __future__ import annotations

from pathlib import Path

from tilewright.checkpoints.bounds import is_file, is_named, read_json
from tilewright.checkpoints.directory import HQQS_OWN, INDEX, Checkpoint, GGUFCheckpoint, config_of, open_files
from tilewright.checkpoints.torch_file import TorchCheckpoint
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
