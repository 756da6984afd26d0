"""Lowered programs on disk: found again by another process, and never for another program."""

import subprocess
import sys

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.printer import print_program
from tilewright.options import override
from tilewright.runtime import programs

SCRIPT = """
import numpy as np, tilewright
from tilewright.kernels.softmax import softmax_of_long_rows
from tilewright.runtime import programs
from tilewright.specialization import JITFunction
made = []
compiled = programs.compile_function
programs.compile_function = lambda *given: made.append(given) or compiled(*given)
kernel = JITFunction(softmax_of_long_rows.direct.function, "cuda -arch=sm_80", None).compile(np.zeros((4, 64), np.float32))
print(len(made), len(kernel.get_kernel_source()), len(kernel.program.traces) > 3, len(made))
"""


def test_a_process_finds_what_another_lowered(tmp_path):
    environment = {**__import__("os").environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path), "TILEWRIGHT_VERIFY": "0"}
    found = [
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (one.stdout.split() for one in found)
    assert first[0] == "1" and first[2:] == ["True", "1"]
    assert second[0] == "0" and second[1] == first[1] and second[2:] == ["True", "1"]  # traces are made when asked for


def scaled(factor):
    @T.prim_func
    def scale(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64, 64), "float32")):
        with T.Kernel(4) as block:
            for i, j in T.Parallel(16, 64):
                Y[block * 16 + i, j] = X[block * 16 + i, j] * factor

    return scale


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
def test_programs_from_disk_run_and_differ(tmp_path, target):
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    with override(cache_dir=tmp_path, verify=False):
        for factor in (2.0, 3.0, 2.0, 3.0):
            kernel = tilewright.compile(scaled(factor), out_idx=-1, target=target)
            result = kernel(x) if target == "cpu" else kernel.emulate(x)
            assert np.array_equal(result, x * np.float32(factor))
        assert len(list(tmp_path.rglob(programs.FILE))) == 2


def test_entries_that_changed_places_are_made_again(tmp_path):
    """A program's, and a kernel's binary: each is bound to its key, so the wrong one of them is never run."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    with override(cache_dir=tmp_path, verify=False):
        found = []
        for factor in (2.0, 3.0):
            tilewright.compile(scaled(factor), out_idx=-1, target="cpu")(x)
            found.append({path.parent for name in (programs.FILE, "kernel.c") for path in tmp_path.rglob(name)})
        of_two, of_three = sorted(found[0]), sorted(found[1] - found[0])
        assert len(of_two) == len(of_three) == 2
        by_kind = [sorted(each, key=lambda entry: (entry / programs.FILE).exists()) for each in (of_two, of_three)]
        for first, second in zip(*by_kind, strict=True):
            first.rename(tmp_path / "aside")
            second.rename(first)
            (tmp_path / "aside").rename(second)
        for factor in (2.0, 3.0):
            kernel = tilewright.compile(scaled(factor), out_idx=-1, target="cpu")
            assert np.array_equal(kernel(x), x * np.float32(factor))


def test_a_program_from_disk_is_the_program(tmp_path):
    """Its names are the traced function's own, and its text is the same to the letter."""
    with override(cache_dir=tmp_path, verify=False):
        function = scaled(2.0)
        made, found = (tilewright.compile(function, out_idx=-1, target="cuda -arch=sm_90a").program for _ in range(2))
        assert found.final is not made.final
        assert print_program(found.final) == print_program(made.final)
        assert (found.source, found.diagnostics, found.choices) == (made.source, made.diagnostics, made.choices)
        shared = [a is b for a, b in zip(found.traced.params, found.final.params, strict=True)]
        assert shared == [a is b for a, b in zip(made.traced.params, made.final.params, strict=True)]
