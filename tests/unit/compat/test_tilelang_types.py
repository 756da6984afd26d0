"""Number types are the texts of their names, and kernels are compiled by the names and shapes of their sizes."""

import copy
import pickle

import numpy as np
import pytest
import torch

import tilewright
import tilewright.compat.tilelang as tilelang
import tilewright.language as T
from tilewright.errors import TilewrightError, UnknownDType
from tilewright.language.mistakes import NumberExpected, WrongArguments
from tilewright.language.mistakes_of_scopes import SizeMismatch, UnboundSize


def test_a_type_is_the_text_of_its_name():
    assert isinstance(T.float16, str) and isinstance(T.float16, T.dtype)
    assert getattr(torch, T.float16) is torch.float16
    assert f"{T.float16} %s {T.float16:>9}" % T.int8 == "float16 int8   float16"
    assert T.float16 + "x2" == "float16x2" and T.float16.startswith("float") and "8" in T.uint8
    assert {"float16": 1}[T.float16] == {T.float16: 1}["float16"] == 1 and T.float16 in ["float16"]
    assert (
        (T.float16 == "float16") and ("float16" in {T.float16}) and (T.half == T.float16) and T.float16 == torch.float16
    )
    assert T.float16 != "float32" and T.float16 != torch.int8 and T.float6_e2m3fn in {"float6_e2m3fn"}
    assert T.dtype("bf16") is T.bfloat16 is T.dtype(torch.bfloat16) and T.dtype(np.float32) is T.float32 is T.dtype(
        float
    )
    assert pickle.loads(pickle.dumps(T.float32x4)) == T.float32x4 and copy.deepcopy(T.float16) is T.float16
    assert repr(T.float32) == "T.float32" and (T.float32x4.bits, T.float32x4.lanes, T.float32x4.bytes) == (32, 4, 16)


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu"])
def test_torch_has_types_of_the_same_names(name):
    assert T.dtype(name).as_torch() is getattr(torch, name)


def test_types_that_share_bytes_travel_as_bytes():
    assert T.int4.as_torch() is torch.int8 and T.tfloat32.as_torch() is torch.float32
    with pytest.raises(ValueError, match="torch has no type for float32x4"):
        T.float32x4.as_torch()


@pytest.mark.parametrize("name, bits", [("float6_e2m3fn", 6), ("float6_e3m2fn", 6), ("float8_e4m3b11fnuz", 8)])
def test_a_small_type_has_the_bits_of_its_codes(name, bits):
    assert getattr(T, name).bits == bits and tilewright.dtype(name).storage_bytes == 1


def test_a_type_that_is_a_name_alone_says_so_where_it_is_used():
    assert T.float8_e3m4.bits == 8
    with pytest.raises(UnknownDType) as error:
        T.Tensor((4,), T.float8_e3m4)
    assert "nothing here computes with it" in str(error.value)


def test_a_type_of_several_lanes_takes_a_value_for_each():
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32), B: T.Tensor((8,), T.float16)):
        with T.Kernel(1, threads=32):
            for i in T.serial(4):
                B[T.Ramp(2 * i, 1, 2)] = T.float16x2(A[2 * i] + 1, A[2 * i + 1] * 2)

    a = np.arange(8, dtype=np.float32)
    b = np.zeros(8, np.float16)
    tilelang.compile(main, target="cpu")(a, b)
    assert np.array_equal(b, np.stack([a[::2] + 1, a[1::2] * 2], 1).reshape(-1))


@tilelang.jit(target="cpu")
def scaled(A, B, by=2, dtype=T.float32):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], dtype]
    B: T.Tensor[[N], dtype]
    C = T.empty([M, N], dtype)
    with T.Kernel(M, threads=32) as i:
        for j in T.Parallel(N):
            C[i, j] = A[i, j] * by + B[j]
    return C


