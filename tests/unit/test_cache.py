"""The disk cache: damaged entries, directories that cannot be written, several processes, interrupted builds."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

import tilewright.cache
from tilewright.cache import cache_directory, cached, digest, get_text, put_text
from tilewright.errors import TilewrightError, TilewrightWarning
from tilewright.options import in_context, override
from tilewright.texts import write_text
from tilewright.tuning.database import Database


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Entries of the process, and what it was told, are a test's own."""
    monkeypatch.setattr(tilewright.cache, "_process_directory", [])
    monkeypatch.setattr(tilewright.cache, "_told", set())


@pytest.fixture
def directory(tmp_path):
    with override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def writes(text, calls=None):
    def build(place):
        if calls is not None:
            calls.append(place)
        (place / "binary").write_text(text)

    return build


def test_an_entry_is_built_once(directory):
    calls = []
    for _ in range(3):
        assert (cached("ab12", writes("code", calls)) / "binary").read_text() == "code"
    assert len(calls) == 1


def test_directories_are_the_users_alone(directory):
    before = os.umask(0o002)
    try:
        cached("ab12", writes("code"))
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (directory, cache_directory())] == [0o700, 0o700]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
@pytest.mark.parametrize("of_versions", [False, True])
def test_a_directory_that_others_may_write_to_is_not_used(directory, of_versions):
    """Whoever can write there could put code there."""
    entry = cached("ab12", writes("code"))
    (directory if not of_versions else cache_directory()).chmod(0o777)
    (entry / "binary").write_text("evil")
    with pytest.warns(TilewrightWarning, match=r"others may write to it \(its mode is 0777\)") as caught:
        made = cached("ab12", writes("code"))
    assert "chmod 700" in str(caught[0].message)
    assert (made / "binary").read_text() == "code" and directory not in made.parents


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_not_used(directory):
    cached("ab12", writes("evil"))
    os.chown(directory, 12345, 12345)
    with pytest.warns(TilewrightWarning, match=r"belongs to another user \(number 12345; you are 0\)"):
        made = cached("ab12", writes("code"))
    assert (made / "binary").read_text() == "code"


DEEP = "[" * 100_000


def test_a_damaged_entry_is_built_again(directory, tmp_path):
    entry = cached("ab12", writes("code"))
    other = cached("cd34", writes("another's"))
    (tmp_path / "elsewhere").write_text("code")
    damages = [
        lambda: (entry / "binary").write_text("cod"),
        lambda: (entry / "binary").write_text("codf"),
        lambda: (entry / "binary").write_text(""),
        lambda: (entry / "binary").unlink(),
        lambda: ((entry / "binary").unlink(), (entry / "binary").symlink_to(tmp_path / "elsewhere")),
        lambda: (entry / "more").write_text("what nobody put there"),
        lambda: shutil.copyfile(other / "binary", entry / "binary"),
        lambda: [shutil.copyfile(other / name, entry / name) for name in ("binary", "entry.json")],
        lambda: (shutil.rmtree(entry), shutil.copytree(other, entry)),
        lambda: (shutil.rmtree(entry), entry.write_text("a file")),
        lambda: (shutil.rmtree(entry), entry.symlink_to(other)),
        lambda: (entry / "entry.json").unlink(),
        lambda: ((entry / "entry.json").unlink(), (entry / "entry.json").mkdir()),
        lambda: ((entry / "entry.json").unlink(), os.mkfifo(entry / "entry.json")),
        lambda: ((entry / "binary").unlink(), os.mkfifo(entry / "binary")),
        lambda: os.truncate(entry / "binary", 1 << 40),  # a hole of a terabyte is not read
    ]
    for text in ("", "{", "{}", "[]", "null", DEEP, '{"key": "ab12"}', '{"key": "ab12", "files": null}', '{"key": "ab12", "files": {}}',
                 '{"key": "ab12", "files": {"binary": 1}}',
                 '{"key": "ab12", "files": {"binary": [4]}}', '{"key": "ab12", "files": {"binary": [4, 1]}}', '{"key": "ab12", "files": {"binary": "45"}}', '{"key": "ab12", "files": ["binary"]}',
                 '{"key": "ab12", "files": {"../cd34/binary": ""}}'):  # fmt: skip
        damages.append(lambda text=text: (entry / "entry.json").write_text(text))
    for damage in damages:
        damage()
        assert (cached("ab12", writes("code")) / "binary").read_text() == "code"
    assert (cached("cd34", writes("wrong")) / "binary").read_text() == "another's"
    assert sorted(path.name for path in cache_directory().iterdir()) == ["ab", "building", "cd"]


def test_what_killed_processes_left_goes(directory):
    cached("ab12", writes("code"))
    script = """if True:
        import os, signal
        from tilewright.cache import cached
        cached("cd34", lambda place: ((place / "half").write_text("x"), os.kill(os.getpid(), signal.SIGKILL)))
    """
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(directory)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == -9
    building = cache_directory() / "building"
    assert len(list(building.iterdir())) == 1

    def build(place):
        assert list(building.iterdir()) == [place]
        assert (cached("cd56", writes("other")) / "binary").exists() and place.exists()  # what is being built stays
        (place / "binary").write_text("code")

    cached("cd34", build)
    assert list(building.iterdir()) == []


