"""``tilewright inspect`` and the command line around it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli import main
from tilewright.cli.inspect import read_arguments, zeros
from tilewright.errors import TilewrightError

KERNELS = """
import tilewright
import tilewright.language as T


@tilewright.jit
def double(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 64)) as block:
        for i in T.Parallel(64):
            Y[block * 64 + i] = X[block * 64 + i] * 2
    return Y


@tilewright.jit(target="cpu")
def factory(n=64, dtype="float32"):
    @T.prim_func
    def twice(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(1) as block:
            for i in T.Parallel(n):
                Y[i] = X[i] * 2
    return twice


program = factory.trace()
wrong = 3
"""


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    file = tmp_path / "some_kernels.py"
    file.write_text(KERNELS)
    return str(file)


def test_it_shows_the_program_after_every_pass(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{kernels}:double", "X=float32[100]", "--target", "cpu -arch=avx2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith('== traced  what the author wrote\n@stage("traced")\ndef double(X: float32[100]')
    assert "== vectorize_accesses" in shown and ".x8 = " in shown and "== cpu text  for x86_64" in shown
    assert "\033[" not in shown


def test_sizes_by_their_names_stand_for_tensors(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{kernels}:double"]) == 1
    assert "help: pass N=" in capsys.readouterr().err
    assert main(["inspect", f"{kernels}:double", "N=100", "--after", "traced"]) == 0
    assert "def double(X: float32[100]" in capsys.readouterr().out


def test_names_that_are_there_are_not_those_of_modules(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{kernels}:qqq"]) == 1
    assert "help: it has: double, factory, program, wrong\n" in capsys.readouterr().err


def test_colours_on_request(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--color", "always", "inspect", f"{kernels}:factory", "n=128", "dtype=float16"])
    shown = capsys.readouterr().out
    assert "\033[34mdef\033[0m" in shown and "float16" in shown


@pytest.mark.parametrize("name", ["factory", "program"])
def test_factories_and_programs_too(kernels: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{kernels}:{name}", "--after", "traced", "--spans"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("==") == 1 and "def twice(X: float32[64], Y: float32[64])" in shown
    assert "# some_kernels.py:23" in shown


def test_differences_and_source(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", f"{kernels}:program", "--diff", "--target", "cpu -arch=avx2"])
    shown = capsys.readouterr().out
    assert all(f"\n{mark}" in shown for mark in ("@@", "-", "+"))
    main(["inspect", f"{kernels}:program", "--source", "--target", "cpu -arch=avx2"])
    assert capsys.readouterr().out.startswith("// twice (")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_file.py:f"], "error: there is no file no_such_file.py\n"),
        (["kernels"], "error: 'kernels' does not name a kernel\n  help: write FILE:KERNEL, as in kernels.py:matmul\n"),
        (["{}:doubel"], "error: {} has no 'doubel'\n  help: did you mean 'double'?\n"),
        (["{}:double", "X"], "error: 'X' is not an argument\n  help: write NAME=VALUE, as in A=float32[128,64]\n"),
        (
            ["{}:double"],
            "error: no argument gives the size 'N'\n  --> {}:7:1\n  |\n7 | def double(X):\n  | ^^^^^^^^^^^^^^\n"
            "  help: pass N=, or a tensor that has it\n",
        ),
        (
            ["{}:factory", "m=1"],
            "error: factory: got an unexpected keyword argument 'm'\n  help: factory(n=64, dtype='float32'); after "
            "FILE:KERNEL write NAME=VALUE, a tensor as in A=float32[128,64]\n",
        ),
        (
            ["{}:double", "X=float32[3"],
            "error: 'X=float32[3' is no tensor\n  help: its type and its extents, as in X=float32[128,64]\n",
        ),
        (
            ["{}:double", "X=float32[-3]"],
            "error: 'X=float32[-3]' is no tensor\n  help: its type and its extents, as in X=float32[128,64]\n",
        ),
        (["{}:double", "X=float32[3]", "X=float32[4]"], "error: X is given twice\n"),
        (["{}:program", "--after", "trace"], "error: no pass 'trace' ran\n  help: did you mean 'traced'?\n"),
    ],
)
def test_mistakes(kernels: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *(word.format(kernels) for word in words)]) == 1
    assert capsys.readouterr().err == message.format(kernels)


@pytest.mark.parametrize(
    ("text", "message", "shown"),
    [
        ("def f(:\n    pass", "SyntaxError: invalid syntax", "def f(:"),
        ("import tilewright\n\nx = 1 / 0", "ZeroDivisionError: division by zero", "x = 1 / 0"),
        ("def f():\n    raise KeyError(3)", "KeyError: 3", "    raise KeyError(3)"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'", "import nowhere_at_all"),
        ("\0", "SyntaxError: source code string cannot contain null bytes", ""),
    ],
)
def test_a_file_that_does_not_run_is_shown_where_it_breaks(
    text: str, message: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own frames were shown."""
    file = tmp_path / "broken_kernels.py"
    file.write_text(text)
    assert main(["inspect", f"{file}:f"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"error: {file} does not run: {message}"
    if shown:
        number = text.splitlines().index(shown) + 1
        assert lines[1] == f"  --> {file}:{number}:1" and lines[3] == f"{number} | {shown}"


@pytest.mark.parametrize("given", ["X=float64[100]", "X=float32[100,1]", "X=float32[0] Y=3"])
def test_tensors_that_a_call_would_refuse(kernels: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel of float32 was shown for tensors of float64."""
    assert main(["inspect", f"{kernels}:double", *given.split()]) != 0
    assert capsys.readouterr().err.startswith("error:")


@pytest.mark.parametrize(
    "given", ["X=float64[64] Y=float32[64]", "X=float32[65] Y=float32[64]", "X=float32[64]", "Z=float32[64]"]
)
def test_tensors_that_a_finished_program_would_refuse(
    kernels: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its arguments were passed over."""
    assert main(["inspect", f"{kernels}:program", *given.split()]) != 0
    assert capsys.readouterr().err.startswith("error:")
    assert main(["inspect", f"{kernels}:program", "X=float32[64]", "Y=float32[64]"]) == 0


def test_what_is_no_kernel_is_refused(kernels: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{kernels}:wrong"]) == 1
    assert capsys.readouterr().err.startswith("error: tilewright.compile got an int")


def test_arguments_are_tensors_numbers_or_texts() -> None:
    values = read_arguments(["A=bfloat16[3, 4]", "W=uint4[2,5]", "n=3", "x=1.5", "causal=True", "dtype=float16"])
    assert values["A"].shape == (3, 4) and values["A"].dtype.name == "bfloat16"
    assert values["W"].shape == (2, 3) and values["W"].dtype == np.uint8
    assert (values["n"], values["x"], values["causal"], values["dtype"]) == (3, 1.5, True, "float16")
    assert zeros("float32", ()).shape == ()
    with pytest.raises(TilewrightError, match="unknown dtype 'float33'"):
        read_arguments(["A=float33[1]"])


def test_without_a_command_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("demo", "doctor", "inspect"))


def test_a_reader_that_goes_away_is_no_error(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            return 98

    monkeypatch.setattr("sys.stdout", Gone())
    monkeypatch.setattr("os.dup2", lambda *files: None)
    assert main(["inspect", f"{kernels}:program", "--after", "traced"]) == 0
