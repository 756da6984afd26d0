"""Words of the language on Apple's machines: byte products, and what has no meaning there says what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.targets.metal.front_end import complaints

METAL = "metal -arch=apple7"


@pytest.mark.parametrize(
    ("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]
)
def test_products_of_bytes_wherever_they_lie(left: str, right: str) -> None:
    total = "uint32" if left == right == "uint8" else "int32"

    @T.prim_func
    def dots(A: T.Tensor((64, 8), left), B: T.Tensor((64, 8), right), C: T.Tensor((64,), total)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64, 8), right)
            own, sums = T.alloc_local((8,), left), T.alloc_local((1,), total)
            T.copy(B, tile)
            sums[0] = 5
            for i in T.vectorized(8):
                own[i] = A[tx, i]
            T.dp4a(own[0], tile[tx, 0], sums[0])
            T.dp4a(own[4], B[tx, 4], sums[0])
            C[tx] = sums[0]

    kernel = tilewright.compile(dots, target=METAL)
    assert not complaints(kernel.get_kernel_source())
    rng = np.random.default_rng(0)
    a, b = (rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (64, 8)).astype(kind) for kind in (left, right))
    c = np.zeros(64, total)
    kernel.emulate(a, b, c)
    assert np.array_equal(c, (a.astype(np.int64) * b).sum(1) + 5)


FOREIGN = """
inline void scaled(device float* to, const threadgroup float* from, thread float* own, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i] * own[0];
}
"""


def test_functions_of_the_authors_own_text_are_called() -> None:
    @T.prim_func
    def program(A: T.Tensor((64, 4), "float32"), C: T.Tensor((64, 4), "float32")):
        T.import_source(FOREIGN)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile, own = T.alloc_shared((64, 4), "float32"), T.alloc_local((1,), "float32")
            T.copy(A, tile)
            own[0] = tx
            T.call_extern(
                "void", "scaled", C.access_ptr("w", offset=tx * 4), tile.access_ptr("r", offset=tx * 4),
                own.access_ptr("r"), 4,
            )  # fmt: skip

    kernel = tilewright.compile(program, target=METAL)
    assert not complaints(kernel.get_kernel_source())
    a, c = np.arange(256, dtype=np.float32).reshape(64, 4), np.zeros((64, 4), np.float32)
    kernel.emulate(a, c)
    assert np.array_equal(c, a * np.arange(64)[:, None])


def meets_in_part(A: Any) -> None:
    T.named_barrier_arrive(1, 32)


def meets_the_grid(A: Any) -> None:
    T.sync_grid()


def meets_a_cluster(A: Any) -> None:
    T.sync_cluster()


def hands_over(A: Any) -> None:
    T.atomic_add(A[0], 1.0, memory_order="release")


def counts_in_doubles(A: Any) -> None:
    A[0] = T.cast(T.cast(A[1], "float64") / 3.0, "float32")


def copies_by_engine(A: Any) -> None:
    tile, ready = T.alloc_shared((64,), "float32"), T.alloc_barrier(1)
    T.tma_copy(A, tile, barrier=ready)


def multiplies_by_warpgroups(A: Any) -> None:
    a, c = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
    T.wgmma_gemm(a, a, c, clear_accum=True)


def takes_much_memory(A: Any) -> None:
    tile = T.alloc_shared((8193,), "float32")
    T.fill(tile, 1.0)
    A[0] = tile[3]


WORDS = {
    meets_in_part: "T.sync_threads()", meets_the_grid: "two T.Kernel", meets_a_cluster: "one block for each tile",
    hands_over: "leave memory_order out",
    counts_in_doubles: "convert them beforehand", copies_by_engine: "T.Pipelined", multiplies_by_warpgroups: "T.gemm",
    takes_much_memory: "make tiles smaller",
}  # fmt: skip


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.__name__)
def test_words_without_meaning_say_what_to_write(word: Any) -> None:
    told = T.macro(word)

    @T.prim_func
    def program(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            told(A)

    with pytest.raises(TilewrightError) as found:
        tilewright.compile(program, target=METAL)
    said = str(found.value)
    assert WORDS[word] in said and "test_metal_words.py" in said and "help:" in said, said
