"""Defects of the compiler that were mended, brought back one by one: after how many programs does the generator find each?

Every file of ``defects/`` is a patch of today's sources that takes one remedy away.  A copy of the sources gets it, and programs of
`tile_fuzz` are judged in it until one fails that agrees without the patch.  The generator knows none of them.

    python tests/fuzz/defects.py                         # all of them, with a table
    python tests/fuzz/defects.py 01 13 --programs 5000 --workers 8 --first 100000
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
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def patches(wanted: list[str]) -> list[Path]:
    """The patches whose names begin with one of some words; all of them where none is given."""
    return [
        path for path in sorted((HERE / "defects").glob("*.patch")) if not wanted or path.name.startswith(tuple(wanted))
    ]


def copied(patch: Path | None, into: Path) -> Path:
    """The sources and the generator in a directory of their own, with the defect where one is given."""
    for name in ("tilewright", "tests/fuzz", "tests/gpu"):
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


def judged(tree: Path, first: int, last: int, log: Path, options: argparse.Namespace) -> dict[int, dict[str, str]]:
    """What a tree makes of programs, up to the first that fails."""
    command = [
        sys.executable,
        str(tree / "tests/fuzz/tile_fuzz.py"),
        str(first),
        str(last),
        "--first",
        "--log",
        str(log),
    ]
    command += ["--workers", str(options.workers), "--seconds", str(options.seconds)]
    command += [word for target in options.target or () for word in ("--target", target)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
    return {record["seed"]: record for record in map(json.loads, log.read_text().splitlines())} if log.exists() else {}


def found(patch: Path, options: argparse.Namespace) -> tuple[int | None, int, str]:
    """The number of programs until the defect shows (None: it did not), how many were judged, and how it shows."""
    with tempfile.TemporaryDirectory() as folder:
        tree, mended = copied(patch, Path(folder) / "with"), copied(None, Path(folder) / "without")
        log, known = Path(folder) / "with.log", 0
        first, last = options.first, options.first + options.programs - 1
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            records = judged(tree, first, last, log, options)
            failing = [record for record in records.values() if record["kind"] in ("fails", "invalid")]
            for record in failing[known:]:  # is it the defect's doing?
                without = judged(
                    mended, record["seed"], record["seed"], Path(folder) / f"without {record['seed']}.log", options
                )
                if without.get(record["seed"], {}).get("kind") in ("agrees", "refused"):
                    return record["seed"] - first + 1, len(records), f"{record['way']}: {record['what'][:90]}"
            if len(failing) == known:
                break
            known = len(failing)
        return None, len(records), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defects", nargs="*", help="beginnings of their names")
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for each defect")
    parser.add_argument("--target", action="append", help="instead of those that a seed draws")
    parser.add_argument("--log", type=Path, help="a line for each defect; those that it holds are left out")
    options = parser.parse_args()
    known = options.log.read_text() if options.log is not None and options.log.exists() else ""
    missed = 0
    for patch in patches(options.defects):
        if f"| {patch.stem} |" in known:
            continue
        number, judged_count, how = found(patch, options)
        missed += number is None
        line = (
            f"| {patch.stem} | {f'not within {judged_count}' if number is None else number} | {how.replace('|', '/')} |"
        )
        print(line, flush=True)
        if options.log is not None:
            with options.log.open("a") as out:
                out.write(line + "\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
