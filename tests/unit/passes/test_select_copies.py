"""`select_copies` as a pass: each way to make a copy, best first, and what is said where a better one does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_pass import changed_text, machine, result_of

from tilewright.errors import NotAsynchronous
from tilewright.ir import Parallel, find
from tilewright.machine.instructions import CopyEngine, Signals
from tilewright.ops import Copy
from tilewright.passes.context import CHOICES
from tilewright.passes.tile.copies.select_copies import select_copies

SLOTS = """\
@stage("traced")
def rows(K: float16[6400, 64], O: float32[128, 64], steps: int32):
    with kernel(blocks={bx: 1}, threads={tx: 384, ty: 1, tz: 1}):
        keys = shared(float16[2, 64, 64])
        q = shared(float16[128, 64])
        channel("keys", keys, stages=2, writers=("loader",), readers=("worker",), scope="block")
        with roles():
            with role("loader", warps=4):
                for k in range(steps):
                    acquire("keys", k)
                    copy(source=K[k * 64 : +64, :], destination=keys[k % 2, :, :])
                    publish("keys", k)
            with role("worker", warps=8):
                s = fragment(float32[128, 64])
                for k in range(steps):
                    receive("keys", k)
                    gemm(a=q, b=keys[k % 2, :, :], c=s, transpose_b=True)
                    release("keys", k)
"""
GEMM = "                    gemm(a=q, b=keys[k % 2, :, :], c=s, transpose_b=True)\n"
COPY = "copy(source=K[k * 64 : +64, :], destination=keys[k % 2, :, :])"
TILE = "destination=keys[k % 2, :, :]"
LOOP = "".join(
    f"                    {line}\n"
    for line in (
        "for i, j in parallel(64, 64):",
        "    keys[k % 2, i, j] = K[k * 64 + i, j] if i < steps else float16(0.0)",
    )
)
GATHERED = SLOTS.replace(f"                    {COPY}\n", LOOP)

PLAIN = """\
@stage("traced")
def plain(X: float16[128, 64]):
    with kernel(blocks={bx: 4}, threads={tx: 128, ty: 1, tz: 1}):
        tile = shared(float16[32, 64])
        copy(source=X[bx * 32 : +32, :], destination=tile)
"""
BY_HAND = PLAIN.replace("tile)", 'tile, prefer="cp_async")').replace("copy(", 'copy(token="cp_async_by_hand", ')
ENGINE_STORE = PLAIN.replace(
    "copy(source=X[bx * 32 : +32, :], destination=tile)",
    'copy(token="tma_store", source=tile, destination=X[bx * 32 : +32, :], prefer="tma")',
)
OPERAND = """\
@stage("traced")
def operand(W: float16[128, 64], C: float32[64, 64]):
    with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
        a = shared(float16[64, 64])
        b = fragment(float16[64, 64])
        c = fragment(float32[64, 64])
        copy(source=W[0 : +64, :], destination=b)
        gemm(a=a, b=b, c=c, transpose_b=True)
