"""Defects of the compiler that were mended, brought back one by one: after how many programs does the generator find each?

Every file of ``defects/`` is a patch of today's sources that takes one remedy away.  A copy of the sources gets it, and programs of
`tile_fuzz` (all families in turn) are judged in it until one fails that agrees without the patch: those of which it changes a text
(`screened`).  The generator knows none of them.

    python tests/fuzz/defects.py                         # all of them, with a table
    python tests/fuzz/defects.py 01 13 --workers 14 --seconds 500 --log blocks.jsonl   # goes on where it was stopped
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tile_fuzz import ALL

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BLOCK = 20
"""Programs that are judged together."""


def patches(wanted: list[str]) -> list[Path]:
    """The patches whose names begin with one of some words; all of them where none is given."""
    return [
        path for path in sorted((HERE / "defects").glob("*.patch")) if not wanted or path.name.startswith(tuple(wanted))
    ]


def copied(patch: Path | None, into: Path, rooms: Sequence[str] = ("tests/fuzz", "tests/gpu")) -> Path:
    """The sources and the generator in a directory of their own, with the defect where one is given."""
    for name in ("tilewright", *rooms):
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", into)
    if patch is not None:
        apply(patch.read_text(), into)
    return into


def changes_text(patch: Path) -> bool:
    """Whether a defect can show only in programs whose emitted text it changes: one of a header, or of what runs, can in any."""
    files = re.findall(r"^\+\+\+ b/tilewright/(.*)$", patch.read_text(), re.MULTILINE)
    return all(file.endswith(".py") and file.split("/")[0] in ("ir", "language", "passes", "targets") for file in files)


def apply(patch: str, tree: Path) -> None:
    """Put a patch into a tree, wherever its lines stand by now; no other tool need be there."""
    for file, text in patched(patch, tree).items():
        file.write_text(text)


def patched(patch: str, tree: Path) -> dict[Path, str]:
    """What a patch makes of the files of a tree."""
    made = {}
    for part in patch.split("diff --git ")[1:]:
        file = tree / re.findall(r"^\+\+\+ b/(.*)$", part, re.MULTILINE)[0]
        text = file.read_text()
        for hunk in re.split(r"^@@.*@@.*\n", part, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
            if text.count(old) != 1:
                raise ValueError(f"{file} has changed: these lines are there {text.count(old)} times\n{old}")
            text = text.replace(old, new)
        made[file] = text
    return made


def noticed(patch: Path, room: Path) -> bool:
    """Whether the test that a patch names in its first line fails with it: where it passes, the patch is no defect any more."""
    words = patch.read_text().splitlines()[0].removeprefix("Shown by: ").split()
    tree = copied(patch, room, ("tests",))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode > 1:
        raise ValueError(f"{patch.name}: {' '.join(words)} did not run\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.returncode != 0  # a division of the least integer by -1 kills the process


# A hunt ------------------------------------------------------------------------------------------


class Hunt:
    """Blocks of programs, each judged with every defect that no program before it has shown.

    Parameters
    ----------
    room : a directory for the trees and for what is known of programs.
    known : a line for each block that was done, here or in a hunt before.
    """

    def __init__(self, room: Path, known: Path | None, options: argparse.Namespace) -> None:
        self.room, self.known, self.options = room, known, options
        self.end = time.monotonic() + options.seconds
        self.mended = copied(None, room / "mended")
        self.found: dict[str, tuple[int, str]] = {}
        self.done: dict[str, set[int]] = {}
        self.lock, self.making = threading.Lock(), {block: threading.Lock() for block in range(self.blocks)}
        for record in map(json.loads, known.read_text().splitlines() if known and known.exists() else []):
            self.note(**record)

    @property
    def blocks(self) -> int:
        return -(-self.options.programs // BLOCK)

    def note(self, defect: str, block: int, number: int | None = None, how: str = "") -> None:
        """Remember what became of a block with a defect."""
        with self.lock:
            self.done.setdefault(defect, set()).add(block)
            if number is not None and number < self.found.get(defect, (1 << 60, ""))[0]:
                self.found[defect] = number, how

    def judge(self, patch: Path, block: int) -> None:
        """One block with one defect."""
        defect = patch.stem
        shown = self.found.get(defect, (1 << 60, ""))[0] <= block * BLOCK
        if shown or block in self.done.get(defect, ()) or time.monotonic() > self.end:
            return
        tree = self.room / defect
        with self.lock:
            if not tree.exists():
                copied(patch, tree)
        first = self.options.first + block * BLOCK
        how = ["--all"]
        if changes_text(patch):
            how = ["--than", str(self.digests(block)), "--defect", defect]
            if not Path(how[1]).exists():  # stopped by the time
                return
        number, said, begin = None, "", first
        while begin < first + BLOCK and number is None:
            records = self.ask(tree, begin, first + BLOCK - 1, *how)
            failing = [(seed, one) for seed, one in records or () if one["kind"] in ("fails", "invalid")]
            if not failing:
                break
            seed, one = failing[0]
            without = self.ask(self.mended, seed, seed, "--all")  # is it the defect's doing?
            if without and without[0][1]["kind"] in ("agrees", "refused"):
                number, said = seed - self.options.first + 1, f"{one['way']}: {one['what'][:90]}"
            begin = seed + 1
        if records is None:  # stopped by the time
            return
        record = {"defect": defect, "block": block, "number": number, "how": said}
        self.note(**record)
        if self.known is not None:
            with self.lock, self.known.open("a") as out:
                out.write(json.dumps(record) + "\n")

    def digests(self, block: int) -> Path:
        """What the mended tree makes of a block's programs, as digests of its texts."""
        file = self.room / f"digests-{block}"
        with self.making[block]:
            if not file.exists():
                first = self.options.first + block * BLOCK
                records = self.ask(self.mended, first, first + BLOCK - 1)
                if records is not None:
                    file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return file

    def ask(self, tree: Path, first: int, last: int, *how: str) -> list[Any] | None:
        """What a tree says of some programs; None where the time was over."""
        command = [sys.executable, str(tree / "tests/fuzz/screened.py"), str(first), str(last), *how]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        left = max(1.0, self.end - time.monotonic())
        with subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as ran:
            try:
                said, mistakes = ran.communicate(timeout=left)
            except subprocess.TimeoutExpired:  # its own processes too, which hold what it says
                os.killpg(ran.pid, signal.SIGKILL)
                ran.communicate()
                return None
        if "Traceback" in mistakes:  # the hunt goes on with the others, and this block another time
            print(f"{tree.name}, seeds from {first} on: {mistakes[-2000:]}", file=sys.stderr)
            return None
        return [json.loads(line) for line in said.splitlines()]

    def table(self, chosen: list[Path]) -> str:
        """A line for each defect: after how many programs it was found, or how many did not show it."""
        lines = []
        for patch in chosen:
            count = next(block for block in range(self.blocks + 1) if block not in self.done.get(patch.stem, ()))
            number, how = self.found.get(patch.stem, (None, ""))
            said = f"not within {count * BLOCK}" if number is None else str(number)
            lines.append(f"| {patch.stem} | {said} | {how.replace('|', '/')} |")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defects", nargs="*", help="beginnings of their names")
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=ALL, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e6, help="for all of it")
    parser.add_argument("--log", type=Path, help="of blocks; those that it holds are left out")
    options = parser.parse_args()
    chosen = patches(options.defects)
    with tempfile.TemporaryDirectory() as room, ThreadPoolExecutor(options.workers) as pool:
        hunt = Hunt(Path(room), options.log, options)
        for first in range(
            0, hunt.blocks, options.workers
        ):  # so many blocks at once: all begin with digests of their own
            blocks = range(first, min(first + options.workers, hunt.blocks))
            if any(patch.stem not in hunt.found for patch in chosen) and time.monotonic() < hunt.end:
                list(pool.map(hunt.digests, blocks))
                list(pool.map(lambda task: hunt.judge(*task), [(patch, b) for b in blocks for patch in chosen]))
        print(hunt.table(chosen))
    return int(any(patch.stem not in hunt.found for patch in chosen))


if __name__ == "__main__":
    sys.exit(main())
