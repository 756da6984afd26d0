"""Words of the language on Apple's machines: byte products, and what has no meaning there says what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from front_end import complaints

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError

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


COMBINED = {"atomic_add": np.sum, "atomic_max": np.max, "atomic_min": np.min, "atomic_and": np.bitwise_and.reduce,
            "atomic_or": np.bitwise_or.reduce, "atomic_xor": np.bitwise_xor.reduce}  # fmt: skip
WHOLE = ("int32", "uint32")
KNOWN = {
    (word, kind) for word in COMBINED
    for kind in ((*WHOLE, "float16", "bfloat16", "float32") if word in ("atomic_add", "atomic_max", "atomic_min") else WHOLE)
}  # fmt: skip


@pytest.mark.parametrize("memory", ["device", "threadgroup"])
@pytest.mark.parametrize("kind", [*WHOLE, "int64", "uint64", "int8", "uint16", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("word", COMBINED)
def test_an_atomic_of_any_type_is_right_or_refused(word: str, kind: str, memory: str) -> None:
    """Tensors and tiles of an odd number of elements: what lies beside the last one is nobody's."""
    change = getattr(T, word)

    def written(X: T.Tensor((200,), kind), C: T.Tensor((7,), kind)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((7,), kind)
            for i in T.Parallel(7):
                tile[i] = C[i]
            for i in T.Parallel(200):
                if memory == "device":
                    change(C[i % 7], X[i])
                else:
                    change(tile[i % 7], X[i])
            if memory == "threadgroup":
                for i in T.Parallel(7):
                    C[i] = tile[i]

    if "float" in kind and word in ("atomic_and", "atomic_or", "atomic_xor"):
        with pytest.raises(TilewrightError, match=f"{word}: atomic .* needs integers, but the destination is {kind}"):
            T.prim_func(written)
        return
    program = T.prim_func(written)
    if (word, kind) not in KNOWN:
        with pytest.raises(TilewrightError, match=f"apple7 has no T.{word} of {kind}, only of int32, uint32"):
            tilewright.compile(program, target=METAL)
        return
    kernel = tilewright.compile(program, target=METAL)
    assert not complaints(kernel.get_kernel_source())
    rng = np.random.default_rng(0)
    numpy = tilewright.dtype(kind).numpy
    x, c = rng.integers(0, 9, 200).astype(numpy), rng.integers(0, 9, 7).astype(numpy)
    exact = [one.astype(np.float64 if "float" in kind else np.int64) for one in (x, c)]
    expected = [COMBINED[word](np.append(exact[0][place::7], exact[1][place])) for place in range(7)]
    kernel.emulate(x, c)
    assert np.array_equal(c.astype(exact[1].dtype), expected)
