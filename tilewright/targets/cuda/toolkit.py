"""Texts of authors that speak CUDA's own names: ``half``, ``__nv_bfloat16``, ``#include <cuda_fp16.h>``.

The device vocabulary needs no toolkit; such a text does, and gets its pointers and small floats as the toolkit types
them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tilewright.errors import CompilerNotFound
from tilewright.ir import Function, buffers

HEADER = "tilewright_toolkit.cuh"

_OURS = re.compile(r"\btw::|\bTW_DEVICE\b")
_THEIRS = re.compile(
    r"\b(half|half2|half_t|__half\w*|bfloat16_t|(__)?nv_bfloat16\w*|fp8_e[45]_t|__nv_fp8\w*|uchar|ushort|uint)\b"
    r"|#\s*include\s*<cuda"
)

_TEMPLATE = re.compile(r"\btemplate\s*<")


def wheels() -> Iterator[Path]:
    """The folders of NVIDIA's packages of the package index."""
    for entry in sys.path:
        package = Path(entry or ".") / "nvidia"
        if package.is_dir():
            yield from sorted(package.iterdir())


def named_toolkits() -> Iterator[Path]:
    """Toolkits that the environment names."""
    return (Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))


def uses_toolkit(function: Function) -> bool:
    """Whether a text of the author's has CUDA's names, or templates that may compute with small floats, and none of the
    vocabulary's names."""
    text = "\n".join(function.attribute("sources", ()))
    theirs = _THEIRS.search(text) or (
        _TEMPLATE.search(text) and any(one.dtype.is_float and one.dtype.bits < 32 for one in buffers(function))
    )
    return bool(theirs) and not _OURS.search(text)


def include_directory() -> Path:
    """Where CUDA's headers are.

    Raises
    ------
    CompilerNotFound : they are not on this machine.
    """
    for folder in _folders():
        if (folder / "cuda_fp16.h").is_file() and (folder / "cuda_fp8.h").is_file():
            return folder
    raise CompilerNotFound(
        "the program's own text has names of CUDA's headers (cuda_fp16.h), which are not on this machine",
        hint="pip install nvidia-cuda-runtime, or set CUDA_HOME to a toolkit",
    )


def _folders() -> Iterator[Path]:
    """Toolkits that were named, then wheels, then where toolkits are by custom."""
    yield from (root / "include" for root in named_toolkits())
    yield from (part / "include" for part in wheels())
    yield Path("/usr/local/cuda/include")
    for entry in sys.path:
        yield Path(entry or ".") / "triton" / "backends" / "nvidia" / "include"
