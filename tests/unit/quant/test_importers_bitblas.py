"""BitBLAS's orders: the one formula against its three steps (tiles, compression, interleaving) simulated one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import InvalidTensor
from tilewright.formats import WORD_ORDERS
from tilewright.quant.importers import from_bitblas
from tilewright.quant.importers.bitblas import BitblasOrder, bitblas_order


def permuted(weight: np.ndarray, stage: int, columns: int) -> np.ndarray:
    """The tiles of a weight after each stage of the permutation: what threads of a warp would read, moved to their place."""
    N, K = weight.shape
    share = columns // 2
    out = np.zeros((N // 16, K // columns, 16, columns), weight.dtype)
    for bi in range(N // 16):
        for bk in range(K // columns):
            tile = weight[16 * bi : 16 * bi + 16, columns * bk : columns * bk + columns]
            moved = tile.copy()
            if stage >= 2:
                for p in range(16 * columns):
                    thread, local = divmod(p, share)
                    # The row and the column that ldmatrix has thread `thread` point at.
                    row, col = 8 * (thread // 16) + thread % 8, share * (thread % 16 // 8) + local
                    moved[p // columns, p % columns] = tile[row, col]
            if stage == 3:
                before, each = moved.reshape(-1).copy(), share // 4
                for p in range(16 * columns):
                    thread, local = divmod(p, share)
                    # Row `thread % 8` of matrix `thread // 8` goes to four lanes, `each` elements to every one.
                    lane, register = thread % 8 * 4 + local // each, thread // 8 * each + local % each
                    moved.reshape(-1)[lane * share + register] = before[p]
            out[bi, bk] = moved
    return out.reshape(N, K)


def compressed(codes: np.ndarray, bits: int) -> np.ndarray:
    share = 8 // bits
    packed = np.zeros((codes.shape[0], codes.shape[1] // share), np.uint8)
    for k in range(codes.shape[1]):
        packed[:, k // share] |= (codes[:, k] << (bits * (k % share))).astype(np.uint8)
    return packed


def interleaved(packed: np.ndarray, bits: int, target: str) -> np.ndarray:
    """Words rearranged so that one mask finds a code for every lane of the target's type (and its swaps of bytes, nibbles)."""
    stride = {"int8": 8, "float16": 16, "int4": 4}[target]
    lanes = 32 // stride
    out = []
    for word in packed.reshape(-1).view(np.uint32):
        new = 0
        for offset in range(32 // bits):
            shift = offset % lanes * stride + offset // lanes * bits
            new |= (int(word) >> (bits * offset) & ((1 << bits) - 1)) << shift
        parts = [new >> (4 * i) & 15 for i in range(8)]
        if (target, bits) == ("int8", 1):
            parts = [parts[i] for i in (0, 4, 2, 6, 1, 5, 3, 7)]
        elif (target, bits) == ("float16", 2):
            parts = [parts[i] for i in (0, 1, 4, 5, 2, 3, 6, 7)]
        elif (target, bits) == ("float16", 1):
            parts = [parts[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)]
        out.append(sum(part << (4 * i) for i, part in enumerate(parts)))
    return np.array(out, np.uint32).view(np.uint8).reshape(packed.shape)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from(sorted(WORD_ORDERS)), st.integers(0, 3), st.booleans(), st.integers(1, 2)
)
def test_the_formula_is_the_three_steps(seed: int, pair: tuple[str, int], stage: int, fast: bool, tiles: int) -> None:
    target, bits = pair
    order = bitblas_order(bits, target, stage, fast)
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (16 * tiles, 64)).astype(np.uint8)
    expected = compressed(permuted(codes, stage, order.columns) if stage else codes, bits)
    expected = interleaved(expected, bits, target) if fast else expected
    packed = order.pack(codes)
    assert (packed == expected).all()
    assert (order.unpack(packed, *codes.shape) == codes).all()
    assert np.prod(order.shape(*codes.shape)) == packed.size


