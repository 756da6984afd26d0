"""What the tables say of products and matrix moves, checked on a device or its emulator with exact numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda_runner import Scalar, text

from tilewright.ir.dtypes import DType
from tilewright.machine.instructions import MatrixInstruction
from tilewright.targets.cuda.instructions import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    MATRIX_8X8,
    MATRIX_8X8_TRANSPOSED,
    PTX_NAMES,
    S8,
    S32,
    TF32,
    U8,
    mma_a,
    mma_d,
)
from tilewright.targets.gpu.copies.boxes import Swizzle
from tilewright.targets.gpu.products.descriptors import STEP_BYTES, wgmma_operand

Fact = tuple[str, Callable[[Any], None]]
STEPS = 4
RANGES = {"s8": (-128, 128), "u8": (0, 256), "s32": (0, 1)}


def facts(arch: Any) -> Iterator[Fact]:
    """Every fact of this file that an architecture should confirm: a name, and a function of a runner that raises."""
    for instruction in arch.matrix_instructions:
        if not instruction.asynchronous:
            yield kernel_name(instruction), lambda runner, one=instruction: check_mma(runner, one)
            if instruction.function.endswith("_through_half"):
                yield f"{kernel_name(instruction)}_codes", lambda runner, one=instruction: check_codes(runner, one)
    for count in (1, 2, 4):
        for suffix in ("", "_trans"):
            yield f"ldmatrix_x{count}{suffix}", lambda runner, c=count, s=suffix: check_ldmatrix(runner, c, s)
            if arch.has("stmatrix"):
                yield f"stmatrix_x{count}{suffix}", lambda runner, c=count, s=suffix: check_stmatrix(runner, c, s)
    if arch.has("wgmma"):
        yield from wgmma_facts()


def element_of(layout: Any, thread: int, register: int) -> tuple[int, ...]:
    """Row and column of what a lane holds in a register."""
    numbers = {"thread": thread, "register": register}
    return layout.coordinates(**{place: numbers[place] for place in layout.places})


@functools.cache
def places(layout: Any, threads: int, columns: int) -> np.ndarray:
    """Position in a row-major matrix of each element of each thread, thread by thread."""
    found = []
    for thread in range(threads):
        for register in range(layout.extent("register")):
            row, column = element_of(layout, thread, register)
            found.append(row * columns + column)
    return np.array(found, np.int32)


def kernel_name(instruction: MatrixInstruction) -> str:
    kinds = (instruction.accumulator, instruction.a, instruction.b)
    return "_".join((instruction.function, *(PTX_NAMES[kind] for kind in kinds)))


def integers(random: np.random.Generator, kind: DType, shape: tuple[int, int]) -> np.ndarray:
    """Whole numbers that the type, products of it and their sums hold exactly."""
    low, high = RANGES.get(PTX_NAMES[kind], (-4, 5))
    return random.integers(low, high, shape)


def carried(values: np.ndarray, kind: DType) -> np.ndarray:
    return np.ascontiguousarray(
        values.astype(np.float64).astype(kind.numpy) if kind.is_float else values.astype(kind.numpy)
    )


def check_mma(runner: Any, one: MatrixInstruction) -> None:
    random = np.random.default_rng(one.k)
    a, b = integers(random, one.a, (one.m, one.k)), integers(random, one.b, (one.k, one.n))
    d = random.integers(-9, 9, (one.m, one.n))
    result = carried(d, one.accumulator)
    assert one.a_fragment is not None and one.b_fragment is not None
    runner.run(
        text("facts_matrix"), kernel_name(one), 1, 32,
        [carried(a, one.a), carried(b, one.b), result, places(one.a_fragment, 32, one.k), places(one.b_fragment, 32, one.n),
         places(one.d_fragment, 32, one.n)],
    )  # fmt: skip
    np.testing.assert_array_equal(result.astype(np.float64), (a @ b + d).astype(np.float64))


def check_codes(runner: Any, one: MatrixInstruction) -> None:
    """Every code of both operands arrives as the number that it is, NaN as NaN: products with 1, eight of k at a time."""
    assert one.a_fragment is not None and one.b_fragment is not None
    places_of = [
        places(one.a_fragment, 32, one.k),
        places(one.b_fragment, 32, one.n),
        places(one.d_fragment, 32, one.n),
    ]

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = np.zeros((one.m, one.n), one.accumulator.numpy)
        runner.run(text("facts_matrix"), kernel_name(one), 1, 32, [a, b, result, *places_of])
        return result.astype(np.float32)

    for kind in (one.a, one.b):
        codes = np.arange(256, dtype=np.uint8).view(kind.numpy)
        numbers = codes.astype(np.float32)
        finite = np.where(np.isfinite(numbers), codes, np.zeros_like(codes))
        for first in range(0, one.k, 8):
            if kind is one.a:
                chosen = np.eye(one.k, one.n, -first).astype(one.b.numpy)
                for block in np.resize(finite, (-(-256 // (one.m * one.k)), one.m, one.k)):
                    np.testing.assert_array_equal(
                        product(np.ascontiguousarray(block), chosen), block[:, first : first + 8].astype(np.float32)
                    )
            else:
                chosen = np.eye(one.m, one.k, first).astype(one.a.numpy)[:8]
                left = np.zeros((one.m, one.k), one.a.numpy)
                left[:8] = chosen
                for block in np.resize(finite, (256 // (one.k * one.n), one.k, one.n)):
                    found = product(left, np.ascontiguousarray(block))
                    np.testing.assert_array_equal(found[:8], block[first : first + 8].astype(np.float32))
    a, b = np.ones((one.m, one.k), one.a.numpy), np.ones((one.k, one.n), one.b.numpy)
    for code in range(256):
        if not np.isfinite(np.uint8(code).view(one.a.numpy).astype(np.float32)):
            a[0, 0] = np.uint8(code).view(one.a.numpy)
            found = product(a, b)
            assert not np.isfinite(found[0]).any() and np.isfinite(found[1:]).all(), f"code {code:#x}"


# ldmatrix and stmatrix ----------------------------------------------------------------------------


def scattered_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of the rows of `count` matrices, anywhere; lanes beyond them get address 0."""
    slots = np.random.default_rng(count).permutation(64)[: 8 * count]
    lanes = np.zeros(32, np.int32)
    lanes[: 8 * count] = slots * 16
    return lanes, slots


