"""How tiles are dealt to blocks: every step of every tile to one of them, and sums to who stores the tile."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.even_shares import EvenShares, own_stretch
from tilewright.kernels.tiles import Tiles
from tilewright.targets.registry import resolve


def shares_of(tiles: int, chunks: int, groups: int, group: int) -> EvenShares:
    return EvenShares(tiles, chunks, groups, group, *own_stretch(tiles, chunks, groups, group))


def stretches(tiles: int, chunks: int, groups: int) -> dict[int, list[tuple[int, int, int]]]:
    """By a group's own place: tile, first step and number of steps of each stretch that is not empty."""
    found = {}
    for group in range(groups):
        shares = shares_of(tiles, chunks, groups, group)
        done, own = 0, []
        for turn in range(int(shares.turns)):
            tile, begin, count, before = (int(value) for value in shares.stretch(turn))
            if count > 0:
                assert before == done
                done += count
                own.append((tile, begin, count))
        found[int(shares.own)] = own
    return found


CASES = [
    (112, 32, 132),
    (224, 32, 132),
    (1, 5, 7),
    (3, 4, 12),
    (66, 8, 66),
    (70, 3, 66),
    (5, 1, 4),
    (1, 1, 132),
    (16, 16, 132),
]


@pytest.mark.parametrize(("tiles", "chunks", "groups"), CASES)
def test_every_step_is_done_once_and_the_longest_work_is_even(tiles: int, chunks: int, groups: int) -> None:
    dealt = stretches(tiles, chunks, groups)
    steps = [(tile, begin + step) for own in dealt.values() for tile, begin, count in own for step in range(count)]
    assert sorted(steps) == [(tile, step) for tile in range(tiles) for step in range(chunks)]
    assert max(sum(count for _, _, count in own) for own in dealt.values()) == -(-tiles * chunks // groups)


@pytest.mark.parametrize(("tiles", "chunks", "groups"), CASES)
def test_who_has_the_first_steps_finds_the_others_behind(tiles: int, chunks: int, groups: int) -> None:
    dealt = stretches(tiles, chunks, groups)
    for place, own in dealt.items():
        for number, (tile, begin, count) in enumerate(own):
            assert begin == 0 or number == 0, "a stretch within a tile comes first: there is memory for one"
            if begin == 0 and count < chunks:
                shares = shares_of(tiles, chunks, groups, groups - 1 - place)
                first, behind = (int(value) for value in shares.peers(tile))
                others = [dealt[peer][0] for peer in range(first, behind)]
                assert all(other[0] == tile and other[1] > 0 for other in others)
                assert count + sum(other[2] for other in others) == chunks
                assert all(groups - 1 - peer < groups - 1 - place for peer in range(first, behind)), (
                    "waits for smaller numbers"
                )


DENSE = [
    (4, 300, 520, 400, Tiles(128, 128, 64, 3, 256, even=True)),
    (3, 130, 264, 320, Tiles(48, 128, 64, 4, 256, turned=True, even=True)),
    (6, 1, 128, 640, Tiles(64, 64, 64, 3, 128, even=True)),
    (5, 70, 600, 192, Tiles(192, 96, 64, 3, 384, even=True)),
    (2, 0, 128, 128, Tiles(64, 64, 64, 3, 128, even=True)),
]


@pytest.mark.parametrize(("cores", "M", "N", "K", "tiles"), DENSE)
def test_dense_products_are_shared_evenly(cores: int, M: int, N: int, K: int, tiles: Tiles) -> None:
    target = resolve(f"cuda -arch=sm_90a -cores={cores}")[1]
    kernel = dense_matmul.for_target(target, N, K, "bfloat16", out="bfloat16", tiles=tiles)
    generator = np.random.default_rng(M + N)
    A, B = (generator.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((M, K), (N, K)))
    expected = A.astype(float) @ B.astype(float).T
    for _ in range(2):  # flags are left as they were found
        C = np.full((M, N), np.nan, ml_dtypes.bfloat16)
        kernel.emulate(A, B, C)
        assert np.allclose(C.astype(float), expected, rtol=1 / 128, atol=1e-5)


@pytest.mark.parametrize("promote", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_scaled_products_are_shared_evenly(turned: bool, promote: bool) -> None:
    tiles = Tiles(64, 64, 128, 3, 128, turned=turned, even=True)
    target = resolve("cuda -arch=sm_90a -cores=5")[1]
    kernel = scaled_matmul.for_target(
        target, 200, 640, "float8_e4m3fn", out="bfloat16", bias=True, tiles=tiles, promote=promote
    )
    generator = np.random.default_rng(3)
    A, B = (generator.standard_normal((rows, 640)).astype(ml_dtypes.float8_e4m3fn) for rows in (77, 200))
    by_row, by_column, bias = (generator.uniform(0.5, 2, size).astype(np.float32) for size in (77, 200, 200))
    C = np.full((77, 200), np.nan, ml_dtypes.bfloat16)
    kernel.emulate(A, B, by_row, by_column, bias, C)
    expected = A.astype(float) @ B.astype(float).T * by_row[:, None] * by_column + bias
    assert np.allclose(C.astype(float), expected, rtol=1 / 128, atol=1e-3 * np.abs(expected).max())


def test_addresses_of_sums_are_a_threads_and_constants() -> None:
    """A thread's part of an address is worked out once: quotients of what moves with a register would be for each, and
    addresses that are kept fill the registers."""
    tiles = Tiles(192, 144, 64, 3, 384, even=True)
    kernel = dense_matmul.for_target(
        resolve("cuda -arch=sm_90a")[1], 2112, 7168, "bfloat16", out="bfloat16", tiles=tiles
    )
    assert "const int32_t place = thread / 32;" in kernel.get_kernel_source()
    assert all(found["spill_store_bytes"] == 0 for found in kernel.resources().values())
