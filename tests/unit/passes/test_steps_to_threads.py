"""The steps that make one thread's work of a block's, each alone: what is printed, which thread holds what, barriers by hand,
channels, registers; and the places of packed weights."""

from __future__ import annotations

import pytest
from one_pass import changed_text, machine, made, result_of

import tilewright.targets.registry  # noqa: F401  (what machines do by name)
from tilewright.errors import BarrierMisuse, TilewrightError
from tilewright.ir.nodes import NAMED_BARRIERS, Buffer, Function, Role, Roles, seq
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.walking import find
from tilewright.layout.panels import PanelLayout
from tilewright.passes.context import Context, Facts, Pass
from tilewright.passes.lower.apply_operand_layouts import apply_packed_layouts
from tilewright.passes.lower.assign_threads import assign_threads
from tilewright.passes.lower.flatten_buffers import flatten_buffers
from tilewright.passes.lower.lower_barriers import lower_barriers
from tilewright.passes.lower.lower_channels import lower_channels
from tilewright.passes.lower.lower_threads import lower_threads
from tilewright.passes.lower.named_barriers import number_barriers
from tilewright.passes.thread.check_registers import check_registers
from tilewright.passes.thread.plan_shared_memory import plan_shared_memory
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.passes.tile.layouts.infer_layouts import infer_layouts
from tilewright.passes.tile.processors.plan_operand_layouts import FACT, PhysicalOperand
from tilewright.passes.tile.words.lower_prints import lower_prints
from tilewright.targets.cpu.arch import arch

OWN = "layout=layout(shape=(64, 64), digits=('8:t16 8:r4', '4:r1 16:t1'))"
"""Rows of 16 threads, each of them with four columns."""

DOUBLED = """\
@stage("traced")
def f(A: float32[64, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        tile = fragment(float32[64, 64])
        for i, j in parallel(64, 64):
            tile[i, j] = A[i, j] * 2.0
        for i, j in parallel(64, 64):
            C[i, j] = tile[i, j]
"""

LAID_OUT = changed_text(
    DOUBLED, ("traced", "laid_out"), ("[64, 64])\n        for", f"[64, 64], {OWN})\n        for"),
    ("parallel(64, 64)", f"parallel(64, 64, {OWN})"),
)  # fmt: skip

OF_A_THREAD = """\
@stage("threaded")
def f(A: float32[64, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        tile = register(float32[32])
        for g in unroll(8):
            i: int32 = g * 8 + tx // 16
            j: int32 = tx % 16 * 4
            A_part = register(float32[4])
            A_part[0].x4 = A[i, j].x4
            for v in unroll(4):
                tile[g * 4 + v] = A_part[v] * 2.0
        for g in unroll(8):
            i: int32 = g * 8 + tx // 16
            j: int32 = tx % 16 * 4
            C_part = register(float32[4])
            for v in unroll(4):
                C_part[v] = tile[g * 4 + v]
            C[i, j].x4 = C_part[0].x4
"""

PRINTED = """\
@stage("traced")
def f(A: float32[8, 4]):
    with kernel(blocks={bx: 1}, threads={tx: 32, ty: 1, tz: 1}):
        acc = fragment(float32[8, 4])
        print("after", acc)
        for i, j in parallel(8, 4):
            print("each", A[i, j])
"""

SHOWN = changed_text(
    PRINTED,
    ('        print("after", acc)\n', """\
        acc_shown = shared(float32[8, 4])
        for i, j in parallel(8, 4):
            acc_shown[i, j] = acc[i, j]
        if tx == 0:
            for i in range(8):
                print_line("[block {}] after acc[{}, {}:{}] = {} {} {} {}", bx, i, 0, 4, \
acc_shown[i, 0], acc_shown[i, 1], acc_shown[i, 2], acc_shown[i, 3], dtype=bool)
"""),
    ('print("each", A[i, j])', 'print_line("[block {}] each {}", bx, A[i, j], dtype=bool)'),
)  # fmt: skip

BY_HAND = """\
@stage("laid_out")
def f(A: float32[64, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        tile = shared(float32[64, 64], layout=layout(shape=(64, 64), digits=('64:m64', '64:m1')))
        ready = barrier(uint64[1])
        begin_barriers(ready, "block", uint32(128), dtype=bool)
        copy(token="tma", source=A, destination=tile, prefer="bulk", barrier=ready)
        signal_arrive(ready, dtype=bool)
        signal_wait(ready, uint32(0), dtype=bool)
"""

