"""Switches: their defaults, their environment names, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from tilewright.options import (
    VARIABLES,
    InvalidOption,
    Options,
    in_context,
    options,
    override,
    target_marker,
    target_option,
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def test_every_option_has_an_environment_name_and_is_documented() -> None:
    assert set(VARIABLES) == {field.name for field in dataclasses.fields(Options)}
    for name, variable in VARIABLES.items():
        assert variable.startswith("TILEWRIGHT_") and f"{name} : {variable}" in (Options.__doc__ or "")


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert options() == Options(cache_dir=Path("/somewhere/tilewright"))


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("TILEWRIGHT_CACHE_DIR", "/tmp/x", "cache_dir", Path("/tmp/x")),
        ("TILEWRIGHT_CACHE", "0", "cache", False),
        ("TILEWRIGHT_VERIFY", "yes", "verify", True),
        ("TILEWRIGHT_VERIFY", "OFF", "verify", False),
        ("TILEWRIGHT_POISON", "1", "poison", True),
        ("TILEWRIGHT_NUM_THREADS", "3", "num_threads", 3),
        ("TILEWRIGHT_CC", "gcc -m64", "compiler", "gcc -m64"),
        ("TILEWRIGHT_TARGET", "cpu -arch=avx2", "target", "cpu -arch=avx2"),
        ("TILEWRIGHT_DUMP", "lower_tiles", "dump", "lower_tiles"),
    ],
)
def test_the_environment_sets_them(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(options(), name) == value


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TILEWRIGHT_VERIFY", "maybe", "TILEWRIGHT_VERIFY='maybe' is not a switch\n  help: use 1 or 0"),
        (
            "TILEWRIGHT_NUM_THREADS",
            "²",
            "TILEWRIGHT_NUM_THREADS='²' is not a count\n  help: use a number, 0 for the default",
        ),
        (
            "TILEWRIGHT_NUM_THREADS",
            "-1",
            "TILEWRIGHT_NUM_THREADS='-1' is not a count\n  help: use a number, 0 for the default",
        ),
    ],
)
def test_what_an_option_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    if os.fsdecode(text.encode()) != text:
        pytest.skip("no variable has this letter in this locale")
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidOption) as caught:
        options()
    assert str(caught.value) == message


def test_overrides_are_stronger_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "3")
    with override(num_threads=1, verify=True) as inside:
        assert inside.num_threads == options().num_threads == 1
        with override(num_threads=2):
            assert options().num_threads == 2 and options().verify
        assert options().num_threads == 1
    assert options().num_threads == 3 and not options().verify
    with pytest.raises(InvalidOption, match="unknown option 'threads'"), override(threads=1):
        pass


def test_an_override_is_its_threads_own() -> None:
    """What one thread changes for a while, another's compilation does not see; whom it starts itself sees it."""
    seen: dict[str, list[int]] = {"strange": [], "own": []}
    inside, looked = threading.Event(), threading.Event()

    def strange() -> None:
        inside.wait(10)
        with override(num_threads=9):
            seen["strange"].append(options().num_threads)
        seen["strange"].append(options().num_threads)
        looked.set()

    other = threading.Thread(target=strange)
    other.start()
    with override(num_threads=5, target="cpu"):
        inside.set()
        assert looked.wait(10)
        assert options().num_threads == 5 and target_option() == "cpu" == target_marker()
        own = threading.Thread(target=in_context(lambda: seen["own"].append(options().num_threads)))
    own.start()
    other.join()
    own.join()
    assert seen == {"strange": [9, 0], "own": [5]} and options().num_threads == 0


def test_overrides_may_end_in_any_order() -> None:
    first, second = override(num_threads=1), override(num_threads=2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert options().num_threads == 2
    second.__exit__(None, None, None)
    assert options().num_threads == 0
