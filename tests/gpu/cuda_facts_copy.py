"""Copies, barriers and clusters: what lands where, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda_runner import Map, Scalar, text

from tilewright.ir.dtypes import ALL, DType
from tilewright.machine.types import F16, F32, S32
from tilewright.targets.cuda.tma import _TYPES
from tilewright.targets.gpu.copies.boxes import Swizzle

Fact = tuple[str, Callable[[Any], None]]


def facts(arch: Any) -> Iterator[Fact]:
    """Every fact of this file that an architecture should confirm."""
    for size in (4, 8, 16):
        yield f"cp_async of {size} bytes", lambda runner, s=size: check_cp_async(runner, s)
    for noinc in (0, 1):
        yield f"cp_async arrival, noinc {noinc}", lambda runner, n=noinc: check_cp_async_arrival(runner, n)
    yield "grid_sync", check_grid_sync
    if arch.copy_engine:
        yield "mbarrier phases", check_mbarrier
        yield "bulk ring", check_ring
        yield "bulk store and reduce", check_bulk_out
        for rank in (1, 2, 3, 4, 5):
            yield f"tma {rank}d load", lambda runner, r=rank: check_tma_load(runner, r)
            yield f"tma {rank}d store", lambda runner, r=rank: check_tma_store(runner, r)
        for swizzle in Swizzle:
            for shift in (0, 384):
                yield (
                    f"tma {swizzle.name} at +{shift}",
                    lambda runner, s=swizzle, b=shift: check_tma_swizzle(runner, s, b),
                )
        for dtype in _TYPES:
            yield f"tma boxes of {dtype}", lambda runner, d=dtype: check_tma_type(runner, ALL[d])
        yield "tma box narrower than its swizzle", check_narrow_box
        yield "tma NaN fill", check_nan_fill
        yield "tma store clips in 16-byte pieces", check_store_overrun
        yield "tma reduce", check_tma_reduce
        yield "multicast ring of two", check_multicast
        yield "copy to peer", check_copy_to_peer
    if arch.role_registers:
        yield "setmaxnreg and named barriers", check_budgets


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)


def check_cp_async(runner: Any, size: int) -> None:
    source = noise(64 * size)
    valid = np.random.default_rng(size).integers(0, size + 1, 64).astype(np.int32)
    out = np.zeros(128 * size, np.uint8)
    runner.run(text("facts_copy"), f"cp_async_{size}", 1, 64, [source, valid, out], shared=128 * size)
    pieces = source.reshape(64, size).copy()
    pieces[np.arange(size)[None, :] >= valid[:, None]] = 0
    np.testing.assert_array_equal(out, np.concatenate([pieces.ravel(), source]))


def check_cp_async_arrival(runner: Any, noinc: int) -> None:
    source, out = np.arange(128, dtype=np.uint32) * 7, np.zeros(128, np.uint32)
    runner.run(text("facts_copy"), "cp_async_arrival", 1, 128, [source, out, Scalar("i", noinc)], shared=4104)
    np.testing.assert_array_equal(out, source[::-1])


def check_mbarrier(runner: Any) -> None:
    out = np.zeros(16, np.int32)
    runner.run(text("facts_copy"), "mbarrier_phases", 1, 32, [np.arange(64, dtype=np.uint8), out], shared=256)
    assert out[12] == 12 and out[:12].all(), out


def check_ring(runner: Any) -> None:
    tiles = 37
    source = (np.arange(tiles * 512, dtype=np.uint64) * 2654435761 >> 8).astype(np.int32) & 0xFFFF
    total = np.zeros(1, np.uint64)
    runner.run(text("facts_copy"), "bulk_ring", 1, 160, [source, Scalar("i", tiles), total], shared=4 * 2048 + 64)
    assert int(total[0]) == int(source.sum(dtype=np.int64))


def check_bulk_out(runner: Any) -> None:
    values = np.arange(512, dtype=np.float32)
    plain, added = np.zeros(520, np.float32), np.full(520, 3, np.float32)
    runner.run(text("facts_copy"), "bulk_out", 1, 128, [values, plain, added, Scalar("i", 2048)], shared=2048)
    np.testing.assert_array_equal(plain, np.concatenate([values, np.zeros(8)]))
    np.testing.assert_array_equal(added, np.concatenate([values + 3, np.full(8, 3)]))


# Tensor copies ------------------------------------------------------------------------------------


def load_box(runner: Any, tensor_map: Map, first: tuple[int, ...], nbytes: int, shift: int = 0) -> np.ndarray:
    """Shared memory after one load: `nbytes` and 2 KB more, which held 0xAB."""
    size = (nbytes + 2048 + 127) // 128 * 128
    out = np.zeros(size, np.uint8)
    arguments = [tensor_map, np.array(first, np.int32), Scalar("i", nbytes), Scalar("i", shift), out, Scalar("i", size)]
    runner.run(text("facts_copy"), f"tma_load_{len(first)}d", 1, 128, arguments, shared=size + 8)
    return out


def tensor(rank: int) -> tuple[np.ndarray, Map, tuple[int, ...]]:
    """An int32 array, a map of boxes of it, and a box position that reaches out of bounds on both sides."""
    extents = (24, 5, 4, 3, 3)[:rank]
    array = np.arange(int(np.prod(extents)), dtype=np.int32).reshape(extents[::-1]) + 1
    strides = tuple(int(stride) for stride in array.strides[::-1][1:])
    return array, Map(array, S32, extents, strides, (8, 3, 2, 2, 2)[:rank]), (20, -1, 3, 0, -1)[:rank]


def box_of(array: np.ndarray, first: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """The box with zeros out of bounds; first and box run innermost first."""
    margin = 32 if array.ndim < 5 else 8  # five dimensions padded by 32 would be 7 GB
    padded = np.pad(array, margin)
    return padded[tuple(slice(at + margin, at + margin + size) for at, size in zip(first[::-1], box[::-1]))]


def check_tma_load(runner: Any, rank: int) -> None:
    array, tensor_map, first = tensor(rank)
    expected = box_of(array, first, tensor_map.box)
    out = load_box(runner, tensor_map, first, expected.nbytes)
    np.testing.assert_array_equal(out[: expected.nbytes].view(np.int32), expected.ravel())
    assert (out[expected.nbytes :] == 0xAB).all()


def check_tma_store(runner: Any, rank: int) -> None:
    array, tensor_map, first = tensor(rank)
    first = tuple(max(at, 0) for at in first)
    box = -np.arange(1, int(np.prod(tensor_map.box)) + 1, dtype=np.int32).reshape(tensor_map.box[::-1])
    expected = array.copy()
    window = tuple(slice(at, at + size) for at, size in zip(first[::-1], tensor_map.box[::-1]))
    inside = expected[window].shape
    expected[window] = box[tuple(slice(0, size) for size in inside)]
    arguments = [tensor_map, np.array(first, np.int32), box.view(np.uint8), Scalar("i", box.nbytes)]
    runner.run(text("facts_copy"), f"tma_store_{rank}d", 1, 128, arguments, shared=box.nbytes)
    np.testing.assert_array_equal(array, expected)


def check_tma_swizzle(runner: Any, swizzle: Swizzle, shift: int) -> None:
    """The permutation takes bits of the absolute address: also from a base that is not aligned to its period."""
    width = swizzle.span // 2 if swizzle is not Swizzle.NONE else 32
    array = np.random.default_rng(5).integers(0, 1 << 15, (40, 136)).astype(np.int16)
    tensor_map = Map(array, F16, (136, 40), (272,), (width, 24), swizzle)
    out = load_box(runner, tensor_map, (8, 20), width * 24 * 2, shift)
    expected = np.full(out.size, 0xAB, np.uint8)
    box = box_of(array, (8, 20), (width, 24))
    for row in range(24):
        for column in range(width):
            at = swizzle.apply(shift + row * width * 2 + column * 2)
            expected[at : at + 2] = np.frombuffer(box[row, column].tobytes(), np.uint8)
    np.testing.assert_array_equal(out, expected)


def check_tma_type(runner: Any, dtype: DType) -> None:
    """Rows that end within 16 bytes, boxes that begin before them and behind them; at multiples of 16 bytes, for at others
    the machine answers with an illegal instruction."""
    size = dtype.storage_bytes
    unit, width, pitch = 16 // size, 64 // size, 160 // size
    array = (np.arange(16 * pitch) % 200 + 1).astype(f"u{size}").reshape(16, pitch)
    for extent in (width, width + 1, 2 * width - 1):
        for first in ((0, 0), (unit, 9), (-unit, -3), (0, 24), (2 * width, 0)):
            tensor_map = Map(array, dtype, (extent, 16), (pitch * size,), (width, 16))
            out = load_box(runner, tensor_map, first, 16 * 64)[: 16 * 64]
            expected = box_of(np.pad(array[:, :extent], ((0, 0), (0, 4 * width))), first, (width, 16))
            assert out.tobytes() == np.ascontiguousarray(expected).tobytes(), (extent, first)


def check_narrow_box(runner: Any) -> None:
    """A box of half the swizzle's span has rows of the whole span's pitch."""
    array = np.arange(64 * 16, dtype=np.int16).reshape(16, 64)
    tensor_map = Map(array, F16, (64, 16), (128,), (32, 16), Swizzle.B128)
    out = load_box(runner, tensor_map, (0, 0), 32 * 16 * 2)
    for row in range(16):
        for column in range(32):
            at = Swizzle.B128.apply(row * 128 + column * 2)
            assert out[at : at + 2].view(np.int16)[0] == array[row, column]


def check_nan_fill(runner: Any) -> None:
    array = np.ones((8, 16), np.float16)
    tensor_map = Map(array, F16, (16, 8), (32,), (16, 8), nan_fill=True)
    out = load_box(runner, tensor_map, (8, 4), 256)[:256].view(np.float16).reshape(8, 16)
    assert np.isnan(out[4:]).all() and np.isnan(out[:4, 8:]).all() and (out[:4, :8] == 1).all()


def check_store_overrun(runner: Any) -> None:
    """A row of 100 halves ends in the middle of a 16-byte piece: 104 are written, outer extents clip exactly."""
    array = np.zeros((16, 128), np.int16)
    tensor_map = Map(array, F16, (100, 12), (256,), (64, 16), Swizzle.NONE)
    box = np.arange(1, 64 * 16 + 1, dtype=np.int16).reshape(16, 64)
    arguments = [tensor_map, np.array([64, 0], np.int32), box.view(np.uint8), Scalar("i", box.nbytes)]
    runner.run(text("facts_copy"), "tma_store_2d", 1, 128, arguments, shared=box.nbytes)
    expected = np.zeros_like(array)
    expected[:12, 64:104] = box[:12, :40]
    np.testing.assert_array_equal(array, expected)


def check_tma_reduce(runner: Any) -> None:
    array = np.full((16, 64), 5, np.float32)
    tensor_map = Map(array, F32, (64, 16), (256,), (32, 16), Swizzle.NONE)
    box = np.arange(32 * 16, dtype=np.float32).reshape(16, 32)
    arguments = [tensor_map, np.array([32, 4], np.int32), box.view(np.uint8), Scalar("i", box.nbytes)]
    runner.run(text("facts_copy"), "tma_reduce_2d", 1, 128, arguments, shared=box.nbytes)
    expected = np.full((16, 64), 5, np.float32)
    expected[4:, 32:] += box[:12]
    np.testing.assert_array_equal(array, expected)


# Clusters, budgets, grids -------------------------------------------------------------------------


def check_multicast(runner: Any) -> None:
    rounds = 9
    array = np.arange(2 * rounds * 16 * 64, dtype=np.uint16).reshape(-1, 64)
    tensor_map = Map(array, F16, (64, array.shape[0]), (128,), (64, 16), Swizzle.B128)
    out, peers = np.zeros((rounds, 2, 4096), np.uint8), np.zeros((2, 3), np.float32)
    runner.run(
        text("facts_copy"),
        "multicast_ring",
        2,
        128,
        [tensor_map, Scalar("i", rounds), out, peers],
        shared=4096 + 128,
        cluster=2,
    )
    offsets = Swizzle.B128.apply(np.arange(2048))
    for turn in range(rounds):
        tiles = array.view(np.uint8).reshape(-1, 2048)[2 * turn : 2 * turn + 2]
        for rank in range(2):
            np.testing.assert_array_equal(out[turn, rank].reshape(2, 2048)[:, offsets], tiles)
    np.testing.assert_array_equal(peers, [[101, 201, 100], [100, 200, 101]])


def check_copy_to_peer(runner: Any) -> None:
    source, out = noise(2048), np.zeros(2048, np.uint8)
    runner.run(text("facts_copy"), "copy_to_peer", 2, 128, [source, out], shared=2056, cluster=2)
    np.testing.assert_array_equal(out, np.concatenate([source[1024:], source[:1024]]))


def check_budgets(runner: Any) -> None:
    steps = 11
    values = np.random.default_rng(6).integers(-8, 8, (steps, 192)).astype(np.float32)
    out, elected = np.zeros((256, 192), np.float32), np.full(128, 9, np.int32)
    arguments = [values, Scalar("i", steps), out, elected]
    runner.run(text("facts_copy"), "register_budgets", 1, 384, arguments, shared=2 * 192 * 4)
    expected = np.zeros((256, 192), np.float32)
    factor = ((np.arange(256) + 128) & 3).astype(np.float32)[:, None]
    for step in range(steps):
        expected = np.float32(0.5) * expected + values[step] * factor
    np.testing.assert_array_equal(out, expected)
    assert (elected.reshape(4, 32).sum(axis=1) == 1).all()


def check_grid_sync(runner: Any) -> None:
    blocks, rounds = 24, 5
    counter, cells, out = np.zeros(1, np.uint32), np.zeros(rounds + 1, np.int32), np.zeros((rounds, blocks), np.int32)
    arguments = [counter, cells, out, Scalar("i", rounds)]
    runner.run(text("facts_copy"), "grid_rounds", blocks, 64, arguments, cooperative=True)
    assert (out == blocks * (blocks + 1) // 2).all()
