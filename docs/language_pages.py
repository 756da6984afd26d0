"""``python -m docs.language_pages``: writes docs/language/, one page a subject, from the docstrings of `tilewright.language`."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "language")]

import word_examples  # noqa: E402

import tilewright.language as T  # noqa: E402
from tilewright.ir.dtypes import NAMES_ONLY  # noqa: E402
from tilewright.language.dtypes import NumberType  # noqa: E402

FOLDER = ROOT / "docs" / "language"
SUBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kernels": (
        "Kernels, grids and machines",
        ("kernel", "launches", "trace", "macro", "choices", "tile_schedulers", "direct"),
    ),
    "tensors": ("Tensors and sizes", ("tensors",)),
    "memory": ("Tiles and variables", ("memory", "reducers")),
    "tiles": (
        "Tile operators",
        ("tile_ops", "decoding", "reductions", "convolution", "sparse_products", "scaled_products"),
    ),
    "loops": ("Loops and branches", ("loops",)),
    "scalars": ("Scalars", ("math", "conversions", "operators", "directed_rounding", "vectors", "wide_words")),
    "atomics": ("Atomics", ("atomics",)),
    "threads": ("Threads and warps", ("warps", "thread_words", "matrix_words", "random_numbers")),
    "barriers": (
        "Barriers, warp specialisation and asynchronous copies",
        ("barriers", "warpgroups", "transfers", "roles", "schedules"),
    ),
    "hints": (
        "Hints, checks and foreign code",
        ("annotations", "layouts", "external", "source_kernels", "older_words"),
    ),
    "types": ("Number types", ()),
}
"""Pages: their titles, and the modules whose words they hold."""


def words() -> dict[str, tuple[Any, list[str]]]:
    """Every word under its own name, and the other names that it has."""
    found: dict[int, tuple[str, Any, list[str]]] = {}
    for name in dir(T):
        value = getattr(T, name)
        own = getattr(value, "__name__", name).rstrip("_")
        known = found.get(id(value))
        if known is None:
            found[id(value)] = (name, value, [])
        elif name == own:
            found[id(value)] = (name, value, [*known[2], known[0]])
        else:
            known[2].append(name)
    return {name: (value, sorted(others)) for name, value, others in found.values()}


def subject(value: Any) -> str:
    """The page that a word stands on."""
    if isinstance(value, NumberType):
        return "types"
    module = getattr(value, "__module__", None) or type(value).__module__
    last = module.rpartition(".")[2]
    return next((page for page, (_, modules) in SUBJECTS.items() if last in modules), "hints")


def machines(name: str) -> list[str]:
    """The machines that a word's example compiles for.

    The compiler is asked: it refuses by `MissingCapability` and its kin what a machine lacks.  Anything else is a mistake.
    """
    import tilewright
    from tilewright.errors import MissingCapability, NotAsynchronous
    from tilewright.passes.lower.lower_threads import NeedsWarps

    able = []
    for machine, target in word_examples.MACHINES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tilewright.compile(word_examples.program(name), target=target)
        except (MissingCapability, NeedsWarps, NotAsynchronous):
            continue
        able.append(machine)
    return able


def availability(name: str) -> str:
    """The line that says which machines have a word."""
    able = machines(name)
    if len(able) == len(word_examples.MACHINES):
        return "Everywhere."
    return f"On {', '.join(able)}."


def signature(name: str, value: Any) -> str:
    """How a word is written."""
    if not callable(value) or inspect.isclass(value):
        return f"T.{name}"
    try:
        found = inspect.signature(value)
    except ValueError:
        return f"T.{name}(...)"
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values() if p.name != "self"]
    text = str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<([\w.]+): .*?>", r"T.\1", text)
    return f"T.{name}{text}"


def body(text: str) -> str:
    """A docstring in NumPy's style as Markdown."""
    lines: list[str] = []
    for part in re.split(r"\n\n(?=(?:Parameters|Returns|Raises|Yields|Notes|Examples|Attributes)\n-+\n)", text):
        head = re.match(r"(\w+)\n-+\n", part)
        if head is None:
            lines += [code(part), ""]
        elif head[1] == "Examples":
            example = re.sub(r"^(>>>|\.\.\.) ?", "", part[head.end() :], flags=re.MULTILINE).replace(
                "     # doctest: +SKIP", ""
            )
            lines += ["```python", example.rstrip(), "```", ""]
        elif head[1] == "Notes":
            lines += [code(part[head.end() :]), ""]
        else:
            lines += [f"{head[1]}:", "", *items(part[head.end() :]), ""]
    return "\n".join(lines).rstrip() + "\n"


def items(text: str) -> list[str]:
    """The entries of a section, one a line."""
    entries: list[str] = []
    for line in text.split("\n"):
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line)
    made = []
    for entry in entries:
        names, colon, meaning = entry.partition(" : ")
        made.append(f"- `{names}`: {code(meaning)}" if colon else f"- {code(entry)}")
    return made


def code(text: str) -> str:
    """Double backquotes are Markdown's single ones; what would be markup otherwise is kept."""
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)


