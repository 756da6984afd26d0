"""Layouts as TileLang's programs give them: advice to swizzle, layouts of large tensors, of arrays of single threads."""

import itertools
import math

import numpy as np
import pytest
from busy import takes

import tilewright
import tilewright.compat.tilelang as tilelang
import tilewright.language as T
from tilewright.compat.tilelang import fragments
from tilewright.compat.tilelang.layout import make_fully_replicated_layout_fragment
from tilewright.layout.tables import CHUNK, from_function
from tilewright.specialization import InvalidUse


def whole(*shape, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float16)


def halves(N, K, threads):
    """A product whose right tile has two halves, each swizzled by the author's hand."""
    make = tilelang.layout.make_swizzled_layout

    @T.prim_func
    def main(A: T.Tensor((64, K), "float16"), B: T.Tensor((K, 2 * N), "float16"), C: T.Tensor((64, 2 * N), "float32")):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((64, K), "float16")
            left, right = T.alloc_shared((K, N), "float16"), T.alloc_shared((K, N), "float16")
            c, d = T.alloc_fragment((64, N), "float32"), T.alloc_fragment((64, N), "float32")
            T.annotate_layout({a: make(a), left: make(left), right: make(right)})
            T.copy(A, a)
            T.copy(B[:, 0:N], left)
            T.copy(B[:, N : 2 * N], right)
            T.gemm(a, left, c, clear_accum=True)
            T.gemm(a, right, d, clear_accum=True)
            T.copy(c, C[:, 0:N])
            T.copy(d, C[:, N : 2 * N])

    return main


@pytest.mark.parametrize("N, K", [(128, 64), (64, 192), (96, 64), (32, 32)])
def test_advice_to_swizzle_keeps_the_instructions_of_warpgroups(N, K):
    kernel = tilewright.compile(halves(N, K, 128), target="cuda -arch=sm_90a")
    assert "mma_m16n8" not in str(kernel.explain()) and "wgmma" in str(kernel.explain())
    a, b, c = whole(64, K), whole(K, 2 * N, seed=1), np.full((64, 2 * N), np.nan, np.float32)
    kernel.emulate(a, b, c)
    assert np.array_equal(c, a.astype(float) @ b.astype(float))


def test_advice_has_the_shape_of_its_tile():
    with pytest.raises(tilewright.TilewrightError, match="the layout of 'a' is one of"):

        @T.prim_func
        def main(A: T.Tensor((64, 64), "float16")):
            with T.Kernel(1, threads=128):
                a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((32, 64), "float16")
                T.annotate_layout({a: tilelang.layout.make_swizzled_layout(b)})
                T.copy(A, a)

        _ = main.function


