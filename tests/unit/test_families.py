"""What a family of GPUs is made of: a folder of bounded size, records, a vocabulary of the emulator, a line in the registry; no pass names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.targets.registry import TARGETS

ROOT = Path(__file__).resolve().parents[2] / "tilewright"
FAMILIES = {"hip": ("amd", "gfx"), "metal": ("apple", "m1")}
"""By target: how its machines' records are called, and how names of machines begin."""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_one_folder_of_bounded_size(name: str) -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "targets" / name).glob("**/*.py"))
    records = sorted((ROOT / "machine").glob(f"{FAMILIES[name][0]}*.py"))
    assert 500 < lines <= 2500
    assert records and sum(len(path.read_text().splitlines()) for path in records) <= 600
    assert list((ROOT / "emulator" / "host" / name).iterdir())


@pytest.mark.parametrize("name", FAMILIES)
def test_others_know_a_family_by_one_line(name: str) -> None:
    """The registry imports it; passes, operators and layouts ask machines for what they can do."""
    of_family = re.compile(rf"targets\.{name}\b|machine\.{FAMILIES[name][0]}\w*")
    named = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if of_family.search(path.read_text()) and f"targets/{name}/" not in path.as_posix()
    }
    own = {f"machine/{path.name}" for path in (ROOT / "machine").glob(f"{FAMILIES[name][0]}*.py")}
    assert named - own == {"targets/registry.py"}
    registry = (ROOT / "targets" / "registry.py").read_text()
    assert len(re.findall(rf"targets\.{name}\b", registry)) == 1
    words = re.compile(rf"[\"']({name}|{FAMILIES[name][0]}|{FAMILIES[name][1]})\b")
    for folder in ("passes", "ops", "layout", "arith", "ir"):
        assert not [path for path in (ROOT / folder).rglob("*.py") if words.search(path.read_text())], folder


COMMON = ("arith", "ir", "layout", "formats", "ops", "interpreter", "language", "passes")
"""Rooms that serve every machine: they ask a record for what it can do."""


def test_common_rooms_name_no_target_and_no_records_of_a_maker() -> None:
    """Examples and hints may show how a target is written: those have options behind the name."""
    makers = "|".join(
        re.sub(r"_.*", "", path.stem) for path in (ROOT / "machine").glob("*.py") if "ARCHITECTURES" in path.read_text()
    )
    assert "amd" in makers
    words = re.compile(rf"[\"'](?:{'|'.join(TARGETS)})[\"']|machine\.(?:{makers})\b|targets\.(?:{'|'.join(TARGETS)})\b")
    assert words.search('arch.target == "cuda"') and not words.search('hint="cuda -arch=sm_80"')
    for room in COMMON:
        assert not [path for path in (ROOT / room).rglob("*.py") if words.search(path.read_text())], room
