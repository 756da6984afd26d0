"""The matmul library's kernels with small arguments: sums of small integers and scales that are powers of two, so that bits agree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda" / "programs"))
from sparse_matmul import pack_metadata, sparse_matmul

from tilewright.formats import number_format
from tilewright.formats.sparse import compress, prune
from tilewright.ir.dtypes import ALL
from tilewright.kernels import PLAIN, Epilogue, Grouped, Recipe
from tilewright.kernels.activation_quantization import quantize_activations
from tilewright.kernels.arranged_activations import arranged_activations
from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.few_rows_matmul import few_rows_matmul
from tilewright.kernels.fp8_matmul import fp8_matmul
from tilewright.kernels.fragment_matmul import fragment_matmul
from tilewright.kernels.general_matmul import general_matmul
from tilewright.kernels.grouped_matmul import expert_epilogue, grouped_matmul
from tilewright.kernels.hopper_quant_bytes import byte_quant_matmul
from tilewright.kernels.hopper_quant_skinny import skinny_quant_matmul
from tilewright.kernels.hopper_quant_slices import sliced_quant_matmul
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.kernels.masked_matmul import masked_matmul
from tilewright.kernels.record_packing import order_of, pack_records, places_of, unpack_codes
from tilewright.kernels.tiles import Tiles
from tilewright.machine.fragment_records import FragmentRecords

SMALL = Tiles(64, 32, 64, 2, 128)


def whole(*shape: int, dtype: str, seed: int = 0, size: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(-size, size + 1, shape).astype(ALL[dtype].numpy)


def powers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.exp2(np.random.default_rng(seed).integers(-2, 3, shape)).astype(np.float32)


def rubbish(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.full(shape, 77, ALL[dtype].numpy)


def quantised(
    kernel: Any, tokens: int, M: int = 5, N: int = 80, K: int = 512, **options: Any
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A kernel on weights in fragment order, 4 bits in groups of 128."""
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    codes = np.random.default_rng(1).integers(0, 16, (N, K)).astype(np.uint8)
    words = form.pack({"codes": codes, "scales": powers(N, K // 128).astype(np.float16)})
    arguments = (words, whole(M, K, dtype="float16", size=1), rubbish(M, N, dtype="float16"))
    return kernel, arguments, {"sizes": (N, K, form), **({"tokens": tokens} if tokens else {}), **options}


def of_bytes(M: int = 5, N: int = 80, K: int = 512, **options: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The kernel for 8-bit activations, 4 bits in groups of 128."""
    form = FragmentRecords(4, ALL["int8"], ALL["float16"])
    numbers = whole(N, K, dtype="int8", size=7)
    words = form.pack({"codes": form.encode(numbers), "scales": powers(N, K // 128)})
    one = np.ones(1, np.float32)
    arguments = (words, whole(M, K, dtype="int8", size=100), powers(M), one, one, np.zeros((1, 1), np.float32))
    options = {"out": "float32", "tokens": 16, "part": 16, "records": 2, **options}
    return byte_quant_matmul, (*arguments, rubbish(M, N)), {"sizes": (N, K, form), **options}


def fragment_words(**options: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The kernel on weights in fragment order for any tensor cores."""
    kernel, (words, a, c), options = quantised(fragment_matmul, 16, **options)
    return kernel, (words, a, np.ones(1, np.float32), rubbish(1), rubbish(1, 1, dtype="float16"), c), options


def of_experts(K: int = 256, **options: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Two weights in fragment order and runs of rows for each."""
    N, M = 80, 21
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    codes = np.random.default_rng(1).integers(0, 16, (2, N, K)).astype(np.uint8)
    words = np.concatenate([form.pack({"codes": c, "scales": powers(N, K // 128).astype(np.float16)}) for c in codes])
    rest = (
        whole(M, K, dtype="float16", size=1),
        powers(2),
        whole(2, N, dtype="float16", size=3) if options.get("epilogue", PLAIN).bias else np.zeros((1, 1), np.float32),
        np.array([18, 3], np.int32),
        rubbish(M, N // 2 if options.get("epilogue", PLAIN).pairs else N, dtype="float16"),
    )
    options = {
        "sizes": (N, K, form),
        "tokens": 16,
        "tiles": 1,
        "records": 1,
        "experts": 2,
        "epilogue": Epilogue(factor=True),
        **options,
    }
    return wgmma_quant_matmul, (words, *rest), options


def of_pairs() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Sums of two experts' rows, a bias of each, and gates."""
    M, N = 21, 1044
    arguments = (
        whole(M, N, dtype="float32", size=4),
        whole(2, N, dtype="float16", size=3),
        np.array([18, 3], np.int32),
    )
    options = {"sizes": (2, N, "float16", "float16", "swiglu")}
    return expert_epilogue, (*arguments, rubbish(M, N // 2, dtype="float16")), options


def records() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Plain codes of 3 bits and scales into records of 4."""
    N, K = 20, 130
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    plain = np.random.default_rng(4).integers(0, 256, (N, -(-K * 3 // 8))).astype(np.uint8)
    lines = np.random.default_rng(5).integers(0, 1000, (N, 2)).astype(np.uint16)
    arguments = (plain, K, np.arange(8, dtype=np.uint8) + 8, order_of(form), lines)
    return pack_records, (*arguments, np.full(form.shape(N, K), 77, np.uint32)), {"sizes": (form, 3)}


def unpacked_records() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Records of 4 bits into plain codes of 3, their table the other way round."""
    N, K = 20, 130
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    words = np.random.default_rng(6).integers(0, 1 << 32, form.shape(N, K), dtype=np.uint32)
    table = np.arange(16, dtype=np.uint8) % 8
    return (
        unpack_codes,
        (words, K, table, places_of(form), rubbish(N, -(-K * 3 // 8), dtype="uint8")),
        {"sizes": (form, 3)},
    )


def general() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The kernel for everything, on int8 by uint4."""
    N, K, M = 40, 128, 20
    kinds = {"activations": "int8", "left": "int8", "right": "int8", "accumulate": "int32", "out": "int32"}
    recipe = Recipe(N, K, K, number_format("uint4"), 64, **kinds)
    weight = np.random.default_rng(2).integers(0, 256, (N, K // 2)).astype(np.uint8)
    one = np.zeros((1, 1), np.float32)
    rest = (one, one, np.zeros((1, 1), np.int8), one[0], np.zeros(1, np.int32), one[0], np.zeros(1, np.int32), one[0])
    table = np.arange(16, dtype=np.float32)
    arguments = (whole(M, K, dtype="int8", size=100), one, weight, table, *rest, np.zeros((1, 1), np.int32))
    return general_matmul, (*arguments, rubbish(M, N, dtype="int32")), {"sizes": (recipe,), "block_N": 32}


def masked(name: str, K: int = 100, **options: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The kernel that masks codes where they lie, groups of 32 with zero points of their own."""
    N, M, of = 11, 3, number_format(name)
    grouped = Grouped("float32", N, -(-K // 32))
    kinds = {"activations": "float16", "left": "float16", "right": "float16", "accumulate": "float32"}
    recipe = Recipe(N, K, K, of, 32, zeros="groups", scaled="sums", scale=grouped, zero_point=grouped, **kinds)
    weight = np.random.default_rng(2).integers(0, 128, (N, -(-K * of.bits // 8))).astype(np.uint8)
    word = next(size for size in (4, 2, 1) if weight.shape[1] % size == 0)
    one, groups = np.zeros((1, 1), np.float32), (N, -(-K // 32))
    rest = (np.zeros((1, 1), np.int8), one[0], np.zeros(1, np.int32), one[0], np.zeros(1, np.int32), one[0], one)
    arguments = (
        whole(M, K, dtype="float16"), one, weight.view(f"uint{8 * word}"), np.zeros(1 << of.bits, np.float32),
        powers(*groups), whole(*groups, dtype="float32"), *rest, rubbish(M, N),
    )  # fmt: skip
    return masked_matmul, arguments, {"sizes": (recipe,), **options}


M, N, K = 70, 40, 144
S8 = (whole(M, K, dtype="int8", size=100), whole(N, K, dtype="int8", size=100, seed=1))
E4M3 = (whole(M, 256, dtype="float8_e4m3fn"), whole(N, 256, dtype="float8_e4m3fn", seed=1))
BF16 = (whole(9, K, dtype="bfloat16"), whole(N, K, dtype="bfloat16", seed=1))
KEPT, PLACES = compress(prune(whole(M, K, dtype="float16")))
F16 = whole(N, K, dtype="float16", seed=1)
TOKENS = np.random.default_rng(3).standard_normal((5, 256)).astype(np.float32)

HOPPER_KERNELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "dense_matmul": (dense_matmul, (*S8, rubbish(M, N, dtype="int32")), {"sizes": (N, K, "int8"), "tiles": SMALL}),
    "dense_matmul turned, rows and columns of clusters share": (
        dense_matmul, (*BF16, rubbish(9, N, dtype="bfloat16")),
        {"sizes": (N, K, "bfloat16"), "out": "bfloat16", "tiles": Tiles(32, 64, 64, 2, 128, (2, 2), persistent=False, swapped=True)},
    ),
    "scaled_matmul": (scaled_matmul, (*S8, powers(M), powers(N, seed=1), rubbish(M, N)), {"sizes": (N, K, "int8"), "out": "float32", "tiles": SMALL}),
    "scaled_matmul of blocks": (
        scaled_matmul, (*E4M3, powers(2, M), powers(1, 2), rubbish(M, N)),
        {"sizes": (N, 256, "float8_e4m3fn"), "out": "float32", "scale_A": "group", "scale_B": "block", "tiles": Tiles(64, 32, 128, 2, 128)},
    ),
    "sparse_matmul": (sparse_matmul, (KEPT, pack_metadata(PLACES, "float16", SMALL), F16, rubbish(M, N)), {"sizes": (M, K), "tiles": SMALL}),
    "few_rows_matmul": (few_rows_matmul, (*BF16, rubbish(9, N)), {"sizes": (N, K), "rows": 9, "splits": 2, "stages": 2}),
    "few_rows_matmul of a scaled row": (
        few_rows_matmul, (E4M3[0][:1], powers(1), np.ascontiguousarray(np.resize(E4M3[1], (48, 256)).T), powers(48, seed=1), rubbish(1, 48)),
        {"sizes": (48, 256, "float8_e4m3fn"), "out": "float32", "rows": 1, "splits": 2, "stages": 1, "scaled": True, "promote": True, "transpose_B": False},
    ),
    "grouped_matmul": (grouped_matmul, (whole(M, K, dtype="bfloat16"), whole(3, N, K, dtype="bfloat16", seed=1), np.array([66, 0, 4], np.int32), rubbish(M, N)), {"sizes": (3, N, K), "out": "float32", "tiles": Tiles(128, 64, 64, 2, 256), "blocks": 2}),
    "skinny_quant_matmul": quantised(skinny_quant_matmul, 8, warps=2, records=2, blocks=2),
    "byte_quant_matmul": of_bytes(),
    "wgmma_quant_matmul of experts": of_experts(),
    "wgmma_quant_matmul of experts and pairs": of_experts(epilogue=Epilogue(True, "float16", "clamped_swiglu"), blocks=5),
    "wgmma_quant_matmul": quantised(wgmma_quant_matmul, 16, tiles=1, records=1),
    "wgmma_quant_matmul in turns": quantised(wgmma_quant_matmul, 64, M=70, tiles=1, records=1),
    "sliced_quant_matmul": quantised(sliced_quant_matmul, 0, M=2, warps=2, records=2, cluster=1, blocks=2),
    "wgmma_quant_matmul of lifted codes": quantised(wgmma_quant_matmul, 16, tiles=1, records=1, lifted=True),
    "wgmma_quant_matmul of eight rows": quantised(wgmma_quant_matmul, 8, tiles=2, records=2, promoted=True, blocks=3),
    "wgmma_quant_matmul promoted": quantised(wgmma_quant_matmul, 16, tiles=1, records=2, promoted=True),
    "wgmma_quant_matmul of parts of K": quantised(wgmma_quant_matmul, 16, tiles=1, records=1, blocks=3),
    "wgmma_quant_matmul that shares rows": quantised(wgmma_quant_matmul, 64, M=70, N=200, tiles=1, records=1, sharing=2),
    "skinny_quant_matmul of parts of K": quantised(skinny_quant_matmul, 8, warps=2, records=1, cluster=2, blocks=2),
    "byte_quant_matmul in parts": of_bytes(M=37, tokens=32, part=16, records=1),
    "byte_quant_matmul in turns": of_bytes(N=200, records=2, warpgroups=3, turns=True),
    "byte_quant_matmul of blocks that stay": of_bytes(M=37, N=200, records=2, turns=True, blocks=3),
    "byte_quant_matmul of parts of K": of_bytes(records=1, cluster=2),
}  # fmt: skip
"""Kernels for Hopper alone: the kernel, its arguments, and ``sizes`` and options of its factory."""

KERNELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "fp8_matmul": (fp8_matmul, (*E4M3[:1], powers(1), E4M3[1], powers(1, seed=1), rubbish(M, N)), {"sizes": (N, 256), "transpose_B": True}),
    "general_matmul": general(),
    "masked_matmul": masked("uint3", rows=2, each=2),
    "masked_matmul of small floats": masked("e2m1", rows=4, each=1),
    "pack_records": records(),
    "unpack_codes": unpacked_records(),
    "fragment_matmul": fragment_words(splits=2),
    "quantize_activations": (quantize_activations, (TOKENS.astype(ALL["bfloat16"].numpy), rubbish(5, 256, dtype="int8"), rubbish(5, 1)), {"sizes": (256,)}),
    "quantize_activations of groups": (quantize_activations, (TOKENS, rubbish(5, 256, dtype="float8_e4m3fn"), rubbish(2, 5)), {"sizes": (256, "float32", "float8_e4m3fn", 128), "by_group": True}),
    "quantize_activations of a tensor": (quantize_activations, (TOKENS, powers(256), rubbish(5, 256, dtype="int8"), rubbish(1, 1)), {"sizes": (256, "float32"), "tensor": True, "divisors": True}),
    "expert_epilogue": of_pairs(),
    "arranged_activations": (arranged_activations, (TOKENS, (np.arange(300, dtype=np.int32) * 7) % 300 - 44, rubbish(1), rubbish(5, 300)), {"sizes": (256, 300), "dtype": "float32"}),
}  # fmt: skip
"""The same for kernels of every architecture."""
