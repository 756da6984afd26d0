"""`overlap_gemms`, `rotate_gemms`, `delay_waits` and `load_ahead` as passes: what they make of a role, what they refuse, and that gemms keep their plans."""

from __future__ import annotations

import re
import textwrap

import pytest

from tilewright.ir import Function, find
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.ops.product import Product
from tilewright.passes.context import Context
from tilewright.passes.tile.gemms.delay_waits import delay_waits
from tilewright.passes.tile.gemms.load_ahead import load_ahead
from tilewright.passes.tile.gemms.overlap_gemms import overlap_gemms
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.targets.cuda.arch import arch

PRODUCT = """\
@stage("traced")
def product(A: float16[128, 6400], B: float16[6400, 128], S: float32[128], C: float32[128, 128], steps: int32):
    with kernel(blocks={bx: 1}, threads={tx: 256, ty: 1, tz: 1}, specialized=True):
        a_ring = shared(float16[4, 128, 64])
        b_ring = shared(float16[4, 64, 128])
        channel("loads", a_ring, b_ring, stages=4, writers=("loader",), readers=("worker",), scope="block")
        with roles():
            with role("loader", warps=4):
                for k in range(steps):
                    acquire("loads", k)
                    copy(source=A[:, k * 64 : +64], destination=a_ring[k % 4, :, :], prefer="tma")
                    copy(source=B[k * 64 : +64, :], destination=b_ring[k % 4, :, :], prefer="tma")
                    publish("loads", k)
            with role("worker", warps=4):
"""

IN_TURN = (
    PRODUCT.replace("steps: int32)", "G: float32[128, 128], steps: int32)")
    .replace(
        "        with roles():\n",
        "        row = shared(float32[4, 128])\n"
        '        channel("row", row, stages=4, writers=("loader",), readers=("worker",), scope="block")\n'
        "        with roles():\n",
    )
    .replace(
        '                    publish("loads", k)\n',
        '                    publish("loads", k)\n'
        '                    acquire("row", k)\n'
        '                    copy(source=G[k, :], destination=row[k % 4, :], prefer="tma")\n'
        '                    publish("row", k)\n',
    )
)
"""Of two slots each iteration fills one after the other."""

AFTERWARDS = IN_TURN.replace(
    '                    acquire("row", k)\n',
    '                for k in range(steps):\n                    acquire("row", k)\n',
)
"""All slots of one channel are filled before those of the other: the last needs the first's releases."""

ATTENTION = """\
@stage("traced")
def attention(K: float16[6400, 64], V: float16[6400, 64], O: float32[128, 64], steps: int32):
    with kernel(blocks={bx: 1}, threads={tx: 256, ty: 1, tz: 1}, specialized=True):
        keys = shared(float16[2, 64, 64])
        values = shared(float16[2, 64, 64])
        channel("keys", keys, stages=2, writers=("loader",), readers=("worker",), scope="block")
        channel("values", values, stages=2, writers=("loader",), readers=("worker",), scope="block")
        with roles():
            with role("loader", warps=4):
                for k in range(steps):
                    acquire("keys", k)
                    copy(source=K[k * 64 : +64, :], destination=keys[k % 2, :, :], prefer="tma")
                    publish("keys", k)
                    acquire("values", k)
                    copy(source=V[k * 64 : +64, :], destination=values[k % 2, :, :], prefer="tma")
                    publish("values", k)
            with role("worker", warps=4):
"""

SUM = """\
total = fragment(float32[128, 128])
fill(destination=total, value=float32(0.0))
for k in range(steps):
    receive("loads", k)
    gemm(a=a_ring[k % 4, :, :], b=b_ring[k % 4, :, :], c=total)
    release("loads", k)
copy(source=total, destination=C)
"""

SUM_IN_FLIGHT = """\
total = fragment(float32[128, 128])
for k in range(steps):
    receive("loads", k)
    gemm(token="wgmma", a=a_ring[k % 4, :, :], b=b_ring[k % 4, :, :], c=total, clear=k == 0)
    commit("wgmma")
    wait("wgmma", pending=1)
    if k > 0:
        release("loads", k - 1)
wait("wgmma", pending=0)
if steps >= 1:
    release("loads", steps - 1)
if steps < 1:
    fill(destination=total, value=float32(0.0))
copy(source=total, destination=C)
"""

