"""Launches through MLX's ``mx.fast.metal_kernel``, against a stand-in that writes signatures as MLX does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from stand_in_mlx import DTYPES, Kernel, array, core, declared
from test_metal_launches import SCALARS, given_back, rounded

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability, TilewrightError

METAL = "metal -arch=apple7"
N = T.dynamic("N")


@pytest.fixture(autouse=True)
def mlx(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = core()
    package = type(sys)("mlx")
    package.__spec__ = ModuleSpec("mlx", None)
    monkeypatch.setitem(sys.modules, "mlx", package)
    monkeypatch.setitem(sys.modules, "mlx.core", made)
    Kernel.texts = []
    return made


def numbers(of: array) -> np.ndarray:
    return of.flat.reshape(of.shape).astype(np.float64)


@T.prim_func
def scaled(X: T.Tensor((N,), "float16"), scale: T.float32, shift: T.int8, big: T.uint64, Y: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as block:
        for i in T.Parallel(64):
            more = T.if_then_else(big > T.cast(1 << 62, "uint64"), 1.0, 0.0)
            Y[block * 64 + i] = T.cast(X[block * 64 + i], "float32") * scale + T.cast(shift, "float32") + more


@pytest.mark.parametrize("size", [150, 64, 9, 8, 7, 3, 1])
def test_arrays_of_every_size_arrive(size: int) -> None:
    """Of fewer than eight elements they lie in constant memory, as numbers do."""
    kernel = tilewright.compile(scaled, target=METAL, out_idx=[-1])
    x = array(np.arange(size), DTYPES["float16"])
    found = kernel(x, 0.5, -3, (1 << 63) + 5)
    assert isinstance(found, array) and np.array_equal(numbers(found), np.arange(size) * 0.5 - 2)
    spaces = {one.split()[1] for one in declared(Kernel.texts[-1]) if "float16_t" in one}
    assert spaces == {"device" if size >= 8 else "constant"}


@pytest.mark.parametrize("kind", [kind for kind in SCALARS if not kind.startswith("float8")])
def test_scalars_of_every_type_arrive(kind: str) -> None:
    """As arrays of one number, of int64 or float32."""
    kernel = tilewright.compile(given_back(kind), target=METAL, out_idx=[-1])
    for number in SCALARS[kind]:
        found, expected = kernel(number, array(np.zeros(8), DTYPES["float16"])), rounded(number, kind)
        assert np.array_equal(found.flat.astype(expected.dtype), expected, equal_nan="float" in kind)


def test_nothing_runs_for_no_elements() -> None:
    found = tilewright.compile(scaled, target=METAL, out_idx=[-1])(array(np.zeros(0), DTYPES["float16"]), 1.0, 0, 0)
    assert found.shape == (0,) and Kernel.texts == []


def test_a_part_of_an_array_has_its_own_variant() -> None:
    kernel = tilewright.compile(scaled, target=METAL, out_idx=[-1])
    whole = array(np.arange(151), DTYPES["float16"])
    for first in (0, 1):
        found = kernel(array.part(whole, first, (148,)), 1.0, 0, 0)
        assert np.array_equal(numbers(found), np.arange(first, first + 148))
    assert len(kernel._variants) == 2


def test_a_product_of_tiles() -> None:
    @tilewright.jit(target=METAL)
    def product(A, B):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((M, K), "bfloat16")
        B: T.Tensor((N, K), "bfloat16")
        C = T.empty((M, N), "float32")
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
            a, b = T.alloc_shared((32, 32), "bfloat16"), T.alloc_shared((32, 32), "bfloat16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 32, k * 32], a)
                T.copy(B[bx * 32, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 32, bx * 32])
        return C

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((45, 70), (37, 70)))
    found = product(array(a, DTYPES["bfloat16"]), array(b, DTYPES["bfloat16"]))
    assert np.array_equal(numbers(found), a.astype(np.float64) @ b.astype(np.float64).T)


def test_kernels_hand_memory_to_one_another_and_codes_are_bytes() -> None:
    @T.prim_func
    def doubled(X: T.Tensor((70,), "float8_e4m3fn"), Y: T.Tensor((70,), "float32"), Z: T.Tensor((70,), "float8_e5m2")):
        between = T.alloc_global((70,), "float32")
        with T.Kernel(2, threads=64) as block:
            for i in T.Parallel(64):
                between[block * 64 + i] = T.cast(X[block * 64 + i], "float32") * 2
        with T.Kernel(2, threads=64) as block:
            for i in T.Parallel(64):
                Y[block * 64 + i] = between[block * 64 + i] + 1
                Z[block * 64 + i] = T.cast(between[block * 64 + i], "float8_e5m2")

    kernel = tilewright.compile(doubled, target=METAL, out_idx=[-2, -1])
    x = np.arange(70).astype(ml_dtypes.float8_e4m3fn)
    y, z = kernel(array(x.view(np.uint8)))
    assert np.array_equal(numbers(y), x.astype(np.float32) * 2 + 1)
    assert np.array_equal(z.flat.view(ml_dtypes.float8_e5m2), (x.astype(np.float32) * 2).astype(ml_dtypes.float8_e5m2))


def test_counters_begin_with_zeros() -> None:
    @T.prim_func
    def counted(X: T.Tensor((64,), "int32"), Y: T.Tensor((2,), "int32")):
        total = T.alloc_global((1,), "int32")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                T.atomic_add(total[0], X[i])
            T.sync_threads()
            if T.get_thread_binding() == 0:
                Y[0] = total[0]
                Y[1] = 5

    found = tilewright.compile(counted, target=METAL, out_idx=[-1])(array(np.arange(64, dtype=np.int32)))
    assert found.flat.tolist() == [2016, 5]


def test_programs_that_change_what_they_are_given_are_refused() -> None:
    x, y = array(np.zeros(64), DTYPES["float16"]), array(np.zeros(64), DTYPES["float32"])
    with pytest.raises(MissingCapability, match="writes its argument 'Y', and arrays of MLX are never changed"):
        tilewright.compile(scaled, target=METAL)(x, 1.0, 0, 0, y)


def test_memory_that_two_kernels_write_is_refused() -> None:
    @T.prim_func
    def twice(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[i] = X[i]
        with T.Kernel(1, threads=64):
            for i in T.Parallel(32):
                Y[i] = X[i] + 1

    with pytest.raises(MissingCapability, match="Y is written by two kernels"):
        tilewright.compile(twice, target=METAL, out_idx=[-1])(array(np.zeros(64, np.float32)))


BODY = "made[thread_index_in_threadgroup] = given[thread_index_in_threadgroup] * 2.0f;"


def kernel(**changed: Any) -> Kernel:
    return Kernel(**{"name": "f", "input_names": ["given"], "output_names": ["made"], "source": BODY, **changed})


def called(one: Kernel, *positional: Any, **changed: Any) -> Any:
    right = {
        "inputs": [array(np.ones(64, np.float32))], "output_shapes": [(64,)], "output_dtypes": [DTYPES["float32"]],
        "grid": (64, 1, 1), "threadgroup": (64, 1, 1),
    }  # fmt: skip
    return one(*positional, **{**right, **changed})


WRONG: dict[str, Callable[[], Any]] = {
    "no output": lambda: kernel(output_names=[]),
    "a name that is no text": lambda: kernel(input_names=[1]),
    "a whole kernel instead of a body": lambda: called(kernel(source=f"kernel void g(device float* a) {{ {BODY} }}")),
    "a name twice": lambda: called(kernel(source=f"float given = 1.0f; {BODY} made[0] = given;")),
    "a store to an input": lambda: called(kernel(source="given[0] = 1.0f; made[0] = 1.0f;")),
    "a device pointer to few elements": lambda: called(
        kernel(source="const device float* p = given; made[0] = p[0];"), inputs=[array(np.ones(7, np.float32))]
    ),
    "a double": lambda: called(kernel(source="made[0] = float(double(given[0]));")),
    "arguments by place": lambda: called(kernel(), array(np.ones(64, np.float32))),
    "an input too few": lambda: called(kernel(), inputs=[]),
    "an input of NumPy's": lambda: called(kernel(), inputs=[np.ones(64, np.float32)]),
    "a shape too many": lambda: called(kernel(), output_shapes=[(64,), (64,)]),
    "a type too few": lambda: called(kernel(), output_dtypes=[]),
    "a type by its name": lambda: called(kernel(), output_dtypes=["float32"]),
    "a grid of one dimension": lambda: called(kernel(), grid=(64,)),
    "a group of floats": lambda: called(kernel(), threadgroup=(64.0, 1, 1)),
    "too many threads": lambda: called(kernel(), grid=(2048, 1, 1), threadgroup=(2048, 1, 1)),
    "a stream of the host": lambda: called(kernel(), stream="cpu"),
    "a first value of text": lambda: called(kernel(), init_value="0"),
    "a template argument of text": lambda: called(kernel(), template=[("K", "float")]),
    "more buffers than there are": lambda: called(
        kernel(input_names=[f"x{i}" for i in range(31)], source="made[0] = 1.0f;"), inputs=[array(np.ones(64, np.float32))] * 31
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_the_stand_in_refuses_wrong_calls(call: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        WRONG[call]()


def test_the_stand_in_takes_a_right_one() -> None:
    assert called(kernel())[0].flat.tolist() == [2.0] * 64
    # What is not written is rubbish, or the first value.
    assert np.isnan(called(kernel(source="made[0] = given[1];"))[0].flat[1:]).all()
    assert called(kernel(source="made[0] = given[1];"), init_value=3)[0].flat[1:].tolist() == [3.0] * 63


@pytest.mark.parametrize(
    "given",
    [
        lambda: (np.zeros(64, np.float16), 1.0, 0, 0),  # an array of the host's
        lambda: (array(np.zeros(64, np.float32)), 1.0, 0, 0),  # of another type
        lambda: (array(np.zeros(64), DTYPES["float16"]), 1.0, 300, 0),  # a scalar out of range
        lambda: (array(np.zeros((8, 8)), DTYPES["float16"]), 1.0, 0, 0),  # of another rank
        lambda: (array(np.zeros(64), DTYPES["float16"]), 1.0, 0),  # an argument too few
    ],
)
def test_wrong_calls_launch_nothing(given: Callable[[], tuple[Any, ...]]) -> None:
    with pytest.raises(TilewrightError):
        tilewright.compile(scaled, target=METAL, out_idx=[-1])(*given())
    assert Kernel.texts == []
