"""Register-staged pipelines: where loads, products and stores stand, in the text and in the machine code."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hip_programs import on
from machine_loops import loads, vector, waits_before_products

import tilewright.language as T
from tilewright.targets.hip.machine_code import hottest_loop

from cuda_gemm import matmul, operands  # isort: skip


def marks(text, **patterns):
    """The order in which lines that match stand in a text."""
    found = []
    for line in text.split("\n"):
        found += [name for name, pattern in patterns.items() if re.search(pattern, line)]
    return [one for number, one in enumerate(found) if number == 0 or found[number - 1] != one]


def loop_of(text):
    """The text from the pipelined loop on."""
    return text[text.index("for (int32_t k = 0;") :]


@pytest.mark.parametrize(("stages", "meetings"), [(2, 2), (3, 1)])
def test_loads_of_the_next_iteration_stand_before_the_products(stages, meetings):
    a, b = operands(128, 128, 512, "float16")
    kernel = on("gfx942", matmul).compile(a, b, block=(64, 64, 32), num_stages=stages)
    order = marks(
        loop_of(kernel.get_kernel_source()), meet=r"tw::sync_shared", store=r"store_fragment<8>\(&\w_shared", load=r"load_fragment<8>\(\w_part, 0, tw::place",
        read=r"load_fragment<8>\(\w_shared\w*_[ab],", product=r"tw::mfma",
    )  # fmt: skip
    meet = ["meet"] * (meetings - 1)
    assert order == ["meet", "store", "load", *meet, "read", "product"], order
    got = kernel.emulate(a, b, schedule="random", seed=5)
    assert np.abs(got - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-3


@pytest.mark.parametrize(("arch", "product"), [("gfx942", "v_mfma"), ("gfx1100", "v_wmma")])
def test_machine_code_waits_for_loads_only_where_they_are_stored(arch, product):
    """Between the loads and the products behind them there is no wait for memory, nor a store to LDS."""
    kernel = on(arch, matmul).compile(
        *operands(1024, 1024, 1024, "bfloat16"), dtype="bfloat16", out="bfloat16", block=(128, 128, 32), threads=256
    )
    code = kernel.sass()
    order = marks(
        code,
        load=r"(global|buffer)_load_\w*b?128|(global|buffer)_load_dwordx4",
        product=product,
        store=r"ds_(write|store)\w*_b128",
        wait=r"vmcnt\(",
    )
    text = " ".join(order)
    assert "load product" in text, text  # nothing between them
    assert re.search(r"product (wait )?(store|wait)", text), text
    (resources,) = kernel.resources().values()
    assert resources["scratch_bytes"] == 0


@pytest.mark.parametrize("rows", ["static", "dynamic"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "gfx1201"])
def test_loads_at_the_edge_of_a_tensor_do_not_branch(arch, rows):
    """What is out of bounds is zeros by its address: products wait for no load, whatever the sizes."""
    function = matmul if rows == "static" else dynamic_rows
    options = {"block": (128, 128, 32)} if rows == "static" else {}
    kernel = on(arch, function).compile(*operands(1000, 1000, 1000, "float16"), **options, threads=256)
    loop = hottest_loop(kernel.ptx())
    assert not waits_before_products(loop) and loads(loop) == 4
    assert vector(loop) < (1.5 if arch.startswith("gfx1") else 1) * loop.products
    a, b = operands(37, 52, 72, "float16")
    kernel = on(arch, function).compile(a, b, **({"block": (32, 32, 32)} if rows == "static" else {}))
    assert np.abs(kernel.emulate(a, b) - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-3


def dynamic_rows(A, B, threads=128):
    M = T.dynamic("M")
    N, K = T.const("N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=threads) as (bx, by):
        a = T.alloc_shared((128, 32), "float16")
        b = T.alloc_shared((128, 32), "float16")
        total = T.alloc_fragment((128, 128), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 128, k * 32], a)
            T.copy(B[bx * 128, k * 32], b)
            T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C[by * 128, bx * 128])
    return C


@pytest.mark.parametrize("K", [0, 1, 31, 32, 33, 96, 200])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_number_of_iterations(K, stages):
    a, b = operands(40, 24, K, "float16", seed=K)
    kernel = on("gfx1100", matmul).compile(a, b, block=(32, 32, 32), num_stages=stages)
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(kernel.emulate(a, b) - wanted).max(initial=0) < 1e-3


def counted(A, steps: T.int32):
    """A tile that is loaded and changed: what it holds is not the tensor's, so its load waits for its own iteration."""
    M = T.dynamic("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((M, 64), "float32")
    with T.Kernel(T.ceildiv(M, 16), threads=64) as block:
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((16, 64), "float32")
        T.clear(total)
        for _ in T.Pipelined(steps, num_stages=2):
            T.copy(A[block * 16, 0], tile)
            for i, j in T.Parallel(16, 64):
                tile[i, j] = tile[i, j] * 2.0
            for i, j in T.Parallel(16, 64):
                total[i, j] += tile[i, j]
        T.copy(total, C[block * 16, 0])
    return C


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_tile_that_is_changed_behind_its_load(steps):
    a = np.random.default_rng(1).standard_normal((37, 64)).astype(np.float32)
    kernel = on("gfx942", counted).compile(a, steps)
    assert np.allclose(kernel.emulate(a, steps), 2 * steps * a, atol=1e-5)


def of_a_mask(A, B, mask, num_stages=2):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    mask: T.Tensor((T.ceildiv(M, 64), T.ceildiv(K, 32)), "int32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        total = T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=num_stages):
            if mask[by, k] != 0:
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[bx * 64, k * 32], b)
                T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C[by * 64, bx * 64])
    return C


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100"])
def test_tiles_of_a_condition_are_loaded_ahead(arch, stages):
    """Each step knows the condition before it loads for a later one, and no product waits for that."""
    a, b = operands(100, 72, 175, "float16", seed=2)
    mask = np.random.default_rng(stages).integers(0, 2, (2, 6)).astype(np.int32)
    kernel = on(arch, of_a_mask).compile(a, b, mask, num_stages=stages)
    kept = a.astype(np.float64) * np.kron(mask, np.ones((64, 32)))[:100, :175]
    assert np.abs(kernel.emulate(a, b, mask, schedule="random", seed=1) - kept @ b.astype(np.float64).T).max() < 1e-3
    text = kernel.get_kernel_source()
    body = text[text.index("for (int32_t k = 0") :]
    assert re.search(r"agreed.*?tw::(load_fragment|cp_async|move_fragment).*?tw::(mfma|wmma)", body, re.S)
    a, b = operands(1024, 1024, 1024, "float16")
    loop = hottest_loop(on(arch, of_a_mask).compile(a, b, np.ones((16, 32), np.int32), num_stages=stages).ptx())
    assert loads(loop) >= 4 and not waits_before_products(loop)


