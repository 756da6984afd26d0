"""``python -m docs.error_pages``: writes docs/errors.md, every class of error with a mistake that raises it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import os
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / "unit" / room) for room in ("errors", "language"))]

import mistakes_of_runs as runs  # noqa: E402
from mistakes_in_calls import CALLS  # noqa: E402
from mistakes_in_indices import INDICES  # noqa: E402
from mistakes_in_names import NAMES  # noqa: E402
from mistakes_in_statements import STATEMENTS  # noqa: E402
from mistakes_in_values import VALUES  # noqa: E402
from mistakes_of_functions import WHOLE  # noqa: E402
from mistakes_of_the_direct_style import DIRECT_STYLE  # noqa: E402

import tilewright  # noqa: E402
from docs.language_pages import code  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402

PAGE = ROOT / "docs" / "errors.md"

SECTIONS = {
    "Calls of kernels": runs.CALLS,
    "Kernels that are compiled": runs.COMPILATIONS,
    "Kernels that run in the interpreter or the emulator": runs.RUNS,
    "Weights and checkpoints": runs.WEIGHTS,
    "This computer and the tools": runs.MACHINES,
}
"""Examples that are run to get their messages, by the section that they stand in."""

HEAD = """# Errors

Every mistake raises a subclass of `tilewright.TilewrightError`. A message says what is wrong, shows
your line with a caret where a line is at fault, and says what to write instead. `error.message`,
`error.span` and `error.hint` hold the three parts. Some classes are also Python's own, such as
`ValueError` or `TypeError`, so that general code catches them as well.

Where the message shows your line, the frames of the compiler are left out of the traceback.
`python -X dev` keeps them.

This page has every class, with a mistake that raises it and what is said of it. It is made by
`python -m docs.error_pages`, which makes the mistakes; a test does so too.

Four classes only group others. `TilewrightError` is all of them, `AuthorError` what is wrong in a
kernel's source, `ArgumentError` what is wrong with a call, and `ExecutionError` what the interpreter
catches while a kernel runs.
"""


def classes() -> dict[str, list[type[TilewrightError]]]:
    """All subclasses by name."""
    for module in pkgutil.walk_packages(tilewright.__path__, "tilewright."):
        if not module.name.startswith(("tilewright.hf", "tilewright.__main__")):
            importlib.import_module(module.name)
    found: dict[str, list[type[TilewrightError]]] = {}
    waiting = [TilewrightError]
    while waiting:
        one = waiting.pop()
        found.setdefault(one.__name__, [])
        if one not in found[one.__name__]:
            found[one.__name__].append(one)
            waiting += one.__subclasses__()
    return found


def of_sources() -> dict[str, tuple[str, str]]:
    """Mistakes in a kernel's source: the first example of each class, and its message."""
    found: dict[str, tuple[str, str]] = {}
    for statements, message in [one for table in (CALLS, VALUES, NAMES, INDICES, STATEMENTS) for one in table.values()]:
        found.setdefault(message.strip().partition(":")[0], (statements.strip("\n"), message.strip("\n")))
    for text, message in [*WHOLE.values(), *DIRECT_STYLE.values()]:
        found.setdefault(message.strip().partition(":")[0], (text.strip("\n"), message.strip("\n")))
    return found


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """A folder of its own, and the environment as it was afterwards."""
    before, place = dict(os.environ), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(place)
            os.environ.clear()
            os.environ.update(before)


def said(text: str) -> tuple[str, str]:
    """What an example raises: the class's name, and the message as a terminal shows it."""
    from mistakes_of_runs import PREAMBLE

    with elsewhere() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names: dict[str, object] = {"__name__": "example"}
        for name, part in (("before/kernel.py", PREAMBLE.lstrip()), ("kernel.py", f"{text.strip()}\n")):
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(part, encoding="utf-8")
            linecache.checkcache()
            try:
                with contextlib.redirect_stderr(None):
                    exec(compile(part, str(file), "exec", dont_inherit=True), names)
            except TilewrightError as error:
                return type(error).__name__, str(error).replace(f"{folder}{os.sep}", "").replace("before/", "").replace(
                    str(folder), "..."
                )
    raise AssertionError(f"nothing is wrong with\n{text}")


def meaning(name: str, found: dict[str, list[type[TilewrightError]]]) -> str:
    """The first paragraph of the docstrings of a class."""
    return "\n".join(code((inspect.getdoc(one) or "").partition("\n\n")[0]) for one in found[name])


def entry(name: str, example: str, message: str, found: dict[str, list[type[TilewrightError]]]) -> str:
    lines = [f"(error-{name})=", "", f"### {name}", "", meaning(name, found), ""]
    shown = message.removeprefix(f"{name}: ")
    return "\n".join([*lines, "```python", example.strip("\n"), "```", "", "```text", shown, "```", ""])


def page() -> str:
    """The whole page."""
    found = classes()
    sources = of_sources()
    parts = [HEAD]
    for title, examples in SECTIONS.items():
        parts.append(f"## {title}\n")
        if title == "Calls of kernels":
            parts.append(
                f"Examples but those of kernels' sources find this:\n\n```python\n{runs.PREAMBLE.strip()}\n```\n"
            )
        for name in sorted(examples):
            raised, message = said(examples[name])
            assert raised == name, f"the example of {name} raises {raised}: {message}"
            parts.append(entry(name, examples[name], message, found))
    parts.append("## In a kernel's source\n")
    parts.append(
        "Examples that are no whole functions stand in this kernel, from line 8 on:\n\n```python\n"
        f"import tilewright.language as T\n{kernel()}```\n"
    )
    taken = {name for examples in SECTIONS.values() for name in examples}
    parts += [entry(name, *sources[name], found) for name in sorted(set(sources) - taken)]
    parts.append("## Without an example\n\nNo short program raises these on every computer.\n")
    rows = [
        f"| `{name}` | {' '.join(meaning(name, found).split())} | {advice} |"
        for name, advice in sorted(runs.NO_EXAMPLE.items())
    ]
    parts.append("\n".join(["| class | what it means | what to do |", "| --- | --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def kernel() -> str:
    from test_errors import KERNEL

    return KERNEL


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
