"""Finding the C compiler, and what the user is told when something is wrong with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from busy import PATIENCE, awaited

from tilewright.errors import CompilerNotFound, Span
from tilewright.options import override
from tilewright.targets.base import Source
from tilewright.targets.cpu import compiler
from tilewright.targets.cpu.arch import host
from tilewright.targets.registry import resolve


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_is_found_and_named() -> None:
    found = compiler.find_compiler()
    assert found.command and found.version
    assert found.version in compiler.compiler_key(host())


def test_a_missing_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    compiler._find_compiler.cache_clear()
    with pytest.raises(CompilerNotFound) as caught:
        compiler.find_compiler()
    compiler._find_compiler.cache_clear()
    assert caught.value.message == "no C compiler was found"
    assert "pip install 'tilewright[compiler]'" in str(caught.value)


def test_a_command_that_does_not_exist() -> None:
    with override(compiler="/no/such/cc"), pytest.raises(compiler.BrokenCompiler) as caught:
        compiler.find_compiler()
    assert caught.value.message == "the C compiler '/no/such/cc' does not work: there is no such command"


def test_a_command_that_fails(tmp_path: Path) -> None:
    wish = script(tmp_path / "cc", "echo broken pipe dream >&2; exit 3")
    with override(compiler=wish), pytest.raises(compiler.BrokenCompiler) as caught:
        compiler.find_compiler()
    assert caught.value.message == f"the C compiler '{wish}' does not work: broken pipe dream"


def test_a_compiler_that_dies_in_the_middle(tmp_path: Path) -> None:
    wish = script(
        tmp_path / "cc", 'if [ "$1" = --version ]; then echo cc 1.0; exit 0; fi; echo "internal error" >&2; exit 4'
    )
    with override(compiler=wish), pytest.raises(compiler.BrokenCompiler, match="internal error"):
        compiler.build(Source("int x;", "c"), host(), tmp_path)
    assert not (tmp_path / compiler.LIBRARY).exists()


def test_refused_code_shows_the_authors_line(tmp_path: Path) -> None:
    text = "\n".join(["static int f(void) {", "  // model.py:12: T.copy(A, B)", "  return nothing_like_this;", "}"])
    with pytest.raises(compiler.CompilerFailed) as caught:
        compiler.build(Source(text, "c"), host(), tmp_path)
    assert "nothing_like_this" in caught.value.message
    assert caught.value.span == Span("model.py", 12)


@pytest.mark.parametrize("dtype", ["uint8_t", "int8_t", "uint16_t", "int16_t"])
def test_the_greater_of_narrow_numbers_under_a_condition(dtype: str, tmp_path: Path) -> None:
    """GCC 12 stops at the masked vectors that it makes of them for AVX-512: "unrecognizable insn" (fuzz seed 7000073)."""
    text = """#include <stdint.h>
void fill(TYPE *);
void f(TYPE *restrict out, int *restrict c) {
  TYPE own[128] __attribute__((aligned(64)));
  fill(own);
  for (int i = 0; i < 128; i++) out[i] = c[i] >= 18 ? (own[i] > 88 ? own[i] : 88) : 88;
}
"""
    compiler.build(Source(text.replace("TYPE", dtype), "c"), resolve("cpu -arch=avx512-vnni-bf16")[1], tmp_path)
    assert (tmp_path / compiler.LIBRARY).exists()


def test_an_interrupted_compile_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while the compiler runs: the compiler ends too, and no half library stays."""
    wish = script(
        tmp_path / "cc", f'if [ "$1" = --version ]; then echo cc 1.0; exit 0; fi; echo $$ > {tmp_path}/pid; sleep 3000'
    )
    # What a shell starts in the background ignores Ctrl-C, and so do its children.
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from tilewright.targets.base import Source
from tilewright.targets.cpu import compiler
from tilewright.targets.cpu.arch import host
from tilewright.targets.registry import resolve
compiler.build(Source("int x;", "c"), host(), Path({str(tmp_path / "out")!r}))
"""
    (tmp_path / "out").mkdir()
    environment = {**os.environ, "TILEWRIGHT_CC": wish}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)
    assert awaited(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in complaint
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kernel.c"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
