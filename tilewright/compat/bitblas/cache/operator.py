"""BitBLAS's operator cache: operators by their configuration, in memory and as files.

A directory on disk holds one directory an operator: its configuration, what tuning chose, its source.  Compiled
kernels are not in it: tilewright keeps those itself, under keys of everything that can change them.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import fields
from pathlib import Path

from tilewright.checkpoints.bounds import read_json
from tilewright.checkpoints.whole import whole_directory
from tilewright.compat.bitblas.common import BITBLAS_DEFAULT_CACHE_PATH
from tilewright.compat.bitblas.ops.general_matmul import Matmul, MatmulConfig
from tilewright.compat.bitblas.ops.general_matmul_splitk import MatmulConfigWithSplitK, MatmulWithSplitK
from tilewright.compat.bitblas.utils import name_of
from tilewright.errors import InvalidCheckpoint, TilewrightError
from tilewright.texts import write_text
from tilewright.tuning import Database

_database = [BITBLAS_DEFAULT_CACHE_PATH]
_RECORD = "operator.json"


def get_database_path() -> str:
    """Where operators are saved."""
    return _database[0]


def set_database_path(path: str) -> None:
    """Save operators elsewhere."""
    _database[0] = str(path)


class OperatorCache:
    """Operators by their configuration."""

    def __init__(self) -> None:
        self.cache: dict[MatmulConfig, Matmul] = {}
        self._lock = threading.RLock()

    def add(self, config: MatmulConfig, op_inst: Matmul) -> None:
        """Keep an operator."""
        with self._lock:
            self.cache[config] = op_inst

    def get(self, config: MatmulConfig) -> Matmul | None:
        """The operator of a configuration, None where there is none."""
        with self._lock:
            return self.cache.get(config)

    def exists(self, config: MatmulConfig) -> bool:
        """Whether there is an operator of a configuration."""
        with self._lock:
            return config in self.cache

    def clear(self) -> None:
        """Forget all operators."""
        with self._lock:
            self.cache.clear()

    def size(self) -> int:
        """How many operators there are."""
        with self._lock:
            return len(self.cache)

    def save_into_database(self, database_path: str | None = None, target: object = None) -> None:
        """Write every operator (those for `target`, where one is given) to a directory of its own. Each appears there
        whole or not at all, and replaces an earlier one: other processes may do the same. Raises InvalidCheckpoint
        where the place cannot be written to."""
        with self._lock:
            operators = list(self.cache.items())
        for config, operator in operators:
            if target is None or _directory(target) == _directory(operator):
                _save(Path(database_path or get_database_path()) / _directory(operator), config, operator)

    def load_from_database(self, database_path: str | None = None, target: object = None) -> None:
        """Add the operators that were saved for a target, by default the best machine here. Raises InvalidCheckpoint
        for a record that cannot be read."""
        root = Path(database_path or get_database_path())
        for record in sorted(root.glob(f"{_directory(target)}/*/{_RECORD}")):
            try:
                saved = read_json(record)
                divided = "k_split" in saved["config"]
                config = (MatmulConfigWithSplitK if divided else MatmulConfig)(**saved["config"])
                operator = (MatmulWithSplitK if divided else Matmul)(
                    config, saved["name"], saved["target"], enable_tuning=False, from_database=True
                )
                operator.tuned = dict(saved["tuned"])
                for key, options in operator.tuned.items():
                    Database().put(key, options)
            except (ValueError, KeyError, TypeError, AttributeError, TilewrightError) as error:
                raise InvalidCheckpoint(f"{record} holds no operator: {error!r}", hint="delete its directory") from None
            self.add(config, operator)


def _directory(target: object) -> str:
    """A name for a target, or for that of an operator."""
    if isinstance(target, Matmul):
        return f"{target.arch.target}-{target.arch.name}"
    probe = Matmul(MatmulConfig(M=1, N=16, K=16), target=target)
    return f"{probe.arch.target}-{probe.arch.name}"


def _save(root: Path, config: MatmulConfig, operator: Matmul) -> None:
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    record = {
        "config": given, "name": operator.name, "target": name_of(operator.target, operator.arch),
        "tuned": operator.tuned,
    }  # fmt: skip
    text = json.dumps(record, indent=2)
    place = root / hashlib.sha256(repr(config).encode()).hexdigest()
    try:
        with whole_directory(place) as room:
            write_text(room / _RECORD, text + "\n")
            write_text(room / "source.txt", operator.get_source())
    except OSError as error:
        raise InvalidCheckpoint(f"{place} cannot be written: {error.strerror}") from None


global_operator_cache = OperatorCache()


def load_global_ops_cache(database_path: str | None = None, target: object = None) -> OperatorCache:
    """Fill the cache that all share from a directory."""
    global_operator_cache.load_from_database(database_path, target)
    return global_operator_cache