SCALED = """\
total = fragment(float32[128, 128])
part = fragment(float32[128, 128])
fill(destination=total, value=float32(0.0))
for k in range(steps):
    receive("loads", k)
    gemm(a=a_ring[k % 4, :, :], b=b_ring[k % 4, :, :], c=part, clear=True)
    release("loads", k)
    scale: float32 = S[k]
    for i, j in parallel(128, 128):
        total[i, j] = total[i, j] + part[i, j] * scale
copy(source=total, destination=C)
"""

SCALED_BESIDE = """\
total = fragment(float32[128, 128])
part = fragment(float32[128, 128])
fill(destination=total, value=float32(0.0))
for k in range(steps):
    receive("loads", k)
    gemm(token="wgmma", a=a_ring[k % 4, :, :], b=b_ring[k % 4, :, :], c=part, clear=True)
    commit("wgmma")
    scale: float32 = S[k]
    wait("wgmma", pending=0)
    release("loads", k)
    for i, j in parallel(128, 128):
        total[i, j] = total[i, j] + part[i, j] * scale
copy(source=total, destination=C)
"""

BY_ROW = SCALED.replace(
    "    scale: float32 = S[k]\n",
    """\
    columns = fragment(float32[128])
    receive("row", k)
    for i in parallel(128):
        columns[i] = row[k % 4, i]
    release("row", k)
""",
).replace("scale", "columns[j]")

BY_ROW_BESIDE = (
    BY_ROW.replace("gemm(", 'gemm(token="wgmma", ')
    .replace(
        """    release("loads", k)
""",
        """    commit("wgmma")
""",
    )
    .replace(
        """    release("row", k)
""",
        """    release("row", k)
    wait("wgmma", pending=0)
    release("loads", k)
""",
    )
)

HEADS = """\
q = shared(float16[128, 64])
scores = fragment(float32[128, 64])
weights = fragment(float16[128, 64])
total = fragment(float32[128, 64])
fill(destination=total, value=float32(0.0))
for k in range(steps):
    receive("keys", k)
    gemm(a=q, b=keys[k % 2, :, :], c=scores, transpose_b=True, clear=True)
    release("keys", k)
    for i, j in parallel(128, 64):
        weights[i, j] = float16(exp(scores[i, j]))
    receive("values", k)
    gemm(a=weights, b=values[k % 2, :, :], c=total)
    release("values", k)
copy(source=total, destination=O)
"""

HEADS_ROTATED = """\
q = shared(float16[128, 64])
scores = fragment(float32[128, 64])
weights = fragment(float16[128, 64])
total = fragment(float32[128, 64])
fill(destination=total, value=float32(0.0))
if 0 < steps:
    receive("keys", 0)
    gemm(token="wgmma", a=q, b=keys[0 % 2, :, :], c=scores, transpose_b=True, clear=True)
    commit("wgmma")
    wait("wgmma", pending=0)
    release("keys", 0)
    for i, j in parallel(128, 64):
        weights[i, j] = float16(exp(scores[i, j]))
    for k in range(1, steps):
        receive("keys", k)
        gemm(token="wgmma", a=q, b=keys[k % 2, :, :], c=scores, transpose_b=True, clear=True)
        commit("wgmma")
        receive("values", k - 1)
        gemm(token="wgmma_1", a=weights, b=values[(k - 1) % 2, :, :], c=total)
        commit("wgmma_1")
        wait("wgmma", pending=0, others=1)
        release("keys", k)
        wait("wgmma_1", pending=0)
        release("values", k - 1)
        for i, j in parallel(128, 64):
            weights[i, j] = float16(exp(scores[i, j]))
    receive("values", steps - 1)
    gemm(token="wgmma_1", a=weights, b=values[(steps - 1) % 2, :, :], c=total)
    commit("wgmma_1")
    wait("wgmma_1", pending=0)
    release("values", steps - 1)
copy(source=total, destination=O)
"""