def of_scaled_steps(A, B, scale, threads=256):
    """Few lanes read a scale in the middle of a step: a branch, behind which the compiler counts for the worst."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    scale: T.Tensor((M, T.ceildiv(K, 32)), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=threads) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
        own = T.alloc_shared((64,), "float32")
        part, total = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[bx * 64, k * 32], b)
            for i in T.Parallel(64):
                own[i] = scale[by * 64 + i, k]
            T.clear(part)
            T.gemm(a, b, part, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                total[i, j] += part[i, j] * own[i]
        T.copy(total, C[by * 64, bx * 64])
    return C


@pytest.mark.parametrize("K", [32, 200, 1024])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_scales_of_steps_are_there_before_the_next_tiles_are_on_their_way(arch, K):
    a, b = operands(64 if K < 1024 else 1024, 72, K, "float16", seed=2)
    scale = np.random.default_rng(K).random((len(a), -(-K // 32)), np.float32)
    kernel = on(arch, of_scaled_steps).compile(a, b, scale)
    if K == 1024:
        loop = hottest_loop(kernel.ptx())
        assert loads(loop) >= 3 and not waits_before_products(loop)
        return
    found = kernel.emulate(a, b, scale, schedule="random", seed=K)
    wanted = (a.astype(np.float64) * np.repeat(scale, 32, 1)[:, :K]) @ b.astype(np.float64).T
    assert np.abs(found - wanted).max() < 1e-3


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_registers_of_the_next_step_move_as_whole_words(arch):
    """Two halves of a word, each carried by itself, would have to be taken apart where the word is loaded."""
    kernel = on(arch, matmul).compile(
        *operands(512, 512, 512, "float16"), block=(16, 16, 16), threads=128, num_stages=3
    )
    assert re.search(r"tw::move_fragment<2>\(\w+_registers", kernel.get_kernel_source())
    loop = hottest_loop(kernel.ptx())
    assert loads(loop) >= 2 and not waits_before_products(loop)