def matrix_elements(count: int, suffix: str) -> Iterator[tuple[int, int, int, int]]:
    """Lane, place in its fragment, matrix row (over all matrices) and column."""
    layout = MATRIX_8X8_TRANSPOSED if suffix else MATRIX_8X8
    for lane in range(32):
        for index in range(2 * count):
            row, column = element_of(layout, lane, index % 2)
            yield lane, index, index // 2 * 8 + row, column


def check_ldmatrix(runner: Any, count: int, suffix: str) -> None:
    image = np.random.default_rng(3).integers(0, 1 << 16, (64, 8)).astype(np.uint16)
    lanes, slots = scattered_rows(count)
    out = np.zeros((32, 2 * count), np.uint16)
    name = f"ldmatrix_x{count}{suffix}"
    runner.run(
        text("facts_matrix"), name, 1, 32, [image.view(np.uint8), Scalar("i", image.nbytes), lanes, out], shared=1024
    )
    for lane, index, row, column in matrix_elements(count, suffix):
        assert out[lane, index] == image[slots[row], column], (lane, index)


def check_stmatrix(runner: Any, count: int, suffix: str) -> None:
    values = np.random.default_rng(4).integers(0, 1 << 16, (32, 2 * count)).astype(np.uint16)
    image = np.full((64, 8), 0xABCD, np.uint16)
    lanes, slots = scattered_rows(count)
    expected = image.copy()
    for lane, index, row, column in matrix_elements(count, suffix):
        expected[slots[row], column] = values[lane, index]
    view = image.view(np.uint8)
    name = f"stmatrix_x{count}{suffix}"
    runner.run(text("facts_matrix"), name, 1, 32, [view, Scalar("i", image.nbytes), lanes, values], shared=1024)
    np.testing.assert_array_equal(image, expected)


# wgmma --------------------------------------------------------------------------------------------

SHARED_KERNELS = [
    (128, F32, F16, F16, "k", "k"), (128, F32, F16, F16, "k", "mn"), (128, F32, F16, F16, "mn", "k"), (128, F32, F16, F16, "mn", "mn"),
    (128, F16, F16, F16, "k", "k"), (256, F32, BF16, BF16, "k", "mn"), (8, F32, BF16, BF16, "k", "k"), (24, F32, TF32, TF32, "k", "k"),
    (48, S32, S8, S8, "k", "k"), (16, S32, U8, S8, "k", "k"), (64, F32, E4M3, E4M3, "k", "k"), (96, F32, E4M3, E5M2, "k", "k"),
    (32, F16, E5M2, E4M3, "k", "k"),
]  # fmt: skip
REGISTER_KERNELS = [
    (128, F32, F16, F16, "k"), (128, F32, F16, F16, "mn"), (8, F32, BF16, BF16, "k"), (24, F32, TF32, TF32, "k"),
    (16, S32, U8, S8, "k"), (64, F32, E4M3, E4M3, "k"), (32, F16, E5M2, E4M3, "k"),
]  # fmt: skip


def wgmma_facts() -> Iterator[Fact]:
    """Each kernel with every order and swizzle of its operands' tiles that fits them."""
    for n, d, a, b, major_a, major_b in SHARED_KERNELS:
        kinds = "_".join(PTX_NAMES[kind] for kind in (d, a, b))
        kernel = f"ss_n{n}_{kinds}_{major_a}_{major_b}"
        for tile_a in tiles(64, major_a):
            for tile_b in tiles(n, major_b):
                name = f"{kernel} {tile_name(tile_a)} {tile_name(tile_b)}"
                yield name, lambda runner, k=kernel, s=(n, d, a, b, tile_a, tile_b): check_shared(runner, k, *s)
    for n, d, a, b, major_b in REGISTER_KERNELS:
        kinds = "_".join(PTX_NAMES[kind] for kind in (d, a, b))
        kernel = f"rs_n{n}_{kinds}_{major_b}"
        for tile_b in tiles(n, major_b):
            name = f"{kernel} {tile_name(tile_b)}"
            yield name, lambda runner, k=kernel, s=(n, d, a, b, tile_b): check_registers(runner, k, *s)


