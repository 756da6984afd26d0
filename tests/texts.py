"""The texts of the repository's programs, so that a change that should leave them alone can show that it does.

``python tests/texts.py FILE`` writes a digest of each text, or compares with those that are there::

    python tests/texts.py /tmp/texts.json      # before
    python tests/texts.py /tmp/texts.json      # after: what differs is named, and the exit status is 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), *(str(TESTS / "unit" / room) for room in ("emulator", "cuda/programs", "kernels"))]

from repository_programs import ALL  # noqa: E402

from tilewright.options import override  # noqa: E402


def texts() -> dict[str, str]:
    """A digest of the text of every program on each of its architectures, comments left out: they name the author's lines."""
    found = {}
    with override(cache=False):
        for program in ALL:
            for architecture in program.architectures:
                kernel, _ = program.make(architecture)
                lines = [
                    line
                    for line in kernel.get_kernel_source().split("\n")
                    if not line.lstrip().startswith(("//", "#line"))
                ]
                found[f"{program.name} on {architecture}"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return found


def main(path: Path) -> int:
    found = texts()
    if not path.exists():
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} texts")
        return 0
    before = json.loads(path.read_text())
    changed = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
    print(*changed, f"{len(changed)} of {len(before.keys() | found.keys())} texts differ", sep="\n")
    return bool(changed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    sys.exit(main(parser.parse_args().file))
