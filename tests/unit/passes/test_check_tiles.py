"""Tiles larger than the second-level cache of the machine described."""

import warnings

import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightWarning


def copies(rows):
    @T.prim_func
    def copy_through(A: T.Tensor((rows, 1024), "float32"), B: T.Tensor((rows, 1024), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((rows, 1024), "float32")
            T.copy(A, tile)
            T.copy(tile, B)

    return copy_through


def test_tiles_that_exceed_the_cache_are_named_with_their_line():
    with pytest.warns(TilewrightWarning) as caught:
        tilewright.compile(copies(4096), target="cpu -arch=avx2")
    (text,) = [str(warning.message) for warning in caught]
    first, *_, last, caret = text.splitlines()
    assert first.startswith("warning: the tiles of a block take 16384 KiB, more than the ")
    assert "the largest is tile, 4096 x 1024 of float32 (16384 KiB): make it smaller" in first
    assert "tile = T.alloc_shared((rows, 1024)" in last and "^" in caret


def test_tiles_that_fit_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilewright.compile(copies(8), target="cpu -arch=avx2")


def products(*, first: str):
    @T.prim_func
    def product(A: T.Tensor((32, 32), "float32"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((32, 32), "float32")
            total = T.alloc_fragment((32, 32), "float32")
            if first == "clear":
                T.clear(total)
            elif first == "elements":
                for i, j in T.Parallel(32, 32):
                    total[i, j] = 0.0
            elif first == "view":
                T.clear(T.reshape(total, (1024,)))
            for k in T.serial(2):
                T.copy(A, tile)
                T.gemm(tile, tile, total, clear_accum=k == 0 if first == "condition" else first == "gemm")
            T.copy(total, C)

    return product


def test_a_sum_without_a_first_value_is_named_with_its_line():
    with pytest.warns(TilewrightWarning) as caught:
        tilewright.compile(products(first="nothing"), target="cpu -arch=avx2")
    (text,) = [str(warning.message) for warning in caught]
    first, *_, last, caret = text.splitlines()
    assert first == (
        "warning: total is read here, but nothing gives it a first value: write it first, for example with T.clear(total)"
    )
    assert "T.gemm(tile, tile, total" in last and "^" in caret


@pytest.mark.parametrize("first", ["clear", "elements", "condition", "gemm", "view"])
def test_sums_with_a_first_value_are_silent(first):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilewright.compile(products(first=first), target="cpu -arch=avx2")