def test_sizes_are_given_by_name_by_shape_or_by_tensors():
    a, b = np.random.default_rng(0).standard_normal((2, 5, 7)).astype(np.float32)
    kernel = scaled.compile(M=5, N=7, by=3)
    assert np.array_equal(kernel(a, b[0]), a * 3 + b[0])
    kernels = [scaled.compile((5, 7), (7,)), scaled.compile(a, N=7), scaled.compile(a, b[0]), scaled.compile(M=5, N=7)]
    assert len({id(one.kernel) for one in kernels}) == 1
    with pytest.raises(UnboundSize, match="pass N=, or a tensor that has it"):
        scaled.compile(M=5)
    with pytest.raises(SizeMismatch, match="N is 8 as an argument, but 7 as extent 1 of 'A'"):
        scaled.compile(a, N=8)
    with pytest.raises(WrongArguments, match="scaled has no argument and no size 'tdype'") as error:
        scaled.compile(M=5, N=7, tdype=2)
    assert "did you mean 'dtype'" in str(error.value)


def test_literals_are_numbers_of_their_type():
    """0.1 as a half is not 0.1: what is computed with it in a wider type sees the half."""

    @T.prim_func
    def main(X: T.Tensor((1,), "float32"), C: T.Tensor((8,), "float32"), D: T.Tensor((3,), "int32")):
        with T.Kernel(1, threads=32):
            C[0] = T.float16(0.1)
            C[1] = T.cast(T.bfloat16(3.14159), "float32") + X[0]
            C[2] = T.float8_e4m3fn(3.3)
            C[3] = T.cast(T.cast(3.3, "float8_e5m2"), "float32")
            C[4] = X[0] + T.float16(0.1)
            C[5] = T.if_then_else(T.cast(T.float16(0.1), "float64") == T.cast(0.1, "float64"), 1.0, 2.0)
            C[6] = T.float32("-inf")
            C[7] = T.cast(T.float16(0.1) + T.float16(0.2), "float32")
            D[0] = T.cast(T.float16(2049), "int32")
            D[1] = T.cast(T.float8_e4m3fn(3.3) * T.float32(100), "int32")
            D[2] = T.if_then_else(T.float16(1e-9) == T.float16(0), 1, 0)

    tenth = float(np.float16(0.1))
    wanted = [tenth, 3.140625, 3.25, 3.5, tenth, 2, -np.inf, float(np.float16(0.1) + np.float16(0.2))]
    for target, way in (("cuda -arch=sm_90a", "interpret"), ("cpu", "__call__"), ("cuda -arch=sm_90a", "emulate")):
        found, whole = np.zeros(8, np.float32), np.zeros(3, np.int32)
        getattr(tilewright.compile(main, target=target), way)(np.zeros(1, np.float32), found, whole)
        assert found.tolist() == wanted and whole.tolist() == [2048, 325, 1]


def test_tensors_by_their_handles():
    @T.prim_func
    def main(a: T.handle, c: T.handle, n: T.int32):
        m = T.int32()
        A = T.match_buffer(a, (m, 16), "float32")
        C = T.match_buffer(c, (m, 16), dtype="float32", strides=[])
        with T.Kernel(T.ceildiv(m, 4), threads=32) as b:
            for i, j in T.Parallel(4, 16):
                if b * 4 + i < m:
                    C[b * 4 + i, j] = A[b * 4 + i, j] * n

    given, found = np.arange(160, dtype=np.float32).reshape(10, 16), np.zeros((10, 16), np.float32)
    kernel = tilewright.compile(main, target="cpu")
    kernel(given, found, 3)
    assert np.array_equal(found, given * 3)
    with pytest.raises(TilewrightError, match="dimension 0 is 9, expected 10"):
        kernel(given, found[:9], 3)


def test_what_match_buffer_does_not_declare():
    with pytest.raises(NumberExpected, match=r"what T.match_buffer declares is the tensor"):

        @T.prim_func
        def of_a_tensor(A: T.Tensor((4,), "float32")):
            T.match_buffer(A, (4,), "float32")

    with pytest.raises(NumberExpected, match="declared before"):

        @T.prim_func
        def twice(a: T.handle):
            T.match_buffer(a, (4,), "float32")
            T.match_buffer(a, (4,), "float32")
