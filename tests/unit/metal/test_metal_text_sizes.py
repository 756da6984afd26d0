"""Texts that are written out stay within the instruction cache of the chips: it is small there, and long unrolled text is slow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
sys.path.insert(0, str(Path(__file__).parents[1] / "matmul"))
from products import random_weight
from repository_programs import ALL, Program

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.ir import children, kernels, nodes
from tilewright.machine.apple import FAMILIES
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import Product
from tilewright.runtime.kernel import Kernel

STATEMENT_BYTES = 8
"""Of a statement's machine code, roughly: instructions take 4 to 12 bytes, and most statements are one or two."""


def written_out(node: Any) -> int:
    """Statements of a text once its unrolled loops are, those that declare nothing but a name or memory left out."""
    inner = sum(written_out(child) for child in children(node) if isinstance(child, nodes.Statement))
    if isinstance(node, nodes.For) and node.kind == "unroll" and node.numbers is not None:
        return inner * len(node.numbers)
    return inner + isinstance(node, (nodes.Store, nodes.Let, nodes.Evaluate))


def longest(node: Any) -> int:
    """Statements of the longest loop that is not unrolled: what a chip runs again and again; of a text without one, all."""
    loops = [one for one in _loops(node) if not (one.kind == "unroll" and one.numbers is not None)]
    return max((written_out(one.body) for one in loops), default=written_out(node))


def _loops(node: Any) -> Iterator[nodes.For]:
    if isinstance(node, nodes.For):
        yield node
    for child in children(node):
        if isinstance(child, nodes.Statement):
            yield from _loops(child)


def too_long(kernel: Kernel) -> list[str]:
    """What of a kernel's loops the cache does not hold."""
    cache = FAMILIES["apple7"].instruction_bytes
    sizes = [longest(one.body) * STATEMENT_BYTES for one in kernels(kernel.program.final)]
    return [f"a loop of {size} bytes, and {cache} fit" for size in sizes if size > cache]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_programs_of_the_repository_fit(program: Program) -> None:
    try:
        kernel, _ = program.make("apple7")
    except TilewrightError:
        return  # test_metal_programs says which, and why
    assert not too_long(kernel)


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 512])
@pytest.mark.parametrize("name", ["uint1", "uint2", "int3", "int4", "uint5", "int6", "int8", "e2m1", "e4m3", "e5m2"])
def test_products_with_quantised_weights_fit(name: str, rows: int) -> None:
    rng = np.random.default_rng(0)
    scales = (rng.random((1024, 32)) + 0.5).astype(np.float16)
    weight = PackedWeight.pack(random_weight(rng, name, (1024, 1024), scales=scales, block=(1, 32)))
    made = Product.of(np.zeros((rows, 1024), np.float16), weight, target="metal -arch=m1-max").prepared
    assert not too_long(made.kernel)


@pytest.mark.parametrize("tile", [(64, 64, 32), (128, 128, 64), (64, 64, 256), (128, 64, 128)])
def test_products_of_any_tile_fit(tile: tuple[int, int, int]) -> None:
    rows, columns, depth = tile

    @T.prim_func
    def product(
        A: T.Tensor((512, 512), "float16"), B: T.Tensor((512, 512), "float16"), C: T.Tensor((512, 512), "float32")
    ):
        with T.Kernel(512 // columns, 512 // rows, threads=128) as (bx, by):
            c = T.alloc_fragment((rows, columns), "float32")
            T.clear(c)
            for k in T.serial(512 // depth):
                a = A[by * rows : (by + 1) * rows, k * depth : (k + 1) * depth]
                b = B[k * depth : (k + 1) * depth, bx * columns : (bx + 1) * columns]
                T.gemm(a, b, c)
            T.copy(c, C[by * rows, bx * columns])

    assert not too_long(tilewright.compile(product, target="metal -arch=apple7"))


def test_a_long_text_is_seen() -> None:
    @T.prim_func
    def long(A: T.Tensor((64, 4096), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            for _ in T.serial(9):
                for i in T.unroll(4096):
                    A[tx, i] = A[tx, i] * 2.0

    assert too_long(tilewright.compile(long, target="metal -arch=apple7"))
