"""Pages that are made by running what stands on them, or from files: docs/executed.py, docs/gallery_page.py, docs/front_door_page.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

torch = pytest.importorskip("torch")

from docs import executed, front_door_page, gallery_page  # noqa: E402

LONG = ("quantise_a_model", "write_a_kernel")
"""Pages that take a minute or two."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] * (name in LONG)) for name in executed.PAGES]
)
def test_a_page_shows_what_its_blocks_print(name: str, pytestconfig: pytest.Config) -> None:
    if sys.version_info < (3, 11) and name == "start":
        pytest.skip("before 3.11 Python records no columns of expressions: messages have no carets")
    threads = torch.get_num_threads()
    try:
        if pytestconfig.getoption("--update"):
            executed.main([name])
        made, figures = executed.made(name)
    finally:
        torch.set_num_threads(threads)
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert executed.without_numbers(made) == executed.without_numbers(page), f"run python -m docs.executed {name}"
    shown = set(re.findall(r"\]\(figures/([\w.]+)\)", page))
    assert shown == set(figures) and all((executed.FIGURES / figure).is_file() for figure in shown)


def test_what_blocks_print_is_compared() -> None:
    page = "```python\nprint('a', 1)\n```\n\n<!-- {} -->\n```text\n{}\n```\n"
    for kind, shown, right in (
        ("prints", "a 1", True), ("prints", "a 2", False), ("measures", "a 2", True), ("measures", "b 1", False),
        ("measures", "a", False), ("measures", "a    17.5", True), ("measures", "a17.5", True),
    ):  # fmt: skip
        text = page.format(kind, shown)
        made = executed.executed(text, Path(executed.tempfile.mkdtemp()))
        assert (executed.without_numbers(made) == executed.without_numbers(text)) == right, (kind, shown)


def test_blocks_find_what_earlier_ones_made(tmp_path: Path) -> None:
    text = "```python\na = 1\n```\n\n```python\nprint(a + 1)\n```\n<!-- prints -->\n```text\n```\n"
    assert executed.executed(text, tmp_path).endswith("<!-- prints -->\n```text\n2\n```\n")


def test_the_gallery_has_every_example_and_every_program() -> None:
    shown = gallery_page.contents()
    assert gallery_page.PLACE in (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for file in (ROOT / "tests" / "programs").glob("*.py"):
        assert f"(../tests/programs/{file.name})" in shown, f"{file.name} has no docstring"
    for file in (ROOT / "examples").glob("*.py"):
        assert (
            f"### {file.stem.replace('_', ' ')}\n" in shown and file.read_text(encoding="utf-8").strip()[-60:] in shown
        )


def test_the_page_of_figures_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = front_door_page.lines()
    page = front_door_page.PAGE.read_text(encoding="utf-8")
    assert front_door_page.page(of) == page, "run python -m docs.front_door_page"
    assert front_door_page.table(of[1:]) not in page
    kept = front_door_page.FIGURES
    monkeypatch.setattr(front_door_page, "FIGURES", tmp_path)
    front_door_page.charts(of)
    for made in tmp_path.glob("*.svg"):
        assert f"](figures/{made.name})" in page and made.read_bytes() == (kept / made.name).read_bytes()
    assert len(list(tmp_path.glob("*.svg"))) == 2
