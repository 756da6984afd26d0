"""GGUF's block formats against loops over the bytes of one block, as ggml's own reference decodes them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.errors import InvalidTensor
from tilewright.quant.importers import from_gguf
from tilewright.quant.importers.gguf import FORMATS

RNG = np.random.default_rng(0)


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def q5_0(b: bytes) -> list[float]:
    high = struct.unpack_from("<I", b, 2)[0]
    low = [b[6 + i % 16] >> 4 * (i // 16) & 15 for i in range(32)]
    return [half(b, 0) * ((low[i] | (high >> i & 1) << 4) - 16) for i in range(32)]


def q5_1(b: bytes) -> list[float]:
    high = struct.unpack_from("<I", b, 4)[0]
    low = [b[8 + i % 16] >> 4 * (i // 16) & 15 for i in range(32)]
    return [half(b, 0) * (low[i] | (high >> i & 1) << 4) + half(b, 2) for i in range(32)]


def q2_k(b: bytes) -> list[float]:
    scales, q, d, m, found, run = b[:16], b[16:80], half(b, 80), half(b, 82), [], 0
    for first in (0, 32):
        for shift in (0, 2, 4, 6):
            for part in (0, 16):
                s = scales[run]
                run += 1
                found += [d * (s & 15) * (q[first + part + i] >> shift & 3) - m * (s >> 4) for i in range(16)]
    return found


def q3_k(b: bytes) -> list[float]:
    high, q, packed, d, found, run, bit = b[:32], b[32:96], b[96:108], half(b, 108), [], 0, 1
    one, two, three = struct.unpack("<3I", packed)
    words = [
        one & 0x0F0F0F0F | (three & 0x03030303) << 4, two & 0x0F0F0F0F | (three >> 2 & 0x03030303) << 4,
        one >> 4 & 0x0F0F0F0F | (three >> 4 & 0x03030303) << 4, two >> 4 & 0x0F0F0F0F | (three >> 6 & 0x03030303) << 4,
    ]  # fmt: skip
    scales = struct.pack("<4I", *words)
    for first in (0, 32):
        for shift in (0, 2, 4, 6):
            for part in (0, 16):
                s = d * (scales[run] - 32)
                run += 1
                for i in range(part, part + 16):
                    found.append(s * ((q[first + i] >> shift & 3) - (0 if high[i] & bit else 4)))
            bit <<= 1
    return found


def scale_and_minimum(j: int, q: bytes) -> tuple[int, int]:
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4


def q4_k(b: bytes) -> list[float]:
    d, m, found = half(b, 0), half(b, 2), []
    for j in range(8):
        s, z = scale_and_minimum(j, b[4:16])
        found += [d * s * (b[16 + 32 * (j // 2) + i] >> 4 * (j % 2) & 15) - m * z for i in range(32)]
    return found


def q5_k(b: bytes) -> list[float]:
    d, m, found = half(b, 0), half(b, 2), []
    for j in range(8):
        s, z = scale_and_minimum(j, b[4:16])
        for i in range(32):
            code = (b[48 + 32 * (j // 2) + i] >> 4 * (j % 2) & 15) + (16 if b[16 + i] & 1 << j else 0)
            found.append(d * s * code - m * z)
    return found


def q6_k(b: bytes) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b, 208)
    found = [0.0] * 256
    for h in (0, 1):
        for i in range(32):
            for run in range(4):
                code = low[64 * h + i + 32 * (run % 2)] >> 4 * (run // 2) & 15 | (high[32 * h + i] >> 2 * run & 3) << 4
                at = 128 * h + 32 * run + i
                found[at] = d * scales[at // 16] * (code - 32)
    return found


REFERENCES: dict[str, Callable[[bytes], list[float]]] = {
    "Q5_0": q5_0, "Q5_1": q5_1, "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
}  # fmt: skip
HALVES = {
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_every_byte_is_read_as_by_its_makers(name: str) -> None:
    of, N, across = FORMATS[name], 3, 2
    data = RNG.integers(0, 256, (N * across, of.bytes), dtype=np.uint8)
    for at in HALVES[name]:
        data[:, at : at + 2] = RNG.uniform(0.001, 0.1, N * across).astype("<f2").view(np.uint8).reshape(-1, 2)
    exact = np.array([REFERENCES[name](bytes(block)) for block in data]).reshape(N, -1)
    weight = from_gguf(data.reshape(-1), name, (N, of.elements * across))
    assert weight.shape == exact.shape
    np.testing.assert_allclose(weight.to_dense(), exact, rtol=1e-15, atol=1e-15)


def test_rows_that_blocks_do_not_divide() -> None:
    with pytest.raises(InvalidTensor, match="has rows of 32 elements, which blocks of 256 do not divide"):
        from_gguf(np.zeros(144, np.uint8), "Q4_K", (1, 32), name="w")
    with pytest.raises(
        InvalidTensor, match=r"w is of the GGUF type Q1_0\n  help: Q4_0, .*Q6_K, MXFP4, .*IQ1_M and unquantised"
    ):
        from_gguf(np.zeros(144, np.uint8), "Q1_0", (1, 32), name="w")
