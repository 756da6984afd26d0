"""`stage_epilogue` as a pass: accumulators leave in boxes of shared memory; each reason why threads store them instead."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from one_pass import changed_text, machine, result_of
from test_specialize_warps import AFTER as BEFORE

from tilewright.ir import INT32, UINT8, find
from tilewright.ir import nodes as ir
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.ops import Copy
from tilewright.passes.context import CHOICES, Context, Schedule
from tilewright.passes.lower.role_threads import own_tiles
from tilewright.passes.tile.copies.stage_epilogue import stage_epilogue
from tilewright.passes.tile.gemms.select_instructions import select_instructions

STORE = "copy(source=c, destination=C[bx * 128 : +128, :])"
BOXES = (
    "        c_staging = shared(float16[4, 64, 64], layout=layout(shape=(4, 64, 64), "
    "digits=('4:m4096', '64:m64', '64:m1'), swizzle=(3, 3, 3)))\n"
)


changed = partial(changed_text, BEFORE)


def staged(before: str, arch: str = "sm_90a") -> tuple[str, str, list[str]]:
    """The program before and after, and what is said of its copy; who multiplies is chosen before."""
    planned = result_of(select_instructions, before, machine())
    context = machine(arch)
    result = stage_epilogue(planned, context)
    verify(result)
    staged = [copy for copy in find(result, Copy) if copy.schedule.staging is not None]
    assert len(staged) == print_program(result).count('prefer="tma"')
    return print_program(planned), print_program(result), context.facts[CHOICES]


def test_before_and_after() -> None:
    before, after, said = staged(BEFORE)
    expected = before.replace("        with roles():\n", BOXES + "        with roles():\n")
    assert after == expected.replace(STORE, STORE[:-1] + ', prefer="tma")')
    assert said == ["copy: stmatrix and tma_store in boxes of 64 x 64"]


def test_what_is_computed_from_an_accumulator_element_for_element_leaves_so_too() -> None:
    text = changed(
        ("float32[128, 128])\n", "float32[128, 128])\n                d = fragment(float32[128, 128])\n"),
        (
            f"                {STORE}",
            "                for i, j in parallel(128, 128):\n                    d[i, j] = c[i, j] * float32(2.0)\n"
            f"                {STORE.replace('source=c', 'source=d')}",
        ),
    )
    _, after, said = staged(text)
    assert "d_staging = shared(float16[4, 64, 64]" in after and len(said) == 1


REFUSED = {
    "the author asks for threads": (changed((STORE, STORE[:-1] + ', prefer="sync")')), "the author asks for sync"),
    "no halves": (changed(("C: float16[4096, 128]", "C: float8_e4m3fn[4096, 128]")), "float32 to float8_e4m3fn is not packed in pairs"),
    "a part of the columns": (
        changed((STORE, "copy(source=c[:, 0 : +64], destination=C[bx * 128 : +128, 0 : +64])")), "parts are stored by their elements"),
    "rows at no multiples of 16 bytes": (
        changed(("C: float16[4096, 128]", "C: float16[4096, 132]"), ("C[bx * 128 : +128, :]", "C[bx * 128 : +128, 0 : +128]")),
        "the stride of dimension 0 of C is not known to be a multiple of 16 bytes"),
    "rows taken from within 16 bytes on": (
        changed(("C: float16[4096, 128]", "C: float16[4096, 256]"), ("C[bx * 128 : +128, :]", "C[bx * 128 : +128, 4 : +128]")),
        "rows of C are not known to be taken from a multiple of 16 bytes on"),
    "a beginning before the tensor": (
        changed(("C[bx * 128 :", "C[bx * 128 - 64 :")), "it may begin before the tensor does"),
    "threads store to it as well": (
        changed((f"                {STORE}", f"                fill(destination=C[0 : +16, :], value=float16(0.0))\n                {STORE}")),
        "threads store to C as well, and the engine does not see their stores without a fence"),
    "the kernel reads what it stored": (
        changed((STORE, f"{STORE}\n                copy(source=C[0 : +128, :], destination=c)")),
        "the kernel reads C as well, and the engine's stores land later than those of threads"),
    "a loop stores the same rows again": (
        changed((f"                {STORE}", f"                for again in range(2):\n                    {STORE}")),
        "a loop stores the same rows of C again, and stores of the engine are in no order"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    text, reason = REFUSED[case]
    before, after, said = staged(text)
    assert after == before
    assert said == [f"copy: stores by threads (not tma_store: {reason})"]


def test_rows_of_boxes_are_as_wide_as_the_widest_swizzle_of_the_machine() -> None:
    """Boxes of 64 halves have rows of 128 bytes; an engine that swizzles 64 at the most gets rows of 32 halves."""
    planned = result_of(select_instructions, BEFORE, machine())
    context = Context(replace(machine().arch, spans=(64, 32)), Schedule())
    text = print_program(stage_epilogue(planned, context))
    assert "c_staging = shared(float16[8, 64, 32]" in text
    assert context.facts[CHOICES] == ["copy: stmatrix and tma_store in boxes of 64 x 32"]


@pytest.mark.parametrize(("spans", "place", "expected"), [((128, 64), 128, 1024), ((64, 32), 128, 512), ((), 256, 256)])
def test_tiles_of_instances_begin_where_the_machine_s_swizzle_and_engine_may(
    spans: tuple[int, ...], place: int, expected: int
) -> None:
    """Two instances that declare a tile of 40 bytes: each part begins at a multiple of what the record says."""
    engine = machine().arch.copy_engine
    assert engine is not None
    arch = replace(machine().arch, spans=spans, copy_engine=replace(engine, place=place))
    boxes = ir.Buffer("boxes", (40,), UINT8, "shared")
    role = ir.Role("consumer", 4, ir.seq(ir.Allocate(boxes)), index=ir.Var(INT32, "consumer"), instances=2)
    (made,) = find(own_tiles(role, role.body, arch.tile_alignment), ir.Allocate)
    assert made.buffer.shape == (2, expected)


def test_machines_without_an_engine_are_left_alone() -> None:
    before, after, said = staged(BEFORE, "sm_80")
    assert after == before and said == []
