"""``tilewright convert CHECKPOINT``: other libraries' quantised checkpoints, or dense ones by a scheme, as ours."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.cli.terminal import Terminal
from tilewright.conversion import convert_checkpoint
from tilewright.conversion.checkpoint import SKIPPED
from tilewright.errors import InvalidCheckpoint


def run_convert(given: argparse.Namespace, terminal: Terminal) -> int:
    """Convert, and say what was done."""
    source = Path(given.checkpoint)
    if not source.resolve().name or not given.checkpoint:
        raise InvalidCheckpoint(
            f"{given.checkpoint!r} names no checkpoint", hint="a safetensors or GGUF file, or a directory of shards"
        )
    if not given.output and source.name in ("", ".."):
        beside = f"../{_beside(source).name}" if source.name == "" else str(_beside(source))
        raise InvalidCheckpoint(
            f"{given.checkpoint!r} says where the checkpoint is and not what it is called: its result would be "
            "outside of this folder",
            hint=f"-o PATH says where, {beside} for example",
        )
    output = Path(given.output) if given.output else _beside(source)
    done = convert_checkpoint(source, output, given.scheme, skip=given.skip or SKIPPED, overwrite=given.overwrite)
    terminal.write(str(done.choices))
    terminal.write(
        f"{terminal.paint(str(done.path), 'bold')}: {done.weights} weights, {done.kept} other tensors, "
        f"{_size(done.bytes_before)} became {_size(done.bytes_after)}"
    )
    return 0


def _beside(source: Path) -> Path:
    """The name of a result where none is given: that of the source with an addition, in the same folder."""
    named = source if source.name not in ("", "..") else source.resolve()
    stem = named.stem if source.suffix in (".safetensors", ".gguf") else named.name
    ending = ".safetensors" if source.suffix == ".safetensors" else ""
    return named.with_name(f"{stem}-tilewright{ending}")


def _size(count: int) -> str:
    for unit, bytes_each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_each:
            return f"{count / bytes_each:.3g} {unit}"
    return f"{count} bytes"
