"""Passes that change one word each: before, after, and what they leave alone or refuse."""

from __future__ import annotations

import textwrap

import pytest
from one_pass import machine, result_of

import tilewright.targets.registry  # noqa: F401  (what machines do by name)
from tilewright.errors import DivergentWork, GridTooLarge, MissingCapability, PipelinePlanError
from tilewright.ir.nodes import Function
from tilewright.ir.printer import print_program
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.passes.context import Context, Pass
from tilewright.passes.thread.add_dependent_launch import add_dependent_launch
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.passes.tile.grids.drop_dependent_launch import drop_dependent_launch
from tilewright.passes.tile.grids.drop_empty_grids import drop_empty_grids
from tilewright.passes.tile.grids.sync_grid import sync_grid
from tilewright.passes.tile.layouts.separate_views import FragmentReinterpreted, separate_views
from tilewright.passes.tile.pipelines.inject_pipeline import inject_pipeline
from tilewright.passes.tile.processors.begin_at_zero import begin_at_zero
from tilewright.passes.tile.roles.distribute_work import distribute_work
from tilewright.passes.tile.words.check_words import check_words
from tilewright.passes.tile.words.drop_idle_waits import drop_idle_waits
from tilewright.passes.tile.words.drop_unused import drop_unused
from tilewright.passes.tile.words.fit_loops import fit_loops
from tilewright.passes.tile.words.join_vector_loops import join_vector_loops
from tilewright.passes.tile.words.lower_votes import lower_votes
from tilewright.targets.cpu.arch import arch as processor

HEAD = '@stage("traced")\ndef words(A: float32[64, 64], mask: bool[8, 4], C: float32[64, 64], n: int32):\n'
KERNEL = "with kernel(blocks={bx: 4}, threads={tx: 128, ty: 1, tz: 1}):\n"
TILES = """\
a = shared(bfloat16[64, 64])
b = shared(bfloat16[64, 64])
c = fragment(float32[64, 64])
flat = view(c, float32[4096])
bits = view(c, uint16[64, 128])
v = fragment(bool[32])
odd = fragment(float32[4, 6])
tall = view(odd, float32[6, 4])
narrow = shared(int8[64, 64])
ring = shared(int8[2, 64, 64])
line = fragment(float32[4096])
"""


def program(lines: str, kernel: str = KERNEL) -> str:
    return HEAD + textwrap.indent(kernel + textwrap.indent(TILES + lines, "    "), "    ") + "\n"


def host(lines: str) -> str:
    """A host program of several kernels."""
    return HEAD + textwrap.indent(lines, "    ") + "\n"


def body(run: Pass, text: str, context: Context | None = None) -> str:
    """What a pass makes of a program, without its head and the tiles."""
    lines = print_program(result_of(run, text, context)).splitlines()[2:]
    declared = {line.strip() for line in TILES.splitlines()}
    return textwrap.dedent("\n".join(line for line in lines if line.strip() not in declared))


CPU = Context(processor({"arch": "avx512"}))
AMX = Context(processor({"arch": "avx512-vnni-bf16-amx"}))
ALONE = KERNEL.replace("tx: 128, ty: 1, tz: 1", "tx: 1, ty: 1, tz: 1")
BESIDE = KERNEL.replace("tz: 1}", "tz: 1}, beside=True")
NONE = KERNEL.replace("bx: 4", "bx: 0")
STORE, OTHER = "    C[0, 0] = 1.0\n", "    C[0, 1] = 1.0\n"
CLEARED = "fill(destination=c, value=float32(0.0))\n"
GEMM = "gemm(a=a, b=b, c=c)\n"
LAUNCH = "    grid_launch(dtype=bool)\n"
WAIT = "    grid_wait(dtype=bool)\n"

