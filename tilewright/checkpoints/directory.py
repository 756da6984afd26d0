"""A checkpoint of one or more files as one mapping from names to arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.checkpoints.bounds import is_named, json_value, read_json
from tilewright.checkpoints.gguf import DENSE, GGUFFile, GGUFTensor
from tilewright.checkpoints.safetensors import SafetensorsFile
from tilewright.errors import InvalidCheckpoint

INDEX = "model.safetensors.index.json"
"""The file that says which shard holds which tensor."""

HQQS_OWN = "qmodel.pt"
"""What HQQ saves a model as, and SINQ."""

SINQS_OWN = f"{INDEX}.meta.json"
"""Where SINQ saves what is no tensor of its weights."""

_LONGEST_LIST = 64
"""Lists of metadata longer than this are vocabularies."""


class Checkpoint(Mapping[str, np.ndarray]):
    """Tensors of all shards.

    Attributes
    ----------
    directory : where the shards and their companions (configuration, tokenizer) are.
    shards : names of tensors by file name, in the order of the files.
    config : the contents of ``config.json``, with the quantisation's own file where there is one; empty without.
    own : what the quantiser's own file says beside ``config.json``, as `quantisers_own`.
    blocks : tensors of GGUF files whose array is the bytes of blocks of numbers, by name.
    made : tensors that are made of others as they are read: of which, and by what.
    """

    own: Mapping[str, object] = {}
    blocks: Mapping[str, GGUFTensor] = {}
    made: Mapping[str, tuple[list[tuple[str, str]], Callable[..., np.ndarray]]] = {}

    def __init__(self, directory: Path, files: list[Path], config: dict[str, Any]) -> None:
        self.directory, self.config = directory, config
        self._files = {path.name: SafetensorsFile(path) for path in files}
        self.shards: dict[str, list[str]] = {name: list(file) for name, file in self._files.items()}
        self._home: dict[str, str] = {}
        self._last = "", np.empty(0)
        for shard, names in self.shards.items():
            for name in names:
                if name in self._home:
                    raise InvalidCheckpoint(f"{name} is both in {self._home[name]} and in {shard} of {directory}")
                self._home[name] = shard

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.made:
            return self._files[self._home[name]][name]
        if self._last[0] != name:
            parts, make = self.made[name]
            self._last = name, make(name, *(self._files[shard][part] for shard, part in parts))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)

    def remake(self, made: Mapping[str, tuple[str, ...]], make: Callable[..., np.ndarray]) -> None:
        """Have tensors in the place of others from now on, in the file of the first of these.

        Parameters
        ----------
        made : names of what each is made of.
        make : of its name and of the arrays of these, as often as it is read.
        """
        gone = {part for parts in made.values() for part in parts}
        places = {name: [(self._home[part], part) for part in parts] for name, parts in made.items()}
        self.made = {**self.made, **{name: (parts, make) for name, parts in places.items()}}
        for shard, names in self.shards.items():
            there = (name for name, parts in places.items() if parts[0][0] == shard)
            self.shards[shard] = [*(name for name in names if name not in gone), *there]
        self._home = {name: shard for shard, names in self.shards.items() for name in names}

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Have more tensors, as if they were in the first file.  Raises InvalidCheckpoint where one is there."""
        first = next(iter(self.shards))
        for name, array in arrays.items():
            if name in self._home:
                raise InvalidCheckpoint(f"{name} is both in {self._home[name]} and in {SINQS_OWN} of {self.directory}")
            self.made = {**self.made, name: ([], functools.partial(lambda found, _: found, array))}
        self.shards[first] += arrays
        self._home |= dict.fromkeys(arrays, first)

    @property
    def metadata(self) -> dict[str, str]:
        """The texts in the heads of all files."""
        return {key: text for file in self._files.values() for key, text in file.metadata.items()}

    def shard_of(self, name: str) -> str:
        """The file that a tensor is in."""
        return self._home[name]

    def release(self) -> None:
        """Give back the memory of what was read so far: files are mapped again when they are next needed."""
        self._files = {name: SafetensorsFile(file.path) for name, file in self._files.items()}


