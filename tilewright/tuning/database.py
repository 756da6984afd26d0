"""What tuning found, on disk: one small file a key, written whole or not at all, so that processes may share it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.cache import CacheUnavailable, cache_directory, get_text, put_text
from tilewright.texts import utf8


class Database:
    """Options by key.

    Parameters
    ----------
    directory : None for ``tuning`` in the cache directory, and for this process alone where caching is off.

    Notes
    -----
    A key is a text that says all that the choice depends on: the product, the machine, the version of the kernel.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory

    def _path(self, key: str) -> Path:
        directory = self.directory or cache_directory() / "tuning"
        return directory / f"{hashlib.sha256(utf8(key)).hexdigest()[:32]}.json"

    def get(self, key: str) -> dict[str, Any] | None:  # of JSON
        """What was found for a key; None for nothing, or for a file that cannot be read."""
        try:
            found = json.loads(get_text(self._path(key)))
            chosen = found["options"] if found["key"] == key else None
        except (CacheUnavailable, OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return chosen if isinstance(chosen, dict) else None

    def put(self, key: str, chosen: Mapping[str, object]) -> None:
        """Remember options for a key, in place of earlier ones; a directory that cannot be written is left alone."""
        with contextlib.suppress(OSError, CacheUnavailable):
            put_text(self._path(key), json.dumps({"key": key, "options": dict(chosen)}))
