"""Words that move several elements at once, bits, masks of lanes, and names that other words have too: the same numbers everywhere."""

import numpy as np
import pytest
import tilewright.compat.tilelang.language as T

import tilewright
import tilewright.compat.tilelang as tilelang
from tilewright.errors import TilewrightError

WAYS = ("interpreted", "on the CPU", "emulated")


def run(program, way, *arrays):
    """A program on copies of arrays, which come back."""
    target = "cpu" if way == "on the CPU" else "cuda -arch=sm_90a"
    kernel = tilewright.compile(program, target=target)
    given = [array.copy() for array in arrays]
    {"interpreted": kernel.interpret, "on the CPU": kernel, "emulated": getattr(kernel, "emulate", None)}[way](*given)
    return given


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64", "int32"])
def test_raw_loads_and_stores(dtype, words, way):
    per = words * 4 // np.dtype(dtype).itemsize
    if per < 1:
        return
    load, store = getattr(T, f"ldg{words * 32}"), getattr(T, f"stg{words * 32}")
    shared_words = min(words, 4)
    few = shared_words * 4 // np.dtype(dtype).itemsize
    read, write = getattr(T, f"lds{shared_words * 32}"), getattr(T, f"sts{shared_words * 32}")
    N = 64 * per

    @T.prim_func
    def main(
        A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype), D: T.Tensor((64 * few,), dtype)
    ):
        with T.Kernel(2, threads=32) as block:
            tx = T.get_thread_binding()
            tile = T.alloc_shared((32 * few,), dtype)
            i = (block * 32 + tx) * per
            store(B[i], load(A[i]))
            some = load(A[i : i + per], pred=tx < 16)
            store(C[i : i + per], some, pred=tx < 24)
            small = getattr(T, f"ldg{shared_words * 32}")(A[(block * 32 + tx) * few])
            write(tile[tx * few], small)
            T.sync_threads()
            getattr(T, f"stg{shared_words * 32}")(D[(block * 32 + tx) * few], read(tile[(31 - tx) * few]))

    rng = np.random.default_rng(0)
    a = (rng.standard_normal(N) * 50).astype(dtype)
    _, b, c, d = run(main, way, a, np.zeros_like(a), np.full_like(a, 3), np.zeros(64 * few, dtype))
    wanted = np.full_like(a, 3).reshape(2, 32, per)
    wanted[:, :16], wanted[:, 16:24] = a.reshape(2, 32, per)[:, :16], 0
    np.testing.assert_array_equal(b, a)
    np.testing.assert_array_equal(c, wanted.reshape(-1))
    turned = a[: 64 * few].reshape(2, 32, few)[:, ::-1]
    np.testing.assert_array_equal(d, turned.reshape(-1))


