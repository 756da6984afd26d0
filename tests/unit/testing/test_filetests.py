"""The runner of file tests: reading cases, machines, updating, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tile_files.cases import BadFileTest, read_cases, run_case, update_file
from tile_files.kinds import UnknownPass, find_pass, machine

from tilewright.errors import TilewrightError

PROGRAM = "def f(A: int32[8]):\n    with kernel(blocks={bx: 8}, threads={tx: 1, ty: 1, tz: 1}):\n        A[bx] = 1\n"


def test_cases_are_divided_and_run(tmp_path: Path) -> None:
    file = tmp_path / "two.tile"
    file.write_text(f"# verify\n{PROGRAM}----\nvalid\n====\n# error one warp_size=32\n{PROGRAM}----\nx\n")
    first, second = read_cases(file)
    assert (first.kind, first.arguments, first.expected, first.line) == ("verify", (), "valid", 1)
    assert (second.kind, second.arguments, second.options) == ("error", ("one",), {"warp_size": "32"})
    assert second.line == 8 and second.name == "two:8 error one warp_size=32"
    assert run_case(first) == "valid"
    assert run_case(second) == "UnknownPass: no pass 'one' in tilewright/passes/{tile,lower,thread}"


def test_updating_writes_outcomes_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "two.tile"
    case = f"# verify\n{PROGRAM}----\n"
    file.write_text(f"{case}?\n====\n{case}keep\n")
    update_file(file, {1: "valid"})
    assert file.read_text() == f"{case}valid\n====\n{case}keep\n"
    update_file(file, {})
    assert file.read_text() == f"{case}valid\n====\n{case}keep\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{PROGRAM}----\n", "a case begins with `# kind arguments`"),
        (f"# verfy\n{PROGRAM}----\n", "unknown kind 'verfy'"),
        (f"# verify\n{PROGRAM}", "a case has one line '----' between its program and what is expected"),
    ],
)
def test_what_is_not_a_case_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.tile"
    file.write_text(text)
    with pytest.raises(BadFileTest) as caught:
        read_cases(file)
    assert caught.value.message == f"{file}:1: {message}"


def test_machines_are_described_in_the_header() -> None:
    assert machine({}).vector_bytes == 16
    arch = machine({"vector_bytes": "64", "features": "avx512f,vnni"})
    assert arch.vector_bytes == 64 and arch.features == {"avx512f", "vnni"}
    with pytest.raises(TilewrightError, match="a machine has no 'warps'"):
        machine({"warps": "3"})


def test_passes_are_found_by_name() -> None:
    with pytest.raises(UnknownPass):
        find_pass("no_such_pass")
