"""``tilewright demo`` on a small problem: every format's product is right, and the table holds them all."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from tilewright.cli import contestants, demo, main
from tilewright.targets.cpu.arch import arch


def test_the_table_has_every_contestant_and_small_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contestants, "FORMATS", [one for one in contestants.FORMATS if one[0] == "uint4 + zeros"])
    assert main(["demo", "--n", "96", "--k", "256", "--rows", "1,5", "--milliseconds", "1", "--target", "cpu"]) == 0
    shown = capsys.readouterr().out
    for label, bound in (("NumPy", 1e-5), ("float32", 1e-5), ("uint4 + zeros", 2e-2)):
        lines = [line for line in shown.splitlines() if re.match(rf"\s*\d+  {re.escape(label)}  ", line)]
        assert [int(line.split()[0]) for line in lines] == [1, 5]
        assert all(0 < float(re.findall(r"\d\.\de-\d+", line)[0]) < bound for line in lines)


WITHOUT_TORCH = """
import importlib.util, sys
class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
sys.meta_path.insert(0, Absent())
from tilewright.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A program that runs a command as where torch is not installed."""


def test_the_demo_needs_no_torch() -> None:
    """``make demo`` installs none; the demo moved its weights to torch's CPU and ended in a traceback."""
    words = ["--n", "48", "--k", "128", "--group", "32", "--rows", "2", "--milliseconds", "1", "--target", "cpu"]
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, "demo", *words], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "int4" in ran.stdout and "torch" not in ran.stdout


@pytest.mark.parametrize(("k", "group"), [(128, 100), (100, 128), (37, 5)])
def test_groups_are_what_quantize_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], k: int, group: int
) -> None:
    monkeypatch.setattr(contestants, "FORMATS", contestants.FORMATS[:1])
    words = ["--n", "48", "--k", str(k), "--group", str(group), "--rows", "3", "--milliseconds", "1", "--target", "cpu"]
    assert main(["demo", *words]) == 0
    errors = re.findall(r"int4 .* (\d\.\de-\d+)", capsys.readouterr().out)
    assert len(errors) == 1 and 0 < float(errors[0]) < 2e-2


def test_calls_take_turns() -> None:
    order: list[str] = []
    times = demo.median_times([lambda: order.append("a"), lambda: order.append("b")], 0.0)
    assert order == ["a", "b"] * 3 and len(times) == 2 and min(times) > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "cup"], "error: unknown target 'cup'\n  help: known: cpu, cuda"),
        (
            ["--target", "metal"],
            "error: nothing can be measured on 'metal' here\n  help: --target cpu is the processor",
        ),
        (["--target", "cpu -arch=neon"], "error: nothing can be measured on 'cpu -arch=neon' here\n"),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_what_cannot_be_shown_is_an_error(
    words: list[str], message: str, by_environment: bool, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """TILEWRIGHT_TARGET was passed over."""
    if by_environment:
        monkeypatch.setenv("TILEWRIGHT_TARGET", words[1])
        words = []
    assert main(["demo", "--n", "64", "--rows", "1", "--milliseconds", "1", *words]) == 1
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e3", "", "a"])
def test_times_are_finite(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", f"--milliseconds={value}"])
    assert f"argument --milliseconds: {value!r} are no milliseconds" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--rows", "--n", "--k", "--group"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "a", "", "1,,2"])
def test_sizes_are_counts(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["demo", f"{option}={value}"])
    assert raised.value.code == 2
    assert re.search(rf"argument {option}[\w/,.]*: '.*' is no size: 1, 2, ...", capsys.readouterr().err)


def test_more_than_the_memory_holds_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--n", "2", "--k", "9999999999999"]) == 1
    assert capsys.readouterr().err.startswith("error: this machine's memory does not suffice: Unable to allocate")


def test_relative_error() -> None:
    assert demo.relative_error(np.array([3.0, 5.0]), np.array([3.0, 4.0])) == pytest.approx(0.2)


def test_machines_in_a_few_words() -> None:
    assert demo.describe(arch({"arch": "avx512-vnni"})) == "cpu (x86_64, 512-bit vectors, vnni)"