def test_a_raw_store_of_other_bytes_is_refused():
    with pytest.raises(tilewright.TilewrightError, match="expected 128 bits"):

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=1):
                T.stg128(A[0], T.ldg64(A[2]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pairs_of_floats(dtype, way):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype), C: T.Tensor((5, 64), dtype)):
        with T.Kernel(1, threads=32):
            i = T.get_thread_binding() * 2
            a, b = A[i : i + 2], B[i : i + 2]
            C[0, i : i + 2] = T.sub2(T.add2(a, b), T.abs2(b))
            C[1, i : i + 2] = T.max2(T.mul2(a, b), T.min2(a, b))
            C[2, i : i + 2] = T.fma2(a, b, a)
            last = T.extract_lane(T.add2(a, a), 1)
            C[3, i] = last
            C[3, i + 1] = T.Shuffle([a, b], [3])
            C[4, i : i + 2] = T.Shuffle([a, b], [2, 1])

    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(64).astype(dtype), rng.standard_normal(64).astype(dtype)
    *_, c = run(main, way, a, b, np.zeros((5, 64), dtype))
    np.testing.assert_array_equal(c[0], (a + b) - abs(b))
    np.testing.assert_array_equal(c[1], np.maximum(a * b, np.minimum(a, b)))
    exact = (a.astype(np.float64) * b + a).astype(dtype)
    np.testing.assert_array_equal(c[2], exact)
    np.testing.assert_array_equal(c[3, ::2], (a + a)[1::2])
    np.testing.assert_array_equal(c[3, 1::2], b[1::2])
    np.testing.assert_array_equal(c[4], np.stack([b[::2], a[1::2]], -1).reshape(-1))


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_with_a_name_keeps_its_values(way):
    """Both were read from memory when they were used: the second half of a swap got what the first had written."""

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=1):
            before = A[T.Ramp(0, 1, 4)]
            A[T.Ramp(0, 1, 4)] = B[T.Ramp(0, 1, 4)]
            B[T.Ramp(0, 1, 4)] = before

    a = np.arange(8, dtype=np.float32)
    first, second = run(main, way, a, -a)
    np.testing.assert_array_equal(first, np.r_[-a[:4], a[4:]])
    np.testing.assert_array_equal(second, np.r_[a[:4], -a[4:]])


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_read_as_another_type(way):
    @T.prim_func
    def main(A: T.Tensor((16,), "float16"), B: T.Tensor((16,), "float16"), C: T.Tensor((8,), "uint32")):
        with T.Kernel(1, threads=2):
            tx = T.get_thread_binding()
            halves = T.reinterpret(T.ldg128(A[tx * 8]), "float16x8")
            B[tx * 8 + 3] = T.extract_lane(halves, 3)
            back = T.reinterpret(halves, "uint32x4")
            T.stg128(C[tx * 4], back)

    a = np.random.default_rng(2).standard_normal(16).astype(np.float16)
    _, b, c = run(main, way, a, np.zeros_like(a), np.zeros(8, np.uint32))
    assert (b[3], b[11]) == (a[3], a[11])
    np.testing.assert_array_equal(c, a.view(np.uint32))


def nth(mask, base, offset):
    """Place of the bit that is asked for."""
    if offset == 0:
        return base if mask >> base & 1 else 2**32 - 1
    places = [p for p in (range(base, 32) if offset > 0 else range(base, -1, -1)) if mask >> p & 1]
    return places[abs(offset) - 1] if len(places) >= abs(offset) else 2**32 - 1


