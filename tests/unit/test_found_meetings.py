"""What programs found whose threads meet, or change memory each for itself, while some of a block's warps are a role
(`tests/fuzz/word_writer.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability, TilewrightError, TilewrightWarning
from tilewright.language.mistakes import MisplacedRole

NVIDIA, AMD, APPLE = "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"

Word = Callable[[Any, Any, Any], Any]
"""Of the thread, a fragment of 32 times 64 and a tensor of one number: the number that each thread gets."""


def first(what: Callable[[], Any]) -> Word:
    """A word without a number."""

    def word(tx: Any, f: Any, E: Any) -> Any:
        what()
        return 1

    return word


def reduced(tx: Any, f: Any, E: Any) -> Any:
    rows, most = T.alloc_fragment((32,), "float32"), T.alloc_fragment((1,), "float32")
    T.reduce_sum(f, rows, dim=1)
    T.reduce_max(rows, most, dim=0)
    return T.cast(most[0], "int32")


def scanned(tx: Any, f: Any, E: Any) -> Any:
    T.cumsum(f, dim=1)
    return 0


def allreduced(tx: Any, f: Any, E: Any) -> Any:
    total = T.alloc_local((1,), "int32")
    reducer = T.comm_reducer(lambda x, y: x + y, [T.int32(0)])
    with T.attr(reducer, "reduce_scope", T.reinterpret(T.uint64(0), "handle")):
        T.tvm_thread_allreduce(1, tx, tx > 0, total[0], tx, dtype="handle")
    return total[0]


def met_in_two_parts() -> None:
    T.cluster_arrive()
    T.cluster_wait()


OF_THREADS: dict[str, Word] = {
    "syncthreads_count": lambda tx, f, E: T.syncthreads_count(tx > 1),
    "syncthreads_or": lambda tx, f, E: T.cast(T.syncthreads_or(tx == 100), "int32"),
    "syncthreads_and": lambda tx, f, E: T.cast(T.syncthreads_and(tx < 128), "int32"),
    "atomic_add": lambda tx, f, E: T.atomic_add(E[0], 1, return_prev=True) * 0,
    "reduce": reduced,
    "cumsum": scanned,
    "any_of": lambda tx, f, E: T.cast(T.any_of(f), "int32"),
    "sync_threads": first(lambda: T.sync_threads()),
    "sync_warp": first(lambda: T.sync_warp()),
    "warp_reduce_sum": lambda tx, f, E: T.warp_reduce_sum(tx),
}
"""Words that a role's threads say among themselves, or each alone."""

OF_THE_BLOCK: dict[str, Word] = {"named barrier": first(lambda: T.sync_threads(3)), "tvm_thread_allreduce": allreduced}
"""Those that count the threads that the author gave the block: the ones of a consumer."""

OF_BLOCKS: dict[str, Word] = {
    "cluster_sync": first(lambda: T.cluster_sync()),
    "cluster_arrive": first(met_in_two_parts),
    "sync_grid": first(lambda: T.sync_grid()),
}
"""Those for which all threads of the blocks come."""


def pipelined(word: Word, where: str, specialize: bool | None = True) -> Any:
    """A program that says a word before its loop, in it or behind it."""

    def program(A: Any) -> Any:
        A: T.Tensor((128, 64), "float16")
        C, D, E = T.empty((128,), "int32"), T.empty((32, 64), "float32"), T.empty((1,), "int32")
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s, f = T.alloc_shared((32, 64), "float16"), T.alloc_fragment((32, 64), "float32")
            n = T.alloc_var("int32", init=0)
            T.clear(E)
            T.sync_threads()
            T.clear(f)
            if where == "before":
                n += word(tx, f, E)
            for k in T.Pipelined(4, num_stages=2, specialize=specialize):
                T.copy(A[k * 32, 0], s)
                for i, j in T.Parallel(32, 64):
                    f[i, j] += s[i, j]
                if where == "inside":
                    n += word(tx, f, E)
            if where == "behind":
                n += word(tx, f, E)
            C[tx] = n
            T.copy(f, D)
        return C, D, E

    return program


def compiled(program: Any, target: str, *given: np.ndarray) -> Any:
    """A kernel whose emulator says what the interpreter does."""
    kernel = tilewright.jit(target=target)(program).compile(*given)
    for found, right in zip(kernel.emulate(*given), kernel.interpret(*given), strict=True):
        np.testing.assert_array_equal(found, right)
    return kernel


def numbers() -> np.ndarray:
    return np.random.default_rng(0).integers(-2, 3, (128, 64)).astype(np.float16)


def has_roles(kernel: Any) -> bool:
    return "with roles()" in kernel.show_program("specialize_warps")