def section(name: str, value: Any, others: list[str]) -> str:
    """What a page says of a word."""
    # Sphinx tells no capitals apart: T.Cast is not T.cast.
    anchor = f"T.{name}" if name.islower() or name.lower() not in dir(T) else f"T.{name}-capital"
    lines = [f"({anchor})=", "", f"## T.{name}", "", "```text", signature(name, value), "```", ""]
    if others:
        lines += [f"Also written {', '.join(f'`T.{other}`' for other in others)}.", ""]
    lines.append(body(inspect.getdoc(value) or ""))
    if inspect.isroutine(value) and word_examples.lines_of(value):
        lines += [availability(name), ""]
    return "\n".join(lines)


def types_page(title: str, found: dict[str, tuple[Any, list[str]]]) -> str:
    """One table of all number types."""
    rows = []
    for name, (value, others) in found.items():
        record = value.record
        kind = "float" if record.is_float else "bool" if record.name == "bool" else "integer"
        limits = (
            f"{record.minimum:g} to {record.maximum:g}" if kind == "float" else f"{record.minimum} to {record.maximum}"
        )
        also = ", ".join(f"`T.{other}`" for other in others)
        rows.append(f"| `T.{name}` | {also} | {kind} | {record.bits} | {limits} |")
    head = "| name | also | kind | bits | minimum to maximum |\n| --- | --- | --- | --- | --- |"
    text = (
        "A type is written as a name of `T`, as a text (`\"float16\"`), or as NumPy's or torch's type.\n"
        "Called, it converts a scalar as `T.cast` does: `T.float16(x)`.\n"
        "Vectors are names with a count: `T.float32x4`.\n"
        f"A name alone, with which nothing computes, is {' and '.join(f'`T.{name}`' for name in NAMES_ONLY)}."
    )
    return f"# {title}\n\n{text}\n\n{head}\n" + "\n".join(rows) + "\n"


def pages() -> dict[str, str]:
    """Every page by its name."""
    by_page: dict[str, dict[str, tuple[Any, list[str]]]] = {page: {} for page in SUBJECTS}
    for name, (value, others) in words().items():
        by_page[subject(value)][name] = (value, others)
    made = {}
    for page, found in by_page.items():
        title = SUBJECTS[page][0]
        if page == "types":
            made[page] = types_page(title, found)
        else:
            made[page] = (
                f"# {title}\n\n" + "\n".join(section(name, *entry) for name, entry in found.items()).rstrip() + "\n"
            )
    made["index"] = index(by_page)
    made["edges"] = edges_page()
    return made


def index(by_page: dict[str, dict[str, tuple[Any, list[str]]]]) -> str:
    """The first page: where every word stands, and what examples stand in."""
    tiles = "\n".join(f"        {name} = {text}" for name, text in word_examples.TILES.items())
    tensors = ", ".join(f"{name}: T.Tensor({text})" for name, text in word_examples.TENSORS.items())
    lines = [
        "# The language", "",
        "These pages are made from the docstrings that `help()` shows, by `python -m docs.language_pages`.",
        "Corner cases are on [a page of their own](edges.md).", "",
        "Examples that are not complete programs are inserted into this kernel; `i` is the index of `T.Parallel(64)`.", "",
        "```text", "@T.prim_func", f"def example({tensors}, n: T.int32):", "    with T.Kernel(2, threads=128) as bx:", tiles, "        ...", "```", "",
        f"Which targets support a function is determined by compiling its example for each of: {', '.join(f'{name} (`{target}`)' for name, target in word_examples.MACHINES.items())}.", "",
        "| page | functions |", "| --- | --- |",
    ]  # fmt: skip
    for page, found in by_page.items():
        listed = ", ".join(
            f"`{name}`" for name in sorted({name for own, (_, others) in found.items() for name in (own, *others)})
        )
        lines.append(f"| [{SUBJECTS[page][0]}]({page}.md) | {listed} |")
    contents = "\n".join(["edges", *by_page])
    return "\n".join(lines) + f"\n\n```{{toctree}}\n:hidden:\n\n{contents}\n```\n"


def edges() -> list[tuple[str, str, str]]:
    """Subject, anchor and statement of everything that tests/unit/language/test_edges.py checks."""
    text = (ROOT / "tests" / "unit" / "language" / "test_edges.py").read_text(encoding="utf-8")
    heads = [(found.start(), found[1]) for found in re.finditer(r"^# (.+?) -+$", text, re.MULTILINE)]
    found = []
    for test in re.finditer(r'^def test_edge_(\w+)\(.*?\) -> None:\n    """(.*?)"""', text, re.MULTILINE | re.DOTALL):
        subject = [title for start, title in heads if start < test.start()][-1]
        found.append((subject, test[1].replace("_", "-"), re.sub(r"\s*\n\s*", " ", test[2].strip())))
    return found


def edges_page() -> str:
    """The page about edges."""
    lines = ["# Corner cases", "", "Each statement is checked by a test, in the interpreter and on the CPU."]
    last = ""
    for subject, anchor, statement in edges():
        if subject != last:
            lines += ["", f"## {subject}"]
            last = subject
        lines += ["", f"(edge-{anchor})=", statement]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
