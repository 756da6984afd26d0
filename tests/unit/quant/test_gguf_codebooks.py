"""GGUF's blocks whose codes stand for the numbers of a list or of a table, against loops over their bytes and against gguf's own reader."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable

import numpy as np
import pytest
from more_writers import IQ4

from tilewright.errors import InvalidTensor
from tilewright.quant.importers import from_gguf
from tilewright.quant.importers.gguf import FORMATS

RNG = np.random.default_rng(0)
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def iq4_nl(b: bytes) -> list[float]:
    return [half(b, 0) * IQ4[b[2 + i % 16] >> 4 * (i // 16) & 15] for i in range(32)]


def iq4_xs(b: bytes) -> list[float]:
    upper, found = struct.unpack_from("<H", b, 2)[0], []
    for g in range(8):
        scale = (b[4 + g // 2] >> 4 * (g % 2) & 15) | (upper >> 2 * g & 3) << 4
        codes = [b[8 + 16 * g + i % 16] >> 4 * (i // 16) & 15 for i in range(32)]
        found += [half(b, 0) * (scale - 32) * IQ4[code] for code in codes]
    return found


def tq2_0(b: bytes) -> list[float]:
    return [half(b, 64) * ((b[32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3) - 1) for i in range(256)]


def tq1_0(b: bytes) -> list[float]:
    """Each digit is the whole part of three times the fraction that the digits before it left."""
    digits: list[int] = []
    for start, count, each in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        rows = []
        for byte in b[start : start + count]:
            fraction, row = byte, []
            for _ in range(each):
                row.append(fraction * 3 // 256)
                fraction = fraction * 3 % 256
            rows.append(row)
        digits += [row[place] for place in range(each) for row in rows]
    return [half(b, 52) * (digit - 1) for digit in digits]


def nvfp4(b: bytes) -> list[float]:
    found = []
    for g in range(4):
        exponent, mantissa = b[g] >> 3, b[g] & 7
        scale = mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        found += [scale * E2M1[b[4 + 8 * g + i % 8] >> 4 * (i // 8) & 15] for i in range(16)]
    return found


REFERENCES: dict[str, tuple[Callable[[bytes], list[float]], int | None]] = {
    "IQ4_NL": (iq4_nl, 0), "IQ4_XS": (iq4_xs, 0), "TQ1_0": (tq1_0, 52), "TQ2_0": (tq2_0, 64), "NVFP4": (nvfp4, None),
}  # fmt: skip


def blocks_of(name: str, count: int, half_at: int | None) -> np.ndarray:
    data = RNG.integers(0, 256, (count, FORMATS[name].bytes), dtype=np.uint8)
    if half_at is not None:
        data[:, half_at : half_at + 2] = RNG.uniform(0.001, 0.1, count).astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "TQ2_0":
        data[:, :64] = (RNG.integers(0, 3, (count, 64, 4)) * [1, 4, 16, 64]).sum(2)
    if name == "NVFP4":
        data[:, :4] = RNG.integers(0, 0x7F, (count, 4))
    if name == "IQ1_M":
        data[:, 55] &= 0x2F  # a half below 0.1
    return data


@pytest.mark.parametrize("name", REFERENCES)
def test_every_byte_is_read_as_by_its_makers(name: str) -> None:
    reference, half_at = REFERENCES[name]
    data = blocks_of(name, 6, half_at)
    exact = np.array([reference(bytes(block)) for block in data]).reshape(3, -1)
    weight = from_gguf(data.reshape(-1), name, exact.shape)
    np.testing.assert_allclose(weight.to_dense(), exact, rtol=1e-15, atol=1e-15)


BY_TABLES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]


@pytest.mark.parametrize("name", BY_TABLES)
def test_numbers_of_tables_become_codes_of_three_or_four_bits(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    data = blocks_of(name, 6, None if name == "IQ1_M" else 0)
    exact = gguf.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(3, -1)
    weight = from_gguf(data.reshape(-1), name, exact.shape)
    assert weight.format.bits == (4 if name.startswith("IQ3") else 3)
    np.testing.assert_allclose(weight.to_dense(), exact, rtol=1e-6, atol=0)


def test_without_the_tables_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        InvalidTensor, match=r"w is of the GGUF type IQ2_XS, .* package gguf, .*\n  help: pip install gguf"
    ):
        from_gguf(np.zeros(74, np.uint8), "IQ2_XS", (1, 256), name="w")


def test_a_fourth_digit_of_a_ternary_weight_is_told() -> None:
    with pytest.raises(InvalidTensor, match="w holds the code 3"):
        from_gguf(np.full(66, 255, np.uint8), "TQ2_0", (1, 256), name="w")
