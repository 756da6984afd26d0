"""What a machine of few lanes, few registers or no shuffles means to passes: no warp exchanges what its lanes cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability
from tilewright.ir import INTRINSICS, find, nodes
from tilewright.machine import MatrixInstruction, Signals
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES as APPLE
from tilewright.machine.arch import Arch
from tilewright.passes import Context
from tilewright.passes.context import Schedule
from tilewright.passes.thread.check_registers import roomier
from tilewright.passes.tile.words.check_words import check_words
from tilewright.passes.tile.words.lane_words import OF_WARPS
from tilewright.passes.tile.words.replace_words import replace_words
from tilewright.targets.base import TARGETS
from tilewright.targets.cuda.arch import ARCHITECTURES as NVIDIA
from tilewright.targets.cuda.arch import with_instructions
from tilewright.targets.cuda.emulation import CUDA
from tilewright.targets.gpu.spellings import spelled

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


def test_arrivals_that_follow_copies_are_the_machines_to_have() -> None:
    @T.prim_func
    def made(A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((32,), "float32")
            ready = T.alloc_barrier(32)
            T.ptx_cp_async(tile[tx], A[tx], 1)
            T.cp_async_barrier_noinc(ready)
            T.mbarrier_arrive(ready)

    hopper = NVIDIA["sm_90a"]
    traced = tilewright.compile(made, target="cuda -arch=sm_90a").function
    assert check_words(traced, Context(hopper, Schedule())) is traced
    with pytest.raises(MissingCapability, match="sm_90a has no arrivals that follow a thread's copies"):
        check_words(traced, Context(replace(hopper, signals=Signals(counts_bytes=True)), Schedule()))


EVERY_MACHINE = [one for table in (NVIDIA, AMD, APPLE) for one in table.values()]


def test_what_has_a_field_of_the_record_is_no_feature() -> None:
    """Two ways to say one thing contradict each other: a feature is what no field says."""
    said = {"tma", "multicast", "cluster", "cp_async", "named_barrier", "mbarrier", "setmaxnreg", "ldmatrix"}
    assert not (said | set(Arch.__slots__)) & set().union(*(one.features for one in EVERY_MACHINE))
    hopper, ampere = NVIDIA["sm_90a"], NVIDIA["sm_80"]
    assert hopper.copy_engine and hopper.copy_engine.multicast and hopper.clusters and hopper.copies_signal
    assert not (ampere.copy_engine or ampere.clusters or ampere.copies_signal) and ampere.starts_own_copies
    assert all(one.async_copy is None or one.async_copy.threads == 64 for one in AMD.values())
    assert not NVIDIA["sm_90"].role_registers and NVIDIA["sm_120a"].role_registers


def test_functions_of_the_ir_have_no_makers_names() -> None:
    """Families spell them; what multiplies matrices alone has the name that a machine's record gives."""
    words = {own for one in TARGETS.values() if one.emulation for own in one.emulation.words.values()}
    products = {
        one.function
        for arch in (*map(with_instructions, NVIDIA.values()), *AMD.values(), *APPLE.values())
        for one in (*arch.products(MatrixInstruction), *arch.sparse_instructions)
    }
    assert {"mbarrier", "cp_async", "tma", "wgmma"} <= words and {"wgmma_ss", "wgmma_sparse_ss"} <= products
    named = re.compile("|".join(words))
    assert [name for name in INTRINSICS if named.search(name) and name not in products] == []
    assert spelled("fence_signal_init", CUDA.words) == "fence_mbarrier_init"
    assert spelled("copysign", CUDA.words) == "copysign" and spelled("simdgroup_add", CUDA.words) == "simdgroup_add"


def test_somebody_asks_for_every_feature() -> None:
    """A record that says what nobody asks for promises what no pass keeps."""
    package = Path(tilewright.__file__).parent
    records = {package / "machine/amd.py", package / "machine/apple.py", package / "targets/cuda/arch.py"}
    text = "".join(path.read_text() for path in package.rglob("*.py") if path not in records)
    features = set().union(*(one.features for one in EVERY_MACHINE))
    assert len(features) > 20
    assert [one for one in features if not re.search(rf'"{one}"', text)] == []
