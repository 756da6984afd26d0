"""Forms of quantised weights with options drawn at random: a layer's own numbers are rounded and packed as the form's description
says, with arrays of NumPy and never through the package under test.

A form is a function of a generator of random numbers; it gives what the configuration says (asked when all layers are written) and a
function from a weight ``[N, K]``, a layer's name and the generator to tensors by the endings of their names, and the numbers that they
stand for; None where the form has no such shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from checkpoint_writers import E2M1, NF4
from more_writers import BNB_FP4

Tensors = dict[str, np.ndarray]
Layer = Callable[[np.ndarray, str, np.random.Generator], "tuple[Tensors, np.ndarray] | None"]
Form = Callable[[np.random.Generator], "tuple[Callable[[], dict[str, Any]], Layer]"]

E4M3, BFLOAT16, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, ml_dtypes.float8_e8m0fnu
FP4 = np.array([*E2M1, *(-np.array(E2M1))])
OTHERS = re.compile(r"(down_proj|fc2|o_proj|out_proj|wo)$")
"""Layers that get bits of their own where a configuration gives some to some."""


def truth(rng: np.random.Generator, chance: float = 0.5) -> bool:
    return bool(rng.random() < chance)


def strings(codes: np.ndarray, bits: int) -> np.ndarray:
    """Each row as one string of bits, the first code lowest, cut into words of 32."""
    each = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    row = each.astype(np.uint8).reshape(len(codes), -1)
    row = np.pad(row, ((0, 0), (0, -row.shape[1] % 32)))
    return np.packbits(row, axis=1, bitorder="little").view("<i4")


def turned(codes: np.ndarray, bits: int) -> np.ndarray:
    """The same down the columns."""
    return np.ascontiguousarray(strings(codes.T, bits).T)


def pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes a byte, the even one in the low half."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.abs(values[..., None] - table).argmin(-1)


def rounded(
    W: np.ndarray, bits: int, group: int, symmetric: bool, scale: Any = np.float16, order: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes ``[N, K]``, scales and zero points ``[N, groups]``, and the numbers; `order` is the group of each column."""
    N, K = W.shape
    by_group = np.arange(K) if order is None else np.argsort(order, kind="stable")
    parts, top = W[:, by_group].reshape(N, -1, group), (1 << bits) - 1
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    scales = np.abs(parts).max(-1) / ((1 << (bits - 1)) - 0.5) if symmetric else (high - low) / top
    scales = (scales + 1e-4).astype(scale)
    wide = scales.astype(float)
    zeros = np.full(wide.shape, 1 << (bits - 1)) if symmetric else np.clip(np.rint(-low / wide), 0, top).astype(int)
    codes = np.empty((N, K), int)
    codes[:, by_group] = np.clip(np.rint(parts / wide[..., None]) + zeros[..., None], 0, top).reshape(N, K)
    of = np.arange(K) // group if order is None else order
    return codes, scales, zeros, (codes - zeros[:, of]) * wide[:, of]


