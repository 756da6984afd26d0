"""What the whole suite shares: ``--update``, file tests as pytest items, programs checked wherever they arise."""

from __future__ import annotations

import collections
import contextlib
import difflib
import gc
import os
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING


def keep_bytecode() -> None:
    """Where nothing may be written beside the sources, this user's tests keep bytecode elsewhere: hundreds of processes import the package,
    which takes twice as long from sources."""
    folder = Path(tempfile.gettempdir()) / f"tilewright-tests-bytecode-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid == os.getuid() and not folder.is_symlink():
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False


if sys.dont_write_bytecode and hasattr(os, "getuid"):
    keep_bytecode()

import hypothesis  # noqa: E402
import pytest  # noqa: E402
from drawing import Clock, draw  # noqa: E402

from tilewright.errors import TilewrightError  # noqa: E402

if TYPE_CHECKING:
    from tile_files.cases import Case

    from tilewright.ir.nodes import Function

# The rest is imported where it is used, so that the tests of a room run while a later room is broken.

os.environ.setdefault("TILEWRIGHT_VERIFY", "1")  # the whole program after every pass, in every test
hypothesis.settings.register_profile("tilewright", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tilewright")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite what .tile files expect")
    parser.addoption("--seconds", action="store_true", help="write down what cases take, which the usual loop draws by")
    parser.addoption("--slice", default="1/1", help="I/N: of the tests chosen, every N-th from the I-th on")


def pytest_configure(config: pytest.Config) -> None:
    """Tests can be interrupted, and those that need no GPU see none: ``target="auto"`` means this machine's processor."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt themselves and what they start
    if "not proof" in (config.option.markexpr or ""):
        globals().update(READ_BACK=8 * READ_BACK, AFRESH=8 * AFRESH)
    if "not gpu" in (config.option.markexpr or ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    config.pluginmanager.register(Clock(config.getoption("--seconds")))
    gc.disable()  # until all tests are known: there is no garbage among them


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders of tests that all have a mark which is not asked for are not read, unless they are named."""
    left_out = collection_path.parent == Path(__file__).parent and f"not {collection_path.name}" in (
        config.option.markexpr or ""
    )
    named = any(collection_path.name in argument for argument in config.invocation_params.args)
    return True if left_out and not named else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Draw cases, then keep a slice of the tests that names and marks have chosen: the long proofs in pieces, on several
    machines or one after another."""
    left_out = draw(items)
    if "not proof" in (config.option.markexpr or ""):  # before others look at them, each for its own reasons
        config.hook.pytest_deselected(items=left_out)
        drawn = set(items).difference(left_out)
        items[:] = [item for item in items if item in drawn]
    yield
    number, count = map(int, config.getoption("--slice").split("/"))
    if count > 1:
        kept = items[number - 1 :: count]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_collection_finish() -> None:
    """Whatever collection made stays to the end: no search for garbage looks at it again, and there are fewer."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def round_trips() -> Iterator[None]:
    """Programs that the suite traces and lowers are verified, a sample of them whole, printed and read back."""
    patch = pytest.MonkeyPatch()
    for module in ("tilewright.language.trace", "tilewright.passes.manager"):
        with contextlib.suppress(ImportError):  # the tests of that room will say so
            patch.setattr(f"{module}.verify", verify_and_read_back)
    yield
    patch.undo()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """A test that asked for AMD's compiler where really none is has shown nothing."""
    from tilewright.errors import CompilerNotFound

    try:
        return (yield)  # type: ignore[return-value]
    except CompilerNotFound as error:
        from tilewright.targets.hip.compiler import find_compiler

        try:
            find_compiler()
        except CompilerNotFound as missing:
            if str(missing) == str(error):
                pytest.skip(str(error))
        raise


LARGE = 20_000
"""Nodes of a program that is seldom read back: it has the same kinds of them as smaller ones."""

READ_BACK, AFRESH = 12, 1
"""Of so many programs one is printed and read back (of large ones one in ten times as many), and one is verified whole;
others where their pass has changed them, as users' programs are. All are drawn by the test and by how many it had
before, so that every pass of every kind of program is drawn somewhere; the usual loop draws eight times fewer."""

PROGRAMS: collections.Counter[str] = collections.Counter()
"""By test, how many there have been."""


def verify_and_read_back(function: Function, *, afresh: bool = True, by_author: bool = True) -> None:
    """What ``verify`` does, and for a sample of programs that text and JSON give the program back."""
    from tilewright.ir.verifier import verify

    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    PROGRAMS[test] += 1
    drawn = zlib.crc32(f"{test} {PROGRAMS[test]}".encode())
    verify(function, afresh=afresh and drawn % AFRESH == 0, by_author=by_author)
    if drawn % READ_BACK == 0:
        read_back(function, seldom=drawn // READ_BACK % 10 != 0)


def read_back(function: Function, seldom: bool) -> None:
    """Text and JSON give a program back; a large one is left out where `seldom`."""
    from tilewright.ir.parser import parse
    from tilewright.ir.printer import print_program
    from tilewright.ir.records import Table, read
    from tilewright.ir.walking import walk

    if seldom and sum(1 for _ in walk(function)) > LARGE:
        return
    text = print_program(function)
    assert print_program(parse(text)) == text
    table, again = Table(), Table()
    written = table.text(table.add(function))
    assert again.text(again.add(read(written))) == written


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return TileFile.from_parent(parent, path=file_path) if file_path.suffix == ".tile" else None


class TileFile(pytest.File):
    """A ``.tile`` file: one item a case."""

    outcomes: dict[int, str]

    def collect(self) -> Iterator[pytest.Item]:
        from tile_files.cases import read_cases

        self.outcomes = {}
        for case in read_cases(self.path):
            yield TileCase.from_parent(self, name=case.name, case=case)

    def teardown(self) -> None:
        from tile_files.cases import update_file

        if self.config.getoption("--update") and self.outcomes:
            update_file(self.path, self.outcomes)


class TileCase(pytest.Item):
    """One case of a ``.tile`` file."""

    def __init__(self, *, case: Case, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.case = case

    def runtest(self) -> None:
        from tile_files.cases import run_case

        outcome = run_case(self.case)
        if outcome == self.case.expected:
            return
        if self.config.getoption("--update"):
            assert isinstance(self.parent, TileFile)
            self.parent.outcomes[self.case.line] = outcome
            return
        raise Mismatch(self.case, outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, (Mismatch, TilewrightError)):
            return str(excinfo.value)
        return str(excinfo.getrepr(style="short"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, self.name


class Mismatch(AssertionError):
    """The outcome of a file test is not what the file expects."""

    def __init__(self, case: Case, outcome: str) -> None:
        lines = difflib.unified_diff(
            case.expected.splitlines(), outcome.splitlines(), "expected", "outcome", lineterm=""
        )  # fmt: skip
        super().__init__(f"{case.file}:{case.line}: {case.header}\n" + "\n".join(lines))