@pytest.mark.parametrize("columns", [16, 32])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_place_says_where_an_element_goes(stage: int, columns: int) -> None:
    order = BitblasOrder(8, stage, columns)
    codes = np.arange(32 * 64).reshape(32, 64).astype(np.uint16)
    packed = BitblasOrder(16, stage, columns).pack(codes).reshape(-1)
    for n in range(32):
        for k in range(64):
            assert packed[order.place(n, k, 64)] == codes[n, k]


def test_stage_three_is_what_mma_m16n8k16_holds() -> None:
    """The B operand in the PTX manual: lane l holds column l / 4 and rows 2 (l % 4) + {0, 1} and + {8, 9}."""
    weight = np.arange(256, dtype=np.int16).reshape(16, 16)
    lanes = BitblasOrder(16, 3, 16).pack(weight).reshape(32, 8)
    for lane in range(32):
        k = 2 * (lane % 4)
        first = [weight[lane // 4, k + i] for i in (0, 1, 8, 9)]
        second = [weight[8 + lane // 4, k + i] for i in (0, 1, 8, 9)]
        assert lanes[lane].tolist() == [*first, *second]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from(["int2", "int4", "uint1", "uint2", "uint4", "int8", "nf4", "int1"]),
    st.sampled_from(["none", "original", "rescale", "quantized"]),
)
def test_from_bitblas(seed: int, kind: str, mode: str) -> None:
    rng, (N, K, group) = np.random.default_rng(seed), (16, 64, 32)
    bits = int(kind[-1]) if kind != "nf4" else 4
    signed = kind.startswith("int")
    mode = mode if kind.startswith("uint") else "none"
    codes = rng.integers(0, 1 << bits, (N, K)).astype(np.uint8)
    values = codes.astype(np.float64)
    if signed:  # offset binary below 8 bits; of one bit, -1 and 1
        values = codes.view(np.int8) * 1.0 if bits == 8 else 2.0 * codes - 1 if bits == 1 else codes - 2.0 ** (bits - 1)
    if kind == "nf4":
        from checkpoint_writers import NF4

        values = np.array(NF4)[codes]
    fast = kind in ("int2", "int4", "uint1", "uint2", "uint4")
    packed = bitblas_order(bits, "float16", 0, fast).pack(codes)
    scales = rng.uniform(0.5, 1.5, (N, K // group)).astype(np.float16)
    spread = np.repeat(scales, group, 1).astype(np.float64)
    zeros, expected = None, values * spread
    if mode == "quantized":
        points = rng.integers(0, 1 << bits, (K // group, N)).astype(np.uint8)
        zeros = compressed(points, bits).view(np.int8)
        expected = (values - np.repeat(points.T, group, 1)) * spread
    elif mode != "none":
        zeros = rng.uniform(-2, 2, (N, K // group)).astype(np.float16)
        wide = np.repeat(zeros, group, 1).astype(np.float64)
        expected = (values - wide) * spread if mode == "original" else values * spread - wide
    made = from_bitblas(
        packed.view(np.int8), scales, zeros, W_dtype=kind, N=N, K=K, group_size=group, fast_decoding=fast,
        zeros_mode="original" if mode == "none" else mode,
    )  # fmt: skip
    np.testing.assert_allclose(made.dequantize(), expected, rtol=1e-15, atol=1e-15)


def test_what_tiles_do_not_fill_is_told() -> None:
    with pytest.raises(InvalidTensor) as raised:
        bitblas_order(4, "float16", 3, False).shape(24, 40)
    assert str(raised.value) == (
        "the weight: propagate_b=3 cuts a weight into tiles of 16 x 16, which N = 24, K = 40 does not fill\n"
        "  help: use propagate_b=0"
    )
    with pytest.raises(InvalidTensor, match="BitBLAS does not interleave codes of 8 bits beside float16"):
        bitblas_order(8, "float16", 0, True)
