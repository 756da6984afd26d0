"""Rewritten functions on disk: found again by text and place, with the same spans, made anew where anything differs."""

import ast
import textwrap

import pytest

import tilewright.language.rewriting as rewriting
from tilewright.errors import TilewrightWarning
from tilewright.language.rewriting import kept
from tilewright.language.source import FunctionSource

TEXT = textwrap.dedent("""
    def add(x):
        if x > 1:
            x = x + 1
        return x
""").lstrip()


@pytest.fixture
def on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "1")
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    return tmp_path


def read(source, made):
    def make():
        made.append(source)
        original = compile("def add(x): pass", "f.py", "exec").co_consts[0]
        return rewriting._rewritten_tree(source, original), source.statements()

    tree, places = kept(source, (), make)
    return rewriting._compile(tree, source.file), places


def test_found_again(on_disk):
    made = []
    first, second = (read(FunctionSource("add", "f.py", TEXT, 7), made) for _ in range(2))
    assert len(made) == 1
    assert first[1] == second[1] and second[1][9] == ((9, 8, 17),)
    assert list(first[0].co_positions()) == list(second[0].co_positions())
    assert first[0] == second[0] and second[0].co_filename == "f.py" and second[0].co_firstlineno == 7


@pytest.mark.parametrize(
    "other",
    [FunctionSource("add", "f.py", TEXT.replace("> 1", "> 2"), 7), FunctionSource("add", "f.py", TEXT, 8),
     FunctionSource("add", "g.py", TEXT, 7)],
    ids=["text", "line", "file"],
)  # fmt: skip
def test_another_function_is_another_entry(on_disk, other):
    made = []
    read(FunctionSource("add", "f.py", TEXT, 7), made)
    read(other, made)
    assert len(made) == 2


def test_a_disk_that_cannot_be_written_is_no_matter(on_disk, monkeypatch):
    (on_disk / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(on_disk / "file"))
    made = []
    with pytest.warns(TilewrightWarning, match="Not a directory"):
        read(FunctionSource("add", "f.py", TEXT, 7), made)
    assert made


def test_what_python_does_not_write_back_is_rewritten_each_time(on_disk):
    made = []

    def make():
        made.append(1)
        tree = ast.parse("def __factory__():\n    def f():\n        return -1")
        negative = tree.body[0].body[0].body[0]
        negative.value = ast.copy_location(ast.Constant(-1), negative.value)
        return tree, {}

    source = FunctionSource("f", "f.py", "def f(): return -1", 1)
    for _ in range(2):
        assert rewriting._compile(kept(source, (), make)[0], "f.py").co_consts[-1] == -1
    assert len(made) == 2
