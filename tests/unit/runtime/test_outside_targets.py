"""A target from outside of the package: nobody knows the state of its files, so that no text of it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir import Function
from tilewright.machine.arch import Arch
from tilewright.options import override
from tilewright.targets.base import TARGETS, Source
from tilewright.targets.hip.target import HIP


def doubled(A: Any) -> Any:
    A: T.Tensor((64,), "float32")
    B = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[i] * 2
    return B


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the target puts before its texts: as if its author edited it."""
    words: list[str] = []

    def emit(function: Function, arch: Arch) -> Source:
        source = HIP.emit(function, arch)
        return replace(source, text=f"// {words[-1]}\n{source.text}")

    TARGETS["outside"] = replace(HIP, name="outside", emit=emit)
    yield words
    del TARGETS["outside"]


def test_an_edited_target_is_asked_again(said: list[str], tmp_path: Path) -> None:
    """The text of the first version came back from disk, whatever its author changed."""
    for words in ("first", "second"):
        said.append(words)
        with override(cache_dir=tmp_path, verify=False):
            kernel = tilewright.jit(target="outside -arch=gfx942")(doubled).compile(np.zeros(64, np.float32))
        assert kernel.get_kernel_source().startswith(f"// {words}\n")
