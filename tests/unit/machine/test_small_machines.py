"""What a machine of few lanes, few registers or no shuffles means to passes: no warp exchanges what its lanes cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability
from tilewright.ir import find, nodes
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES as APPLE
from tilewright.machine.arch import Arch
from tilewright.passes import Context
from tilewright.passes.context import Schedule
from tilewright.passes.thread.check_registers import roomier
from tilewright.passes.tile.words.check_words import check_words
from tilewright.passes.tile.words.lane_words import OF_WARPS
from tilewright.passes.tile.words.replace_words import replace_words
from tilewright.targets.cuda.arch import ARCHITECTURES as NVIDIA

FEATURES = frozenset({"threads", "shuffle", "atomics"})


def small(lanes: int = 16, features: frozenset[str] = FEATURES, **facts: Any) -> Arch:
    return Arch("small", f"small{lanes}", features, warp_size=lanes, shared_bytes=32 << 10, **facts)


WORDS: dict[str, Callable[[Any, Any], Any]] = {
    "shuffle": lambda own, tx: T.shfl_sync(own, 3),
    "shuffle_xor": lambda own, tx: T.shfl_xor(own, 5),
    "shuffle_down": lambda own, tx: T.shfl_down(own, 1),
    "warp_add": lambda own, tx: T.warp_reduce_sum(own),
    "warp_max": lambda own, tx: T.warp_reduce_max(own),
    "ballot": lambda own, tx: T.cast(T.ballot(own > 0), "float32"),
}
CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "always": lambda tx, N: True,
    "for the whole block": lambda tx, N: N[0] > 1,
    "for a warp": lambda tx, N: tx < 32,
    "for some threads": lambda tx, N: N[tx % 2] > 1,
}


def program(word: str, condition: str) -> Any:
    """A kernel of 64 threads that says a word of warps, where a condition holds."""
    said, holds = WORDS[word], CONDITIONS[condition]

    @T.prim_func
    def made(A: T.Tensor((64,), "float32"), N: T.Tensor((2,), "int32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if holds(tx, N):
                B[tx] = said(A[tx], tx)

    return made


def checked(function: Any, arch: Arch) -> set[str]:
    """The words of warps that are left of a program, once the machine has been asked."""
    traced = tilewright.compile(function, target="cuda -arch=sm_80").function
    context = Context(arch, Schedule())
    return {call.function for call in find(check_words(replace_words(traced, context), context), nodes.Call)} & OF_WARPS


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "arch", [small(16), small(8), small(32, FEATURES - {"shuffle"})], ids=lambda one: getattr(one, "name", one)
)
def test_a_block_meets_where_a_warp_cannot(word: str, arch: Arch) -> None:
    """Lanes read from lanes that the machine has not: what a warp exchanges goes through shared memory."""
    for condition in ("always", "for the whole block"):
        assert not checked(program(word, condition), arch)


@pytest.mark.parametrize("condition", ["for a warp", "for some threads"])
def test_threads_that_come_one_by_one_are_refused(condition: str) -> None:
    with pytest.raises(MissingCapability) as told:
        checked(program("shuffle_xor", condition), small(16))
    assert told.value.message == "small16 runs 16 threads together, and warps of 32 exchange values here"
    assert told.value.hint == "let all threads of the block come here, whole warps of 32"
    with pytest.raises(MissingCapability, match="small32 has no shuffles, and warps of 32 exchange values here"):
        checked(program("shuffle_xor", condition), small(32, FEATURES - {"shuffle"}))


def test_where_lanes_are_a_warp_they_exchange_by_themselves() -> None:
    for lanes in (32, 64):
        for word in WORDS:
            assert checked(program(word, "for a warp"), small(lanes)) == {word}


@pytest.mark.parametrize("registers", [16, 32, 40, 48, 64])
def test_few_registers_have_some_for_fragments(registers: int) -> None:
    """A machine of 40 had none, and the search for more threads did not end."""
    arch = small(registers=registers)
    assert 0 < arch.fragment_registers < registers
    body = nodes.Seq((nodes.Allocate(nodes.Buffer("c", (1000,), nodes.dtypes.FLOAT32, "register")),))
    kernel = next(
        find(tilewright.compile(program("warp_add", "always"), target="cuda -arch=sm_80").function, nodes.Kernel)
    )
    assert "of its size" in roomier(kernel.with_body(body), arch)


def test_somebody_asks_for_every_feature() -> None:
    """A record that says what nobody asks for promises what no pass keeps."""
    package = Path(tilewright.__file__).parent
    records = {package / "machine/amd.py", package / "machine/apple.py", package / "targets/cuda/arch.py"}
    text = "".join(path.read_text() for path in package.rglob("*.py") if path not in records)
    features = set().union(*(one.features for table in (NVIDIA, AMD, APPLE) for one in table.values()))
    assert len(features) > 20
    assert [one for one in features if not re.search(rf'"{one}"', text)] == []
