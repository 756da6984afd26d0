"""Files and directories that appear when they are whole, and what is left of writers that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.checkpoints import save_safetensors
from tilewright.checkpoints.whole import clear_leftovers, whole_directory, whole_file
from tilewright.conversion import convert_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no locks that go with their process")

KILLED = """
import os, signal, sys
from tilewright.conversion import convert_checkpoint

def killed(file):
    os.kill(os.getpid(), signal.SIGKILL)

os.fsync = killed
convert_checkpoint(sys.argv[1], sys.argv[2], "w4a16", overwrite=True)
"""


@pytest.mark.parametrize("name", ["to", "to.safetensors"])
def test_the_next_conversion_clears_what_a_killed_one_left(tmp_path: Path, name: str) -> None:
    save_safetensors(tmp_path / "from.safetensors", {"proj.weight": np.ones((8, 64), np.float32)})
    arguments = [str(tmp_path / "from.safetensors"), str(tmp_path / name)]
    died = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, stderr=subprocess.DEVNULL)
    assert died.returncode == -signal.SIGKILL
    assert [left.endswith(".unfinished") for left in sorted(os.listdir(tmp_path))] == [True, False]
    convert_checkpoint(*arguments, "w4a16")
    assert sorted(os.listdir(tmp_path)) == ["from.safetensors", name]


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "to"
    with whole_directory(path) as room:
        (room / "a").write_text("1")
        clear_leftovers(path)
        with whole_directory(path) as other:  # two writers at once: the last has its way
            (other / "b").write_text("2")
        assert os.listdir(path) == ["b"] and os.listdir(room) == ["a"]
    assert os.listdir(path) == ["a"] and os.listdir(tmp_path) == ["to"]
    with whole_file(tmp_path / "file") as file:
        clear_leftovers(tmp_path / "file")
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_name_gets_back_what_was_moved_aside_for_one_that_never_came(tmp_path: Path) -> None:
    aside = tmp_path / ".to.123-4.replaced"
    aside.mkdir()
    (aside / "a").write_text("1")
    (tmp_path / ".to.other.123-4.replaced").mkdir()  # of another name
    clear_leftovers(tmp_path / "to")
    assert os.listdir(tmp_path / "to") == ["a"] and not aside.exists()
    aside.mkdir()
    clear_leftovers(tmp_path / "to")
    assert sorted(os.listdir(tmp_path)) == [".to.other.123-4.replaced", "to"]
