"""What programs ask of ``bitblas.tvm``: the architecture in a target's name, and a directory for a while."""

from __future__ import annotations

import os
import re
import tempfile
import types
from pathlib import Path

from tilewright.compat.bitblas.utils import target_name


class Target:
    """A target by its name, ``"cuda -arch=sm_80"`` for example.

    Attributes
    ----------
    arch : what follows ``-arch=``, or that of a device that TVM has a name for (``"nvidia/nvidia-a100"``); empty where
        neither says it.
    kind : an object whose ``name`` is the first word.
    """

    def __init__(self, name: object) -> None:
        self.text = str(name)
        words = target_name(self.text).split() or [""]
        self.kind = types.SimpleNamespace(name=words[0])
        found = re.search(r"-arch=(\S+)", target_name(self.text))
        self.arch = found[1] if found else ""

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class _TemporaryDirectory:
    """A directory that is deleted with this object, or behind a ``with``.

    Attributes
    ----------
    path, temp_dir : where it is.
    """

    def __init__(self, custom_path: str | None = None) -> None:
        self._directory = None if custom_path else tempfile.TemporaryDirectory(prefix="bitblas-")
        self.temp_dir: str = custom_path or self._directory.name  # type: ignore[union-attr]
        Path(self.temp_dir).mkdir(exist_ok=True)

    @property
    def path(self) -> str:
        """Where it is."""
        return self.temp_dir

    def relpath(self, name: str) -> str:
        """A path in it."""
        return str(Path(self.temp_dir) / name)

    def listdir(self) -> list[str]:
        """What is in it."""
        return os.listdir(self.temp_dir)

    def remove(self) -> None:
        """Delete it now."""
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> _TemporaryDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


target = types.SimpleNamespace(Target=Target)
contrib = types.SimpleNamespace(utils=types.SimpleNamespace(tempdir=_TemporaryDirectory))
