"""docs/language/ is what the docstrings say; every word has parameters that are explained, and examples run."""

from __future__ import annotations

import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from word_examples import MACHINES, arguments, lines_of, program  # noqa: E402

import tilewright.language as T  # noqa: E402
import tilewright.targets.cuda.target  # noqa: E402, F401  (gives functions of GPUs their meaning)
from docs import language_pages  # noqa: E402
from tilewright.interpreter import interpret  # noqa: E402

WORDS = {name: value for name, (value, _) in language_pages.words().items() if inspect.isroutine(value)}
EXAMPLES = [name for name, value in WORDS.items() if lines_of(value)]
OF_A_TEXT = re.compile(r"T\.(call_(pure_)?extern|CUDASourceCodeKernel)\b")
FOREIGN = {name for name in EXAMPLES if OF_A_TEXT.search("\n".join(lines_of(WORDS[name])))}
"""Their examples call a function of a GPU's own language, which the interpreter cannot."""
LINE = re.compile(r"^(Everywhere\.|On [\w, ]+\.)\n", re.MULTILINE)


def without_machines(text: str) -> str:
    return LINE.sub("", text)


def test_pages_are_what_docstrings_say(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """But for the machines, which the next tests ask one by one."""
    if pytestconfig.getoption("--update"):
        language_pages.main()
    monkeypatch.setattr(language_pages, "availability", lambda name: "Everywhere.")
    made = language_pages.pages()
    assert {file.stem for file in language_pages.FOLDER.glob("*.md")} == set(made)
    for name, text in made.items():
        page = (language_pages.FOLDER / f"{name}.md").read_text(encoding="utf-8")
        assert without_machines(page) == without_machines(text), f"{name}.md is old: run python -m docs.language_pages"


def section(name: str) -> str:
    page = (language_pages.FOLDER / f"{language_pages.subject(WORDS[name])}.md").read_text(encoding="utf-8")
    return page.partition(f"\n## T.{name}\n")[2].partition("\n(T.")[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_machines_are_those_that_compile_the_example(name: str) -> None:
    line = LINE.search(section(name))
    assert line is not None and line[1] == language_pages.availability(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = program(name)
    if name not in FOREIGN:
        interpret(made.function, arguments(made))
    used = {name, *language_pages.words()[name][1]}
    assert any(re.search(rf"T\.{word}\b", line) for word in used for line in lines_of(WORDS[name])), (
        "the example shows another word"
    )


def test_every_machine_is_known() -> None:
    assert all(machine in (language_pages.FOLDER / "index.md").read_text() for machine in MACHINES)


def parameters(value: Any) -> list[str]:
    return [p.name for p in inspect.signature(inspect.unwrap(value)).parameters.values() if p.name != "self"]


@pytest.mark.parametrize("name", WORDS)
def test_every_parameter_is_explained(name: str) -> None:
    text = inspect.getdoc(WORDS[name]) or ""
    part = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    explained = {one for head in re.findall(r"^([\w, ]+) :", part, re.MULTILINE) for one in head.split(", ")}
    assert set(parameters(WORDS[name])) <= explained


def test_only_words_are_listed() -> None:
    listed = dir(T)
    assert len(listed) > 300 and len(set(listed)) == len(listed)
    assert not [name for name in listed if isinstance(getattr(T, name), types.ModuleType | dict)]


def test_statements_about_edges_have_tests() -> None:
    """The page is made from the tests; here, that each says something and begins with its anchor's name."""
    made = language_pages.edges()
    assert len(made) > 25 and all(statement.endswith(".") for _, _, statement in made)
