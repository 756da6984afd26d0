"""The disk cache: damaged entries, directories that cannot be written, several processes, interrupted builds."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from tilewright.cache import CacheUnavailable, cached, digest
from tilewright.options import override


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


def test_others_may_read_an_entry_as_the_user_says(directory):
    before = os.umask(0o027)
    try:
        assert cached("ab12", writes("code")).stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(before)


def test_a_damaged_entry_is_built_again(directory):
    entry = cached("ab12", writes("code"))
    for damage in (
        lambda: (entry / "binary").write_text("cod"),
        lambda: (entry / "binary").unlink(),
        lambda: (entry / "entry.json").write_text("{"),
        lambda: (entry / "entry.json").unlink(),
    ):
        damage()
        assert (cached("ab12", writes("code")) / "binary").read_text() == "code"


def test_what_fails_or_is_interrupted_leaves_nothing(directory):
    def fails(place):
        (place / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("ab12", fails)
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    assert (cached("ab12", writes("code")) / "binary").read_text() == "code"


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with override(cache_dir=blocked), pytest.raises(CacheUnavailable) as caught:
        cached("ab12", writes("code"))
    assert str(caught.value).startswith(f"cannot write the cache directory {blocked}")
    assert "TILEWRIGHT_CACHE_DIR" in str(caught.value)
    with override(cache_dir=tmp_path / "other"):
        cached("ab12", writes("code"))


def test_a_full_disk_is_named_and_leaves_nothing(directory, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilewright.cache.os.rename", full)
    with pytest.raises(CacheUnavailable, match="No space left on device"):
        cached("ab12", writes("code"))
    monkeypatch.undo()
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    cached("ab12", writes("code"))


def test_without_a_cache_entries_end_with_the_process(tmp_path):
    with override(cache=False, cache_dir=tmp_path / "unused"):
        assert (cached(digest("x"), writes("code")) / "binary").read_text() == "code"
    assert not (tmp_path / "unused").exists()


def test_many_threads_build_one_entry(directory):
    results = []
    threads = [threading.Thread(target=lambda: results.append(cached("ab12", writes("code")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*results}) == 1 and len(results) == 8
    assert (results[0] / "binary").read_text() == "code"
    assert [path.name for path in results[0].parent.iterdir()] == ["ab12"]


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
