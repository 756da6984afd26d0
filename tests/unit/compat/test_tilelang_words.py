"""Words of TileLang's language in the forms that its programs use: strides in brackets, outputs of prim_funcs, batches, warps."""

import numpy as np
import pytest

import tilewright
import tilewright.compat.tilelang as tilelang
import tilewright.language as T
from tilewright.errors import TilewrightError

TARGETS = ["cpu", "cuda -arch=sm_90a"]


def call(kernel, *arguments):
    return kernel.emulate(*arguments) if kernel.arch.has_threads else kernel(*arguments)


@pytest.mark.parametrize("target", TARGETS)
def test_strided_tensors_by_brackets(target):
    M, N = 6, 5

    @T.prim_func
    def main(A: T.StridedTensor[(M, N), (2 * N, 2), T.float32], B: T.StridedTensor((M, N), (N, 1), "float32")):
        with T.Kernel(M, threads=32) as i:
            for j in T.Parallel(N):
                B[i, j] = A[i, j] + 1

    a = np.random.default_rng(0).standard_normal((M, 2 * N)).astype(np.float32)
    b = np.zeros((M, N), np.float32)
    call(tilelang.compile(main, target=target).kernel, a[:, ::2], b)
    assert np.array_equal(b, a[:, ::2] + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_prim_func_declares_tensors_in_its_body_and_returns_outputs(target):
    n = T.dynamic("n")

    @T.prim_func
    def main(A, by: T.float32):
        A: T.Tensor[[n], T.float32]
        B = T.empty([n], T.float32)
        with T.Kernel(T.ceildiv(n, 32), threads=32) as block:
            for i in T.Parallel(32):
                B[block * 32 + i] = A[block * 32 + i] * by
        return B

    a = np.arange(45, dtype=np.float32)
    assert np.array_equal(call(tilelang.compile(main, target=target).kernel, a, 3.0), a * 3)


@pytest.mark.parametrize("target", TARGETS)
def test_a_batch_of_tiles_is_transposed(target):
    @T.prim_func
    def main(A: T.Tensor((3, 8, 4), "float16"), B: T.Tensor((3, 4, 8), "float32")):
        with T.Kernel(1, threads=32):
            tile, turned = T.alloc_shared((3, 8, 4), "float16"), T.alloc_fragment((3, 4, 8), "float32")
            T.copy(A, tile)
            T.transpose(tile, turned)
            T.copy(turned, B)

    a = np.random.default_rng(0).standard_normal((3, 8, 4)).astype(np.float16)
    b = np.zeros((3, 4, 8), np.float32)
    call(tilelang.compile(main, target=target).kernel, a, b)
    assert np.array_equal(b, a.transpose(0, 2, 1))


def test_groups_of_threads_of_any_size():
    @T.prim_func
    def main(A: T.Tensor((5, 256), "int32")):
        with T.Kernel(1, threads=256):
            thread = T.get_thread_binding()
            A[0, thread] = T.get_warp_idx(64)
            A[1, thread] = T.get_lane_idx(64)
            A[2, thread] = T.get_warp_group_idx(32, 2)
            A[3, thread] = T.get_warp_idx_sync(32)
            A[4, thread] = T.tvm_warp_shuffle(T.tvm_warp_activemask(), thread, 3, 16, 32)

    a = np.zeros((5, 256), np.int32)
    tilelang.compile(main, target=TARGETS[1]).emulate(a)
    index = np.arange(256)
    assert np.array_equal(a, [index // 64, index % 64, index // 64, index // 32, index // 16 * 16 + 3])


def test_sizes_known_at_launch_are_variables():
    assert isinstance(T.dynamic("m"), T.Var) and not isinstance(T.dynamic("m") + 1, T.Var) and not isinstance(4, T.Var)


def test_variables_are_cleared_and_filled():
    @T.prim_func
    def main(A: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=32):
            count = T.alloc_var("int32", 5)
            T.clear(count)
            A[0] = count
            T.fill(count, 7)
            A[1] = count

    a = np.full(2, -1, np.int32)
    tilelang.compile(main, target="c")(a)
    assert a.tolist() == [0, 7]


def test_a_function_says_how_many_arguments_it_takes():
    with pytest.raises(tilewright.TilewrightError) as error:

        @T.prim_func
        def main(A: T.Tensor((2,), "float32")):
            with T.Kernel(1):
                A[0] = T.exp(A[0], 2)

    assert "T.exp: too many positional arguments" in str(error.value) and "T.exp(x)" in str(error.value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "op, dtype", [("sum", "float32"), ("max", "float32"), ("min", "int32"), ("bitxor", "int32"), ("sum", "float16")]
)
def test_reducers_combine_what_iterations_give(op, dtype, target):
    M, K = 12, 40

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((M,), dtype), C: T.Tensor((1,), dtype)):
        with T.Kernel(1, threads=64):
            values, result = T.alloc_fragment((M, K), dtype), T.alloc_fragment((M,), dtype)
            acc = T.alloc_reducer((M,), dtype, op=op)
            T.annotate_layout({acc: T.PartialFragment((M,), lambda i, copy: (copy, i), replicate=64, combine=32)})
            T.copy(A, values)
            T.reducer_init(acc)
            for i, k in T.Parallel(M, K):
                if k > 2:
                    T.reducer_update(acc[i], values[i, k])
            T.finalize_reducer(acc, result)
            T.copy(result, B)
            old = T.alloc_reducer((1,), dtype, op="sum", replication="all")
            T.clear(old)
            for i in T.Parallel(M):
                old[0] += A[i, 0]
            T.finalize_reducer(old)
            C[0] = old[0]

    rng = np.random.default_rng(0)
    a = rng.integers(-9, 9, (M, K)).astype(dtype)
    b, c = np.zeros(M, dtype), np.zeros(1, dtype)
    call(tilelang.compile(main, target=target).kernel, a, b, c)
    numpy = {"sum": np.add, "max": np.maximum, "min": np.minimum, "bitxor": np.bitwise_xor}[op]
    assert np.array_equal(b, numpy.reduce(a[:, 3:], axis=1)) and c[0] == a[:, 0].sum()


def test_what_a_reducer_is_not():
    with pytest.raises(TilewrightError, match="an assignment to a reducer"):

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                acc = T.alloc_reducer((4,), "float32", op="max")
                acc[0] += A[0]


def test_what_no_layout_of_a_reducer_is():
    with pytest.raises(TilewrightError, match=r"combine of T\.PartialFragment is 3"):
        T.PartialFragment((4,), lambda i, copy: (copy, i), replicate=4, combine=3)


class Diagonals(T.BaseTileScheduler):
    """The tiles of a square along its diagonals."""

    def __init__(self, side, stateful=True, name=None):
        super().__init__(stateful=stateful, name=name)
        self.side, self._total_tiles = side, side * side

    def update_current_idx(self, linear_idx):
        self._m_idx[0] = (linear_idx % self.side + linear_idx // self.side) % self.side
        self._n_idx[0] = linear_idx // self.side


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_in_the_order_of_a_scheduler_of_ones_own(target):
    side, workers = 5, 3

    @T.prim_func
    def main(C: T.Tensor((side, side), "int32")):
        with T.Kernel(workers, threads=32) as worker:
            tiles = Diagonals(side, name="diagonal")
            tiles.init(worker)
            while tiles.valid():
                if T.get_thread_binding() == 0:
                    C[tiles.m_idx, tiles.n_idx] = 10 * tiles.current_iter + worker
                tiles.next_tile(workers)

    c = np.full((side, side), -1, np.int32)
    call(tilelang.compile(main, target=target).kernel, c)
    tile = np.arange(side * side)
    assert np.array_equal(c[(tile % side + tile // side) % side, tile // side], 10 * (tile // workers) + tile % workers)


def test_a_scheduler_that_does_not_say_where_tiles_are():
    with pytest.raises(TilewrightError, match="update_current_idx of BaseTileScheduler"):

        @T.prim_func
        def main(C: T.Tensor((4,), "int32")):
            with T.Kernel(1) as worker:
                T.BaseTileScheduler().init(worker)


@pytest.mark.parametrize("target", TARGETS)
def test_parallel_loops_in_parallel_loops(target):
    @T.prim_func
    def main(A: T.Tensor((6, 5), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(6):
                for j in T.Parallel(5):
                    A[i, j] = A[i, j] * 2 + i

    a = np.ones((6, 5), np.float32)
    call(tilelang.compile(main, target=target).kernel, a)
    assert np.array_equal(a, 2 + np.arange(6)[:, None] + np.zeros((6, 5)))