BY_ONE_THREAD = changed_text(
    BY_HAND,
    ('        begin_barriers(ready, "block", uint32(128), dtype=bool)\n', """\
        if tx == 0:
            signal_init(ready, uint32(128), dtype=bool)
            fence_signal_init(dtype=bool)
        sync_threads(dtype=bool)
"""),
    ("        copy(", """\
        if tx == 0:
            signal_expect_tx(ready, 16384, dtype=bool)
            copy("""),
)  # fmt: skip

RING = """\
@stage("laid_out")
def f(A: float16[512, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 256, ty: 1, tz: 1}):
        ring = shared(float16[2, 64, 64], layout=layout(shape=(2, 64, 64), digits=('2:m4096', '64:m64', '64:m1')))
        channel("loads", ring, stages=2, writers=("loader",), readers=("worker",), scope="block")
        with roles():
            with role("loader", warps=4):
                for k in range(8):
                    acquire("loads", k)
                    copy(source=A[k * 64 : +64, :], destination=ring[k % 2, :, :], prefer="bulk")
                    publish("loads", k)
            with role("worker", warps=4):
                for k in range(8):
                    receive("loads", k)
                    for i, j in parallel(64, 64, LAYOUT):
                        C[i, j] = float32(ring[k % 2, i, j])
                    release("loads", k)
""".replace("LAYOUT", OWN)

COUNTED = changed_text(
    RING,
    ('        channel("loads", ring, stages=2, writers=("loader",), readers=("worker",), scope="block")\n', """\
        loads_full = barrier(uint64[2])
        loads_empty = barrier(uint64[2])
        if tx == 0:
            for slot in unroll(2):
                signal_init(loads_full[slot : +1], 1, dtype=bool)
                signal_init(loads_empty[slot : +1], 4, dtype=bool)
            fence_signal_init(dtype=bool)
        sync_threads(dtype=bool)
"""),
    ("""\
                for k in range(8):
                    acquire("loads", k)
                    copy(source=A[k * 64 : +64, :], destination=ring[k % 2, :, :], prefer="bulk")
                    publish("loads", k)
""", """\
                if tx == 0:
                    for k in range(8):
                        signal_wait(loads_empty[uint32(k) % 2 : +1], uint32(k) // 2 & 1 ^ 1, dtype=bool)
                        signal_arrive_expect_tx(loads_full[uint32(k) % 2 : +1], 8192, dtype=bool)
                        copy(
                            source=A[k * 64 : +64, :],
                            destination=ring[k % 2, :, :],
                            prefer="bulk",
                            barrier=loads_full[uint32(k) % 2 : +1],
                        )
"""),
    ('receive("loads", k)', "signal_wait(loads_full[uint32(k) % 2 : +1], uint32(k) // 2 & 1, dtype=bool)"),
    ('                    release("loads", k)\n', """\
                    fence_proxy_async_shared(dtype=bool)
                    sync_warp(dtype=bool)
                    if tx % 32 == 0:
                        signal_arrive(loads_empty[uint32(k) % 2 : +1], dtype=bool)
"""),
)  # fmt: skip

STEPS = {
    infer_layouts: (DOUBLED, LAID_OUT),
    assign_threads: (LAID_OUT, OF_A_THREAD),
    lower_prints: (PRINTED, SHOWN),
    lower_barriers: (BY_HAND, BY_ONE_THREAD),
    lower_channels: (RING, COUNTED),
}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_before_and_after(step: Pass) -> None:
    before, after = STEPS[step]
    assert made(step, before) == after


def test_programs_without_any_of_it_stay_as_they_are() -> None:
    for step in (lower_prints, lower_barriers, lower_channels):
        program = parse(LAID_OUT)
        assert step(program, machine()) is program


WIDER = OWN.replace("8:t16 8:r4", "16:t16 4:r4")
OF_BLOCK = 'readers=("worker",), scope="block"'

REFUSALS = [
    (
        lower_channels, RING, [('acquire("loads", k)\n', "pass\n"), ('publish("loads", k)', "pass")],
        "this copy fills a slot of 'loads' that its role has not acquired",
    ),
    (
        lower_channels, RING, [('prefer="bulk"', 'prefer="bulk", multicast=True')],
        "this copy is sent to all blocks of the cluster, but 'loads' joins those of one block",
    ),
    (
        lower_channels, RING, [(OF_BLOCK, OF_BLOCK.replace("block", "warpgroup"))],
        "the channel 'loads' joins the roles of a warpgroup",
    ),
    (
        infer_layouts, DOUBLED, [("[64, 64])\n        for", f"[64, 64], {WIDER})\n        for")],
        "this layout is one of 256 threads, but 128 work here",
    ),
]  # fmt: skip