class GGUFCheckpoint(Checkpoint):
    """A GGUF file as a checkpoint of one shard, its metadata (without the tokenizer's) as ``config["gguf"]``.

    Raises
    ------
    InvalidCheckpoint : see `GGUFFile`.
    """

    def __init__(self, path: Path) -> None:
        file = GGUFFile(path)
        self.directory, self._file = path, file
        self.shards = {path.name: list(file)}
        short = {key: v for key, v in file.metadata.items() if not isinstance(v, list) or len(v) <= _LONGEST_LIST}
        self.config = {"gguf": short}
        self._home = dict.fromkeys(file, path.name)
        self._files = {}
        self.blocks = {name: file[name] for name in file if file.type_of(name) not in DENSE}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file[name].data

    def release(self) -> None:
        """One shard: nothing is read after it."""


def arrays_of(name: str, value: object) -> Iterator[tuple[str, np.ndarray]]:
    """The values in a table of tables as arrays, by their names with dots: numbers, texts (as bytes) and sizes, and of
    anything else but None an empty one, so that its name is known."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from arrays_of(f"{name}.{key}".lstrip("."), inner)
    elif isinstance(value, str):
        yield name, np.frombuffer(value.encode(), np.uint8)
    elif (isinstance(value, float) and math.isfinite(value)) or (isinstance(value, int) and abs(value) < 1 << 63):
        yield name, np.asarray(value)
    elif isinstance(value, (tuple, list)) and all(type(one) is int and abs(one) < 1 << 63 for one in value):
        yield name, np.asarray(value, np.int64)
    elif value is not None:
        yield name, np.empty(0)


def open_files(files: list[Path]) -> Checkpoint:
    """The tensors of some safetensors files of one directory, and of no others there."""
    made = Checkpoint(files[0].parent, files, config_of(files[0].parent))
    made.own = quantisers_own(files[0].parent)
    if len(files) == 1 and QUANTIZATION in made.metadata:
        made.config = {**made.config, **_of_the_file(files[0], made.metadata[QUANTIZATION])}
    return made


QUANTIZATION = "quantization_config"


def _of_the_file(file: Path, text: str) -> dict[str, Any]:
    """What a single file of ours says in its head of its quantisation; nothing where other libraries wrote it."""
    try:
        said = json_value(text)
    except ValueError as error:
        raise InvalidCheckpoint(f"{file}: the {QUANTIZATION} in its head {error}") from None
    ours = isinstance(said, dict) and said.get("quantized_by") == "tilewright"
    return {QUANTIZATION: said} if ours else {}


def config_of(directory: Path) -> dict[str, Any]:
    """``config.json``; older quantisers write their own beside it: GPTQ's ``quantize_config.json``, AWQ's
    ``quant_config.json``, modelopt ``hf_quant_config.json``."""
    config = read_json(directory / "config.json") if is_named(directory / "config.json") else {}
    own = {} if "quantization_config" in config else quantisers_own(directory)
    return {**config, "quantization_config": own} if own else config


def quantisers_own(directory: Path) -> dict[str, object]:
    """What a quantiser's own file beside a configuration says, in the words of a configuration; nothing where there is
    no such file."""
    for file, method in QUANTISERS_OWN.items():
        if is_named(directory / file):
            said = read_json(directory / file)
            if method == "modelopt":
                inner = said.get("quantization")
                return {**(inner if isinstance(inner, dict) else {}), "quant_method": method}
            keys = _AWQ_KEYS if method == "awq" else {}
            return {"quant_method": method, **{keys.get(key, key): value for key, value in said.items()}}
    return {}


QUANTISERS_OWN = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""What says beside a configuration how weights are quantised, and whose word it is."""

_AWQ_KEYS = {"w_bit": "bits", "q_group_size": "group_size"}