Tile = tuple[str, Swizzle, bool]
"""Major dimension, swizzle, and whether atoms follow each other along k first."""


def tiles(mn: int, major: str) -> Iterator[Tile]:
    for swizzle in Swizzle:
        for k_first in (True, False):
            choice = major == "mn" or swizzle is Swizzle.NONE
            if (choice or k_first) and not (major == "mn" and mn % (swizzle.span // 2)):
                yield major, swizzle, k_first


def tile_name(tile: Tile) -> str:
    return f"{tile[0]}/{tile[1].name}/{'k' if tile[2] else 'mn'}-first"


def tile_offset(tile: Tile, mn: int, k: int, size: int) -> Callable[[int, int], int]:
    """Byte of element (mn, k) in the tile's image."""
    major, swizzle, k_first = tile
    span = swizzle.span
    if major == "k" and swizzle is not Swizzle.NONE:
        linear = lambda m, c: c * size // span * (mn * span) + m * span + c * size % span  # noqa: E731
    else:
        run = 16 // size if major == "k" else span // 2  # elements that lie together
        along, across = (k, mn) if major == "k" else (mn, k)
        atom = 8 * span
        runs, groups = along // run, across // 8
        near = k_first == (major == "k")  # the contiguous dimension's atoms follow each other

        def linear(m: int, c: int) -> int:
            x, y = (c, m) if major == "k" else (m, c)
            index = y // 8 * runs + x // run if near else x // run * groups + y // 8
            return index * atom + y % 8 * span + x % run * size

    return lambda m, c: swizzle.apply(linear(m, c))


def image_of(values: np.ndarray, kind: DType, tile: Tile) -> tuple[np.ndarray, int, np.ndarray]:
    """Bytes of a tile in shared memory, the descriptor's fields, and the steps along k."""
    mn, k = values.shape
    offset = tile_offset(tile, mn, k, kind.storage_bytes)
    operand = wgmma_operand(offset, mn, k, kind)
    assert operand is not None and operand.swizzle is tile[1] and (operand.major == tile[0] or mn == 8), tile
    image = np.full(mn * k * kind.storage_bytes, 0xEE, np.uint8)
    raw = carried(values, kind).view(np.uint8).reshape(mn, k, kind.storage_bytes)
    first = offset(np.arange(mn)[:, None], np.arange(k)[None, :])
    image[first[..., None] + np.arange(kind.storage_bytes)] = raw
    return image, operand.descriptor, np.array(operand.steps, np.int32)


def wgmma_values(n: int, a: DType, b: DType) -> tuple[np.ndarray, np.ndarray]:
    depth = STEPS * STEP_BYTES * 8 // a.bits
    random = np.random.default_rng(n)
    limited = {E4M3: (-2, 3), E5M2: (-2, 3), S8: (-128, 128), U8: (0, 256)}
    low, high = limited.get(a, (-4, 5))
    other = limited.get(b, (-4, 5))
    return random.integers(low, high, (64, depth)), random.integers(*other, (n, depth))


def check_shared(runner: Any, kernel: str, n: int, d: DType, a: DType, b: DType, tile_a: Tile, tile_b: Tile) -> None:
    values_a, values_b = wgmma_values(n, a, b)
    image_a, field_a, steps_a = image_of(values_a, a, tile_a)
    image_b, field_b, steps_b = image_of(values_b, b, tile_b)
    out = np.zeros((64, n), d.numpy)
    runner.run(
        text("facts_wgmma"), kernel, 1, 128,
        [image_a, Scalar("i", image_a.size), Scalar("Q", field_a), steps_a, image_b, Scalar("i", image_b.size),
         Scalar("Q", field_b), steps_b, out, places(mma_d(n, 4), 128, n)],
        shared=(image_a.size + 1023) // 1024 * 1024 + image_b.size,
    )  # fmt: skip
    np.testing.assert_array_equal(out.astype(np.float64), (values_a @ values_b.T).astype(np.float64))


def check_registers(runner: Any, kernel: str, n: int, d: DType, a: DType, b: DType, tile_b: Tile) -> None:
    values_a, values_b = wgmma_values(n, a, b)
    image_b, field_b, steps_b = image_of(values_b, b, tile_b)
    out = np.zeros((64, n), d.numpy)
    depth, k = values_a.shape[1], STEP_BYTES * 8 // a.bits
    one = places(mma_a(a.bits, k, 4), 128, depth)
    runner.run(
        text("facts_wgmma"), kernel, 1, 128,
        [carried(values_a, a), np.concatenate([one + step * k for step in range(STEPS)]).astype(np.int32), image_b,
         Scalar("i", image_b.size), Scalar("Q", field_b), steps_b, out, places(mma_d(n, 4), 128, n)],
        shared=image_b.size,
    )  # fmt: skip
    np.testing.assert_array_equal(out.astype(np.float64), (values_a @ values_b.T).astype(np.float64))