BYTES = (
    PRODUCT.replace(
        "A: float16[128, 6400], B: float16[6400, 128]", "A: float8_e4m3fn[6400, 128], B: float8_e4m3fn[128, 6400]"
    )
    .replace("a_ring = shared(float16[4, 128, 64])", "a_ring = shared(float8_e4m3fn[4, 64, 128])")
    .replace("b_ring = shared(float16[4, 64, 128])", "b_ring = shared(float8_e4m3fn[4, 128, 64])")
    .replace("A[:, k * 64 : +64]", "A[k * 64 : +64, :]")
    .replace("B[k * 64 : +64, :]", "B[:, k * 64 : +64]")
)
"""Both operands are bytes, and the left one lies along m: lanes turn it."""

TURNED = """\
total = fragment(float32[128, 128])
part = fragment(float32[128, 128])
fill(destination=total, value=float32(0.0))
for k in range(2, steps):
    receive("loads", k - 2)
    gemm(a=a_ring[(k - 2) % 4, :, :], b=b_ring[(k - 2) % 4, :, :], c=part, transpose_a=True, transpose_b=True, clear=True)
    release("loads", k - 2)
    for i, j in parallel(128, 128):
        total[i, j] = total[i, j] + part[i, j]
copy(source=total, destination=C)
"""

TURNED_AHEAD = """\
total = fragment(float32[128, 128])
part = fragment(float32[128, 128])
fill(destination=total, value=float32(0.0))
a_ring_first = local(uint32[4])
if steps >= 3:
    receive("loads", 2 - 2)
    load_ahead(a=a_ring[(2 - 2) % 4, :, :])
for k in range(2, steps):
    a_ring_transposed = local(float8_e4m3fn[64])
    gemm(
        token="wgmma",
        a=a_ring[(k - 2) % 4, :, :],
        b=b_ring[(k - 2) % 4, :, :],
        c=part,
        transpose_a=True,
        transpose_b=True,
        clear=True,
    )
    commit("wgmma")
    if k + 1 < steps:
        receive("loads", k + 1 - 2)
        load_ahead(a=a_ring[(k + 1 - 2) % 4, :, :])
    wait("wgmma", pending=0)
    release("loads", k - 2)
    for i, j in parallel(128, 128):
        total[i, j] = total[i, j] + part[i, j]
copy(source=total, destination=C)
"""

PASSES = {"overlap_gemms": overlap_gemms, "delay_waits": delay_waits, "load_ahead": load_ahead}


def planned(head: str, body: str) -> tuple[Function, Context]:
    """A program whose worker does what `body` says, its gemms with their plans."""
    context = Context(arch({"arch": "sm_90a"}))
    program = parse(head + textwrap.indent(body, " " * 16))
    verify(program)
    return select_instructions(program, context), context


def after(name: str, head: str, body: str) -> str:
    """What a pass makes of the worker's body."""
    program, context = planned(head, body)
    made = PASSES[name](program, context)
    verify(made)
    gemms = list(find(made.body, Product))
    assert gemms and all(gemm.plan is not None and gemm.plan.instruction.asynchronous for gemm in gemms)
    text = print_program(made)
    return textwrap.dedent(text[text.index(" " * 16, text.index('role("worker"')) :]).strip() + "\n"


@pytest.mark.parametrize(
    "name, head, before, expected",
    [
        pytest.param("overlap_gemms", PRODUCT, SUM, SUM_IN_FLIGHT, id="overlap_gemms"),
        pytest.param("overlap_gemms", ATTENTION, HEADS, HEADS_ROTATED, id="rotate_gemms"),
        pytest.param("delay_waits", PRODUCT, SCALED, SCALED_BESIDE, id="delay_waits"),
        pytest.param("delay_waits", IN_TURN, BY_ROW, BY_ROW_BESIDE, id="delay_waits: what comes without the slot"),
        pytest.param("load_ahead", BYTES, TURNED, TURNED_AHEAD, id="load_ahead"),
    ],
)
def test_before_and_after(name: str, head: str, before: str, expected: str) -> None:
    assert after(name, head, before) == expected


def test_what_may_need_the_slot_that_is_released_is_waited_for_behind_it() -> None:
    made = after("delay_waits", AFTERWARDS, BY_ROW)
    assert made.index('release("loads", k)') < made.index('receive("row", k)')


