"""Work that only some threads of a block come to is done by these, whole, or refused with the author's line."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import DivergentWork
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.language.mistakes import MisplacedRole
from tilewright.passes.context import Context
from tilewright.passes.tile.roles import distribute_work as module
from tilewright.targets.cuda.arch import arch

TARGETS = ["cuda -arch=sm_90a", "cuda -arch=sm_80", "cpu"]
CONDITIONS: dict[str, Callable[[Any], Any]] = {
    "half": lambda t: t < 64,
    "the rest": lambda t: t >= 32,
    "one": lambda t: t == 5,
    "every second": lambda t: t % 2 == 1,
    "less than a warp's end": lambda t: t < 50,
    "several warps and a few": lambda t: t > 40,
    "here and there": lambda t: t * 7 % 128 < 50,
}
WORK = (
    "loop", "copy", "fill", "sums", "both ways", "in a loop", "tensor", "leaving", "copy by threads", "copy by cp.async",
    "copy by the engine", "tensor to tensor", "filled tensor", "added",
)  # fmt: skip
TENSORS = ("tensor", "tensor to tensor", "filled tensor", "added")


def program(condition: Callable[[Any], Any], work: str, data: bool = False) -> T.PrimFunc:
    @T.prim_func
    def some(X: T.Tensor((6, 40), "float32"), F: T.Tensor((128,), "int32"), O: T.Tensor((6, 40), "float32")):
        with T.Kernel(1, threads=128):
            s, t = T.alloc_shared((6, 40), "float32"), T.get_thread_binding()
            comes = F[t] > 0 if data else condition(t)
            if work == "loop":
                if comes:
                    for i, j in T.Parallel(6, 40):
                        s[i, j] = X[i, j] + 1
            elif work == "copy":
                if comes:
                    T.copy(X, s)
            elif work == "copy by threads":
                if comes:
                    T.copy(X, s, disable_tma=True)
            elif work == "copy by the engine":
                if comes:
                    T.copy(X, s, prefer_instruction="tma")
            elif work == "copy by cp.async":
                if comes:
                    T.async_copy(X, s)
                T.ptx_wait_group(0)
            elif work == "tensor to tensor":
                if comes:
                    T.copy(X, O)
            elif work == "filled tensor":
                if comes:
                    T.fill(O, 3.0)
            elif work == "added":
                T.copy(X, s)
                if comes:
                    T.atomic_add(O, s)
            elif work == "fill":
                if comes:
                    T.fill(s, 3.0)
            elif work == "sums":
                line = T.alloc_shared((6,), "float32")
                T.copy(X, s)
                if comes:
                    T.reduce_sum(s, line, dim=1)
                for i, j in T.Parallel(6, 40):
                    s[i, j] = line[i]
            elif work == "both ways":
                if comes:
                    for i, j in T.Parallel(2, 40):
                        s[i, j] = X[i, j]
                else:
                    for i, j in T.Parallel(4, 40):
                        s[2 + i, j] = X[2 + i, j] * 2
            elif work == "in a loop":
                for k in T.serial(6):
                    if comes:
                        for j in T.Parallel(40):
                            s[k, j] = X[k, j] - 1
            elif work == "tensor":
                if comes:
                    for i, j in T.Parallel(6, 40):
                        O[i, j] = X[i, j] * 3
            elif work == "leaving":
                for _ in T.serial(1):
                    if not comes:
                        T.loop_break()
                    for i, j in T.Parallel(6, 40):
                        s[i, j] = X[i, j] + 2
            if work not in TENSORS:
                T.copy(s, O)

    return some


def expected(work: str, x: np.ndarray) -> np.ndarray:
    if work == "sums":
        return np.repeat(x.sum(1, keepdims=True), 40, 1)
    if work == "both ways":
        return np.concatenate([x[:2], x[2:] * 2])
    found: dict[str, Any] = {
        "loop": x + 1, "copy": x, "fill": np.full_like(x, 3), "in a loop": x - 1, "tensor": x * 3, "leaving": x + 2,
        "filled tensor": np.full_like(x, 3),
    }  # fmt: skip
    return found.get(work, x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_threads_that_come_do_all_of_it(condition: str, work: str, target: str) -> None:
    x = np.random.default_rng(1).standard_normal((6, 40)).astype(np.float32)
    out, flags = np.full_like(x, 0 if work == "added" else np.nan), np.ones(128, np.int32)
    if (work, target) == ("copy by cp.async", "cpu"):
        pytest.skip("a processor has no such copies")
    if (work, target) == ("leaving", "cpu"):
        pytest.skip("a loop that some threads leave early around work of the block is refused on a processor")
    kernel = tilewright.compile(program(CONDITIONS[condition], work), target=target)
    (kernel if target == "cpu" else kernel.emulate)(x, flags, out)
    np.testing.assert_allclose(out, expected(work, x), rtol=1e-5, atol=1e-5)


def test_threads_that_nobody_can_count_are_refused() -> None:
    with pytest.raises(DivergentWork, match="the condition is known only when the kernel runs") as caught:
        tilewright.compile(program(lambda t: t < 3, "loop", data=True), target="cuda -arch=sm_80")
    assert caught.value.span is not None and "T.Parallel(6, 40)" in str(caught.value)


def test_warps_that_do_not_lie_side_by_side_are_refused() -> None:
    with pytest.raises(MisplacedRole, match="side by side"):
        tilewright.compile(program(lambda t: t // 32 % 2 == 0, "loop"), target="cuda -arch=sm_80")


def test_work_that_needs_what_others_wrote_is_refused() -> None:
    @T.prim_func
    def handed(X: T.Tensor((64,), "float32"), O: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s, u = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")
            if T.get_thread_binding() < 7:
                T.copy(X, s)
                for i in T.Parallel(64):
                    u[i] = s[63 - i]
            T.copy(u, O)

    with pytest.raises(DivergentWork, match="where there can be no barrier"):
        tilewright.compile(handed, target="cuda -arch=sm_80")


def test_iterations_that_need_one_another_are_refused() -> None:
    @T.prim_func
    def moved(X: T.Tensor((64,), "float32"), O: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((64,), "float32")
            if T.get_thread_binding() < 7:
                for k in T.serial(4):
                    for i in T.Parallel(32):
                        s[i + k] = X[i] + k
            T.copy(s, O)

    with pytest.raises(DivergentWork, match="its iterations communicate between threads"):
        tilewright.compile(moved, target="cuda -arch=sm_80")


def test_fragments_belong_to_all_threads() -> None:
    @T.prim_func
    def held(X: T.Tensor((64,), "float32"), O: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            f = T.alloc_fragment((64,), "float32")
            if T.get_thread_binding() < 7:
                T.copy(X, f)
            T.copy(f, O)

    with pytest.raises(DivergentWork, match="a fragment is distributed over all threads"):
        tilewright.compile(held, target="cuda -arch=sm_80")


def test_the_example_of_the_docstring_is_what_the_pass_does() -> None:
    before, after = (
        textwrap.dedent(part).strip() + "\n"
        for part in re.findall(r"(?:Before|After)::\n\n((?:    .*\n|\n)+)", inspect.getdoc(module) or "")
    )
    made = module.distribute_work(parse(before), Context(arch({"arch": "sm_80"})))
    verify(made)
    assert print_program(made).strip() == after.strip()


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cpu"])
@pytest.mark.parametrize("kind", ["both", "either"])
def test_threads_for_which_two_conditions_do_not_hold(kind: str, target: str) -> None:
    """Work of the others is done by all of them: those for whom one of two conditions fails are the others, too."""

    @T.prim_func
    def some(X: T.Tensor((200,), "int32"), O: T.Tensor((200,), "int32"), P: T.Tensor((200,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            if (tx >= 16 and tx < 48) if kind == "both" else (tx < 20 or tx > 100):
                for i in T.Parallel(200):
                    O[i] = X[i] + 1
            else:
                for i in T.Parallel(200):
                    P[i] = X[i] + 2

    kernel = tilewright.compile(some, target=target)
    x, out, others = np.arange(200, dtype=np.int32), np.zeros(200, np.int32), np.zeros(200, np.int32)
    (kernel if target == "cpu" else kernel.emulate)(x, out, others)
    assert np.array_equal(out, x + 1) and np.array_equal(others, x + 2)
