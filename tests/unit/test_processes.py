"""Other programs: side by side, and ended with their children when somebody interrupts."""

import io
import os
import re
import signal
import subprocess
import sys

import pytest
from busy import PATIENCE, awaited

from tilewright.processes import run, run_together

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes")


class Screen(io.StringIO):
    """A terminal that keeps what is shown."""

    def isatty(self):
        return True


class Watched(Screen):
    """One whose reader tells by a file that the first of two programs is shown as done."""

    def __init__(self, told):
        super().__init__()
        self.told = told

    def write(self, text):
        if "1/2" in text:
            self.told.touch()
        return super().write(text)


def test_what_takes_long_is_shown_and_what_is_quick_is_not(monkeypatch, tmp_path):
    screen = Watched(tmp_path / "told")
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("tilewright.progress.PATIENCE", PATIENCE)
    run(python("pass"), "compiling something")
    assert not screen.getvalue()
    monkeypatch.setattr("tilewright.progress.PATIENCE", 0.0)
    long = f"import os, time\nfor _ in range(9000):\n    if os.path.exists({str(screen.told)!r}): break\n    time.sleep(0.02)"
    run_together([python("pass"), python(long)], "compiling something")
    assert re.search(r"1/2 +\d\.\d s  compiling something", screen.getvalue())
    assert screen.getvalue().endswith("\r\033[K")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_nothing_is_shown_where_there_is_no_console(monkeypatch, stream):
    if stream:
        stream = Screen()
        stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("tilewright.progress.PATIENCE", 0.0)
    assert run(python("print(1)"), "something").output == "1\n"


def python(text):
    return [sys.executable, "-c", text]


def test_what_programs_say_comes_back_in_order():
    found = run_together(
        [python(f"import sys; print({i}); print('e{i}', file=sys.stderr); sys.exit({i})") for i in range(5)], "a test"
    )
    assert [(one.status, one.output, one.complaint) for one in found] == [(i, f"{i}\n", f"e{i}\n") for i in range(5)]


def test_much_is_said_without_anybody_waiting():
    many = python(
        "import sys; sys.stdout.write('x' * 1000000); sys.stderr.write('y' * 1000000); print(sys.stdin.read())"
    )
    assert [len(one.output) for one in run_together([many] * 2, "a test")] == [1_000_001] * 2


def test_what_cannot_be_started_is_said_and_the_others_end(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        run_together(
            [python(f"import time; time.sleep(60); open({str(tmp_path / 'made')!r}, 'w')"), ["/no/such/program"]],
            "a test",
        )
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import sys
from tilewright.processes import run_together
child = "import os, subprocess, sys, time; print(os.getpid()); subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3000)']); open(sys.argv[1] + '/' + str(os.getpid()), 'w'); time.sleep(float(sys.argv[2]))"
try:
    run_together([[sys.executable, "-c", child, sys.argv[1], sys.argv[2]]] * 2, "a test")
except KeyboardInterrupt:
    print("interrupted")
"""


def groups(folder):
    return [int(name) for name in os.listdir(folder)]


def gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("to_group", [False, True])
def test_an_interruption_ends_programs_and_their_children(tmp_path, to_group):
    """Whether the terminal tells this process alone or its whole group."""
    process = subprocess.Popen(
        [*python(INTERRUPTED), str(tmp_path), "3000"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert awaited(lambda: len(groups(tmp_path)) == min(2, os.cpu_count() or 1))
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert awaited(lambda: all(map(gone, groups(tmp_path))))


def test_an_interruption_when_a_program_has_just_ended(monkeypatch):
    """The process is gone and its number with it: that is no error of its own."""
    import tilewright.processes as processes

    class Ended(processes._Running):
        def finish(self):
            super().finish()
            raise KeyboardInterrupt

    monkeypatch.setattr(processes, "_Running", Ended)
    with pytest.raises(KeyboardInterrupt):
        run(python("pass"), "a test")

    class Reaped(processes._Running):
        def __init__(self, *given):
            super().__init__(*given)
            os.waitpid(self.process.pid, 0)  # somebody else has waited for it

        def finish(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(processes, "_Running", Reaped)
    with pytest.raises(KeyboardInterrupt):
        run(python("pass"), "a test")