@pytest.mark.parametrize("where", ["before", "inside", "behind"])
@pytest.mark.parametrize("word", [*OF_THREADS, *OF_THE_BLOCK])
def test_words_of_a_block_are_those_of_its_consumer_where_others_load(word: str, where: str) -> None:
    """Votes waited for the warps that load, and counted them; what `T.atomic_add` gives back was asked for by them, too."""
    kernel = compiled(pipelined({**OF_THREADS, **OF_THE_BLOCK}[word], where), NVIDIA, numbers())
    assert has_roles(kernel)
    if word == "atomic_add":
        assert kernel.emulate(numbers())[2] == 128 * (4 if where == "inside" else 1)
    if word == "syncthreads_count":
        assert (kernel.emulate(numbers())[0] == 126 * (4 if where == "inside" else 1)).all()


@pytest.mark.filterwarnings("ignore::tilewright.errors.TilewrightWarning")
@pytest.mark.parametrize("target", [AMD, APPLE])
@pytest.mark.parametrize("word", [*OF_THREADS, *OF_THE_BLOCK])
def test_words_of_a_block_are_right_where_all_threads_load(word: str, target: str) -> None:
    if word == "named barrier":
        with pytest.raises(MissingCapability, match="has no named barriers"):
            tilewright.jit(target=target)(pipelined(OF_THE_BLOCK[word], "inside", None)).compile(numbers())
        return
    compiled(pipelined({**OF_THREADS, **OF_THE_BLOCK}[word], "inside", None), target, numbers())


@pytest.mark.parametrize("where", ["before", "inside", "behind"])
@pytest.mark.parametrize("word", OF_BLOCKS)
def test_nobody_loads_for_others_while_blocks_meet(word: str, where: str) -> None:
    """Warps that load did not come to where all threads of the blocks meet: a program that waits for ever."""
    program = pipelined(OF_BLOCKS[word], where)
    if where == "behind" and word != "sync_grid":
        assert has_roles(compiled(program, NVIDIA, numbers()))  # a cluster waits for nobody who has ended
        return
    with pytest.warns(TilewrightWarning, match="it has barriers of the block, which a producer would not reach"):
        kernel = compiled(program, NVIDIA, numbers())
    assert not has_roles(kernel)


@pytest.mark.parametrize("with_result", [False, True])
def test_what_each_thread_does_before_loads_is_not_done_by_more_threads(with_result: bool) -> None:
    """All warps prepare what loads depend on: of a sum to which each thread adds, 128 more threads made another one."""

    def program(A: Any) -> Any:
        A: T.Tensor((512, 64), "float16")
        D, E = T.empty((32, 64), "float32"), T.empty((4,), "int32")
        with T.Kernel(1, threads=128):
            s, f = T.alloc_shared((32, 64), "float16"), T.alloc_fragment((32, 64), "float32")
            rows = T.alloc_shared((4,), "int32")
            n = T.alloc_var("int32", init=0)
            T.clear(rows)
            if with_result:
                n += T.atomic_add(rows[1], 1, return_prev=True) * 0
            else:
                T.atomic_add(rows[1], 1)
            T.clear(f)
            for k in T.Pipelined(4, num_stages=2, specialize=True):
                T.copy(A[rows[k], 0], s)
                for i, j in T.Parallel(32, 64):
                    f[i, j] += s[i, j]
            for i in T.Parallel(4):
                E[i] = rows[i] + n
            T.copy(f, D)
        return D, E

    a = np.random.default_rng(0).integers(-2, 3, (512, 64)).astype(np.float16)
    with pytest.warns(TilewrightWarning, match="which every thread does once more"):
        kernel = compiled(program, NVIDIA, a)
    assert list(kernel.emulate(a)[1]) == [0, 128, 0, 0]


