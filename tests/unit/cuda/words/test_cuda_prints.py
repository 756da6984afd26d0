"""What programs say while they run: the same lines from the interpreter, the emulated texts and a CPU; assertions with their place."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from printing_programs import PRINTING, of_a_product, of_groups

import tilewright
import tilewright.language as T
from tilewright.errors import AssertionFailed, EmulationError, MissingCapability
from tilewright.interpreter import interpret

ROLES = (of_a_product, of_groups)
"""Programs that Hopper's words change most."""


def copies(arguments):
    return [value.copy() if isinstance(value, np.ndarray) else value for value in arguments]


def interpreted(function, arguments):
    lines = []
    interpret(function.function, copies(arguments), report=lines.append)
    return lines


def on(function, arch):
    return tilewright.compile(function, target=f"cuda -arch={arch}")


FORMS = [
    pytest.param(program, arch, marks=[] if (program in ROLES) == (arch == "sm_90a") else pytest.mark.proof)
    for program in PRINTING
    for arch in ("sm_80", "sm_90a")
]


@pytest.mark.parametrize(("program", "arch"), FORMS)
def test_emulated_texts_say_what_the_interpreter_says(program, arch):
    function, arguments, _ = program()
    lines = []
    on(function, arch).emulate(*copies(arguments), report=lines.append)
    expected = interpreted(function, arguments)
    assert len(expected) > 3
    assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize("program", [one for one in PRINTING if one()[2]], ids=lambda one: one.__name__)
def test_a_cpu_says_the_same(program, capfd):
    function, arguments, _ = program()
    kernel = tilewright.compile(function, target="cpu")
    capfd.readouterr()
    kernel(*copies(arguments))
    ctypes.CDLL(None).fflush(None)
    said = capfd.readouterr().out
    assert sorted(said.splitlines()) == sorted("\n".join(interpreted(function, arguments)).splitlines())


def test_lines_are_what_the_page_says():
    @T.prim_func
    def page(A: T.Tensor((2, 16), "float16"), n: T.int32):
        with T.Kernel(1, 4, threads=32) as (_, by):
            tx = T.get_thread_binding()
            if by == 3:
                T.print(A, msg="after")
                print("k", n, A[0, 1])
                if tx % 16 == 0:
                    print(tx)

    A = np.arange(32, dtype=np.float16).reshape(2, 16) / 2
    expected = [
        "[block 0 3] after A[0, 0:8] = 0 0.5 1 1.5 2 2.5 3 3.5",
        "[block 0 3] after A[0, 8:16] = 4 4.5 5 5.5 6 6.5 7 7.5",
        "[block 0 3] after A[1, 0:8] = 8 8.5 9 9.5 10 10.5 11 11.5",
        "[block 0 3] after A[1, 8:16] = 12 12.5 13 13.5 14 14.5 15 15.5",
        "[block 0 3] k 2 0.5",
        "[block 0 3, thread 0] 0",
        "[block 0 3, thread 16] 16",
    ]
    assert interpreted(page, [A, 2]) == expected
    lines = []
    on(page, "sm_80").emulate(A, 2, report=lines.append)
    assert lines == expected


def test_lanes_of_a_warp_say_one_line_after_the_other():
    @T.prim_func
    def lanes(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            print("a", tx)
            print("b", tx)
            A[tx] = tx

    lines = []
    on(lanes, "sm_80").emulate(np.zeros(64, np.int32), report=lines.append)
    said = [[f"[block 0, thread {t}] {name} {t}" for t in range(w, w + 32)] for w in (0, 32) for name in "ab"]
    assert lines == [line for part in said for line in part]


def test_prints_change_neither_roles_nor_their_copies():
    text = on(of_a_product()[0], "sm_90a").get_kernel_source()
    assert "tw::tma_load" in text and "tw::wgmma_ss" in text and "a_ring" in text


def test_what_does_not_speak_brings_no_words_for_it():
    @T.prim_func
    def silent(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = i

    assert "tilewright_debug" not in on(silent, "sm_80").get_kernel_source()


def test_host_programs_print_too(capsys):
    @T.prim_func
    def sized(A: T.Tensor((T.dynamic("rows"), 4), "float32")):
        rows = A.shape[0]
        print("rows", rows)
        with T.Kernel(rows, threads=32) as bx:
            for i in T.Parallel(4):
                A[bx, i] = bx

    on(sized, "sm_80").emulate(np.zeros((3, 4), np.float32))
    assert capsys.readouterr().out == "rows 3\n"
    kernel = tilewright.compile(sized, target="cpu")
    kernel(np.zeros((5, 4), np.float32))
    assert "rows %d\\n" in kernel.get_kernel_source()
    lines = []
    interpret(sized.function, [np.zeros((3, 4), np.float32)], report=lines.append)
    assert lines == ["rows 3"]


def test_an_assertion_says_its_message_and_its_line():
    @T.prim_func
    def asserting(A: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            T.device_assert(A[tx] < n, 'every "A" is small')
            A[tx] = 0

    line = asserting.function.span.line + 3
    A = np.arange(64, dtype=np.int32)
    with pytest.raises(AssertionFailed, match='device assertion failed: every "A" is small'):
        interpret(asserting.function, [A.copy(), 40])
    with pytest.raises(EmulationError) as caught:
        on(asserting, "sm_80").emulate(A.copy(), 40)
    (report,) = caught.value.reports
    assert report.message == 'device assertion failed: every "A" is small'
    assert (report.span.line, report.at.thread[0]) == (line, 40)
    with pytest.raises(AssertionFailed, match='every "A" is small'):
        tilewright.compile(asserting, target="cpu")(A.copy(), 40)
    on(asserting, "sm_80").emulate(A.copy(), 64)
    text = on(asserting, "sm_80").get_kernel_source()
    assert f'tw::assertion_failed("every \\"A\\" is small", "{__file__}", {line}, __func__);' in text


def refused(function):
    with pytest.raises(MissingCapability) as caught:
        on(function, "sm_80")
    return str(caught.value).split("\n")[0]


def test_prints_that_a_machine_cannot_show():
    @T.prim_func
    def apart(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            fragment = T.alloc_fragment((64,), "int32")
            T.copy(A, fragment)
            if tx == 3:
                T.print(fragment)

    @T.prim_func
    def nobody(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            T.print(A, warp_group_id=1)

    @T.prim_func
    def many(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            print(*(A[i] for i in range(33)))

    @T.prim_func
    def outside(A: T.Tensor((64,), "int32")):
        print(A)
        with T.Kernel(1, threads=64):
            A[0] = 1

    assert refused(apart) == (
        "the fragment fragment is shown by the whole block together, and here its threads are apart"
    )
    assert refused(nobody) == "thread 128 shall print, and the block has 64 threads"
    assert refused(many) == "sm_80 prints at most 32 numbers in a line, and this one has 34"
    assert refused(outside) == "A is printed outside of a kernel, where a program knows sizes alone"


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cpu"])
def test_breakpoints_are_the_interpreters_alone(target):
    @T.prim_func
    def stopping(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            breakpoint(A)
            A[0] = 1

    with pytest.warns(tilewright.errors.TilewrightWarning, match="stops in the interpreter alone"):
        tilewright.compile(stopping, target=target)
