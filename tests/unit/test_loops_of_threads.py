"""Loops of single threads that hand memory on: the interpreter's results on every kind of machine, and no report of the emulator.

How threads count and leave a loop, and in which order they touch tiles and tensors in it, is drawn for itself; no loop says a barrier.
"""

from __future__ import annotations

import itertools
import linecache
import random

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError

TARGETS = [
    "cpu",
    "cuda -arch=sm_80",
    "cuda -arch=sm_90a",
    "hip -arch=gfx942",
    "hip -arch=gfx1100",
    "metal -arch=apple8",
]

LOOPS = {
    "alike": "for k in T.serial(3):",
    "of the call": "for k in T.serial(n):",
    "by strides": "for k in T.serial(tx, 512, 128):",
    "by strides of the call": "for k in T.serial(tx, n * 100, 128):",
    "by strides, some": "for k in T.serial(tx, 300, 128):",
    "trips": "for k in T.serial(tx % 3):",
    "loaded trips": "for k in T.serial(A[tx] % 4):",
    "from": "for k in T.serial(tx % 3, 3):",
    "while": "k = T.alloc_var('int32', init=tx % 3)\nwhile k < 5:\n    k += 2",
    "while of a tile": "k = T.alloc_var('int32', init=0)\nwhile s[tx] > k * 30:\n    k += 2",
    "counted on": "k = T.alloc_var('int32', init=tx)\nwhile k < n * 100:\n    k += 128",
    "counted on by some": "k = T.alloc_var('int32', init=tx)\nwhile k < 500:\n    if A[tx] > 60:\n        k += 256\n    k += 128",
    "counted on by less": "k = T.alloc_var('int32', init=tx)\nwhile k < 300:\n    k += 64",
    "counted down": "k = T.alloc_var('int32', init=tx)\nk = tx + 512\nwhile k > 128:\n    k -= 128",
    "counted anew": "k = T.alloc_var('int32', init=tx)\nfor j in T.serial(2):\n    k = tx + j\n    while k < 300:\n        k += 128",
    "counted from another": "k = T.alloc_var('int32', init=tx)\nif n > 2:\n    k = 127 - tx\nwhile k < 300:\n    k += 128",
    "left": "for k in T.serial(4):\n    if tx + k > 60:\n        break",
    "left by a load": "for k in T.serial(4):\n    if A[tx] > k * 30:\n        w += 1\n        if k > 1:\n            break",
    "gone on": "for k in T.serial(3):\n    if tx % 3 == k:\n        continue",
    "both": "for k in T.serial(4):\n    if tx % 3 == k:\n        continue\n    if A[tx] < k * 20:\n        break",
    "below": "if tx < 100:\n    for k in T.serial(tx % 3):",
    "below, alike": "if A[tx] > 50:\n    for k in T.serial(n):",
    "within": "for j in T.serial(2):\n    for k in T.serial(tx % 3):",
    "around": "for j in T.serial(tx % 3):\n    for k in T.serial(2):",
    "pipelined": "for k in T.Pipelined(3, num_stages=2):\n    T.copy(A, u)\n    w += u[127 - tx]",
    "twice": "for j in T.serial(tx % 3):\n    for k in T.serial(j, 3):",
}
BODIES = {
    "written twice": "s[tx] = w + k\ns[127 - tx] = tx + k",
    "written on": "s[(tx + k) % 128] = tx",
    "each its own": "big[(tx + k * 128) % 512] = k + tx",
    "by strides": "big[k % 512] = k + tx\nw += big[k % 512]",
    "counted": "s[tx] = s[tx] + k",
    "one for all": "s[5] = s[5] + n\nG[9] += n",
    "own": "s[tx] = w + k\nw = s[tx] * 2",
    "read, written": "w = s[127 - tx]\ns[tx] = w + k",
    "written, read": "s[tx] = w + k + 1\nw = s[(tx + 64) % 128]",
    "scattered": "s[(A[tx] + k) % 128] = tx",
    "tensor": "G[tx] = w + k + 1\nw = G[(tx + 64) % 128]",
    "tensor read": "w = G[127 - tx]\nG[tx] = w + 1",
    "tensor at once": "G[tx] = G[127 - tx] + k",
    "tensor and tile": "s[tx] = G[127 - tx]\nG[tx] = s[(tx + 3) % 128] + k",
    "atomic": "T.atomic_add(s[(tx * 7) % 128], 1)\nw = s[127 - tx]",
    "own variable": "own = T.alloc_var('int32', init=tx + k)\nown += s[127 - tx]\ns[tx] = own\nw += own",
    "condition": "if k > 0:\n    w = s[127 - tx]\n    s[tx] = w + 1\nelse:\n    s[(tx + 5) % 128] = 4",
    "in rows": "rows[tx // 32, tx % 32] = w + k\nw = rows[3 - tx // 32, tx % 32]",
}
RETURNS = {
    "in a loop": "for k in T.serial(4):\n    if A[tx] < k * 30:\n        W[tx] = w\n        return\n    w = s[127 - tx]\n    s[tx] = w + k",
    "behind nothing": "if A[tx] > 100:\n    return\nw = s[127 - tx]\ns[tx] = w + 1",
    "behind work": "if A[tx] > 100:\n    s[tx] = 5\n    return\nw = s[127 - tx]",
    "below": "if A[tx] > 60:\n    s[tx] = 5\n    if A[tx] > 100:\n        s[tx] = 7\n        return\n    w = 3\nw += s[127 - tx]",
    "in some's loop": "for k in T.serial(tx % 3):\n    if A[tx] < k * 60:\n        s[tx] = k\n        return\n    w = s[127 - tx]\n    s[tx] = w",
}
HEAD = """
def program(A, n: T.int32):
    A: T.Tensor((128,), "int32")
    W, S, V, G = T.empty((128,), "int32"), T.empty((128,), "int32"), T.empty((512,), "int32"), T.empty((128,), "int32")
    with T.Kernel(1, threads=128) as bx:
        tx = T.get_thread_binding()
        s, big = T.alloc_shared((128,), "int32"), T.alloc_shared((512,), "int32")
        rows, u = T.alloc_shared((4, 32), "int32"), T.alloc_shared((128,), "int32")
        w = T.alloc_var("int32")
        T.clear(big)
        s[tx] = A[tx]
        G[tx] = A[tx]
        rows[tx // 32, tx % 32] = tx
        w = tx
"""
TAIL = """
        W[tx] = w + rows[tx % 4, tx // 4]
        S[tx] = s[127 - tx]
        T.copy(big, V)
    return W, S, V, G
"""
OWN = [
    "alike",
    "of the call",
    "by strides",
    "by strides of the call",
    "trips",
    "below",
    "counted on",
    "counted on by some",
]
"""Loops whose threads have elements of their own by what they count."""
CASES = list(itertools.product(LOOPS, BODIES))
DRAWN = random.Random(4).sample(CASES, 96)
GIVEN = np.random.default_rng(5).permutation(128).astype(np.int32), 3


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.split("\n"))