def divided(word: Word, way: str) -> Any:
    """A program whose threads say a word in a warpgroup, in a role, in one of a single warp, in each of two instances."""
    first = {"ws": 0, "role": 128, "warp": 224, "instances": 0}[way]

    def program(A: Any) -> Any:
        A: T.Tensor((256,), "int32")
        C, E = T.empty((256,), "int32"), T.empty((1,), "int32")
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            T.clear(E)
            T.copy(A, C)
            T.sync_threads()
            if way == "ws":
                with T.ws(1):
                    g = T.alloc_fragment((32, 64), "float32")
                    T.clear(g)
                    C[tx] = word(tx, g, E)
                return C, E
            with T.roles():
                if way == "instances":
                    with T.role("b", warps=4, instances=2) as which:
                        f = T.alloc_fragment((32, 64), "float32")
                        T.clear(f)
                        C[which * 128 + tx] = word(tx + which, f, E)
                else:
                    with T.role("a", warps=first // 32):
                        T.sync_warp()
                    with T.role("b", warps=8 - first // 32):
                        f = T.alloc_fragment((32, 64), "float32")
                        T.clear(f)
                        C[first + tx] = word(tx, f, E)
        return C, E

    return program


WAYS = ("ws", "role", "warp", "instances")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", OF_THREADS)
def test_words_of_a_role_are_its_threads_alone(word: str, way: str) -> None:
    kernel = compiled(divided(OF_THREADS[word], way), NVIDIA, np.arange(256, dtype=np.int32))
    if word == "syncthreads_count":
        counts = {"ws": [128], "role": [126], "warp": [30], "instances": [126, 127]}[way]
        assert set(kernel.emulate(np.arange(256, dtype=np.int32))[0][-32:]) <= set(counts)


@pytest.mark.parametrize("target", [AMD, APPLE])
@pytest.mark.parametrize("word", ["syncthreads_count", "syncthreads_or", "syncthreads_and", "reduce", "sync_threads"])
def test_roles_of_warps_that_have_no_barrier_of_their_own_are_refused(word: str, target: str) -> None:
    """Votes waited for ever there, too."""
    a = np.arange(256, dtype=np.int32)
    compiled(divided(OF_THREADS[word], "warp"), target, a)
    for way in ("ws", "role", "instances"):
        with pytest.raises(MissingCapability, match="has no barriers of some of a block's warps") as refused:
            tilewright.jit(target=target)(divided(OF_THREADS[word], way)).compile(a)
        assert refused.value.span is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", ["tvm_thread_allreduce", "sync_grid"])
def test_words_of_threads_that_are_no_role_s_stand_in_none(word: str, way: str) -> None:
    """The one read what nobody had written, the other waited for ever."""
    said = {**OF_THE_BLOCK, **OF_BLOCKS}[word]
    alone = (lambda tx, f, E: said(T.get_thread_binding(), f, E)) if way == "instances" else said
    with pytest.raises(MisplacedRole, match=f"`T.{word}` stands in a role") as refused:
        tilewright.jit(target=NVIDIA)(divided(alone, way)).compile(np.arange(256, dtype=np.int32))
    assert isinstance(refused.value, TilewrightError)
    assert refused.value.span is not None


def test_tiles_are_not_dealt_where_clusters_meet_in_two_parts() -> None:
    """Producers would have gone on to the next tile: `T.cluster_sync` kept tiles where they are, its two halves did not."""

    def program(A: Any) -> Any:
        A: T.Tensor((8192, 64), "float16")
        C = T.empty((8192, 64), "float32")
        with T.Kernel(256, threads=128, persistent=True) as bx:
            s, f = T.alloc_shared((32, 32), "float16"), T.alloc_fragment((32, 32), "float32")
            for k in T.Pipelined(2, num_stages=2, specialize=True):
                T.copy(A[bx * 32, k * 32], s)
                T.copy(s, f)
                T.copy(f, C[bx * 32, k * 32])
            T.cluster_arrive()
            T.cluster_wait()
        return (C,)

    a = np.random.default_rng(0).integers(-2, 3, (8192, 64)).astype(np.float16)
    kernel = compiled(program, NVIDIA, a)
    assert has_roles(kernel)
    assert "not persistent: the blocks of a cluster synchronise" in kernel.explain()


@pytest.mark.parametrize("mask", [1, 2, 3])
def test_a_tile_that_a_load_brings_to_several_blocks_is_that_of_the_lowest(mask: int) -> None:
    """The interpreter gave each block the rows that it names itself."""

    def program(A):
        A: T.Tensor((32, 64), "float16")
        O = T.empty((4, 8, 64), "float16")
        with T.Kernel(4, threads=128, cluster_dims=2) as bx:
            tile = T.alloc_shared((8, 64), "float16")
            arrived = T.alloc_cluster_barrier([128])
            T.cluster_sync()
            T.tma_copy(A[bx * 8, 0], tile, barrier=arrived[0], cluster_mask=mask)
            T.mbarrier_arrive(arrived[0])
            T.mbarrier_wait_parity(arrived[0], 0)
            T.copy(tile, O[bx, :, :])
            T.cluster_sync()
        return O

    given = np.random.default_rng(mask).integers(-9, 10, (32, 64)).astype(np.float16)
    rows = given.reshape(4, 8, 64)
    kernel = tilewright.jit(target=NVIDIA)(program).compile(given)
    for found in (kernel.emulate(given), kernel.interpret(given)):
        np.testing.assert_array_equal(found, rows[[0, 0, 2, 2]] if mask == 3 else rows)


def test_roles_do_not_use_registers_of_others() -> None:
    """An error of the verifier reached the author."""

    def program(A):
        A: T.Tensor((64, 64), "float32")
        with T.Kernel(1, threads=256):
            held = T.alloc_fragment((64, 64), "float32")
            with T.roles():
                with T.role("first", warps=4):
                    T.copy(A, held)
                with T.role("second", warps=4):
                    T.sync_threads()

    with pytest.raises(MisplacedRole) as told:
        tilewright.jit(target=NVIDIA)(program).compile(np.zeros((64, 64), np.float32))
    assert told.value.message == "the role 'first' uses 'held', which lies in registers of other threads, too"
    assert told.value.hint == "make it in the role, or with T.alloc_shared"
