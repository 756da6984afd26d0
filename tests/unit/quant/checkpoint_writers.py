"""Weights of a known value written in other libraries' forms, element by element, as the formats' descriptions say.

Each writer makes random codes, scales and zero points, packs them with loops over single elements (never through the
package under test), and says in float64 which weight ``[N, K]`` they stand for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import ml_dtypes
import numpy as np

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@dataclass
class Written:
    """Tensors by the endings of their names, and the weight that they stand for."""

    tensors: dict[str, np.ndarray]
    weight: np.ndarray


def words_of(numbers: list[int], bits: int, count: int) -> list[int]:
    """`numbers` as one long number, the first in its lowest bits, cut into `count` signed words of 32 bits."""
    long = 0
    for place, number in enumerate(numbers):
        assert 0 <= number < 1 << bits
        long |= number << (place * bits)
    cut = [long >> (32 * i) & 0xFFFFFFFF for i in range(count)]
    return [word - (1 << 32) if word >= 1 << 31 else word for word in cut]


def float16_scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.uniform(0.5, 1.5, shape) / 16).astype(np.float16)


def write_gptq(
    rng: np.random.Generator,
    N: int,
    K: int,
    bits: int,
    group: int,
    version: int,
    act_order: bool,
    symmetric: bool = False,
    borrowed: bool = False,
) -> Written:
    """AutoGPTQ: qweight packed down the rows (K), qzeros along N; version 1 stores zero points less one, GPTQModel (`borrowed`) by a
    difference of whole words."""
    groups = -(-K // group)
    codes = rng.integers(0, 1 << bits, (K, N))
    zeros = rng.integers(0, 1 << bits, (groups, N))
    if symmetric:
        zeros[:] = 1 << (bits - 1)
    scales = float16_scales(rng, groups, N)
    g_idx = np.array([k // group for k in range(K)], np.int32)
    if act_order:
        rng.shuffle(g_idx)
    qweight = np.zeros((-(-K * bits // 32), N), np.int32)
    for n in range(N):
        qweight[:, n] = words_of([int(c) for c in codes[:, n]], bits, qweight.shape[0])
    qzeros = np.zeros((groups, -(-N * bits // 32)), np.int32)
    for g in range(groups):
        fields = version == 1 and not borrowed
        stored = [(int(z) - 1) % (1 << bits) if fields else int(z) for z in zeros[g]]
        qzeros[g] = words_of(stored, bits, qzeros.shape[1])
        if borrowed:
            less = sum(1 << at for at in range(0, 32, bits))
            qzeros[g] = [(int(word) - less + 2**31) % 2**32 - 2**31 for word in qzeros[g]]
    weight = np.zeros((N, K))
    for k in range(K):
        weight[:, k] = (codes[k] - zeros[g_idx[k]]) * scales[g_idx[k]].astype(np.float64)
    return Written({"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": g_idx}, weight)


def write_awq_gemm(
    rng: np.random.Generator, N: int, K: int, group: int, order: tuple[int, ...] = (0, 2, 4, 6, 1, 3, 5, 7)
) -> Written:
    """AutoAWQ's GEMM: eight columns a word, in the nibbles 0 to 7 the columns 0, 2, 4, 6, 1, 3, 5, 7."""
    groups = -(-K // group)
    codes, zeros = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (groups, N))
    scales = float16_scales(rng, groups, N)

    def rows(values: np.ndarray) -> np.ndarray:
        packed = np.zeros((values.shape[0], N // 8), np.int32)
        for r in range(values.shape[0]):
            for c in range(N // 8):
                eight = [int(values[r, 8 * c + column]) for column in order]
                packed[r, c] = words_of(eight, 4, 1)[0]
        return packed

    spread = np.arange(K) // group
    weight = ((codes - zeros[spread]) * scales[spread].astype(np.float64)).T
    return Written({"qweight": rows(codes), "qzeros": rows(zeros), "scales": scales}, weight)


def write_awq_gemv(rng: np.random.Generator, N: int, K: int, group: int) -> Written:
    """AutoAWQ's GEMV: rows of the weight, eight elements of K a word in their order; zeros and scales filled up."""
    groups = K // group
    codes, zeros = rng.integers(0, 16, (N, K)), rng.integers(0, 16, (N, groups))
    multiplier = {128: 1, 64: 2, 32: 4}.get(group, 1)
    width = -(-groups // 8)
    width = -(-width // multiplier) * multiplier
    scales = np.zeros((N, width * 8), np.float16)
    scales[:, :groups] = float16_scales(rng, N, groups)
    qweight, qzeros = np.zeros((N, K // 8), np.int32), np.zeros((N, width), np.int32)
    weight = np.zeros((N, K))
    for n in range(N):
        qweight[n] = words_of([int(c) for c in codes[n]], 4, K // 8)
        qzeros[n] = words_of([int(z) for z in zeros[n]], 4, width)
        for k in range(K):
            weight[n, k] = (codes[n, k] - zeros[n, k // group]) * float(scales[n, k // group])
    return Written({"qweight": qweight, "qzeros": qzeros, "scales": scales}, weight)


def write_bitsandbytes(rng: np.random.Generator, N: int, K: int, block: int, nested: bool) -> Written:
    """bitsandbytes' nf4: the flattened weight two codes a byte, the first in the high nibble; absmax by block."""
    codes = [int(c) for c in rng.integers(0, 16, N * K)]
    blocks = -(-N * K // block)
    packed = [codes[i] << 4 | (codes[i + 1] if i + 1 < N * K else 0) for i in range(0, N * K, 2)]
    tensors = {"": np.array(packed, np.uint8)[:, None], ".quant_map": np.array(NF4, np.float32)}
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "float16", "shape": [N, K]}
    if nested:
        quantised = rng.integers(0, 256, blocks).astype(np.uint8)
        table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        outer = rng.uniform(0.01, 0.1, -(-blocks // 256)).astype(np.float32)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
        absmax = [
            np.float32(np.float32(table[q] * outer[i // 256]) + np.float32(0.25)) for i, q in enumerate(quantised)
        ]
        tensors |= {".absmax": quantised, ".nested_absmax": outer, ".nested_quant_map": table}
    else:
        absmax = [np.float32(a) for a in rng.uniform(0.01, 0.1, blocks)]
        tensors[".absmax"] = np.array(absmax, np.float32)
    text = json.dumps(state).encode()
    tensors[".quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
    weight = np.array([np.float32(NF4[c]).astype(float) * float(absmax[e // block]) for e, c in enumerate(codes)])
    return Written(tensors, weight.reshape(N, K))


def write_pack_quantized(
    rng: np.random.Generator,
    N: int,
    K: int,
    bits: int,
    group: int,
    asymmetric: bool,
    act_order: bool,
    whole: bool = False,
) -> Written:
    """compressed-tensors: signed numbers plus half their range, packed along K; zero points packed along N.

    Earlier versions, `whole`, had no code in two words.
    """

    def words(numbers: list[int]) -> list[int]:
        if not whole:
            return words_of(numbers, bits, -(-len(numbers) * bits // 32))
        each = 32 // bits
        return [words_of(numbers[i : i + each], bits, 1)[0] for i in range(0, len(numbers), each)]

    half, groups = 1 << (bits - 1), -(-K // group)
    values = rng.integers(-half, half, (N, K))
    zeros = rng.integers(-half, half, (N, groups)) if asymmetric else np.zeros((N, groups), int)
    scales = rng.uniform(0.01, 0.1, (N, groups)).astype(ml_dtypes.bfloat16)
    g_idx = np.array([k // group for k in range(K)], np.int32)
    if act_order:
        rng.shuffle(g_idx)
    packed = np.array([words([int(v) + half for v in row]) for row in values], np.int32)
    tensors = {"weight_packed": packed, "weight_scale": scales, "weight_shape": np.array([N, K], np.int64)}
    if asymmetric:
        columns = [words([int(z) + half for z in zeros[:, g]]) for g in range(groups)]
        tensors["weight_zero_point"] = np.array(columns, np.int32).T.copy()
    if act_order:
        tensors["weight_g_idx"] = g_idx
    weight = np.zeros((N, K))
    for k in range(K):
        weight[:, k] = (values[:, k] - zeros[:, g_idx[k]]) * scales[:, g_idx[k]].astype(np.float64)
    return Written(tensors, weight)


def write_int8(rng: np.random.Generator, N: int, K: int, groups: int) -> Written:
    """compressed-tensors' int8, with a scale a tensor (0), a row (1) or a group."""
    values = rng.integers(-128, 128, (N, K)).astype(np.int8)
    scales = rng.uniform(0.001, 0.01, (N, groups) if groups else (1,)).astype(np.float32)
    spread = np.repeat(scales, K // groups, axis=1) if groups else scales
    return Written({"weight": values, "weight_scale": scales}, values * spread.astype(np.float64))


def write_float8(rng: np.random.Generator, N: int, K: int, block: tuple[int, int]) -> Written:
    """compressed-tensors' fp8 (and DeepSeek's), with a scale for each block of rows and columns."""
    values = rng.standard_normal((N, K)).astype(ml_dtypes.float8_e4m3fn)
    rows, columns = block
    scales = rng.uniform(0.001, 0.01, (-(-N // rows), -(-K // columns))).astype(np.float32)
    weight = np.zeros((N, K))
    for n in range(N):
        for k in range(K):
            weight[n, k] = float(values[n, k]) * float(scales[n // rows, k // columns])
    return Written({"weight": values, "weight_scale": scales}, weight)


def write_bitnet(rng: np.random.Generator, N: int, K: int, divides: bool) -> Written:
    """transformers' BitNet: byte r of a column holds the rows r, r + R, r + 2 R, r + 3 R, two bits each, plus one."""
    ternary = rng.integers(-1, 2, (N, K))
    R = -(-N // 4)
    packed = np.zeros((R, K), np.uint8)
    for n in range(N):
        for k in range(K):
            packed[n % R, k] |= (int(ternary[n, k]) + 1) << (2 * (n // R))
    scale = np.array([rng.uniform(1, 8)], np.float32).astype(ml_dtypes.bfloat16)
    weight = ternary / float(scale[0]) if divides else ternary * float(scale[0])
    return Written({"weight": packed, "weight_scale": scale}, weight)


def e2m1(code: int) -> float:
    return -E2M1[code - 8] if code >= 8 else E2M1[code]


def write_mxfp4(rng: np.random.Generator, N: int, K: int) -> Written:
    """gpt-oss: 16 bytes for 32 elements, the even one in the low nibble; a power of two for each 32."""
    codes, powers = rng.integers(0, 16, (N, K)), rng.integers(117, 130, (N, K // 32)).astype(np.uint8)
    blocks = np.zeros((N, K // 32, 16), np.uint8)
    weight = np.zeros((N, K))
    for n in range(N):
        for k in range(K):
            blocks[n, k // 32, k % 32 // 2] |= int(codes[n, k]) << (4 * (k % 2))
            weight[n, k] = e2m1(int(codes[n, k])) * 2.0 ** (int(powers[n, k // 32]) - 127)
    return Written({"_blocks": blocks, "_scales": powers}, weight)


def write_gguf_blocks(rng: np.random.Generator, N: int, K: int, type_name: str) -> Written:
    """ggml's blocks of 32: the scale first, then the numbers; nibbles i and i + 16 share byte i."""
    data, weight = bytearray(), np.zeros((N, K))
    for n in range(N):
        for b in range(K // 32):
            d = np.float16(rng.uniform(0.01, 0.1))
            if type_name == "Q8_0":
                q = [int(v) for v in rng.integers(-128, 128, 32)]
                data += d.tobytes() + bytes(v & 255 for v in q)
                row = [v * float(d) for v in q]
            else:
                q = [int(v) for v in rng.integers(0, 16, 32)]
                nibbles = bytes(q[i] | q[i + 16] << 4 for i in range(16))
                if type_name == "Q4_0":
                    data += d.tobytes() + nibbles
                    row = [(v - 8) * float(d) for v in q]
                elif type_name == "Q4_1":
                    m = np.float16(rng.uniform(-1, 1))
                    data += d.tobytes() + m.tobytes() + nibbles
                    row = [v * float(d) + float(m) for v in q]
                else:
                    e = int(rng.integers(117, 130))
                    data += bytes([e]) + nibbles
                    row = [e2m1(v) * 2.0 ** (e - 127) for v in q]
            weight[n, 32 * b : 32 * b + 32] = row
    return Written({"": np.frombuffer(bytes(data), np.uint8)}, weight)
