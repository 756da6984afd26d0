"""Stream-K: every step of every tile belongs to one block, and partial sums reach the block that stores the tile."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.kernels.roofline import least_steps, stream_k_cost
from tilewright.kernels.stream_k import StreamK, range_of, tiles_to_share


def work_of(tiles: int, chunks: int, groups: int, group: int) -> StreamK:
    return StreamK(tiles, chunks, groups, group, *range_of(tiles, chunks, groups, group))


def segments_of(tiles: int, chunks: int, groups: int) -> dict[int, list[tuple[int, int, int]]]:
    """By a group's own place: tile, first step and number of steps of each segment that is not empty."""
    found = {}
    for group in range(groups):
        work = work_of(tiles, chunks, groups, group)
        done, own = 0, []
        for number in range(int(work.segments)):
            tile, begin, count, before = (int(value) for value in work.segment(number))
            if count > 0:
                assert before == done
                done += count
                own.append((tile, begin, count))
        found[int(work.own)] = own
    return found


CASES = [
    (112, 32, 132),
    (224, 32, 132),
    (1, 5, 7),
    (3, 4, 12),
    (66, 8, 66),
    (70, 3, 66),
    (67, 26, 66),
    (134, 26, 132),
    (5, 1, 4),
    (1, 1, 132),
    (16, 16, 132),
    (265, 26, 132),
    (163, 11, 132),
]


@pytest.mark.parametrize(("tiles", "chunks", "groups"), CASES)
def test_every_step_is_done_once_and_the_longest_work_is_even(tiles: int, chunks: int, groups: int) -> None:
    dealt = segments_of(tiles, chunks, groups)
    steps = [(tile, begin + step) for own in dealt.values() for tile, begin, count in own for step in range(count)]
    assert sorted(steps) == [(tile, step) for tile in range(tiles) for step in range(chunks)]
    shared = int(tiles_to_share(tiles, groups))
    alone = (tiles - shared) // groups
    share = max(-(-shared * chunks // groups), least_steps(chunks)) if shared else 0
    assert max(sum(count for _, _, count in own) for own in dealt.values()) == alone * chunks + share
    assert (alone, share) == stream_k_cost(tiles, chunks, groups, 1)[:2], "the model of speed has other shares"


def test_no_tile_is_shared_by_so_many_that_adding_their_sums_takes_longer_than_its_products() -> None:
    dealt = segments_of(1, 26, 66)
    assert sorted(count for own in dealt.values() for tile, _, count in own if tile == 0) == [2, *[3] * 8]


@pytest.mark.parametrize(("tiles", "chunks", "groups"), CASES)
def test_who_has_the_first_steps_finds_the_others_behind(tiles: int, chunks: int, groups: int) -> None:
    dealt = segments_of(tiles, chunks, groups)
    for place, own in dealt.items():
        for number, (tile, begin, count) in enumerate(own):
            assert begin == 0 or number == 0, "a stretch within a tile comes first: there is memory for one"
            if begin == 0 and count < chunks:
                work = work_of(tiles, chunks, groups, groups - 1 - place)
                first, behind = (int(value) for value in work.peers(tile))
                others = [dealt[peer][0] for peer in range(first, behind)]
                assert all(other[0] == tile and other[1] > 0 for other in others)
                assert count + sum(other[2] for other in others) == chunks
                assert all(groups - 1 - peer < groups - 1 - place for peer in range(first, behind)), (
                    "waits for smaller numbers"
                )


def test_a_threads_part_of_an_address_is_worked_out_once() -> None:
    """Quotients of what moves with a register would be worked out for each, and addresses that are kept fill registers."""

    @T.prim_func
    def leave(
        A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((4, 8, 16, 8), "float32")
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, total)
            for i, j in T.Parallel(64, 64):
                C[i // 16, j // 8, i % 16, j % 8] = total[i, j]

    kernel = tilewright.compile(leave, target="cuda -arch=sm_90a")
    text = kernel.get_kernel_source()
    stored = text[text.index("C[i // 16") :]
    assert "store_fragment<2>" in stored
    assert not re.search(r"\b[ij] [/%] ", re.sub(r"//.*", "", stored))
    A, B = (np.random.default_rng(5).standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    C = np.full((4, 8, 16, 8), np.nan, np.float32)
    kernel.emulate(A, B, C)
    expected = (A.astype(float) @ B.astype(float)).reshape(4, 16, 8, 8).swapaxes(1, 2)
    assert np.allclose(C, expected, atol=1e-3)
