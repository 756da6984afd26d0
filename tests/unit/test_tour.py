"""``docs/tour.md``: its kernel is compiled, and every dump on the page must be what really comes out."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.cli.inspect import compiled
from tilewright.ir.printer import print_program
from tilewright.targets.cpu import arch as cpu_arch

TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour.md"
BLOCK = re.compile(r"(<!-- (?P<what>[\w ]+) -->\n```(?P<language>\w*)\n)(?P<text>.*?)(```\n)", re.DOTALL)
MACHINE = "cpu -arch=avx2"
"""The page shows one machine's program, whatever machine the test runs on."""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """From what a block is to show to its text."""
    source = next(match["text"] for match in BLOCK.finditer(TOUR.read_text()) if match["what"] == "kernel")
    file = tmp_path_factory.mktemp("tour") / "tour.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("tour", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    X = np.arange(600, dtype=np.float32).reshape(6, 100)
    with pytest.MonkeyPatch.context() as patch:
        same_everywhere = dataclasses.replace(cpu_arch.host(), cores=2, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=0)
        patch.setattr(cpu_arch, "host", lambda: same_everywhere)
        program = compiled(module.normalize, {"X": X}, MACHINE).program
    after = {trace.name: trace.function for trace in program.traces}
    assert all(np.allclose(row, 1, atol=1e-5) for row in np.mean(module.normalize(X) ** 2, axis=1))

    def dump(what: str) -> str:
        words = what.split()
        makers: dict[str, Callable[[], str]] = {
            "kernel": lambda: source,
            "traced": lambda: print_program(program.traced),
            "after": lambda: print_program(after[words[1]]),
            "source": lambda: program.source.text.replace(f"{file.parent}/", "").strip("\n") + "\n",
            "result": lambda: result(module.normalize, X),
        }
        return makers[words[0]]()

    return dump


def result(kernel: Any, X: np.ndarray) -> str:
    """A session with the kernel, as the page shows it."""
    shown = np.array2string(kernel(X)[:, :4], precision=3)
    return f">>> X = np.arange(600, dtype=np.float32).reshape(6, 100)\n>>> normalize(X)[:, :4]\n{shown}\n"


def test_the_page_shows_what_really_comes_out(dumps: Callable[[str], str], pytestconfig: pytest.Config) -> None:
    page = TOUR.read_text()
    made = BLOCK.sub(lambda match: match[1] + dumps(match["what"]) + match[5], page)
    if pytestconfig.getoption("--update"):
        TOUR.write_text(made)
    else:
        assert made == page, "the dumps have changed: pytest tests/unit/test_tour.py --update, then read them"


def test_every_kind_of_dump_is_on_the_page() -> None:
    shown = [match["what"] for match in BLOCK.finditer(TOUR.read_text())]
    assert shown[0] == "kernel" and shown[1] == "traced" and shown[-2:] == ["source", "result"]
    assert len(shown) >= 8
