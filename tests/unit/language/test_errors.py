"""Every mistake of an author that the language knows, tested on its exact message.

Each case is a file with one mistake; the message is compared whole, with the class's name before it and the file's
name shortened to ``kernel.py``.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import pytest
from mistakes_in_calls import CALLS
from mistakes_in_indices import INDICES
from mistakes_in_names import NAMES
from mistakes_in_statements import STATEMENTS
from mistakes_in_values import VALUES
from mistakes_of_functions import WHOLE
from mistakes_of_the_direct_style import DIRECT_STYLE

from tilewright.errors import TilewrightError
from tilewright.language.direct import DirectFunction
from tilewright.language.mistakes import SourceChanged
from tilewright.language.trace import prim_func

PREAMBLE = "import tilewright.language as T\n"

KERNEL = """
@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64,), "int8"), n: T.int32):
    with T.Kernel(4, threads=128) as block:
        tile = T.alloc_fragment((64, 64), "float32")
        row = T.alloc_fragment((64,), "float32")
"""
"""What stands before the statements of `IN_KERNEL`; they begin in line 8."""

IN_KERNEL = {**CALLS, **VALUES, **NAMES, **INDICES, **STATEMENTS}
"""Statements of a kernel, and the message."""


def mistake(path: Path, text: str) -> tuple[TilewrightError, dict[str, Any]]:
    """Run a file with a mistake; the error it raises."""
    path.write_text(text, encoding="utf-8")
    linecache.checkcache()
    names: dict[str, Any] = {"__name__": "mistake"}
    with pytest.raises(TilewrightError) as caught:
        exec(compile(text, str(path), "exec", dont_inherit=True), names)
        call(DirectFunction(names["kernel"]))
    return caught.value, names


def call(direct: DirectFunction) -> None:
    """What the JIT does for a call with one tensor of extents 8."""
    declaration = direct.declare({})
    sizes = declaration.bind({"A": (8,) * len(declaration.tensors["A"].shape)})
    direct.trace({}, sizes)


def check(path: Path, text: str, expected: str) -> None:
    error, _ = mistake(path, text)
    shown = f"{type(error).__name__}: {error}".replace(str(path), "kernel.py")
    assert without_columns(shown) == without_columns(expected.strip("\n"))


def without_columns(message: str) -> str:
    """The message; before Python 3.11, which records no columns of expressions, without the caret."""
    if sys.version_info >= (3, 11):
        return message
    lines = [line for line in message.splitlines() if set(line) - set(" |^")]
    return "\n".join(line.rpartition(":")[0] if line.startswith("  --> ") else line for line in lines)


@pytest.mark.parametrize("name", IN_KERNEL)
def test_mistake_in_a_kernel(name: str, tmp_path: Path) -> None:
    statements, expected = IN_KERNEL[name]
    indented = "".join(f"        {line}\n" if line else "\n" for line in statements.strip("\n").split("\n"))
    check(tmp_path / "kernel.py", PREAMBLE + KERNEL + indented, expected)


@pytest.mark.parametrize("name", WHOLE)
def test_mistake_of_a_function(name: str, tmp_path: Path) -> None:
    text, expected = WHOLE[name]
    check(tmp_path / "kernel.py", f"{PREAMBLE}\n{text.strip()}\n", expected)


@pytest.mark.parametrize("name", DIRECT_STYLE)
def test_mistake_in_the_direct_style(name: str, tmp_path: Path) -> None:
    text, expected = DIRECT_STYLE[name]
    check(tmp_path / "kernel.py", f"{PREAMBLE}\n{text.strip()}\n", expected)


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {}
    text = "import tilewright.language as T\n@T.prim_func\ndef kernel(A: T.Tensor((4,), 'float32')): pass\n"
    with pytest.raises(TilewrightError) as caught:
        exec(compile(text, "<nowhere>", "exec", dont_inherit=True), names)
    assert caught.value.message == "the source of kernel is not available"
    assert caught.value.hint == (
        "define the kernel with `def` in a file or a notebook cell: its source is rewritten before it runs"
    )


@pytest.mark.parametrize("inserted, removed", [("def other(A):\n    pass\n\n\n", ""), ("", "        T.clear(tile)\n")])
def test_a_file_that_changed_after_its_import_is_refused(tmp_path: Path, inserted: str, removed: str) -> None:
    """The text is read when the function is traced: another function may stand there by then, with other parameters."""
    path = tmp_path / "changed.py"
    text = (PREAMBLE + KERNEL + "        T.clear(tile)\n").replace("@T.prim_func\n", "")
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec", dont_inherit=True), names)
    path.write_text(
        text.replace("\ndef kernel", f"\n{inserted}def kernel").replace(removed or "\0", ""), encoding="utf-8"
    )
    linecache.checkcache()
    with pytest.raises(SourceChanged) as caught:
        prim_func(names["kernel"])
    assert caught.value.message == f"{path} has changed since kernel was imported: its text is not there any more"
    assert caught.value.hint == "start the process again, or import the module again"


def test_mistakes_leave_nothing_open(tmp_path: Path) -> None:
    """After a mistake the next kernel traces as if nothing had happened."""
    mistake(tmp_path / "wrong.py", PREAMBLE + KERNEL + "        T.coppy(A, tile)\n")
    text = PREAMBLE + KERNEL + "        T.clear(tile)\n"
    (tmp_path / "right.py").write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, str(tmp_path / "right.py"), "exec", dont_inherit=True), names)
    assert names["kernel"].name == "kernel"