def made(loop: str, body: str, target: str) -> tilewright.Kernel:
    asked = LOOPS[loop]
    last = [line for line in asked.split("\n") if line.lstrip().startswith(("for", "while"))][-1]
    deep = 12 + len(last) - len(last.lstrip())
    return compiled(HEAD + indented(asked, 8) + "\n" + indented(BODIES[body], deep) + TAIL, f"<{loop}, {body}>", target)


def compiled(text: str, name: str, target: str) -> tilewright.Kernel:
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, object] = {"T": T, "__name__": name}
    exec(compile(text, name, "exec"), scope)
    return tilewright.jit(target=target)(scope["program"]).compile(*GIVEN)


def agrees(loop: str, body: str, target: str) -> bool:
    """Whether a machine finds what the interpreter does, which refuses what even threads in step do not agree on."""
    return right(made(loop, body, target), target)


def right(kernel: tilewright.Kernel, target: str) -> bool:
    try:
        wanted = kernel.interpret(*GIVEN)
    except TilewrightError:
        return True
    found = (kernel if target == "cpu" else kernel.emulate)(*GIVEN)
    return all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", range(24))
def test_threads_hand_on_in_loops(number: int, target: str) -> None:
    """A loop that only wrote had no barrier, nor had one that threads leave at different times: silently wrong."""
    for case in DRAWN[number::24]:
        assert agrees(*case, target), case


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", RETURNS)
def test_what_threads_did_that_leave_the_kernel_is_waited_for(way: str, target: str) -> None:
    """No barrier waits for them: what they wrote before they left was read too early."""
    zeros = "        S[tx], V[tx], W[tx] = 0, 0, 0\n"
    text = (
        HEAD.replace("T.empty((512,)", "T.empty((128,)")
        + zeros
        + indented(RETURNS[way], 8)
        + TAIL.replace("T.copy(big, V)", "V[tx] = s[(tx + 32) % 128]")
    )
    assert right(compiled(text, f"<{way}>", target), target)


@pytest.mark.parametrize("loop", OWN)
@pytest.mark.parametrize("body", ["each its own", "by strides", "counted", "own"])
def test_nobody_waits_where_each_has_elements_of_its_own(loop: str, body: str) -> None:
    """No barrier and no vote costs time in a loop that hands nothing on."""
    if body == "by strides" and "strides" not in loop and "counted" not in loop:
        return
    lines = made(loop, body, "cuda -arch=sm_80").get_kernel_source().split("\n")
    first = next(number for number, line in enumerate(lines) if ("for (" in line or "while (" in line) and "k" in line)
    end = next(
        number for number in range(first, len(lines)) if lines[number].startswith("    }") or "W[" in lines[number]
    )
    assert not any("sync_threads" in line for line in lines[first:end]), "\n".join(lines[first:end])