"""


def safe(text: str) -> str:
    """A program in which K is not zero beyond its bounds."""
    return changed_text(text, ("tz: 1}):", "tz: 1}, safe_values={K: float16(1.0)}):"))


def preferring(word: str, text: str = SLOTS) -> str:
    return changed_text(text, (COPY, f'{COPY[:-1]}, prefer="{word}")'))


WIDE_STEP = "the stride of dimension 0 of K is not known to be a multiple of 16 bytes"
BYTES_2 = "rows do not consist of pieces of 4 bytes"
SLOT_CASES = {
    "boxes": (SLOTS, "tma", "tma_load into keys"),
    "one piece that no gemm reads": (
        changed_text(SLOTS, (GEMM, ""), ("range(steps):\n                    acquire", "range(100):\n                    acquire")),
        "bulk", "bulk_load into keys"),
    "strides that are no units of 16 bytes": (
        changed_text(SLOTS, ("6400, 64]", "6400, 66]"), ("+64, :], dest", "+64, 0 : +64], dest")), "cp_async",
        f"cp_async into keys (not tma_load: {WIDE_STEP})"),
    "rows taken from within 16 bytes on": (
        changed_text(SLOTS, ("6400, 64]", "6400, 256]"), ("+64, :], dest", "+64, 4 : +64], dest")), "cp_async",
        "cp_async into keys (not tma_load: rows of K are not known to be taken from a multiple of 16 bytes on)"),
    "rows at no even bytes": (
        changed_text(SLOTS, ("6400, 64]", "6400, 65]"), ("+64, :], dest", "+64, 0 : +64], dest")), "sync",
        f"by threads (not tma_load: {WIDE_STEP}; not cp_async: {BYTES_2})"),
    "threads": (preferring("threads"), "cp_async", "cp_async into keys (not tma_load: the author asks for threads)"),
    "loads": (
        preferring("sync"), "sync", "by threads (not tma_load: the author asks for sync; not cp_async: the author asks for sync)"),
    "another value beyond the tensor": (
        safe(SLOTS), "sync", "by threads (not tma_load: K has a safe value, and the copy engine fills with zeros; "
        "not cp_async: what is out of bounds is not zero)"),
}  # fmt: skip


def chosen(text: str, arch: str = "sm_90a") -> tuple[Copy | Parallel, str, list[str]]:
    """The copy, or the loop, with the choice written into it, what ``explain()`` says of it, and warnings."""
    context = machine(arch)
    function = result_of(select_copies, text, context)
    node = next(iter([*find(function, Copy), *find(function, Parallel)]))
    (said,) = context.facts[CHOICES] or [""]
    return node, said.partition(": ")[2], [one.message for one in context.diagnostics]


OTHER_ENGINES = {
    "K has 2 dimensions, and 1 are possible": CopyEngine(rank=1, box=256, unit=16, place=128),
    "rows of 128 bytes are no multiple of 256": CopyEngine(rank=5, box=256, unit=256, place=128),
    "tiles of 8192 bytes follow each other, and the copy engine begins at multiples of 16384": CopyEngine(
        5, 256, 16, 16384
    ),
}


@pytest.mark.parametrize("reason", OTHER_ENGINES)
def test_what_an_engine_moves_is_the_machines_to_say(reason: str) -> None:
    context = machine()
    context.arch = replace(context.arch, copy_engine=OTHER_ENGINES[reason])
    result_of(select_copies, SLOTS, context)
    (said,) = context.facts[CHOICES]
    assert said == f"copy: cp_async into keys (not tma_load: {reason})"


def test_slots_are_filled_by_pieces_where_arrivals_follow_them() -> None:
    context = machine("sm_80")
    context.arch = replace(context.arch, signals=Signals())
    result_of(select_copies, SLOTS, context)
    reason = "not cp_async: no arrivals at the machine's barriers follow copies"
    assert context.facts[CHOICES] == [f"copy: by threads (not tma_load: sm_80 has no copy engine; {reason})"]


@pytest.mark.parametrize("case", SLOT_CASES)
def test_a_slot_is_filled_in_the_best_way_that_fits(case: str) -> None:
    before, way, words = SLOT_CASES[case]
    copy, said, warned = chosen(before)
    assert (copy.schedule.prefer, said, warned) == (way, words, [])
    assert copy.token == ("cp_async_slots" if way == "cp_async" else None)


def test_machines_without_an_engine_start_pieces() -> None:
    assert chosen(SLOTS, "sm_80")[:2][1] == "cp_async into keys (not tma_load: sm_80 has no copy engine)"


def test_what_the_author_prefers_and_cannot_have_is_warned_about() -> None:
    text = changed_text(preferring("tma"), ("6400, 64]", "6400, 66]"), ("+64, :], dest", "+64, 0 : +64], dest"))
    assert chosen(text)[2] == [f"this copy cannot be made by the copy engine: {WIDE_STEP}"]
    plain = changed_text(PLAIN, ("=tile)", '=tile, prefer="tma")'))
    copy, said, warned = chosen(plain)
    assert (copy.schedule.prefer, said) == ("cp_async", "cp_async of 16 bytes")
    assert warned == ["this copy cannot be made by the copy engine: it fills no slot of a channel"]
    odd = changed_text(PLAIN, ("=tile)", '=tile, prefer="cp_async")'), ("float16[32, 64]", "float32[32, 64]"))
    copy, said, warned = chosen(odd)
    assert (copy.schedule.prefer, said) == ("sync", "loads and stores (not cp_async: it converts float16 to float32)")
    assert warned == ["this copy cannot be cp_async: it converts float16 to float32"]


def test_a_view_has_the_value_beyond_its_tensor() -> None:
    """Zeros would stand in the slot where the author wants ones: asked of the view, nobody had named one."""
    view = changed_text(
        safe(SLOTS),
        ("        keys = shared", "        rows = view(K, float16[6400, 64])\n        keys = shared"),
        ("source=K[", "source=rows["),
    )
    copy, said, _ = chosen(view)
    assert copy.schedule.prefer == "sync" and said.endswith("not cp_async: what is out of bounds is not zero)")


def test_loops_that_bring_rows() -> None:
    loop, said, _ = chosen(GATHERED)
    assert (loop.prefer, loop.token, said) == ("cp_async", "cp_async_slots", "cp_async into keys")
    assert chosen(safe(GATHERED))[1] == "by threads into keys (not cp_async: what is out of bounds is not zero)"
    by_thread = changed_text(GATHERED, ("i < steps", "i < tx"))
    assert chosen(by_thread)[1] == "by threads into keys (not cp_async: it depends on the thread)"


@pytest.mark.parametrize("end", ["8 * steps", "8 * steps + 4", "2 * steps"])
def test_columns_that_end_where_a_piece_does_are_brought_by_pieces(end: str) -> None:
    """The end is no number, and no piece lies on both sides of it."""
    rows, pieces = changed_text(GATHERED, ("i < steps", f"j < {end}")), "cp_async into keys"
    assert chosen(rows)[1] == pieces
    assert chosen(changed_text(rows, (f"j < {end}", f"i < steps and j < {end}")))[1] == pieces


def test_columns_that_end_anywhere_are_not() -> None:
    said = "by threads into keys (not cp_async: rows do not consist of pieces of 4 bytes)"
    assert chosen(changed_text(GATHERED, ("i < steps", "j < steps")))[1] == said


def test_the_authors_own_copies() -> None:
    assert chosen(ENGINE_STORE)[:2][0].schedule.prefer == "bulk"
    assert chosen(BY_HAND)[0].token == "cp_async_by_hand"
    with pytest.raises(NotAsynchronous, match=r"cannot be cp\.async: it converts float16 to float32"):
        chosen(changed_text(BY_HAND, ("float16[32, 64]", "float32[32, 64]")))
    with pytest.raises(NotAsynchronous, match="the copy engine cannot move this tile to X: it converts"):
        chosen(changed_text(ENGINE_STORE, ("float16[32, 64]", "float32[32, 64]")))


def test_lanes_exchange_words_of_a_right_operand() -> None:
    assert chosen(OPERAND, "sm_80")[0].schedule.prefer == "quads"
    for old, new in (
        ("transpose_b=True", "transpose_b=False"),
        ("W: float16[128, 64]", "W: float32[128, 64]"),
        ("W: float16[128, 64]", "W: float16[128, 68]"),
    ):
        copy, said, _ = chosen(OPERAND.replace(old, new).replace("+64, :], dest", "+64, 0 : +64], dest"), "sm_80")
        assert (copy.schedule.prefer, said) == (None, "")
