"""README and docs: the Python on every page runs, block after block, in a folder that holds what the page speaks of."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.cli import main

torch = pytest.importorskip("torch")

UNIT = Path(__file__).resolve().parent
ROOT = UNIT.parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    tilewright (convert .*?)(?:  +#.*)?$", re.MULTILINE)

sys.path[:0] = [str(UNIT / "conversion"), str(UNIT / "quant"), str(ROOT)]
from checkpoint_writers import write_gptq  # noqa: E402
from test_end_to_end import TEXT, transformer, written  # noqa: E402

from docs import executed  # noqa: E402

RNG = np.random.default_rng(0)


def nothing(folder: Path) -> dict[str, Any]:
    return {}


def of_checkpoints(folder: Path) -> dict[str, Any]:
    """What docs/checkpoints.md takes for granted: checkpoints under its names, a model, one layer's raw tensors."""
    written(folder / "Llama-3.1-8B-GPTQ", "gptq act-order")
    made, _ = written(folder / "gguf", "Q4_0")
    Path(made).rename(folder / "model-q4_0.gguf")
    (folder / "Llama-3.1-8B").mkdir()
    tilewright.checkpoints.save_safetensors(
        folder / "Llama-3.1-8B" / "model.safetensors",
        {name: tensor.numpy() for name, tensor in transformer().state_dict().items()},
    )
    raw = write_gptq(RNG, 64, 64, 4, 32, 1, True).tensors
    return {
        "model": transformer(), "dense_model": transformer(), "another_model": transformer(), "batches": [TEXT],
        "array": RNG.standard_normal((16, 128)), "x": np.ones((2, 64), np.float32), **raw,
    }  # fmt: skip


Preparation = Callable[[Path], dict[str, Any]]
PAGES: dict[str, tuple[Preparation, dict[int, Callable[[dict[str, Any]], None]]]] = {
    "README.md": (nothing, {}),
    "docs/checkpoints.md": (of_checkpoints, {}),
    "docs/emulator.md": (nothing, {}),
    "docs/from_bitblas.md": (nothing, {}),
    "docs/from_tilelang.md": (nothing, {}),
    "docs/from_triton.md": (nothing, {}),
    "docs/manual_control.md": (nothing, {}),
    "docs/matmul.md": (nothing, {}),
    "PACKAGE.md": (nothing, {}),
}
"""Pages: what their first block finds, and what is brought before a later one."""

ELSEWHERE = {
    "docs/errors.md", "docs/program_text.md", "docs/tour.md", "docs/transformers.md",
    *(f"docs/{name}.md" for name in executed.PAGES),
}  # fmt: skip
"""Pages whose blocks tests of their own look at."""


def test_every_page_with_python_is_run() -> None:
    pages = [ROOT / "README.md", ROOT / "PACKAGE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    having = {str(page.relative_to(ROOT)) for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert having == set(PAGES) | ELSEWHERE


@pytest.mark.parametrize("page", PAGES)
def test_python_on_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare, before = PAGES[page]
    names = prepare(tmp_path)
    for number, text in enumerate(BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))):
        before.get(number, nothing)(names)  # type: ignore[arg-type]
        file = tmp_path / f"block_{number}.py"
        file.write_text(text, encoding="utf-8")
        names = names | runpy.run_path(str(file), names)
    if page == "README.md":
        product, error = capsys.readouterr().out.split()
        assert product == "777.0" and 0.02 < float(error) < 0.04


def test_a_package_index_shows_a_page_that_stands_alone() -> None:
    """Links into the repository lead nowhere there."""
    shown = re.search(r'^readme = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert shown is not None
    links = re.findall(r"\]\(([^)]*)\)", (ROOT / shown[1]).read_text(encoding="utf-8"))
    assert all(link.startswith("https://") for link in links)


def test_commands_on_the_page_of_checkpoints_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_checkpoints(tmp_path)
    commands = COMMAND.findall((ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8"))
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command)) == 0
