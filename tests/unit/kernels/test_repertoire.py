"""A few kernels serve calls of any number of rows: how few, and how much slower than the best for each number by the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.dtypes import ALL
from tilewright.kernels import hopper_quant, hopper_speed
from tilewright.kernels.attention_tiles import Attention
from tilewright.kernels.hopper_quant_bytes_choice import byte_quant_candidates
from tilewright.kernels.repertoire import MOST, OWN, WORTH, Kernels, repertoire
from tilewright.kernels.tile_choice import DenseProduct, kernels_of, parts_for
from tilewright.kernels.tile_launches import cycles_of_parts
from tilewright.kernels.tiles import PROMOTED
from tilewright.machine.fragment_records import FragmentRecords

RNG = np.random.default_rng(17)
ROWS = sorted({*range(1, 40), *(int(2 ** RNG.uniform(5, 13.2)) for _ in range(160)), 9000, 20000})
WEIGHTS = [(4096, 4096), (2112, 7168), (28672, 8192), (3840, 2304)]
CORES = (142, 132, 128, 114, 108, 78)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_repertoire_is_no_worse_than_any_single_kernel(rows: int, kernels: int, most: int, chance: object) -> None:
    rng = np.random.default_rng(chance.randrange(1 << 30))  # type: ignore[attr-defined]
    times = rng.uniform(1, 9, (rows, kernels))
    times[rng.random(times.shape) < 0.3] = np.inf
    times[:, 0] = 5.0  # one that serves all
    chosen = repertoire(times, most)
    assert 1 <= len(chosen) == len(set(chosen)) <= min(most, kernels)
    mean = np.log(times[:, chosen].min(axis=1)).mean()
    assert all(mean <= np.log(np.minimum(column, 1e300)).mean() + 1e-9 for column in times.T)
    assert len(chosen) < most or most <= kernels


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize(("N", "K"), WEIGHTS)
def test_dense_kernels_of_a_weight_are_few_and_near_the_best(N: int, K: int, cores: int) -> None:
    """Calls of 200 numbers of rows: the first ones get the kernels that are best for them, all others good ones."""
    speed = hopper_speed(cores)
    parts_for.cache_clear()
    kernels_of.cache_clear()
    rows = [int(M) for M in np.random.default_rng(5).permutation(ROWS)]
    product = DenseProduct(N, K, "bfloat16", speed)
    chosen = {M: parts_for(product, M) for M in rows}
    assert len(set(chosen.values())) <= MOST
    taken = np.array([cycles_of_parts(parts, M, K, speed) for M, parts in chosen.items()])
    slower = taken / [cycles_of_parts(product.fastest_parts(M), M, K, speed) for M in rows]
    assert all(loss <= 1 / worth for loss, worth in zip(slower[:OWN], WORTH))
    # Beside the best of all tiles, those of every multiple of eight rows among them: no twelve kernels have them all.
    assert np.exp(np.log(slower).mean()) < 1.063 and slower.max() < 1.36
    assert [parts_for(product, M) for M in rows] == list(chosen.values())


def test_calls_get_kernels_of_their_own_while_there_are_few() -> None:
    times = {
        "all": {1: 10.0, 2: 10.0, 3: 10.0, 4: 10.0},
        "a": {1: 7.0, 2: 9.0, 3: 99.0, 4: 8.0},
        "b": {1: 99.0, 2: 99.0, 3: 9.97, 4: 99.0},
    }
    times["c"] = {1: 99.0, 2: 8.0, 3: 99.0, 4: 7.0}
    kernels = Kernels(["all"], most=2)

    def of(M: int) -> str:
        return kernels.of(M, lambda kind: times[kind][M], lambda: min(times, key=lambda kind: times[kind][M]))

    assert [of(3), of(1), of(2), of(4), of(3)] == ["all", "a", "a", "a", "all"]  # 9.97 was not worth a kernel


def test_the_last_kernels_are_kept_for_those_who_gain_more() -> None:
    """What a number of rows must gain grows with the kernels that are taken."""
    kernels = Kernels(["all"], most=1 + len(WORTH))

    def of(rows: int, own: str, share: float) -> str:
        return kernels.of(rows, lambda kind: 10.0 * share if kind == own else 10.0, lambda: own)

    for place, worth in enumerate(WORTH):
        assert of(2 * place, str(place), worth + 0.001) == "all"
        assert of(2 * place + 1, str(place), worth - 0.001) == str(place)


@pytest.mark.parametrize("turned", [None, True])
@pytest.mark.parametrize(("N", "K"), WEIGHTS)
def test_kernels_with_promoted_sums_are_few(N: int, K: int, turned: bool | None) -> None:
    product = DenseProduct(N, K, "float8_e4m3fn", swapped=turned, promoted=True)
    chosen = [parts_for(product, M) for M in ROWS]
    assert len(set(chosen)) <= MOST
    for parts in chosen:
        assert sum(columns for columns, _ in parts) == N
        for _, tiles in parts:
            assert tiles.block_M * tiles.block_N <= PROMOTED[tiles.threads] * tiles.threads
            assert tiles.swapped or turned is None


@pytest.mark.parametrize("cores", CORES)
def test_one_query_has_blocks_for_the_machine(cores: int) -> None:
    """Few heads that share keys divide these among as many blocks as there are steps for, or as a cluster holds."""
    for heads, keys in (((4, 28, 4), 777), ((1, 32, 8), 4000), ((8, 32, 32), 2048)):
        work = Attention(*heads, 1, keys, 128, False, hopper_speed(cores))
        best = min(work.candidates(), key=work.cycles)
        blocks = heads[0] * (heads[2] if best.together else heads[1]) * best.splits
        steps = -(-keys // best.block_N)
        assert best.splits <= steps and blocks >= min(cores // 2, heads[0] * heads[2] * min(steps // 2, 8))


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize(("N", "K"), WEIGHTS)
def test_low_bit_kernels_of_a_weight_are_few(N: int, K: int, cores: int) -> None:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    of_halves = [next(hopper_quant.candidates(N, K, M, form, speed=hopper_speed(cores))) for M in ROWS]
    assert len(set(map(repr, of_halves))) <= MOST
    assert max(sizes["blocks"] for sizes in of_halves) <= cores
    for operand, promoted in (("int8", False), ("float8_e4m3fn", True)):
        bytes_form = FragmentRecords(4, ALL[operand], ALL["float16"] if promoted else None)
        of_bytes = [
            byte_quant_candidates(N, K, bytes_form, promoted, speed=hopper_speed(cores)).choice(M) for M in ROWS
        ]
        assert len({repr(sizes) for sizes in of_bytes}) <= MOST
        assert max(sizes["blocks"] for sizes in of_bytes) <= cores
