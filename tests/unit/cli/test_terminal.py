"""Colours, tables and the progress bar."""

from __future__ import annotations

import io
import re

import pytest

import tilewright.ops  # noqa: F401  (registers the tile operators)
from tilewright.cli.terminal import Terminal
from tilewright.progress import Progress

PROGRAM = '@stage("traced")\ndef f(A: float32[8]):\n    copy(source=A, destination=A)  # why\n    x: int32 = 3\n'


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    return re.sub(r"\033\[[\d;]*m", "", text)


def test_a_file_gets_no_colours_and_a_terminal_does() -> None:
    assert not Terminal(io.StringIO()).color
    assert Terminal(io.StringIO()).program(PROGRAM) == PROGRAM
    assert Terminal(io.StringIO(), color=True).color


def test_no_color_is_respected(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(Screen()).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Terminal(Screen()).color


def test_highlighting_changes_no_character() -> None:
    terminal = Terminal(io.StringIO(), color=True)
    shown = terminal.program(PROGRAM)
    assert plain(shown) == PROGRAM
    assert "\033[1;33mcopy\033[0m(" in shown
    assert "\033[34mdef\033[0m" in shown and "\033[36mfloat32\033[0m" in shown and "\033[2m# why\033[0m" in shown
    source = '/* a "c" */\nstatic int32_t f(const float *x) { return x[0] * 2.0f; } // end\n#include <math.h>\n'
    assert plain(terminal.c_source(source)) == source


def test_tables_align_numbers_to_the_right() -> None:
    stream = io.StringIO()
    Terminal(stream).table(["format", "GOP/s"], [["int4", "7.5"], ["uint4 zeros", "123.4"], ["torch", "-"]])
    assert stream.getvalue() == "format       GOP/s\nint4           7.5\nuint4 zeros  123.4\ntorch            -\n"


@pytest.mark.parametrize(
    "encoding, shown", [("ascii", "C = A W? in 3 ?s"), ("latin-1", "C = A W? in 3 µs"), ("utf-8", "C = A Wᵀ in 3 µs")]
)
def test_terminals_of_any_locale_are_written_to(encoding: str, shown: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Terminal(stream).write("C = A Wᵀ in 3 µs")
    stream.seek(0)
    assert stream.read() == f"{shown}\n"


def test_progress_shows_only_on_a_terminal() -> None:
    quiet, screen = io.StringIO(), Screen()
    for stream in (quiet, screen):
        with Progress(2, stream) as bar:
            bar.step("first")
            bar.step("second")
    assert quiet.getvalue() == ""
    assert "0/2" in screen.getvalue() and "second" in screen.getvalue() and screen.getvalue().endswith("\r\033[K")


def test_tables_set_the_best_of_each_group_apart() -> None:
    stream = io.StringIO()
    rows = [["1", "a", "2.0"], ["1", "b", "1.5"], ["16", "a", "9.0"], ["16", "b", "10.0"]]
    Terminal(stream, color=True).table(["M", "name", "ms"], rows, best="ms", within="M")
    lines = stream.getvalue().splitlines()
    assert lines[1:3] == [" 1  a      2.0", "\033[32m 1  b      1.5\033[0m"] and lines[3] == ""
    assert lines[4] == "\033[32m16  a      9.0\033[0m"