@pytest.mark.parametrize("way", WAYS)
def test_bits(way):
    @T.prim_func
    def main(
        M: T.Tensor((256,), "uint32"), B: T.Tensor((256,), "int32"), O: T.Tensor((256,), "int32"), R: T.Tensor((256,), "uint32"),
        W: T.Tensor((256,), "int64"), S: T.Tensor((256,), "int32"), Z: T.Tensor((256,), "int32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=128) as block:
            i = block * 128 + T.get_thread_binding()
            R[i] = T.__fns(M[i], B[i], O[i])
            S[i] = T.__ffs(W[i])
            Z[i] = T.clz(W[i])

    rng = np.random.default_rng(3)
    mask = rng.integers(0, 2**32, 256, dtype=np.uint32) & rng.integers(0, 2**32, 256, dtype=np.uint32)
    base, offset = rng.integers(0, 32, 256, dtype=np.int32), rng.integers(-9, 10, 256, dtype=np.int32)
    wide = (rng.integers(0, 2**62, 256) >> rng.integers(0, 62, 256)) << rng.integers(0, 40, 256)
    wide[:4] = 0, -1, 1, -(2**63)
    zeros = np.zeros(256, np.int32)
    *_, found, _, lowest, leading = run(main, way, mask, base, offset, np.zeros(256, np.uint32), wide, zeros, zeros)
    assert found.tolist() == [nth(int(m), int(b), int(o)) for m, b, o in zip(mask, base, offset)]
    plain = [int(w) % 2**64 for w in wide]
    assert lowest.tolist() == [(w & -w).bit_length() for w in plain]
    assert leading.tolist() == [64 - w.bit_length() for w in plain]


@pytest.mark.parametrize("way", ["interpreted", "emulated"])
def test_lanes_that_count(way):
    mask = 0x00FF0F0F

    @T.prim_func
    def main(A: T.Tensor((32,), "int32"), C: T.Tensor((8, 32), "int64")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            C[0, tx] = T.ballot_sync(A[tx] % 3, mask)
            C[1, tx] = T.any_sync(A[tx] == 77, mask=mask)
            C[2, tx] = T.all_sync(predicate=A[tx] < 50, mask=mask)
            C[3, tx] = T.match_any_sync(A[tx] % 4, mask)
            C[4, tx] = T.match_all_sync(value=A[tx] // 100, mask=mask)
            C[5, tx] = T.activemask()
            C[6, tx] = T.shfl_sync(A[tx], srcLane=3, mask=mask)
            C[7, tx] = T.shfl_down(A[tx], delta=1, width=16)

    a = np.random.default_rng(4).integers(0, 50, 32, dtype=np.int32)
    a[20], a[31] = 77, 60
    c = run(main, way, a, np.zeros((8, 32), np.int64))[1]
    lanes = np.array([mask >> lane & 1 for lane in range(32)], bool)
    word = lambda held: sum(1 << lane for lane in range(32) if held[lane])  # noqa: E731
    assert set(c[0]) == {word((a % 3 != 0) & lanes)} and set(c[1]) == {1}
    assert set(c[2]) == {int((a[lanes] < 50).all())}
    assert c[3].tolist() == [word((a % 4 == own % 4) & lanes) for own in a]
    assert set(c[4]) == {mask} and set(c[5]) == {2**32 - 1} and set(c[6]) == {a[3]}
    assert c[7].tolist() == [a[lane + 1 if lane % 16 < 15 else lane] for lane in range(32)]


@pytest.mark.parametrize("way", WAYS)
def test_numbers(way):
    @T.prim_func
    def main(
        A: T.Tensor((64,), "int32"),
        B: T.Tensor((64,), "int32"),
        C: T.Tensor((2, 64), "int32"),
        X: T.Tensor((64,), "float32"),
        Y: T.Tensor((4, 64), "float32"),
    ):
        with T.Kernel(1):
            for i in T.Parallel(64):
                C[0, i] = T.truncdiv(A[i], B[i])
                C[1, i] = T.truncmod(A[i], B[i])
                Y[0, i] = T.round(X[i], "ties-away-from-zero")
                Y[1, i] = T.round(X[i], rounding_mode="ties-to-even")
                Y[2, i] = T.clamp(dst=X[i], min_val=-1.0, max_val=1.0)
                Y[3, i] = T.if_then_else(cond=X[i] > 0, t=T.fma(x=X[i], y=2.0, z=1.0), f=T.atan2(x1=X[i], x2=1.0))

    rng = np.random.default_rng(5)
    a, b = (
        rng.integers(-99, 99, 64, dtype=np.int32),
        rng.integers(1, 9, 64, dtype=np.int32) * rng.choice([-1, 1], 64).astype(np.int32),
    )
    a[:4], b[:4] = [-(2**31), 100, -100, 2**31 - 1], [31, -(2**31), -(2**31), -2]
    x = np.r_[np.arange(-16, 16) / 2, rng.standard_normal(32) * 4].astype(np.float32)
    x[:3] = -0.3, np.float32(0.49999997), 2.0**25 + 2
    _, _, c, _, y = run(main, way, a, b, np.zeros((2, 64), np.int32), x, np.zeros((4, 64), np.float32))
    wanted = np.trunc(a / b).astype(np.int32)
    np.testing.assert_array_equal(c, [wanted, a - wanted * b])
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(y[0], np.sign(wide) * np.floor(abs(wide) + 0.5))
    np.testing.assert_array_equal(y[1], np.round(wide))
    np.testing.assert_array_equal(y[2], np.clip(wide, -1, 1))
    np.testing.assert_allclose(y[3], np.where(x > 0, wide * 2 + 1, np.arctan(wide)), rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_packed_additions_give_back_what_was_there(way):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=2):
            tx = T.get_thread_binding()
            C[tx * 2 : tx * 2 + 2] = T.atomic_addx2(A[tx * 2], B[tx * 2], return_prev=True)
            if tx == 0:
                T.atomic_addx4(A[4], T.float32x4(1.0, 2.0, 3.0, 4.0))

    a = np.arange(8, dtype=np.float32)
    after, _, before = run(main, way, a, a * 10, np.full(8, -1, np.float32))
    np.testing.assert_array_equal(after, np.r_[a[:4] * 11, a[4:] + np.array([1, 2, 3, 4])])
    np.testing.assert_array_equal(before, np.r_[a[:4], [-1] * 4])


@pytest.mark.parametrize("way", WAYS)
def test_a_view_with_strides(way):
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), D: T.Tensor((8,), "float32"), E: T.Tensor((4, 2), "float32")):
        with T.Kernel(1):
            T.copy(T.view(A, (8,), strides=(9,)), D)
            T.copy(T.view(A, shape=(4, 2), strides=(16, 4)), E)

    a = np.random.default_rng(6).standard_normal((8, 8)).astype(np.float32)
    _, d, e = run(main, way, a, np.zeros(8, np.float32), np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(d, np.diag(a))
    np.testing.assert_array_equal(e, a[::2, ::4])


def test_a_view_beyond_its_tensor_is_refused():
    with pytest.raises(tilewright.TilewrightError, match="has 256 bytes, but the view needs 292"):

        @T.prim_func
        def main(A: T.Tensor((8, 8), "float32"), D: T.Tensor((9,), "float32")):
            with T.Kernel(1):
                T.copy(T.view(A, (9,), strides=(9,)), D)


@pytest.mark.parametrize("way", WAYS)
def test_a_schedule_of_warps_changes_nothing(way):
    M, K = 64, 96

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, M), "float16"), C: T.Tensor((M, M), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_compile_flags("-O3")
            T.annotate_pass_configs({tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
            a, b = T.alloc_shared((M, 32), "float16"), T.alloc_shared((32, M), "float16")
            total = T.alloc_fragment((M, M), "float32")
            load, use = T.WSRole("load", warps_lo=0, warps_hi=4), T.WSRole("use", warps_lo=4, warps_hi=8, max_nreg=240)
            bodies = {
                "load": [T.WSSync.producer_acquire("tiles"), "a", "b", T.WSSync.producer_commit("tiles")],
                "use": [
                    T.WSSync.consumer_wait("tiles", stage=1),
                    T.WSOpRef("mma"),
                    T.WSSync.consumer_release("tiles", stage=1),
                ],
            }
            loop = T.WSScope("loop", bodies)
            root = T.WSScope(T.WSScope.ROOT, {"load": ["loop"], "use": ["loop"]})
            T.annotate_ws_schedule(T.WSSchedule(8, [load, use], [T.WSPipeline("tiles", [a, b], 2)], [root, loop]))
            T.clear(total, annotations={T.WSID: "clear"})
            for k in T.Pipelined(K // 32, num_stages=2, annotations={T.WSID: "loop"}):
                T.copy(A[0, k * 32], a, annotations={T.WSID: "a"})
                with T.ws_op("b"):
                    T.copy(B[k * 32, 0], b)
                T.gemm(a, b, total, annotations={T.WSID: "mma"})
            T.copy(total, C)

    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((K, M)).astype(np.float16)
    *_, c = run(main, way, a, b, np.zeros((M, M), np.float32))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", ["interpreted", "emulated"])
def test_clusters_say_where_they_are(way):
    @T.prim_func
    def main(C: T.Tensor((8, 6), "int32")):
        with T.ClusterKernel(4, 2, cluster_dims=(2, 1, 1), threads=32) as (x, y):
            if T.get_thread_binding() == 0:
                C[y * 4 + x, 0] = T.get_cluster_id()
                C[y * 4 + x, 1] = T.get_cluster_id(1)
                C[y * 4 + x, 2] = T.get_cluster_extent(0)
                C[y * 4 + x, 3] = T.get_cluster_size()
                C[y * 4 + x, 4] = T.get_cluster_dims()[2] + T.get_cluster_extents()[2]
                C[y * 4 + x, 5] = T.get_cluster_ids()[1]

    (c,) = run(main, way, np.zeros((8, 6), np.int32))
    assert c.tolist() == [[x // 2, y, 2, 2, 2, y] for y in range(2) for x in range(4)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float32"])
def test_extremes_of_floats_by_atomics(dtype, way):
    """What lies in memory with others is compared by whole words; NaN is left out."""

    @T.prim_func
    def main(A: T.Tensor((4, 48), dtype), C: T.Tensor((5, 48), dtype)):
        with T.Kernel(4, threads=32) as b:
            for i in T.Parallel(48):
                T.atomic_max(C[0, i], A[b, i], memory_order="relaxed")
                T.atomic_min(C[1, i], A[b, i], memory_order="seq_cst")
                T.atomic_max(C[2, 0], A[b, i])
            tile = T.alloc_shared((48,), dtype)
            T.copy(A[b, 0], tile)
            T.atomic_max(C[3, 0:48], tile)
            if T.get_thread_binding() == 0 and b == 0:
                C[4, 0] = T.atomic_max(C[4, 1], 42.0, return_prev=True)

    rng = np.random.default_rng(8)
    a = (rng.standard_normal((4, 48)) * 9).astype(np.float32)
    a[1, 5] = np.nan
    kind = np.dtype(T.dtype(dtype).record.numpy)
    a, c = a.astype(kind), np.zeros((5, 48), kind)
    c = run(main, way, a, c)[1].astype(np.float64)
    wide = a.astype(np.float64)
    np.testing.assert_array_equal(c[0], np.maximum(np.nanmax(wide, 0), 0))
    np.testing.assert_array_equal(c[1], np.minimum(np.nanmin(wide, 0), 0))
    assert c[2, 0] == np.nanmax(wide) and c[4, 0] == 0 and c[4, 1] == 42
    np.testing.assert_array_equal(c[3], c[0])


@pytest.mark.parametrize("way", WAYS)
def test_packed_atomics_take_slices_vectors_and_whole_tensors(way):
    @T.prim_func
    def main(
        V: T.Tensor((8,), "float32"),
        D: T.Tensor((8,), "float32"),
        P: T.Tensor((8,), "float32"),
        E: T.Tensor((2,), "float16"),
        G: T.Tensor((3, 4), "float32"),
    ):
        with T.Kernel(1, threads=1):
            P[0:2] = T.atomic_addx2(D[0:2], V[0:2], return_prev=True)
            P[T.Ramp(2, 1, 2)] = T.atomic_addx2(D[T.Ramp(2, 1, 2)], V[T.Ramp(2, 1, 2)], return_prev=True)
            P[4:8] = T.atomic_addx4(D[4:8], V[4], return_prev=True)
            T.atomic_addx2(E, V[6:8])
            T.atomic_addx4(G[1, 0:4], V[0:4])

    v, before = np.arange(1, 9, dtype=np.float32), np.arange(0, 80, 10, dtype=np.float32)
    ones = np.ones((3, 4), np.float32)
    _, d, p, e, g = run(main, way, v, before, np.zeros(8, np.float32), np.ones(2, np.float16), ones)
    assert np.array_equal(d, before + v) and np.array_equal(p, before)
    assert np.array_equal(e, [8, 9]) and np.array_equal(g, [[1] * 4, [2, 3, 4, 5], [1] * 4])


def test_a_packed_atomic_of_another_width_says_so():
    with pytest.raises(TilewrightError) as caught:

        @T.prim_func
        def main(D: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=1):
                T.atomic_addx2(D[0:4], D[4:6])

    assert str(caught.value).startswith("the destination of T.atomic_addx2 is 4\n")
    assert str(caught.value).endswith("help: expected 2 values")
