"""Tiles of elements that share bytes on the cuda target: moved as bytes, read and written by element, never torn."""

import re

import numpy as np
import pytest
from narrow_programs import (
    NARROW,
    codes,
    decoded_product,
    dynamic_rows,
    ends_of_rows,
    narrowed,
    on,
    product_from_registers,
    scattered,
    staged_copy,
    staged_in_shared,
    unpack,
    views_of_bytes,
    widened,
)

ARCHITECTURES = ("sm_80", "sm_90a")
SIZES = ((33, 67), (32, 128))


def check(kernel, wanted, dtype, *arguments):
    """Interpreter and emulator, every schedule, give the elements wanted."""
    results = [kernel.interpret(*arguments)]
    results += [kernel.emulate(*arguments, schedule=schedule, seed=1) for schedule in ("late", "random")]
    for result in results:
        found = unpack(np.asarray(result), dtype, wanted.shape[-1])
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_through_shared_memory_and_registers(dtype, size):
    a, raw = codes(size, dtype)
    architecture = ARCHITECTURES[NARROW.index(dtype) % 2]
    kernel = on(architecture, staged_copy).compile(raw, size=size, dtype=dtype)
    check(kernel, a, dtype, raw)
    assert ("LDGSTS" in kernel.sass()) == (size[1] % 8 == 0), kernel.explain()


@pytest.mark.parametrize("dtype, size", list(zip(NARROW, SIZES * 4)), ids=str)
def test_elements_of_shared_tiles(dtype, size):
    a, raw = codes(size, dtype)
    check(on("sm_80", staged_in_shared).compile(raw, size=size, dtype=dtype), a, dtype, raw)


@pytest.mark.parametrize("dtype, size", list(zip(NARROW, SIZES * 4)), ids=str)
def test_bytes_shared_by_threads(dtype, size):
    """Threads that write neighbours of a byte change nothing but their own bits."""
    a, raw = codes(size, dtype)
    row, column = np.indices(size)
    wanted = np.where((row % 16 + column % 32) % 3 != 0, a, np.zeros_like(a)).T.copy()
    kernel = on("sm_80", scattered).compile(raw, size=size, dtype=dtype)
    assert "tw::set_packed<" in kernel.get_kernel_source()
    check(kernel, wanted, dtype, raw)


@pytest.mark.parametrize("dtype", ("int4", "uint1"))
def test_single_elements(dtype):
    a, raw = codes((75, 67), dtype)
    check(on("sm_80", ends_of_rows).compile(raw, size=(75, 67), dtype=dtype), a[:, -1].copy(), dtype, raw)


@pytest.mark.parametrize("dtype", NARROW)
def test_as_wider_numbers_and_back(dtype):
    a, raw = codes((33, 67), dtype)
    kernel = on("sm_90a", widened).compile(raw, size=(33, 67), dtype=dtype)
    for by_copy, by_cast in (kernel.interpret(raw), kernel.emulate(raw)):
        np.testing.assert_array_equal(np.asarray(by_copy), a.astype(np.float16))
        np.testing.assert_array_equal(np.asarray(by_cast), 2 * a.astype(np.float32))
    x = a.astype(np.float32)
    back = on("sm_90a", narrowed).compile(x, dtype=dtype)
    assert "set_packed" not in back.get_kernel_source()  # a thread has whole bytes
    check(back, a, dtype, x)


@pytest.mark.parametrize("dtype", ("int4", "uint2", "float4_e2m1fn"))
@pytest.mark.parametrize("sizes", ((33, 40, 160), (70, 33, 128)), ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_with_decoded_weights(dtype, sizes, architecture):
    m, n, k = sizes
    rng = np.random.default_rng(1)
    w, raw = codes((n, k), dtype, 2)
    x = rng.standard_normal((m, k)).astype(np.float16)
    scale = rng.uniform(0.5, 1.5, (n, k // 32)).astype(np.float16)
    decoded = (w.astype(np.float32) * np.repeat(scale.astype(np.float32), 32, 1)).astype(np.float16)
    block = (64, 64, 64) if architecture == "sm_90a" else (32, 32, 64)
    kernel = on(architecture, decoded_product).compile(x, raw, scale, dtype=dtype, block=block)
    exact, size = (f(x.astype(np.float64)) @ f(decoded.astype(np.float64)).T for f in (np.array, np.abs))
    for result in (kernel.interpret(x, raw, scale), kernel.emulate(x, raw, scale)):
        assert (np.abs(np.asarray(result) - exact) <= 2.0**-20 * size).all()
    assert re.search(r"\b(HMMA|HGMMA)\b", kernel.sass()), kernel.explain()


@pytest.mark.parametrize("dtype", ("int4", "float4_e2m1fn", "uint1"))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_in_registers(dtype, architecture):
    w, raw = codes((70, 192), dtype, 2)
    x = np.random.default_rng(1).standard_normal((33, 192)).astype(np.float16)
    kernel = on(architecture, product_from_registers).compile(x, raw, dtype=dtype)
    exact, size = (f(w.astype(np.float64)) @ f(x.astype(np.float64)).T for f in (np.array, np.abs))
    for result in (kernel.interpret(x, raw), kernel.emulate(x, raw)):
        assert (np.abs(np.asarray(result) - exact) <= 2.0**-20 * size).all()
    if architecture == "sm_90a" and dtype != "uint1":
        assert "tma_load into W_shared_ring" in kernel.explain()
        assert kernel.sass().count("UTMALDG") >= 2
    else:
        assert "LDGSTS" in kernel.sass()


@pytest.mark.parametrize("dtype", ("int4", "uint1"))
def test_sizes_known_only_at_launch(dtype):
    """Rows that are whole bytes stay asynchronous; a row that ends within a byte takes another variant."""
    kernel = None
    for rows, columns in ((33, 128), (17, 67), (20, 72)):
        a, raw = codes((rows, columns), dtype)
        x = a.astype(np.int8)
        if kernel is None:
            kernel = on("sm_80", dynamic_rows).compile(x, raw, dtype=dtype)
            assert "LDGSTS" in kernel.sass(), kernel.explain()
        for result in (kernel.interpret(x, raw), kernel.emulate(x, raw)):
            copied, total = result
            np.testing.assert_array_equal(unpack(np.asarray(copied), dtype, columns).view(np.uint8), a.view(np.uint8))
            np.testing.assert_array_equal(np.asarray(total), (2 * x).astype(np.int8))


@pytest.mark.parametrize("dtype", ("int4", "uint2"))
def test_bytes_read_as_elements(dtype):
    a, raw = codes((32, 64), dtype)
    kernel = on("sm_80", views_of_bytes).compile(raw, dtype=dtype)
    for result in (kernel.interpret(raw), kernel.emulate(raw)):
        np.testing.assert_array_equal(np.asarray(result), a.astype(np.int8))
