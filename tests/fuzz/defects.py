"""Defects of the compiler that were mended, brought back one by one: after how many programs does the generator find each?

Every file of ``defects/`` is a patch of today's sources that takes one remedy away.  Programs of `tile_fuzz` (all families in turn) are judged
with each in place until one fails that agrees without it: those of which it changes a text (`screened`, `looking`).  The generator knows none
of them.

    python tests/fuzz/defects.py                         # all of them, with a table
    python tests/fuzz/defects.py 01 13 --workers 14 --seconds 500 --log hunt.jsonl   # goes on where it was stopped
    python tests/fuzz/defects.py --seconds 0 --log hunt.jsonl                        # the table of a log
    python tests/fuzz/defects.py --patches FOLDER ...                                # other changes of the sources
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tile_fuzz import ALL, SLOW
from workers import Workers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOST = 1800.0
"""Seconds that one program may take, with all defects."""

LEFT = 15.0
"""Seconds that programs which were begun have when the time is over."""

KEPT = 2 * SLOW
"""Seconds that what was compiled stays on disk."""


def patches(wanted: list[str], folder: Path = HERE / "defects") -> list[Path]:
    """The patches of a folder whose names begin with one of some words; all of them where none is given."""
    return [path for path in sorted(folder.glob("*.patch")) if not wanted or path.name.startswith(tuple(wanted))]


def copied(patch: Path | None, into: Path, rooms: Sequence[str] = ("tests/fuzz", "tests/gpu")) -> Path:
    """The sources and the generator in a directory of their own, with the defect where one is given."""
    for name in ("tilewright", *rooms):
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", into)
    if patch is not None:
        apply(patch.read_text(), into)
    return into


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


def put_headers(patch: str, room: Path) -> None:
    """The folders of headers that a patch changes, with the change; nothing for one of Python's files."""
    for file, text in patched(patch, ROOT).items():
        folder = room / file.parent.relative_to(ROOT)
        if file.suffix != ".py":
            if not folder.exists():
                shutil.copytree(file.parent, folder)
            (folder / file.name).write_text(text)


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
    """Programs in turn, each judged with every defect that no program before it has shown.

    Parameters
    ----------
    chosen : the defects.
    log : a line for each program that was judged, here or in a hunt before.
    """

    def __init__(self, chosen: Sequence[str], log: Path | None, options: argparse.Namespace) -> None:
        self.chosen, self.log, self.options = chosen, log, options
        self.found: dict[str, tuple[int, str]] = {}
        self.done: dict[str, set[int]] = {defect: set() for defect in chosen}
        for record in map(json.loads, log.read_text().splitlines() if log and log.exists() else []):
            self.note(**record)

    def note(self, number: int, sought: Sequence[str], found: dict[str, str], changed: Sequence[str] = ()) -> None:
        """Remember what a program has shown of the defects that were sought in it; `changed` are those that it could have shown."""
        for defect in sought:
            self.done.setdefault(defect, set()).add(number)
        for defect, how in found.items():
            if number < self.found.get(defect, (1 << 60, ""))[0]:
                self.found[defect] = number, how

    def sought(self, number: int) -> tuple[str, ...]:
        """The defects that a program is still to be judged with."""
        return tuple(
            defect
            for defect in self.chosen
            if number not in self.done[defect] and number < self.found.get(defect, (1 << 60, ""))[0]
        )

    def go(self) -> None:
        """Judge programs until the time is over, or nothing is sought any more."""
        from looking import Task, look  # which asks this module for the patches

        end = time.monotonic() + self.options.seconds
        with tempfile.TemporaryDirectory() as name:
            room = Path(name)
            folder = self.options.patches
            for patch in patches([], folder):
                if patch.stem in self.chosen:
                    put_headers(patch.read_text(), room / patch.stem)

            def tasks() -> Iterator[Task]:
                for number in range(1, self.options.programs + 1):
                    if sought := self.sought(number):
                        yield Task(self.options.first + number - 1, sought, room, folder)

            with Workers(look, self.options.workers if self.options.seconds else 0, MOST) as workers:
                for task, result, reason in workers.results(tasks(), end, end + LEFT):
                    if result is None:
                        print(f"seed {task.seed}: {reason}", file=sys.stderr, flush=True)
                    found, changed = result or ({}, [])
                    number = task.seed - self.options.first + 1
                    record = {"number": number, "sought": task.sought, "found": found, "changed": changed}
                    self.note(**record)
                    if self.log is not None:
                        with self.log.open("a") as out:
                            out.write(json.dumps(record) + "\n")
                    _forget_old(room / "cache")

    def table(self) -> str:
        """A line for each defect: after how many programs it was found, or how many did not show it."""
        lines = []
        for defect in self.chosen:
            done = self.done[defect]
            count = next(number for number in range(self.options.programs + 1) if number + 1 not in done)
            number, how = self.found.get(defect, (None, ""))
            said = f"not within {count}" if number is None else str(number)
            lines.append(f"| {defect} | {said} | {how.replace('|', '/')} |")
        return "\n".join(lines)


def _forget_old(cache: Path) -> None:
    """Kernels of programs that were judged a while ago leave the disk, and compiled headers stay."""
    for kernel in cache.glob("v*/*/*/kernel.*"):
        try:
            if time.time() - kernel.stat().st_mtime > KEPT:
                shutil.rmtree(kernel.parent, ignore_errors=True)
        except FileNotFoundError:  # gone with its folder
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defects", nargs="*", help="beginnings of their names")
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=ALL, help="the first seed")
    parser.add_argument("--patches", type=Path, default=HERE / "defects", help="the folder of the defects")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e6, help="for all of it; 0 for the table alone")
    parser.add_argument("--log", type=Path, help="of programs; those that it holds are left out")
    options = parser.parse_args()
    hunt = Hunt([patch.stem for patch in patches(options.defects, options.patches)], options.log, options)
    hunt.go()
    print(hunt.table())
    return int(any(defect not in hunt.found for defect in hunt.chosen))


if __name__ == "__main__":
    sys.exit(main())
