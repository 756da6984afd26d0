"""What is written: tables in docs are well formed, and every file that a page or a docstring names is there."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(```.*?^```|    .*?$)", re.DOTALL | re.MULTILINE)


def cells(line: str) -> int:
    """Cells of a row: a bar separates them, in code too, unless a backslash stands before it."""
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def broken_rows(text: str) -> Iterator[str]:
    lines = re.sub(
        r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
    ).split("\n")
    width = None
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            if width is not None and line.strip():
                yield f"{number}: a line that is no row stands in a table: {line[:60]}"
            width = None
            continue
        if width is None:
            separator = lines[number] if number < len(lines) else ""
            if not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", separator):
                yield f"{number}: a row without a head: {line[:60]}"
            elif number > 1 and lines[number - 2].strip():
                yield f"{number}: a table that no empty line precedes: {line[:60]}"
            width = cells(line)
        if not line.rstrip().endswith("|") or cells(line) != width:
            yield f"{number}: {cells(line)} cells where the head has {width}: {line[:60]} ... {line[-30:]}"  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_well_formed(page: Path) -> None:
    assert not list(broken_rows(page.read_text(encoding="utf-8")))


def test_broken_tables_are_seen() -> None:
    good = "| a | b |\n| --- | --- |\n| 1 | `x \\| y` |\n"
    assert not list(broken_rows(f"text\n\n{good}\ntext"))
    for bad in (
        good + "| 1 |\n",
        good + "text\n",
        f"text\n{good}",
        "| 1 | 2 |\n",
        good + "| 1 | `x | y` |\n",
        good + "| 1 | 2\n",
    ):
        assert list(broken_rows(bad)), bad  # fmt: skip


MADE = {"errors.md", "cuda_vocabulary.md", "CHANGELOG.md"} | {
    page.name for page in (ROOT / "docs" / "language").glob("*.md")
}
NARROW = [page for page in PAGES if page.name not in MADE]
"""Pages that somebody writes by hand: lines of at most 100 columns, but for tables, headings, links and code."""


@pytest.mark.parametrize("page", NARROW, ids=lambda page: page.name)
def test_lines_are_at_most_100_columns(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    long = [
        line
        for line in text.split("\n")
        if len(line) > 100 and not line.startswith(("|", "    ", "#", "`")) and "](" not in line
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "lab").glob("*.md")), ids=lambda page: page.name)
def test_notebooks_begin_with_ten_conclusions(page: Path) -> None:
    head = page.read_text(encoding="utf-8").partition("\n## The notebook\n")[0]
    assert re.findall(r"^(\d+)\. ", head, re.MULTILINE) == [str(number) for number in range(1, 11)]


# Layout --------------------------------------------------------------------------------------------------

TABLES = (ast.Dict, ast.List, ast.Set, ast.Tuple)


def is_table(statement: ast.stmt) -> bool:
    """Whether a statement's value is a display of values, or a call of nothing but one, as ``frozenset({...})``."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        value = value.args[0]
    return isinstance(value, TABLES)


def laid_out_by_hand(text: str) -> Iterator[tuple[int, ast.stmt]]:
    """Lines that the formatter is to leave alone, with the innermost statement of each."""
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    for number, line in enumerate(text.split("\n"), 1):
        if line.rstrip().endswith("# fmt: skip"):
            around = [one for one in statements if one.lineno <= number <= (one.end_lineno or one.lineno)]
            yield number, min(around, key=lambda one: (one.end_lineno or one.lineno) - one.lineno)


def test_only_tables_are_laid_out_by_hand() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "tilewright").rglob("*.py")
        for number, statement in laid_out_by_hand(path.read_text(encoding="utf-8"))
        if not is_table(statement)
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_no_table_is_seen() -> None:
    text = 'RATES = {"a": 1,\n         "b": 2}  # fmt: skip\ndef f(a,\n      b): pass  # fmt: skip\n'
    assert [is_table(statement) for _, statement in laid_out_by_hand(text)] == [True, False]


# Files and names -----------------------------------------------------------------------------------------

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\n")
FILES = [name for name in TRACKED if name] or [str(one.relative_to(ROOT)) for one in ROOT.rglob("*") if one.is_file()]
ENDS = {name[place:] for name in FILES for place in [0, *(found.end() for found in re.finditer("/", name))]}
FOLDERS = {str(parent) for name in FILES for parent in Path(name).parents} - {"."}
ENDINGS = ("py", "md", "cu", "cuh", "h", "tile", "svg", "toml")
NAMED = re.compile(rf"(?<![\w/.<>*-])((?:[\w.-]+/)*[\w*.-]*[\w*]\.(?:{'|'.join(ENDINGS)}))(?![\w/-]|\.\w)")
FOLDER = re.compile(r"`{1,2}((?:[\w.-]+/)+)`{1,2}")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")