OF_WARPS = [
    (OF_BLOCK, OF_BLOCK.replace("block", "warp")), ('writers=("loader",)', 'writers=("worker",)'),
    ("float16[2, 64, 64]", "float16[1, 2, 64, 64]"), ("shape=(2, 64, 64), digits=(", "shape=(1, 2, 64, 64), digits=('', "),
    ("ring[k % 2", "ring[0, k % 2"),
    (RING[RING.index('            with role("worker"') : RING.index("                    receive")], ""),
    ('role("loader"', 'role("worker"'), ("tx: 256", "tx: 128"),
]  # fmt: skip
"""One role that writes and reads slots of its own."""

IN_A_CLUSTER = [
    (OF_BLOCK, OF_BLOCK.replace("block", "cluster")), ("tz: 1}", "tz: 1}, cluster=(2, 1, 1)"),
    ('prefer="bulk"', 'prefer="bulk", multicast=True'),
]  # fmt: skip

BY_THREADS = RING[RING.index("        with roles():") :].replace(', prefer="bulk"', "")
"""The same roles once more, in which threads fill the slots."""

ONE = """\
@stage("STAGE")
def f(A: float32[64, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        STATEMENT
"""

TWO_TILES = """\
a = shared(float32[40000])
        b = shared(float32[40000])
        a[tx] = A[0, tx]
        b[tx] = a[tx]
        C[0, tx] = a[tx] + b[tx]"""

REFUSALS += [
    (lower_channels, RING, OF_WARPS, "each slot of 'loads' is one warp's, but the role 'worker' has several"),
    (lower_channels, RING, IN_A_CLUSTER, "the slots of 'loads' are read by more than asynchronous gemms"),
    (lower_channels, RING + BY_THREADS, [], "the channel 'loads' joins other roles in one T.roles than in another"),
    (
        assign_threads, ONE, [("STAGE", "laid_out"), ("STATEMENT", 'wait("wgmma", pending=0)')],
        "sm_90a has no way to run the wait for wgmma",
    ),
    (
        flatten_buffers, ONE, [("STAGE", "threaded"), ("STATEMENT", "prefetch(A[0 : +2, 0 : +2], dtype=bool)")],
        "this part of A does not lie in one piece",
    ),
    (
        lower_threads, ONE,
        [("STAGE", "lowered"), ("STATEMENT", "C[0, tx] = shuffle_xor(A[0, tx], 1, dtype=float32)")],
        "shuffle_xor exchanges values between the threads of a warp, which this machine does not have",
    ),
    (
        plan_shared_memory, ONE.replace("[64, 64]", "[1, 128]"), [("STAGE", "lowered"), ("STATEMENT", TWO_TILES)],
        "the shared tiles of this kernel need 320000 bytes at once, but a block of sm_90a has 232448",
    ),
]  # fmt: skip


OF_MANY = ", ".join(f"A[0, {column}]" for column in range(33))
PRINT = 'print("after", acc)'

REFUSALS += [
    (
        lower_prints, PRINTED, [("    with kernel", "    print(A)\n    with kernel")],
        "A is printed outside of a kernel, where a program knows sizes alone",
    ),
    (
        lower_prints, PRINTED, [(PRINT, "print(A[0, 0], thread=32)")],
        "thread 32 shall print, and the block has 32 threads",
    ),
    (
        lower_prints, PRINTED, [(PRINT, f"if tx < 3:\n            {PRINT}")],
        "the fragment acc is shown by the whole block together, and here its threads are apart",
    ),
    (
        lower_prints, PRINTED, [("[8, 4]", "[8, 40]"), (PRINT, f"print({OF_MANY})")],
        "sm_90a prints at most 32 numbers in a line, and this one has 34",
    ),
]  # fmt: skip

MULTIPLIED = """\
@stage("traced")
def f(A: float16[64, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        a = shared(float16[64, 64])
        c = fragment(float32[64, 64], LAYOUT)
        copy(source=A, destination=a)
        gemm(a=a, b=a, c=c)
""".replace("LAYOUT", OWN)