LATE = HEADS.replace('    release("keys", k)\n', "").replace(
    '    release("values", k)\n', '    release("values", k)\n    release("keys", k)\n'
)
LOOKED_AT = SUM.replace("    release", "    for i in parallel(128):\n        total[i, 0] = float32(0.0)\n    release")


def shallow(text: str, *rings: str) -> str:
    """A program whose rings have one slot."""
    for ring in rings:
        text = re.sub(rf"\b({ring}\[)[^,]*,", r"\g<1>0,", text)
        text = re.sub(rf"({ring} = shared\(\w+\[)\d+", r"\g<1>1", text)
        text = re.sub(rf"({ring}, stages=)\d+", r"\g<1>1", text)
    return text


REFUSED = {
    "overlap: a slot that the next iteration needs": ("overlap_gemms", shallow(PRODUCT, "a_ring", "b_ring"), shallow(SUM, "a_ring", "b_ring")),
    "overlap: the loop touches the sum": ("overlap_gemms", PRODUCT, LOOKED_AT),
    "overlap: the release does not count the iterations": (
        "overlap_gemms", PRODUCT, SUM.replace("range(steps)", "range(0, steps, 2)")),
    "rotate: the slot is still held when the next iteration asks": (
        "overlap_gemms", shallow(ATTENTION, "keys"), shallow(LATE, "keys")),
    "rotate: both gemms add to one sum": (
        "overlap_gemms", ATTENTION,
        HEADS.replace("c=scores, transpose_b=True, clear=True", "c=total, transpose_b=True")),
    "rotate: something follows the last gemm": (
        "overlap_gemms", ATTENTION,
        HEADS.replace('    release("values", k)\n', '    release("values", k)\n    fill(destination=scores, value=float32(0.0))\n')),
    "rotate: the loop may end in its middle": (
        "overlap_gemms", ATTENTION, HEADS.replace('    release("keys", k)\n', '    release("keys", k)\n    if k > 9:\n        break\n')),
    "delay: what follows needs the product": ("delay_waits", PRODUCT, SCALED.replace("    scale: float32 = S[k]\n", "").replace("scale", "float32(2.0)")),
    "ahead: descriptors read both operands": ("load_ahead", PRODUCT, SCALED),
    "ahead: the next slot is filled when this one is released": (
        "load_ahead", shallow(BYTES, "a_ring", "b_ring", "loads"), shallow(TURNED, "a_ring", "b_ring")),
    "ahead: the loop may end in its middle": (
        "load_ahead", BYTES, TURNED.replace('    release("loads", k - 2)\n', '    release("loads", k - 2)\n    if k > 9:\n        break\n')),
    "ahead: the slot counts on in a name of the iteration": (
        "load_ahead", BYTES, TURNED.replace('    receive("loads", k - 2)', '    n: int32 = k - 2\n    receive("loads", n)')),
    "ahead: an iteration receives two slots": (
        "load_ahead", BYTES,
        TURNED.replace('range(2, steps)', 'range(steps)').replace("k - 2", "k * 2").replace('    for i, j', '    receive("loads", k * 2 + 1)\n    release("loads", k * 2 + 1)\n    for i, j')),
    "ahead: an iteration has two products": (
        "load_ahead", BYTES, TURNED.replace("    release", "    gemm(a=a_ring[(k - 2) % 4, :, :], b=b_ring[(k - 2) % 4, :, :], c=part, transpose_a=True, transpose_b=True)\n    release")),
    "ahead: threads meet in an iteration": (
        "load_ahead", BYTES, TURNED.replace("    for i, j", "    sync_threads(dtype=bool)\n    for i, j")),
    "delay: what follows meets others": ("delay_waits", PRODUCT, SCALED.replace("    scale:", "    sync_threads(dtype=bool)\n    scale:")),
}  # fmt: skip


def test_a_late_release_alone_refuses_nothing() -> None:
    assert "wgmma_1" in after("overlap_gemms", ATTENTION, LATE)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    """The program stays as it was."""
    name, head, body = REFUSED[case]
    program, context = planned(head, body)
    assert PASSES[name](program, context) is program