CASES: dict[str, tuple[Pass, Context | None, str, str | None]] = {
    "nobody starts what is waited for": (drop_idle_waits, None, GEMM + 'wait("wgmma", pending=0)', GEMM),
    "somebody does": (drop_idle_waits, None, 'gemm(token="wgmma", a=a, b=b, c=c)\nwait("wgmma", pending=0)', None),
    "threads wait for copies of their own": (drop_idle_waits, None, 'wait("cp_async_by_hand", pending=0)', None),
    "one thread's copies have ended": (drop_idle_waits, CPU, 'wait("cp_async_by_hand", pending=0)\nC[0, 0] = 1.0', "C[0, 0] = 1.0"),
    "a vector loop is a dimension": (
        join_vector_loops, None,
        "for i, j in parallel(64, 16):\n    for w in vectorize(4):\n        C[i, j * 4 + w] = A[i, j * 4 + w]",
        "for i, j, w in parallel(64, 16, 4):\n    C[i, j * 4 + w] = A[i, j * 4 + w]"),
    "a serial loop is none": (
        join_vector_loops, None, "for i, j in parallel(64, 16):\n    for w in range(4):\n        C[i, j * 4 + w] = A[i, j * 4 + w]", None),
    "a vector loop with something beside it stays": (
        join_vector_loops, None,
        "for i, j in parallel(64, 16):\n    C[i, j] = 1.0\n    for w in vectorize(4):\n        C[i, j * 4 + w] = A[i, j * 4 + w]", None),
    "what threads ask of a tensor": (
        lower_votes, None, f"if any_of(mask[bx, 0 : +4]):\n    {CLEARED}",
        "found = scalar(bool[()])\nfound[()] = False\nfor i in range(1):\n    for i_1 in range(4):\n"
        f"        found[()] = found[()] or mask[bx + i, i_1]\nif found[()]:\n    {CLEARED}"),
    "what the block asks of a fragment": (
        lower_votes, None, f"if all_of(v):\n    {CLEARED}",
        "v_part = fragment(bool[32])\ncopy(source=v, destination=v_part)\nfound = fragment(bool[1])\n"
        f'reduce(source=v_part, destination=found, kind="all")\nif found[0]:\n    {CLEARED}'),
    "a view has registers of its own": (
        separate_views, None, "for i in parallel(4096):\n    flat[i] = flat[i] + 1.0",
        "with scope():\n    flat = fragment(float32[4096])\n    for i, j in parallel(64, 64):\n        flat[i * 64 + j] = c[i, j]\n"
        "    for i in parallel(4096):\n        flat[i] = flat[i] + 1.0\n"
        "    for i, j in parallel(64, 64):\n        c[i, j] = flat[i * 64 + j]"),
    "what overwrites a view need not be filled": (
        separate_views, None, "for i in parallel(4096):\n    flat[i] = 1.0",
        "with scope():\n    flat = fragment(float32[4096])\n    for i in parallel(4096):\n        flat[i] = 1.0\n"
        "    for i, j in parallel(64, 64):\n        c[i, j] = flat[i * 64 + j]"),
    "an operator that reads a view finds it filled": (
        separate_views, None, "copy(source=flat, destination=line)",
        "with scope():\n    flat = fragment(float32[4096])\n"
        "    for i, j in parallel(64, 64):\n        flat[i * 64 + j] = c[i, j]\n    copy(source=flat, destination=line)"),
    "one that writes a part of it leaves the rest as it was": (
        separate_views, None, "fill(destination=flat[64 : +128], value=float32(0.0))",
        "with scope():\n    flat = fragment(float32[4096])\n    for i, j in parallel(64, 64):\n        flat[i * 64 + j] = c[i, j]\n"
        "    fill(destination=flat[64 : +128], value=float32(0.0))\n"
        "    for i, j in parallel(64, 64):\n        c[i, j] = flat[i * 64 + j]"),
    "one that writes all of it finds it empty": (
        separate_views, None, "fill(destination=flat, value=float32(0.0))",
        "with scope():\n    flat = fragment(float32[4096])\n    fill(destination=flat, value=float32(0.0))\n"
        "    for i, j in parallel(64, 64):\n        c[i, j] = flat[i * 64 + j]"),
    "shapes without common parts are copied element by element": (
        separate_views, None, "for i, j in parallel(6, 4):\n    tall[i, j] = 1.0",
        "with scope():\n    tall = fragment(float32[6, 4])\n    for i, j in parallel(6, 4):\n        tall[i, j] = 1.0\n"
        "    for i, j in parallel(6, 4):\n        odd[(i * 4 + j) // 6 % 4, (i * 4 + j) % 6] = tall[i, j]"),
    "iterations that a condition lets work": (
        fit_loops, None, "for i, j in parallel(64, 64):\n    if i < 32 and j <= 7:\n        c[i, j] = 1.0",
        "for i, j in parallel(32, 8):\n    c[i, j] = 1.0"),
    "a condition on other things stays": (
        fit_loops, None, "for i, j in parallel(64, 64):\n    if i < 32 and j < n:\n        c[i, j] = 1.0", None),
    "what has another way stays": (
        fit_loops, None, "for i in parallel(64):\n    if i < 32:\n        c[i, 0] = 1.0\n    else:\n        c[i, 1] = 1.0", None),
    "places in a fragment are written out": (
        fit_loops, None, "for s in range(2):\n    for i, j in parallel(32, 64):\n        A[i, j] = c[i + s * 32, j]",
        "with scope():\n    with scope():\n        for i, j in parallel(32, 64):\n            A[i, j] = c[i + 0 * 32, j]\n"
        "    with scope():\n        for i, j in parallel(32, 64):\n            A[i, j] = c[i + 1 * 32, j]"),
    "many of them are not": (
        fit_loops, None, "for s in range(16):\n    for i, j in parallel(4, 64):\n        A[i, j] = c[i + s * 4, j]", None),
    "nor is a loop that is left early": (
        fit_loops, None,
        "for s in range(2):\n    if s > n:\n        break\n    for i, j in parallel(32, 64):\n        A[i, j] = c[i + s * 32, j]", None),
    "nor one over places in tensors": (
        fit_loops, None, "for s in range(2):\n    for i, j in parallel(32, 64):\n        c[i, j] = A[i + s * 32, j]", None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_within_a_kernel(case: str) -> None:
    run, context, before, after = CASES[case]
    head = KERNEL if context is not CPU else ALONE
    text = program(before, head)
    expected = head + textwrap.indent((before if after is None else after).rstrip("\n"), "    ")
    assert body(run, text, context) == expected


def test_tiles_that_nobody_uses() -> None:
    """Those that are used through a view alone stay."""
    lines = "copy(source=A[0 : +64, 0 : +64], destination=a)\nfill(destination=flat, value=float32(0.0))"
    made = print_program(result_of(drop_unused, program(lines)))
    declared = {line.split(" = ")[0].strip() for line in made.splitlines() if " = " in line}
    assert declared == {"a", "c", "flat"}


def cleared(function: Function, context: Context) -> Function:
    return begin_at_zero(select_instructions(function, context), context)


def test_sums_begin_at_zero_in_a_matrix_unit() -> None:
    expected = ALONE + "    gemm(a=a, b=b, c=c, clear=True)"
    assert body(cleared, program(CLEARED + GEMM, ALONE), AMX) == expected
    once = "for k in range(1):\n    " + GEMM
    assert "clear=True" in body(cleared, program(CLEARED + once, ALONE), AMX)


@pytest.mark.parametrize("lines", [
    CLEARED + "for k in range(2):\n    " + GEMM,
    "fill(destination=c, value=float32(1.0))\n" + GEMM,
    CLEARED + "C[0, 0] = c[0, 0]\n" + GEMM,
    "fill(destination=c[0 : +32, :], value=float32(0.0))\n" + GEMM,
    GEMM + CLEARED,
])  # fmt: skip
def test_sums_that_gemms_do_not_clear(lines: str) -> None:
    assert body(cleared, program(lines, ALONE), AMX) == body(lambda one, _: one, program(lines, ALONE))


def test_dot_products_of_vectors_stay_as_they_are() -> None:
    assert "clear" not in body(cleared, program(CLEARED + GEMM, ALONE), CPU)


HOSTS: dict[str, tuple[Pass, str, str | None]] = {
    "no blocks": (drop_empty_grids, NONE + STORE + KERNEL + OTHER, KERNEL + OTHER),
    "as many as the launch says": (drop_empty_grids, KERNEL.replace("bx: 4", "bx: n") + STORE, None),
    "kernels run one after the other": (drop_dependent_launch, KERNEL + WAIT + STORE + LAUNCH, KERNEL + STORE),
    "a meeting has a word to count in": (
        sync_grid, KERNEL + "    grid_sync(dtype=bool)\n",
        "arrivals = tensor(uint32[1])\n" + KERNEL + "    grid_sync(arrivals, dtype=bool)\n"),
    "blocks that do not meet need none": (sync_grid, KERNEL + STORE, None),
    "beside the end of the one before": (
        add_dependent_launch, KERNEL + STORE + BESIDE + OTHER, KERNEL + LAUNCH + STORE + BESIDE + OTHER + WAIT),
    "nobody asks for it": (add_dependent_launch, KERNEL + STORE + KERNEL + OTHER, None),
    "the first is beside nothing": (add_dependent_launch, BESIDE + STORE + KERNEL + OTHER, None),
    "one that waits for others is not left early": (add_dependent_launch, KERNEL + WAIT + STORE + BESIDE + OTHER, None),
    "threads that are done do not wait": (add_dependent_launch, KERNEL + STORE + BESIDE + "    if tx > 3:\n        return\n" + OTHER, None),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTS)
def test_kernels_of_a_host_program(case: str) -> None:
    run, before, after = HOSTS[case]
    assert body(run, host(before.rstrip("\n"))) == (after or before).rstrip("\n")


LOOP = """\
for k in pipelined(8, num_stages=2, PLAN):
    copy(source=A, destination=a)
    copy(source=A, destination=b)
    gemm(a=a, b=b, c=c)"""
ROLES = """\
with roles():
    with role("all", warps=4):
        fill(destination=a, value=bfloat16(0.0))"""
RING = """\
channel("loads", ring, stages=2, writers=("loader",), readers=("worker",), scope="block")
with roles():
    with role("loader", warps=2):
        for k in range(4):
            acquire("loads", k)
            publish("loads", k)
    with role("worker", warps=2):
        for k in range(4):
            receive("loads", k)
            release("loads", k)"""
FOR_ANOTHER_BLOCK = """\
there = barrier(uint64[1])
mine = shared(float32[64, 64])
theirs = shared(float32[64, 64])
copy(token="tma", source=mine, destination=theirs, prefer="bulk", rank=1, barrier=there[0 : +1])"""

REFUSED: dict[str, tuple[Pass, Context, str, str, type[Exception], str]] = {
    "more blocks than run at once": (
        sync_grid, machine(), KERNEL.replace("bx: 4", "bx: 40000"), "grid_sync(dtype=bool)", GridTooLarge,
        "T.sync_grid() needs all 40000 blocks to be resident, but sm_90a runs at most 2112 of 128 threads at once"),
    "elements cannot ask of a fragment": (
        lower_votes, machine(), KERNEL, "for i, j in parallel(64, 64):\n    C[i, j] = 1.0 if any_of(v[:]) else 0.0", MissingCapability,
        "single elements of a T.Parallel cannot ask about the fragment 'v', which lies in many threads"),
    "elements of another size": (
        separate_views, machine(), KERNEL, "for i, j in parallel(64, 128):\n    bits[i, j] = bits[i, j] + uint16(1)", FragmentReinterpreted,
        "'bits' sees the fragment 'c' as elements of another size, which lie in registers of several threads"),
    "clusters": (check_words, machine("sm_80"), KERNEL, "cluster_sync(dtype=bool)", MissingCapability, "sm_80 has no clusters of blocks"),
    "too many threads": (
        check_words, machine(), KERNEL.replace("128", "2048"), "C[0, 0] = 1.0", MissingCapability,
        "a block of sm_90a has at most 1024 threads, not 2048"),
    "work that goes on": (
        check_words, CPU, ALONE, 'gemm(token="wgmma", a=a, b=b, c=c)', MissingCapability,
        f"{CPU.arch.name} has no work that goes on while a block does other things (T.wgmma_gemm)"),
    "a tile for another block": (
        check_words, CPU, KERNEL, FOR_ANOTHER_BLOCK, MissingCapability,
        f"{CPU.arch.name} has no work that goes on while a block does other things (T.copy_cluster)"),
    "roles": (
        check_words, CPU, KERNEL, 'with roles():\n    with role("all", warps=4):\n        C[0, 0] = 1.0', MissingCapability,
        f"{CPU.arch.name} has no warps that do different things at once (T.roles)"),
    "rings": (
        check_words, Context(AMD["gfx942"]), KERNEL, RING, MissingCapability,
        "gfx942 has no ring buffers between warps (T.channel)"),
    "products of matrices": (
        check_words, machine(), KERNEL,
        'x = local(float16[8])\ny = local(float16[4])\nz = local(int32[4])\nmma_m16n8k16(z, x, y, dtype=bool)', MissingCapability,
        "sm_90a has no instruction m16n8k16 of float16 and float16 with sums in int32 (T.ptx_mma)"),
    "stages of fewer statements": (
        inject_pipeline, machine("sm_80"), KERNEL, LOOP.replace("PLAN", "order=(0, 1, 2), stage=(0, 1)"), PipelinePlanError,
        "stage= has 2 numbers, but the loop's body has 3 statements"),
    "places of two statements": (
        inject_pipeline, machine("sm_80"), KERNEL, LOOP.replace("PLAN", "order=(0, 1, 1), stage=(0, 0, 1)"), PipelinePlanError,
        "order= names two statements the same"),
    "a product before its operands": (
        inject_pipeline, machine("sm_80"), KERNEL, LOOP.replace("PLAN", "order=(0, 2, 1), stage=(0, 0, 0)"), PipelinePlanError,
        "this plan runs gemm before copy, on which it depends: other statements of the loop write b"),
    "roles in divergent code": (
        distribute_work, machine(), KERNEL, f"if tx < 5:\n{textwrap.indent(ROLES, '    ')}", DivergentWork,
        "fill, which is distributed over the threads of the block, is in divergent code: warps diverge inside it"),
    "barriers in divergent code": (
        distribute_work, machine(), KERNEL, GEMM + "if tx < 5:\n    sync_threads(dtype=bool)", DivergentWork,
        "T.sync_threads, a barrier of the block, is in divergent code: the other threads would have to wait"),
    "combining bytes": (
        check_words, machine(), KERNEL, 'atomic(destination=narrow[0 : +1, 0 : +1], value=int8(1), kind="max")', MissingCapability,
        "sm_90a has no T.atomic_max of int8, only of int32, uint32, int64, uint64, float16, bfloat16, float32, float64"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    run, context, kernel, lines, error, message = REFUSED[case]
    with pytest.raises(error) as raised:
        body(run, program(lines, kernel), context)
    assert str(raised.value).splitlines()[0] == message


def test_words_that_the_machine_has_pass() -> None:
    text = program("cluster_sync(dtype=bool)")
    assert body(check_words, text) == body(lambda one, _: one, text)


@pytest.mark.parametrize("name, advice", [("sm_86", "compile for sm_90 or above, or write"), ("gfx942", "write")])
def test_newer_machines_are_named_to_those_of_their_maker(name: str, advice: str) -> None:
    context = machine(name) if name.startswith("sm") else Context(AMD[name])
    with pytest.raises(MissingCapability) as raised:
        body(check_words, program("cluster_sync(dtype=bool)"), context)
    assert raised.value.hint == f"{advice} one block for each tile"