def gptq(rng: np.random.Generator) -> Any:
    bits, group, order = int(rng.choice([2, 3, 4, 4, 8])), int(rng.choice([-1, 16, 32, 64])), truth(rng, 0.4)
    symmetric, form = truth(rng), str(rng.choice(["", "gptq", "gptq_v2"]))
    said: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": order,
        "sym": symmetric,
    }
    said |= {"checkpoint_format": form} if form else {}
    rules = {r"+:.*(down_proj|fc2|o_proj|out_proj|wo)$": {"bits": 8, "group_size": 32}} if truth(rng, 0.3) else {}
    said |= {"dynamic": rules} if rules else {}

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        (N, K), (b, g) = W.shape, (8, 32) if rules and OTHERS.search(name) else (bits, group)
        if N % 32 or K % 32 or (g > 0 and K % g):
            return None
        g = K if g == -1 else g
        g_idx = (np.arange(K) // g).astype(np.int32)
        g_idx = rng.permutation(g_idx) if order and g < K else g_idx
        codes, scales, zeros, numbers = rounded(W, b, g, symmetric, order=g_idx)
        stored = zeros.T if form == "gptq_v2" else (zeros.T - 1) % (1 << b)
        parts = {".qweight": turned(codes.T, b), ".qzeros": strings(stored, b), ".scales": scales.T.copy()}
        return {**parts, **({".g_idx": g_idx} if order or truth(rng) else {})}, numbers

    return lambda: said, layer


def awq(rng: np.random.Generator) -> Any:
    group = int(rng.choice([16, 32, 64]))
    said = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": str(rng.choice(["gemm", "GEMM"])),
    }

    def words(codes: np.ndarray) -> np.ndarray:
        return strings(codes.reshape(len(codes), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(codes.shape), 4)

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        if W.shape[0] % 8 or W.shape[1] % group:
            return None
        codes, scales, zeros, numbers = rounded(W, 4, group, False)
        return {".qweight": words(codes.T), ".qzeros": words(zeros.T), ".scales": scales.T.copy()}, numbers

    return lambda: said, layer


def compressed(form: str, weights: dict[str, Any], **groups: Any) -> dict[str, Any]:
    """A configuration of compressed-tensors."""
    every = {"group_0": {"targets": ["Linear"], "weights": {**weights, "dynamic": False}}, **groups}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": every, "ignore": ["lm_head"]}


def packed(rng: np.random.Generator) -> Any:
    bits, group, symmetric = int(rng.choice([2, 3, 4, 4, 5, 6, 7, 8])), int(rng.choice([-1, 16, 32, 64])), truth(rng)
    order, others, kind = (
        group > 0 and truth(rng, 0.3),
        truth(rng, 0.3),
        [np.float16, BFLOAT16, np.float32][rng.integers(3)],
    )
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "channel" if group < 0 else "group"}
    weights |= {"group_size": None if group < 0 else group, "actorder": "group" if order else None}
    eight = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    more = {"group_1": {"targets": [f"re:.*{OTHERS.pattern}"], "weights": eight}} if others else {}

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        N, K = W.shape
        b, g, of, ordered = (8, K, True, False) if others and OTHERS.search(name) else (bits, group, symmetric, order)
        g = K if g < 0 else g
        if K % g:
            return None
        g_idx = rng.permutation(np.arange(K) // g).astype(np.int32) if ordered else None
        codes, scales, zeros, numbers = rounded(W, b, g, of, kind, g_idx)
        parts = {".weight_packed": strings(codes, b), ".weight_scale": scales, ".weight_shape": np.array([N, K])}
        parts |= {} if of else {".weight_zero_point": turned(zeros, b)}
        return {**parts, **({".weight_g_idx": g_idx} if g_idx is not None else {})}, numbers

    return lambda: compressed("pack-quantized", weights, **more), layer


def int8(rng: np.random.Generator) -> Any:
    strategy, symmetric = str(rng.choice(["channel", "tensor", "group"])), truth(rng, 0.6)
    weights = {
        "num_bits": 8,
        "type": "int",
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": 32 if strategy == "group" else None,
    }

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        if strategy == "group" and W.shape[1] % 32:
            return None
        flat = W.reshape(1, -1) if strategy == "tensor" else W
        codes, scales, zeros, numbers = rounded(
            flat, 8, 32 if strategy == "group" else flat.shape[1], symmetric, np.float32
        )
        shape = (1,) if strategy == "tensor" else scales.shape
        parts = {".weight": (codes - 128).astype(np.int8).reshape(W.shape), ".weight_scale": scales.reshape(shape)}
        points = {} if symmetric else {".weight_zero_point": (zeros - 128).astype(np.int8).reshape(shape)}
        return {**parts, **points}, numbers.reshape(W.shape)

    return lambda: compressed("int-quantized", weights), layer


def in_blocks(W: np.ndarray, block: tuple[int, int], powers: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """e4m3, the scales of blocks, and the numbers."""
    (N, K), (rows, columns) = W.shape, block
    i, j = np.arange(N)[:, None] // rows, np.arange(K)[None] // columns
    largest = np.zeros((i[-1, 0] + 1, j[0, -1] + 1))
    np.maximum.at(largest, (i, j), np.abs(W))
    scales = (largest / 448 + 1e-8).astype(np.float32)
    scales = np.exp2(np.ceil(np.log2(scales))) if powers else scales
    codes = (W / scales[i, j]).clip(-448, 448).astype(E4M3)
    return codes, scales, codes.astype(float) * scales[i, j].astype(float)


def float8(rng: np.random.Generator) -> Any:
    strategy, block = (
        str(rng.choice(["tensor", "channel", "block"])),
        [int(rng.choice([16, 32, 128])) for _ in range(2)],
    )
    weights = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": strategy,
        "block_structure": block if strategy == "block" else None,
    }

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        of = {"tensor": W.shape, "channel": (1, W.shape[1]), "block": (block[0], block[1])}[strategy]
        codes, scales, numbers = in_blocks(W, of)
        return {".weight": codes, ".weight_scale": scales.reshape(1) if strategy == "tensor" else scales}, numbers

    return lambda: compressed("float-quantized", weights), layer


def to_fp4(W: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, bytes of powers of two for 32 columns, and the numbers."""
    parts = W.reshape(len(W), -1, 32)
    power = np.floor(np.log2(np.abs(parts).max(-1) + 1e-12)) - 2
    codes = nearest(parts / np.exp2(power)[..., None], FP4)
    return (
        codes.reshape(W.shape),
        (power + 127).astype(np.uint8),
        (FP4[codes] * np.exp2(power)[..., None]).reshape(W.shape),
    )


def blocks(rng: np.random.Generator) -> Any:
    """DeepSeek's blocks of any size, V4's with experts of fp4, Mistral's one scale."""
    kind, block = (
        str(rng.choice(["v3", "v3 powers", "v4", "mistral"])),
        [int(rng.choice([16, 32, 128])) for _ in range(2)],
    )
    said = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": None if kind == "mistral" else block,
    }
    said |= {"scale_fmt": "ue8m0", "expert_dtype": "fp4"} if kind == "v4" else {}
    named = {"v4": ".scale", "mistral": ".qscale_weight"}.get(kind, ".weight_scale_inv")

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        if kind == "v4" and "experts." in name:
            if W.shape[1] % 32:
                return None
            codes, powers, numbers = to_fp4(W)
            return {".weight": pairs(codes).view(np.int8), ".scale": powers.view(E8M0)}, numbers
        codes, scales, numbers = in_blocks(
            W, W.shape if kind == "mistral" else (block[0], block[1]), kind in ("v3 powers", "v4")
        )
        return {
            ".weight": codes,
            named: scales.reshape(()) if kind == "mistral" else scales.astype(E8M0 if kind == "v4" else np.float32),
        }, numbers

    return lambda: said, layer


def nvfp4(rng: np.random.Generator) -> Any:
    """Of modelopt, whose scale of the whole multiplies, and of compressed-tensors, where it divides."""
    divides = truth(rng)
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    said = (
        compressed("nvfp4-pack-quantized", weights)
        if divides
        else {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    )

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        if W.shape[1] % 16:
            return None
        parts = W.reshape(len(W), -1, 16)
        largest = np.abs(parts).max(-1)
        whole = np.float32(largest.max() / (6 * 448) + 1e-8)
        kept = np.float32(1 / whole) if divides else whole
        factor = 1 / float(kept) if divides else float(kept)
        scales = (largest / 6 / factor).clip(2**-9, 448).astype(E4M3)
        wide = scales.astype(float)[..., None] * factor
        codes = nearest(parts / wide, FP4)
        names = (
            (".weight_packed", ".weight_scale", ".weight_global_scale")
            if divides
            else (".weight", ".weight_scale", ".weight_scale_2")
        )
        tensors = (pairs(codes.reshape(W.shape)), scales, kept.reshape(1) if divides else kept.reshape(()))
        return dict(zip(names, tensors)), (FP4[codes] * wide).reshape(W.shape)

    return lambda: said, layer


def bitsandbytes(rng: np.random.Generator) -> Any:
    kind = str(rng.choice(["nf4", "fp4", "int8"]))
    table = np.array(NF4 if kind == "nf4" else [*BNB_FP4, *(-np.array(BNB_FP4))], np.float32)
    said = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": kind != "int8",
        "load_in_8bit": kind == "int8",
        "bnb_4bit_quant_type": kind,
    }

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        if kind == "int8":
            most = (np.abs(W).max(1) + 1e-6).astype(np.float32)
            codes = np.rint(W * 127 / most[:, None]).clip(-127, 127).astype(np.int8)
            return {".weight": codes, ".SCB": most, ".weight_format": np.array(0, np.uint8)}, codes * (
                most.astype(float)[:, None] / 127
            )
        if W.size % 64:
            return None
        parts = W.reshape(-1, 64)
        most = (np.abs(parts).max(1) + 1e-6).astype(np.float32)
        codes = nearest(parts / most[:, None], table)
        state = json.dumps({"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [*W.shape]}).encode()
        flat = codes.reshape(-1)
        parts_of = {
            ".weight": (flat[::2] << 4 | flat[1::2]).astype(np.uint8)[:, None],
            ".weight.absmax": most,
            ".weight.quant_map": table,
        }
        numbers = table.astype(float)[codes] * most.astype(float)[:, None]
        return {
            **parts_of,
            f".weight.quant_state.bitsandbytes__{kind}": np.frombuffer(state, np.uint8),
        }, numbers.reshape(W.shape)

    return lambda: said, layer


def mlx(rng: np.random.Generator) -> Any:
    bits, group, others = int(rng.choice([1, 2, 3, 4, 5, 6, 8])), int(rng.choice([32, 64])), truth(rng, 0.4)
    mode = str(rng.choice(["affine", "affine", "mxfp4", "mxfp8"]))
    said: dict[str, Any] = {"bits": bits, "group_size": group}
    said |= {} if mode == "affine" else {"mode": mode, "bits": int(mode[4]), "group_size": 32}

    def layer(W: np.ndarray, name: str, rng: np.random.Generator) -> Any:
        if mode != "affine":
            if W.shape[1] % 32:
                return None
            if mode == "mxfp4":
                codes, powers, numbers = to_fp4(W)
                return {".weight": pairs(codes).view(np.uint32), ".scales": powers}, numbers
            floats, powers, numbers = in_blocks(W, (1, 32), True)
            return {".weight": floats.view(np.uint32), ".scales": powers.astype(E8M0).view(np.uint8)}, numbers
        b, g = (8, 32) if others and OTHERS.search(name) else (bits, group)
        if W.shape[1] % g:
            return None
        if (b, g) != (bits, group):
            said[name] = {"bits": b, "group_size": g}
        parts, top = W.reshape(len(W), -1, g), (1 << b) - 1
        low = parts.min(-1).astype(np.float16)
        scales = ((parts.max(-1) - low) / top + 1e-6).astype(np.float16)
        wide, added = scales.astype(float)[..., None], low.astype(float)[..., None]
        codes = np.rint((parts - added) / wide).clip(0, top).astype(int)
        words = strings(codes.reshape(W.shape), b).view(np.uint32)
        return {".weight": words, ".scales": scales, ".biases": low}, (codes * wide + added).reshape(W.shape)

    return lambda: said, layer


FORMS: dict[str, Form] = {
    form.__name__: form for form in (gptq, awq, packed, int8, float8, blocks, nvfp4, bitsandbytes, mlx)
}