OTHERS = {
    "cuda.h": "NVIDIA's", "cuda_fp16.h": "NVIDIA's", "cuda_occupancy.h": "NVIDIA's", "dlpack.h": "DLPack's", "gguf.md": "ggml's", "jit.py": "named because it is not there",
    "before.json": "what an example reads", "speed.svg": "what an example writes", "tour.py": "what the page's kernel would be in", "test.tile": "what programs of tests are called", "shared/": "beside the repository",
    "tilewright_wgmma_n256_f32_bf16_bf16.cuh": "written when it is needed",
}  # fmt: skip
"""Files that are named and are not here, with the reason."""


def is_there(name: str, page: Path) -> bool:
    """Whether a name is that of a file here: from the root, from the page, or the end of a path."""
    if "*" not in name:
        return name in ENDS or (page.parent / name).exists()
    whole = re.compile("(?:.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
    return any(whole.fullmatch(one) for one in FILES)


@functools.cache
def texts() -> list[tuple[Path, str]]:
    """Every page, and every file of the package and of what tests it."""
    ours = (
        ROOT / name
        for name in FILES
        if name.endswith(".py") and name.startswith(("tilewright/", "tests/", "benchmarks/"))
    )
    return [(one, one.read_text(encoding="utf-8")) for one in (*PAGES, *ours) if one.is_file()]


def docstrings(text: str) -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return "\n".join(text for text in found if text)


def named_in_vain(missing: Callable[[Path, str], set[str]]) -> list[str]:
    """What pages and docstrings name in vain.  Few files do so anywhere: of those alone docstrings are looked for."""
    found = []
    for page, text in texts():
        names = missing(page, text)
        if names and page.suffix == ".py":
            names = missing(page, docstrings(text))
        found += [f"{page.relative_to(ROOT)} names {name}" for name in sorted(names)]
    return found


def missing_files(page: Path, text: str) -> set[str]:
    files = {*NAMED.findall(text), *(LINK.findall(text) if page.suffix == ".md" else ())}
    absent = {name for name in files if name.rpartition("/")[2] not in OTHERS and not is_there(name, page)}
    return absent | {
        name for name in FOLDER.findall(text)
        if name not in OTHERS and not any(f"/{one}/".endswith(f"/{name}") for one in FOLDERS)
    }  # fmt: skip


def test_files_that_are_named_are_there() -> None:
    assert named_in_vain(missing_files) == []


def test_docstrings_and_pages_are_looked_at() -> None:
    text = 'def f():\n    """As `nowhere/to_be.py` says."""\n    return "nor_here.py"\n'
    assert missing_files(ROOT / "tests" / "any.py", docstrings(text)) == {"nowhere/to_be.py"}
    assert missing_files(ROOT / "README.md", "[so](nor/here.md), `no/folder/`") == {"nor/here.md", "no/folder/"}


TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_every_page_stands_in_the_contents() -> None:
    """Of the site, which `make docs` builds."""
    listed = set()
    for start in (ROOT / "docs" / "index.md", ROOT / "docs" / "language" / "index.md"):
        listed.add(start)
        for tree in TOCTREE.findall(start.read_text(encoding="utf-8")):
            names = [line for line in tree.split("\n") if line.strip() and not line.startswith(":")]
            listed |= {start.parent / f"{name}.md" for name in names}
    assert listed == {page for page in PAGES if page.is_relative_to(ROOT / "docs")}


DOTTED = re.compile(r"`{1,2}((?:tilewright\.)?[a-z_]+(?:\.\w+)+)(?:\([^`]*\))?`{1,2}")
ROOMS = {
    one.stem for one in (ROOT / "tilewright").iterdir() if one.suffix in ("", ".py") and not one.stem.startswith("_")
}


@functools.cache
def resolves(name: str) -> bool:
    """Whether a dotted name is that of a module, or of what is in one."""
    parts = name.removeprefix("tilewright.").split(".")
    for count in range(len(parts), -1, -1):
        try:
            found: Any = importlib.import_module(".".join(["tilewright", *parts[:count]]))
            for part in parts[count:]:
                fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "__annotations__", {})
                if not hasattr(found, part) and part not in fields:
                    return False
                found = getattr(found, part, None)
        except ImportError as error:
            if error.name == "transformers":  # `make clients` has it, and looks
                return True
            continue
        return True
    return False


def missing_names(page: Path, text: str) -> set[str]:
    ours = {
        name for name in DOTTED.findall(text)
        if name.startswith("tilewright.") or name.partition(".")[0] in ROOMS
    }  # fmt: skip
    return {name for name in ours if name.rpartition(".")[2] not in ENDINGS and not resolves(name)}


def test_names_that_are_spoken_of_are_there() -> None:
    assert named_in_vain(missing_names) == []


@pytest.mark.parametrize(
    "script", [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")], ids=lambda one: one.stem
)
def test_scripts_import_names_that_are_there(script: Path) -> None:
    """No other test runs most of them: a name that moved would be found by whoever measures next."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright"):
            module = importlib.import_module(node.module or "")
            absent = [one.name for one in node.names if not hasattr(module, one.name)]
            inside = hasattr(module, "__path__")  # a package: the name may be a module of it
            missing = [name for name in absent if not inside or not importlib.util.find_spec(f"{node.module}.{name}")]
            assert not missing, f"line {node.lineno} asks {node.module} for {missing}"