SEEN = """\
@stage("traced")
def f(A: float16[64, 48]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        a = shared(float16[64, 48], layout=layout(shape=(64, 48), digits=('64:m16', '16:m1 3:m1024'), swizzle=(1, 3, 3)))
        across = view(a, float16[48, 64])
        copy(source=A, destination=a)
        fill(destination=across, value=float16(0.0))
"""


def infer_layouts_of_products(function: Function, context: Context) -> Function:
    """Instructions are what layouts are anchored on."""
    return infer_layouts(select_instructions(function, context), context)


REFUSALS += [
    (
        infer_layouts_of_products, MULTIPLIED, [],
        "the fragment 'c' is used here by threads that do not hold its elements",
    ),
    (
        infer_layouts, DOUBLED, [("C[i, j] = tile[i, j]", "C[i, j] = tile[i * 3 % 64, j]")],
        "the fragment 'tile' is used here by threads that do not hold its elements",
    ),
    (infer_layouts, SEEN, [], "no layout says where the elements of across are in a, which lies as its author wrote"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "text", "changes", "expected"), REFUSALS)
def test_refusals(step: Pass, text: str, changes: list[tuple[str, str]], expected: str) -> None:
    with pytest.raises(TilewrightError) as refusal:
        result_of(step, changed_text(text, *changes))
    assert expected in str(refusal.value)


def test_authors_leave_barriers_for_roles() -> None:
    (roles,) = find(parse(RING), Roles)
    assert number_barriers(roles, frozenset(range(5, NAMED_BARRIERS))).of_roles == {"loader": 1, "worker": 2}
    with pytest.raises(
        BarrierMisuse, match=f"12 of the {NAMED_BARRIERS - 1} named barriers are the author's, and roles need 4"
    ):
        number_barriers(roles, frozenset(range(4, NAMED_BARRIERS)))


def test_instances_of_a_role_meet_at_barriers_of_their_own() -> None:
    """One behind the other from their role's first on, which no other role has; one warp needs none."""
    sides = [("first", 4, 2), ("second", 8, 2), ("alone", 4, 1), ("warps", 1, 3)]
    roles = Roles(tuple(Role(name, warps, seq(), instances=count) for name, warps, count in sides))
    named = number_barriers(roles, frozenset({3}))
    numbers = [named.of_roles[name] + instance for name, _, count in sides[:2] for instance in range(count)]
    assert numbers == [11, 12, 13, 14] and named.operators + 7 == named.ordered == 11
    assert {named.of_roles[name] for name in ("alone", "warps")} == {1, 2}


SPILLS = """\
@stage("final")
def f(A: float32[1]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        c = register(float32[320])
        c[0] = A[0]
"""


@pytest.mark.parametrize(("size", "warned"), [(320, True), (255, False)])
def test_fragments_that_do_not_fit_are_named(size: int, warned: bool) -> None:
    context = machine()
    text = changed_text(SPILLS, ("320", str(size)))
    assert made(check_registers, text, context) == text
    expected = f"fragments need {size} registers of each thread, of 255: they will spill, c first with {size}"
    assert [one.message for one in context.diagnostics] == [expected] * warned
    assert [one.hint for one in context.diagnostics] == ["it fits with 256 threads, or c of half its size"] * warned


PACKED = """\
@stage("lowered")
def f(B: tensor(int8[32, 8], packed=True), C: int8[1]):
    with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
        C[0] = B[17, 5]
"""


def test_elements_of_packed_weights_are_read_where_they_lie() -> None:
    """The element of row 17 and column 5 is in the second panel of 16 rows, four of whose elements lie together."""
    program = parse(PACKED)
    weight = program.params[0]
    layout = PanelLayout(32, 8, True, 16, 4)
    operand = PhysicalOperand(Buffer("B_panels", (layout.size,), weight.dtype, "global"), layout)
    context = Context(arch({"arch": "avx512"}), facts=Facts().having(FACT, {weight: operand}))
    found = print_program(apply_packed_layouts(program, context))
    view = "        B_elements = register(int8[256], source=B)\n"
    place = 16 * 8 + 5 // 4 * 64 + (17 - 16) * 4 + 5 % 4
    assert found == changed_text(PACKED, ("        C[0] = B[17, 5]", f"{view}        C[0] = B_elements[{place}]"))
    assert apply_packed_layouts(program, machine()) is program
