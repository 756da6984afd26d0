"""Texts and calls of authors that speak CUDA's own names: ``half``, ``#include <cuda_fp16.h>``, ``__float2half_rz``.

The device vocabulary needs no toolkit; they do, and get pointers and small floats as the toolkit types them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tilewright.errors import CompilerNotFound
from tilewright.ir import Buffer, Call, Expr, Function, Region, buffers, find

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
    vocabulary's names; or whether a function with small floats is called that no text has."""
    text = "\n".join(function.attribute("sources", ()))
    theirs = _THEIRS.search(text) or (_TEMPLATE.search(text) and any(map(_is_small, buffers(function))))
    calls = (call for call in find(function, Call) if call.function == "call_extern")
    return (bool(theirs) or any(_is_of_toolkit(call, text) for call in calls)) and not _OURS.search(text)


def _is_of_toolkit(call: Call, text: str) -> bool:
    name, *given = call.arguments
    elsewhere = "::" in str(name) or re.search(rf"\b{name}\b", text)
    return not elsewhere and any(not isinstance(one, str) and _is_small(one) for one in (call, *given))


def _is_small(node: Buffer | Expr | Region) -> bool:
    return node.dtype.is_float and node.dtype.bits < 32


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
