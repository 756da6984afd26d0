"""More weights of a known value in other libraries' forms, element by element, as `checkpoint_writers` has them."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
from checkpoint_writers import Written, float16_scales, words_of

BNB_FP4 = [0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25]
IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def write_awq_fast(rng: np.random.Generator, N: int, K: int, group: int) -> Written:
    """AutoAWQ's GEMVFast: words of 16 bits, four rows interleaved; zero points times scales, with a minus."""
    groups = K // group
    codes, zeros = rng.integers(0, 16, (N, K)), rng.integers(0, 16, (groups, N))
    scales = np.zeros((8 * -(-groups // 8), N), np.float16)
    scales[:groups] = float16_scales(rng, groups, N)
    scaled = np.zeros_like(scales)
    scaled[:groups] = -(zeros * scales[:groups].astype(np.float32))
    # 32 columns at once: first pairs are dealt out to four runs of eight, then each run to its even and its odd ones.
    order = [8 * a + 2 * b + c for b in range(4) for c in range(2) for a in range(4)]
    qweight = np.zeros((N // 4, K), np.int16)
    for r in range(N // 4):
        for part in range(K // 64):
            string = []
            for n in range(4 * r, 4 * r + 4):
                for half in (0, 32):
                    string += [int(codes[n, 64 * part + half + k]) for k in order]
            words = words_of(string, 4, 32)
            qweight[r, 64 * part : 64 * part + 64] = np.array(words, np.int32).view(np.int16)
    spread = np.repeat(np.arange(groups), group)
    weight = (codes.T * scales[spread].astype(float) + scaled[spread].astype(float)).T
    return Written({"qweight": qweight, "qzeros": scaled, "scales": scales}, weight)


def write_marlin(rng: np.random.Generator, N: int, K: int, group: int, codes: str, scale: str) -> Written:
    """Marlin's order, thread by thread of the warp that reads it."""
    values, scales = rng.integers(-8, 8, (K, N)), float16_scales(rng, K // group, N)
    packed = np.zeros((K // 16, 2 * N), np.int32)
    for row in range(K // 16):
        for tile in range(N // 64):
            for thread in range(32):
                for part in range(4):
                    held = []
                    for column in (thread // 4, thread // 4 + 8):
                        for k in (2 * (thread % 4), 2 * (thread % 4) + 1, 2 * (thread % 4) + 8, 2 * (thread % 4) + 9):
                            held.append(int(values[16 * row + k, 64 * tile + 16 * part + column]) + 8)
                    word = words_of([held[i] for i in (0, 2, 4, 6, 1, 3, 5, 7)], 4, 1)[0]
                    packed[row, 128 * tile + 4 * thread + part] = word
    stored = np.zeros_like(scales)
    for n in range(N):
        if group == K:
            base = n % 32
            place = n - base + 8 * (base % 8 // 2) + base % 2 + 2 * (base // 8)
        else:
            place = n - n % 64 + 8 * (n % 8) + n % 64 // 8
        stored[:, place] = scales[:, n]
    return Written({codes: packed, scale: stored}, (values * np.repeat(scales, group, 0).astype(float)).T)


def write_marlin_24(
    rng: np.random.Generator, N: int, K: int, group: int, bits: int, names: tuple[str, str, str]
) -> Written:
    """Marlin's sparse order, number by number as the threads of a warp hold them; the two places of four columns as CUTLASS has them."""
    half, per_word = 1 << (bits - 1), 32 // bits
    values, kept, where = np.zeros((N, K), int), np.zeros((N, K // 2), int), np.zeros((N, K // 4), int)
    for n in range(N):
        for four in range(K // 4):
            first, second = sorted(rng.choice(4, 2, replace=False))
            pair = rng.integers(-half, half, 2)
            values[n, 4 * four + first], values[n, 4 * four + second] = pair
            kept[n, 2 * four : 2 * four + 2], where[n, four] = pair, first | second << 2
    order = (0, 2, 4, 6, 1, 3, 5, 7) if bits == 4 else (0, 2, 1, 3, 4, 6, 5, 7)
    packed = np.zeros((K // 32, N * bits // 2), np.int32)
    for row in range(K // 32):
        string = []
        for tile in range(N // 64):
            for thread in range(32):
                for j in range(4):
                    held = []
                    for n in (8 * (thread // 4) + j, 8 * (thread // 4) + 4 + j):
                        for k in (2 * (thread % 4), 2 * (thread % 4) + 1, 2 * (thread % 4) + 8, 2 * (thread % 4) + 9):
                            held.append(int(kept[64 * tile + n, 16 * row + k]) + half)
                    string += [held[i] for i in order]
        packed[row] = words_of(string, bits, len(string) // per_word)
    meta = np.zeros(N * K // 16, np.uint16)
    for n in range(N):
        for c in range(K // 16):
            word = sum(int(where[n, 4 * c + i]) << 4 * i for i in range(4))
            row = n // 64 * 64 + n % 2 * 2 + n % 8 // 4 + n % 4 // 2 * 32 + n % 64 // 8 * 4
            column = c
            if row % 2 == 0 and column % 2 == 1:
                row, column = row + 1, column - 1
            elif row % 2 == 1 and column % 2 == 0:
                row, column = row - 1, column + 1
            meta[column // 2 * 2 * N + 2 * row + column % 2] = word
    scales = float16_scales(rng, K // group, N)
    places = [n if group == K else n // 8 * 8 + (0, 4, 1, 5, 2, 6, 3, 7)[n % 8] for n in range(N)]
    tensors = (packed, scales[:, places], meta.view(np.int16).reshape(K // 32, 2 * N))
    return Written(dict(zip(names, tensors)), values * np.repeat(scales.astype(float), group, 0).T)


def write_eetq(rng: np.random.Generator, N: int, K: int) -> Written:
    """EETQ, step by step as it prepares a weight: rows permuted, columns one after the other, two of them interleaved, 128 added."""
    values, scales = rng.integers(-126, 127, (N, K)), rng.uniform(0.01, 0.1, N).astype(np.float16)
    values[np.arange(N), rng.integers(0, K, N)] = rng.choice([127, -128], N)
    permuted = np.array([values[:, k - k % 16 + 8 * (k % 4 // 2) + k % 2 + 2 * (k % 16 // 4)] for k in range(K)])
    bytes_of = np.zeros(N * K, np.uint8)
    for n in range(N):
        for k in range(K):
            place = n // 2 * 2 * K + k // 64 * 128 + n % 2 * 64 + k % 64
            place = place - place % 4 + (0, 2, 1, 3)[place % 4]
            bytes_of[place] = permuted[k, n] + 128
    weight = values * scales.astype(float)[:, None]
    return Written({"weight": bytes_of.view(np.int8).reshape(K, N), "weight_scales": scales}, weight)


def write_sparse(rng: np.random.Generator, made: Written, two_of_four: bool) -> Written:
    """compressed-tensors' sparse form of a matrix of numbers: those that are kept, and bits that say which, the lowest first."""
    dense = made.tensors["weight"]
    N, K = dense.shape
    kept = np.array([[k % 4 in (n % 4, (n + k // 4) % 3) for k in range(K)] for n in range(N)])
    if two_of_four:
        kept = np.array([[k % 4 in (n % 2, 2 + k // 4 % 2) for k in range(K)] for n in range(N)])
    mask = [[sum(int(kept[n, k]) << k % 8 for k in range(b, min(b + 8, K))) for b in range(0, K, 8)] for n in range(N)]
    numbers = dense[kept]
    tensors = {
        **{name: tensor for name, tensor in made.tensors.items() if name != "weight"},
        "bitmask": np.array(mask, np.uint8), "shape": np.array([[N], [K]]),
        "compressed": numbers.reshape(N, -1) if two_of_four else numbers,
    }  # fmt: skip
    if not two_of_four:
        tensors["row_offsets"] = np.cumsum([0, *kept.sum(1)[:-1]])[:, None]
    return Written(tensors, made.weight * kept)


def write_bnb_fp4(rng: np.random.Generator, N: int, K: int, block: int) -> Written:
    """bitsandbytes' fp4: a sign and three bits that count in no order; else as nf4."""
    codes = [int(c) for c in rng.integers(0, 16, N * K)]
    absmax = rng.uniform(0.01, 0.1, -(-N * K // block)).astype(np.float32)
    table = [*BNB_FP4, *(-value for value in BNB_FP4)]
    packed = np.array([codes[i] << 4 | codes[i + 1] for i in range(0, N * K, 2)], np.uint8)[:, None]
    state = {"quant_type": "fp4", "blocksize": block, "dtype": "float16", "shape": [N, K]}
    weight = np.array([table[c] * float(absmax[e // block]) for e, c in enumerate(codes)]).reshape(N, K)
    tensors = {"": packed, ".absmax": absmax, ".quant_map": np.array(table, np.float32)}
    tensors[".quant_state.bitsandbytes__fp4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return Written(tensors, weight)


def write_bnb_int8(rng: np.random.Generator, N: int, K: int) -> Written:
    """bitsandbytes' int8: the largest magnitude of a row is 127."""
    codes, largest = rng.integers(-127, 128, (N, K)).astype(np.int8), rng.uniform(0.5, 2, N).astype(np.float32)
    weight = codes * largest.astype(float)[:, None] / 127
    return Written({"weight": codes, "SCB": largest, "weight_format": np.array(0, np.uint8)}, weight)


def write_hqq(rng: np.random.Generator, N: int, K: int, bits: int, group: int) -> Written:
    """HQQ: a row for each group, runs of rows in the same words, the first run in the highest bits."""
    rows, packing, parts = (
        N * K // group,
        *{3: ("3bit_32", 10), 8: ("8bit_u8", 1)}.get(bits, (f"{bits}bit_u8", 8 // bits)),
    )
    codes = rng.integers(0, 1 << bits, (rows, group))
    scale = rng.uniform(0.01, 0.1, (rows, 1)).astype(np.float16)
    zero = rng.uniform(0, 1 << bits, (rows, 1)).astype(np.float16)
    step = -(-rows // parts)
    packed = np.zeros((step, group), np.int32 if bits == 3 else np.uint8)
    for r in range(rows):
        for c in range(group):
            packed[r % step, c] |= int(codes[r, c]) << bits * (parts - 1 - r // step)
    weight = ((codes - zero.astype(float)) * scale.astype(float)).reshape(N, K)

    def text(words: str) -> np.ndarray:
        return np.array([ord(letter) for letter in words], np.uint8)

    tensors = {
        "W_q": packed, "scale": scale, "zero": zero, "nbits": np.array(bits, np.int32), "group_size": np.array(group, np.int32),
        "shape": np.array([N, K]), "axis": np.array(1, np.int32), "packing": text(packing), "unpack_view_dtype": text("torch.uint8"),
        "view_as_float": np.array(0, np.uint8), "quant_scale": np.array(0, np.uint8), "encoded_state_dict": np.array(1, np.uint8),
    }  # fmt: skip
    return Written(tensors, weight)


def write_torchao_int4(rng: np.random.Generator, N: int, K: int, group: int) -> tuple[Written, str]:
    """torchao's Int4Tensor: two's complement, the even column in the low half; zero points are added after scaling."""
    values = rng.integers(-8, 8, (N, K))
    scale = rng.uniform(0.01, 0.1, (K // group, N)).astype(ml_dtypes.bfloat16)
    added = rng.uniform(-0.5, 0.5, (K // group, N)).astype(ml_dtypes.bfloat16)
    packed = np.array([[row[k] & 15 | (row[k + 1] & 15) << 4 for k in range(0, K, 2)] for row in values], np.uint8)
    weight = np.zeros((N, K))
    for k in range(K):
        weight[:, k] = values[:, k] * scale[k // group].astype(float) + added[k // group].astype(float)
    about = {
        "_type": "Int4Tensor",
        "_data": {"block_size": [1, group], "shape": [N, K]},
        "_tensor_data_names": ["qdata"],
    }
    tensors = {"qdata": packed.view(np.int8), "scale": scale, "zero_point": added}
    return Written({f"_weight_{part}": tensor for part, tensor in tensors.items()}, weight), json.dumps(about)


def write_torchao_intx(rng: np.random.Generator, N: int, K: int, group: int, bits: int) -> tuple[Written, str]:
    """torchao's IntxUnpackedToInt8Tensor: a number of few bits in each int8."""
    half = 1 << (bits - 1)
    values, zeros = rng.integers(-half, half, (N, K)), rng.integers(-half, half, (N, K // group)).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, (N, K // group)).astype(np.float32)
    weight = (values - np.repeat(zeros, group, 1)) * np.repeat(scale, group, 1).astype(float)
    about = {
        "_type": "IntxUnpackedToInt8Tensor",
        "_data": {"target_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"}, "block_size": [1, group]},
    }
    tensors = {"_weight_qdata": values.astype(np.int8), "_weight_scale": scale, "_weight_zero_point": zeros}
    return Written(tensors, weight), json.dumps(about)


def write_mxfp6(rng: np.random.Generator, N: int, K: int, mantissa: int) -> Written:
    """mxfp6 of compressed-tensors and Quark: a sign, an exponent and 3 (e2m3) or 2 bits (e3m2) of a mantissa; four codes in three bytes."""
    codes, powers = rng.integers(0, 64, (N, K)), rng.integers(120, 134, (N, K // 32)).astype(np.uint8)
    packed = np.zeros((N, 3 * K // 4), np.uint8)
    weight = np.zeros((N, K))
    for n in range(N):
        for k in range(0, K, 4):
            word = sum(int(codes[n, k + i]) << 6 * i for i in range(4))
            packed[n, 3 * k // 4 : 3 * k // 4 + 3] = list(struct.pack("<I", word)[:3])
        for k in range(K):
            code = int(codes[n, k])
            exponent, fraction = (code & 31) >> mantissa, (code & (1 << mantissa) - 1) / (1 << mantissa)
            bias = 1 if mantissa == 3 else 3
            size = (fraction + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
            weight[n, k] = (-size if code & 32 else size) * 2.0 ** (int(powers[n, k // 32]) - 127)
    return Written({"weight_packed": packed, "weight_scale": powers}, weight)


def write_torchao_blocks(
    rng: np.random.Generator, N: int, K: int, element: str, swizzled: bool, nvfp4: bool = False
) -> tuple[Written, str]:
    """torchao's MXTensor and NVFP4Tensor: codes of 4 bits two by two, of 6 bits a byte each; scales in rows, or in the tiles of 128
    by 4 in which matrix units take them, filled up."""
    size, types = 16 if nvfp4 else 32, {
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2, "fp6_e2m3": ml_dtypes.float6_e2m3fn,
        "fp6_e3m2": ml_dtypes.float6_e3m2fn, "float4_e2m1fn_x2": ml_dtypes.float4_e2m1fn,
    }  # fmt: skip
    values = rng.uniform(-6, 6, (N, K)).astype(types[element])
    codes = values.view(np.uint8)
    qdata = np.array([[row[k] & 15 | (row[k + 1] & 15) << 4 for k in range(0, K, 2)] for row in codes], np.uint8)
    scales = np.exp2(rng.integers(-4, 5, (N, K // size))).astype(
        ml_dtypes.float8_e4m3fn if nvfp4 else ml_dtypes.float8_e8m0fnu
    )
    weight = values.astype(float) * np.repeat(scales.astype(float), size, 1)
    stored = scales
    if swizzled:
        high, wide = -(-N // 128), -(-(K // size) // 4)
        stored = np.zeros((high, wide, 32, 16), scales.dtype)
        for n in range(N):
            for g in range(K // size):
                stored[n // 128, g // 4, n % 32, n % 128 // 32 * 4 + g % 4] = scales[n, g]
        stored = stored.reshape(128 * high, 4 * wide)
    tensors = {
        "_weight_qdata": qdata if element.startswith("float4") else codes & 63 if "fp6" in element else values,
        "_weight_scale": stored,
    }
    said = {
        "block_size": size,
        "orig_dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
        "is_swizzled_scales": swizzled,
    }
    if nvfp4:
        tensors["_weight_per_tensor_scale"] = np.array(0.25, np.float32)
        return Written(tensors, weight / 4), json.dumps({"_type": "NVFP4Tensor", "_data": said})
    kind = element if "fp6" in element else {"_type": "torch.dtype", "_data": element}
    return Written(tensors, weight), json.dumps({"_type": "MXTensor", "_data": {**said, "elem_dtype": kind}})