BLOCKS = {
    "tiles of rows": lambda b, l, d: [b, l // 8, d // 8, d % 2, 4 * (l % 8) + d % 8 // 2],
    "one index": lambda b, l, d: (l * 64 + d) * 4 + b,
    "padded": lambda b, l, d: (b * 4096 + l) * 72 + d,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_layouts_of_large_tensors_are_those_of_small_ones(name):
    """What is asked some elements at a time against what is asked all at once."""
    large, small = from_function((4, 2048, 64), BLOCKS[name]), from_function((4, 512, 64), BLOCKS[name])
    assert large.size > CHUNK >= small.size
    points = np.random.default_rng(0).integers(0, (4, 512, 64), (1000, 3)).T
    if name != "tiles of rows":
        assert np.array_equal(large.offset("memory", *points), small.offset("memory", *points))
    assert large.is_injective and small.is_injective
    every = large.table("memory").reshape(-1)
    assert len(np.unique(every)) == every.size


@pytest.mark.parametrize(
    "function",
    [
        lambda i, j: i * 512 + (j ^ (i % 8 * 8)),
        lambda i, j: i * 512 + j + (i == 639) * (j == 500) * 5000,
        lambda i, j: i * 513 + j * (i < 600) + (511 - j) * (i >= 600),
    ],
)
def test_what_is_no_sum_of_digits_is_found_out(function):
    shape = (640, 512)
    assert math.prod(shape) > CHUNK  # it is asked some elements at a time
    made = from_function(shape, function)
    i, j = np.indices(shape)
    assert np.array_equal(made.table("memory"), function(i, j))


def test_a_layout_of_a_large_tensor_takes_no_minutes():
    made = []

    def place(b, l, h, d):
        return [b, l // 8, h, d // 8, d % 2, 4 * (l % 8) + d % 8 // 2]

    assert takes(10, lambda: made.append(from_function((2, 1024, 32, 128), place).is_injective)) and all(made)


def test_arrays_of_single_threads_have_no_layout():
    """The compiler makes a scalar of the one here, and its annotation was of something that is not in the kernel."""

    @T.prim_func
    def main(A: T.Tensor((4, 64), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            total, row = T.alloc_local((1,), "float32"), T.alloc_fragment((64,), "float32")
            T.annotate_layout({total: T.Fragment(total.shape, forward_thread_fn=lambda i: i)})
            T.clear(total)
            for k in range(4):
                total[0] += A[k, 0]
            for i in T.Parallel(64):
                row[i] = A[0, i] + total[0]
            T.copy(row, B)

    a, b = np.random.default_rng(0).integers(0, 9, (4, 64)).astype(np.float32), np.zeros(64, np.float32)
    tilewright.compile(main, target="cuda -arch=sm_80").emulate(a, b)
    assert np.array_equal(b, a[0] + a[:, 0].sum())


def test_the_engine_adds_in_a_loop_that_loads_ahead():
    """Its wait kept the loop from loading ahead, and that the loop's variable is not negative was forgotten."""

    @T.prim_func
    def main(A: T.Tensor((512, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((512, 64), "float32")):
        with T.Kernel(2, threads=128):
            b, a = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c, out = T.alloc_fragment((64, 64), "float32"), T.alloc_shared((64, 64), "float32")
            T.copy(B, b)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[k * 64, 0], a)
                T.gemm(a, b, c, clear_accum=True)
                T.copy(c, out)
                T.atomic_add(C[k * 64 : k * 64 + 64, :], out, use_tma=True)

    kernel = tilewright.compile(main, target="cuda -arch=sm_90a")
    said = str(kernel.explain())
    assert "tma_reduce_add" in said and "not pipelined" not in said
    a, b, c = whole(512, 64), whole(64, 64, seed=1), np.zeros((512, 64), np.float32)
    for schedule, seed in (("late", 0), ("random", 3)):
        c[:] = 0
        kernel.emulate(a, b, c, schedule=schedule, seed=seed)
        assert np.array_equal(c, 2 * (a.astype(float) @ b.astype(float)))


def test_layouts_that_give_several_indices():
    turned = T.Layout((4, 8), lambda i, j: (j, i))
    assert turned.get_output_shape() == [8, 4] and turned.map_forward_index([1, 6]) == [6, 1]
    back = turned.inverse()
    assert (back.get_input_shape(), back.get_output_shape()) == ([8, 4], [4, 8]) and back.map_forward_index([6, 1]) == [
        1,
        6,
    ]
    flat = T.Layout((4, 8), lambda i, j: j * 4 + i)
    assert flat.get_output_shape() == [32] and flat.inverse().map_forward_index([22]) == [2, 5]
    more = turned.expand([3])
    assert more.get_input_shape() == [3, 4, 8] and more.get_output_shape() == [3, 8, 4]
    assert more.map_forward_index([2, 1, 6]) == [2, 6, 1] and more.expand([]).get_output_shape() == [3, 8, 4]
    twice = turned.repeat(-1, 2)
    assert twice.get_input_shape() == [4, 16] and twice.get_output_shape() == [2, 8, 4]
    assert twice.map_forward_index([1, 14]) == [1, 6, 1] and turned.reshape([32]).map_forward_index([14]) == [6, 1]
    padded = T.Layout((4, 8), lambda i, j: (i, j + i))
    assert padded.get_output_shape() == [4, 11] and padded.map_forward_index([3, 7]) == [3, 10]
    pairs = T.Fragment((8, 8), lambda i, j: (i * 4 + j // 2, j % 2))
    assert pairs.get_output_shape() == [2] and pairs.repeat([2, 2]).get_output_shape() == [8]


@pytest.mark.parametrize("shape", [(32,), (4, 8)])
def test_a_fragment_that_every_thread_holds_whole(shape):
    @T.prim_func
    def main(A: T.Tensor((*shape, 16), "float32"), C: T.Tensor(shape, "float32")):
        with T.Kernel(1, threads=64):
            part, sums = T.alloc_fragment((*shape, 16), "float32"), T.alloc_fragment(shape, "float32")
            T.annotate_layout({sums: make_fully_replicated_layout_fragment(sums, 64)})
            T.copy(A, part)
            T.reduce_sum(part, sums, dim=-1)
            T.copy(sums, C)

    a, c = np.random.default_rng(0).integers(-9, 9, (*shape, 16)).astype(np.float32), np.zeros(shape, np.float32)
    tilewright.compile(main, target="cuda -arch=sm_90a").emulate(a, c)
    assert np.array_equal(c, a.sum(-1))


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize(("deep", "held"), [(8, 4), (16, 8), (32, 16)])
def test_lanes_of_operands_lead_there_and_back(deep, held, side):
    there = fragments.NAMES[f"shared_16x{deep}_to_mma_{side}_32x{held}_layout"]
    back = fragments.NAMES[f"mma_load_{side}_32x{held}_to_shared_16x{deep}_layout"]
    turned = fragments.NAMES[f"shared_16x{deep}_to_mma_32x{held}_layout_rs_{side}"]
    points = list(itertools.product(range(16), range(deep)))
    assert all(back(*there(*point)) == point and turned(*point[::-1]) == there(*point) for point in points)
    index_map = fragments.IndexMap.from_func(back, index_dtype="int32").inverse([32, held])
    assert all(tuple(index_map.map_indices(point)) == there(*point) for point in points)
    assert fragments.IndexMap(there).map_shape([16, deep]) == [32, held]
    with pytest.raises(InvalidUse, match="two elements to one place"):
        fragments.IndexMap(lambda i, j: i + j).inverse([4, 4])


@pytest.mark.parametrize("held", [1, 4, 8, 16])
def test_lanes_of_amds_operands(held):
    left, right = (fragments.NAMES[name] for name in (
        f"shared_16x{4 * held}_to_local_64x{held}_layout_A", f"shared_{4 * held}x16_to_local_64x{held}_layout_B",
    ))  # fmt: skip
    places = [left(row, deep) for row in range(16) for deep in range(4 * held)]
    assert sorted(places) == list(itertools.product(range(64), range(held)))
    assert all(left(row, deep) == right(deep, row) for row in range(16) for deep in range(4 * held))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a", "hip -arch=gfx942"])
def test_a_fragment_of_one_element_is_read_by_all_its_indices(target, shape):
    """Of more than one dimension it ended in an error from inside."""

    @T.prim_func
    def program(A: T.Tensor((8, 256), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(8, threads=32) as block:
            row = T.alloc_fragment((*shape, 256), "float32")
            most = T.alloc_fragment(shape, "float32")
            for j in T.Parallel(256):
                row[(*[0] * len(shape), j)] = A[block, j]
            T.reduce_max(row, most, dim=len(shape))
            B[block] = most[(0,) * len(shape)]

    kernel = tilewright.compile(program, target=target)
    a, b = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32), np.zeros(8, np.float32)
    (kernel.emulate if kernel.arch.has_threads else kernel)(a, b)
    assert np.array_equal(b, a.max(axis=1))
