"""``python -m tilewright.compat.tilelang PROGRAM [arguments]``: run a program whose ``import tilelang`` gives
tilewright.

``-m package.module`` runs a module, ``-m pytest tests`` tests for example.  Processes that it starts are answered, too.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tilewright.compat.tilelang.modules import CHILDREN, answer_tilelang


def main(arguments: list[str]) -> None:
    """Run what the arguments name, with those behind it as its own."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(
            "usage: python -m tilewright.compat.tilelang PROGRAM [arguments]\n       python -m "
            "tilewright.compat.tilelang -m MODULE [arguments]"
        )
        raise SystemExit(0 if arguments else 2)
    answer_tilelang()
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{CHILDREN}{os.pathsep}{inherited}" if inherited else str(CHILDREN)
    sys.path.append(str(CHILDREN))  # workers of pytest get this list
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