def test_what_fails_or_is_interrupted_leaves_nothing(directory):
    def fails(place):
        (place / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("ab12", fails)
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    assert (cached("ab12", writes("code")) / "binary").read_text() == "code"


def test_without_a_directory_entries_last_as_long_as_the_process(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with override(cache_dir=blocked):
        with pytest.warns(TilewrightWarning) as caught:
            entry = cached("ab12", writes("code"))
        assert str(caught[0].message).startswith(f"cannot use the cache directory {blocked}: Not a directory")
        assert "TILEWRIGHT_CACHE_DIR" in str(caught[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # told once
            assert cached("ab12", writes("other")) == entry
    assert (entry / "binary").read_text() == "code"


@pytest.mark.parametrize("where", ["build", "manifest", "rename"])
def test_a_full_disk_is_said_and_the_kernel_still_runs(directory, monkeypatch, where):
    """Whatever step of it meets the full disk, the entry is made elsewhere and nothing is left behind."""

    def on_disk(path):
        return directory in Path(path).parents

    def full(original, place=0):
        def work(*given, **named):
            if on_disk(given[place]):
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*given, **named)

        return work

    def refused(place):
        if on_disk(place):  # as a compiler says it
            raise TilewrightError("the C compiler failed: fatal error: error writing to kernel.o")
        writes("code")(place)

    build = writes("code")
    if where == "build":
        build = refused
        monkeypatch.setattr(Path, "write_bytes", full(Path.write_bytes))
    elif where == "manifest":
        monkeypatch.setattr("tilewright.cache.write_text", full(write_text))
    else:
        monkeypatch.setattr("tilewright.cache.os.rename", full(os.rename))
    with pytest.warns(TilewrightWarning, match="No space left on device"):
        entry = cached("ab12", build)
    assert (entry / "binary").read_text() == "code" and not on_disk(entry)
    monkeypatch.undo()
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    assert on_disk(cached("ab12", writes("code")))


def test_a_mistake_in_a_program_is_no_full_disk(directory):
    calls = []

    def refuse(place):
        calls.append(place)
        raise TilewrightError("no such word")

    with pytest.raises(TilewrightError, match="no such word"):
        cached("ab12", refuse)
    assert len(calls) == 1


def test_without_a_cache_entries_end_with_the_process(tmp_path):
    with override(cache=False, cache_dir=tmp_path / "unused"):
        assert (cached(digest("x"), writes("code")) / "binary").read_text() == "code"
    assert not (tmp_path / "unused").exists()


def test_many_threads_build_one_entry(directory):
    results = []
    threads = [
        threading.Thread(target=in_context(lambda: results.append(cached("ab12", writes("code"))))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*results}) == 1 and len(results) == 8
    assert (results[0] / "binary").read_text() == "code"
    assert [path.name for path in results[0].parent.iterdir()] == ["ab12"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of Unix")
def test_small_files_are_put_whole_and_what_killed_processes_left_goes(tmp_path):
    path = tmp_path / "room" / "one.json"
    put_text(path, "first")
    script = "import sys, os, signal, pathlib, tilewright.cache as c; c.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL); c.put_text(pathlib.Path(sys.argv[1]), 'cut')"
    killed = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert killed.returncode < 0 and len(list(path.parent.iterdir())) == 2 and get_text(path) == "first"
    put_text(path.with_name("other.json"), "")
    put_text(path, "second")
    assert sorted(one.name for one in path.parent.iterdir()) == ["one.json", "other.json"]
    assert get_text(path) == "second"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of Unix")
def test_no_pipe_is_waited_for(tmp_path):
    path = tmp_path / "one.json"
    os.mkfifo(path)
    with pytest.raises(OSError):
        get_text(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError):
        get_text(path)
    assert Database(tmp_path).get("any") is None
    os.mkfifo(Database(tmp_path)._path("any"))
    assert Database(tmp_path).get("any") is None
    Database(tmp_path).put("any", {"bm": 64})
    assert Database(tmp_path).get("any") == {"bm": 64}


def test_parts_of_a_key_do_not_run_together():
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")


def test_two_processes_compile_the_same_kernel(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import numpy as np, tilewright, tilewright.language as T

            @tilewright.jit(target="cpu")
            def add_one(X):
                N = T.const("N")
                X: T.Tensor((N,), "float32")
                Y = T.empty((N,), "float32")
                with T.Kernel(1):
                    for i in T.Parallel(N):
                        Y[i] = X[i] + 1
                return Y

            print(add_one(np.arange(5, dtype=np.float32)).sum())
            """
        )
    )
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [run.communicate()[0].strip() for run in runs] == ["15.0", "15.0"]
    for file in [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]:
        file.write_bytes(
            file.read_bytes()[: file.stat().st_size // 2]
        )  # the libraries of kernels and of threads among them
    again = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert again.stdout.strip() == "15.0" and not again.stderr
