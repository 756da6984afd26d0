"""The tables of docs/targets.md that are made of records and of what compiles: ``pytest tests/unit/test_targets_page.py --update``."""

from __future__ import annotations

import re
import sys
import textwrap
import warnings
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "emulator"))
from repository_programs import ALL

from tilewright.errors import TilewrightError
from tilewright.machine.apple import FAMILIES
from tilewright.machine.arch import Arch
from tilewright.targets.cuda.arch import ARCHITECTURES as NVIDIA
from tilewright.targets.cuda.arch import with_instructions
from tilewright.targets.hip.arch import ARCHITECTURES as AMD
from tilewright.targets.registry import resolve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "targets.md"
PROCESSORS = ("avx2", "avx512", "avx512-vnni", "avx512-vnni-bf16", "avx512-vnni-bf16-amx")


def tried(arch: Arch) -> str:
    """What a machine multiplies tiles with, in the order in which it is tried: names and sizes are the vocabulary's."""
    kinds = dict.fromkeys(re.sub(r"_m\d+n\d+k\d+", "", one.function) for one in arch.matrix_instructions)
    return ", ".join([*(f"`{kind}`" for kind in kinds), *(["scalar products"] if arch.has_threads else [])])


def instructions() -> str:
    """The table of instructions; machines that try the same share a row."""
    machines = [("cpu", name, resolve(f"cpu -arch={name}")[1]) for name in PROCESSORS]
    machines += [("cuda", one.name, with_instructions(one)) for one in NVIDIA.values()]
    machines += [(target, one.name, one) for target, of in (("hip", AMD), ("metal", FAMILIES)) for one in of.values()]
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for target, name, arch in machines:
        rows[target, tried(arch)].append(name)
    lines = [f"| `{target}` | {', '.join(names)} | {order} |" for (target, order), names in rows.items()]
    return "\n".join(["| target | machines | tried in this order |", "| --- | --- | --- |", *lines])


def refused(arch: str) -> dict[str, list[str]]:
    """The repository's programs that are refused there, by what is said of them."""
    found: dict[str, list[str]] = defaultdict(list)
    for program in ALL:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program.make(arch)
        except TilewrightError as error:
            found[str(error).split("\n")[0].replace(arch, "it")].append(program.name)
    return found


def share() -> str:
    """How many of the repository's programs run as Metal text, and why the others do not."""
    said = refused("apple7")
    count = len(ALL) - sum(map(len, said.values()))
    head = f"{count} of the {len(ALL)} programs that the emulator runs for NVIDIA's machines run as Metal text; refused are:"
    return "\n".join([head, "", *(wrapped(f"- {why}: {', '.join(names)}") for why, names in said.items())])


def wrapped(item: str) -> str:
    """An item of a list, in lines as the pages have them."""
    return textwrap.fill(item, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: made by tests/unit/test_targets_page\.py -->\n\n).*?(\n\n<!-- end -->)", re.S)


def check(name: str, made: str, request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    assert section(name).search(page)
    wanted = section(name).sub(lambda found: found[1] + made + found[2], page)
    if request.config.getoption("--update"):
        PAGE.write_text(wanted)
    else:
        assert page == wanted, f"run pytest {Path(__file__).name} --update"


def test_instructions_are_those_of_the_records(request: pytest.FixtureRequest) -> None:
    check("instructions", instructions(), request)


def test_every_program_is_counted() -> None:
    """The proof below compiles them all; that there are more is seen here."""
    found = section("programs").search(PAGE.read_text())
    assert found and f"of the {len(ALL)} programs" in found[0], f"run pytest -m proof {Path(__file__).name} --update"


@pytest.mark.proof
def test_the_share_of_programs_that_run_on_metal(request: pytest.FixtureRequest) -> None:
    made = share()
    print(made.split("\n")[0])
    check("programs", made, request)
    # Every family has the same programs.
    assert refused("apple10") == refused("apple7")
