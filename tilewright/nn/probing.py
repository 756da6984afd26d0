"""Where modules of strangers are tried out with a few numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Without gradients, on the processor and in float32, whatever torch's defaults are: transformers makes and loads a
    model while its type is the default one, in which the two sides of a comparison round to different numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(before)
