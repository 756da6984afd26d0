"""Pipelined programs of the shapes that roles are made for: the tests of specialisation and those on the GPU run them.

Every program has small integers as inputs, so that any order of sums gives the same bits, and says in NumPy what is
expected.
"""

import ml_dtypes
import numpy as np
from specialized_attention import (
    attention_expected,
    sparse_attention,
    sparse_attention_expected,
    sparse_decode,
    sparse_decode_expected,
)
from specialized_base import Program, integers, product
from specialized_conditions import (
    block_sparse,
    block_sparse_expected,
    either_way,
    either_way_expected,
    leaving,
    leaving_expected,
    masked,
    masked_expected,
    ragged,
    ragged_expected,
)
from specialized_loads import (
    decoded,
    decoding_consumer,
    decoding_producer,
    decoding_through_registers,
    grouped_expected,
    grouped_mxfp4,
    plain,
)
from specialized_loops import (
    counted,
    counted_expected,
    loops_expected,
    loops_in_a_row,
    nested,
    nested_expected,
    persistent,
    two_gemms,
    walking,
    walking_expected,
)
from specialized_views import (
    overlapped,
    overlapped_expected,
    seen_otherwise,
    seen_otherwise_expected,
    sparse_expected,
    sparse_gemm,
    sparse_inputs,
)

from tilewright.kernels.attention import AttentionTiles, flash_attention


def _grouped_inputs():
    rng = np.random.default_rng(0)
    a = integers(160, 128).astype(ml_dtypes.bfloat16)
    codes, scales = (
        rng.integers(0, 256, (3, 64, 64)).astype(np.uint8),
        rng.integers(125, 130, (3, 64, 4)).astype(np.uint8),
    )
    lists = [np.array(one, np.int32) for one in ([0, 1, 1, 2], [0, 40, 104, 120], [40, 64, 16, 40])]
    return (a, codes, scales, *lists)


def _attention_inputs(kv_heads):
    rng = np.random.default_rng(0)
    q, k, v = (integers(heads, rows, 64, low=-1, high=2, seed=seed)
               for seed, (heads, rows) in enumerate([(2, 128), (kv_heads, 192), (kv_heads, 192)]))  # fmt: skip
    mask = rng.integers(0, 2, (2, 2, 3)).astype(np.int8)
    mask[0, 0] = 0
    return q, k, v, mask


def _decode_inputs():
    q = integers(2, 2, 64, 64, low=-1, high=2)
    k, v = (integers(320, 2, 64, low=-1, high=2, seed=seed) for seed in (1, 2))
    indices = np.array([[[4, 0, 2], [1, -1, 3]], [[2, 2, 0], [0, 0, 0]]], np.int32)
    return q, k, v, indices, np.array([[3, 3], [1, 0]], np.int32)


MASK = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.int32)
BLOCKS = np.random.default_rng(1).integers(0, 2, (2, 2, 4)).astype(np.int32)
A, B = integers(128, 512), integers(64, 512, seed=1)
WIDE_A, SMALL_A, ODD_A, TINY_A = integers(128, 256), integers(64, 256), integers(70, 256), integers(64, 128)
WIDE_B, OTHER_B = integers(64, 256, seed=1), integers(64, 256, seed=2)
SMALL_WIDE = integers(64, 512, seed=7)
HEADS = tuple(integers(1, heads, rows, 64, seed=8) for heads, rows in ((2, 150), (1, 201), (1, 201)))
BYTES = np.random.default_rng(2).integers(0, 256, (64, 128)).astype(np.uint8)
SMALL_Q, WIDE_K, WIDE_V = (integers(*shape, seed=seed) for seed, shape in enumerate([(64, 64), (256, 64), (256, 64)]))
CP_ASYNC, MIXED, SIMT = (
    ("LDGSTS", "ARRIVES.LDGSTSBAR", "HGMMA"),
    ("LDGSTS", "UTMALDG", "HGMMA"),
    ("STS", "UTMALDG", "HGMMA"),
)

PROGRAMS = [
    Program("sparse gemm", sparse_gemm, sparse_inputs(200, 136, 416), sparse_expected, instructions=("UTMALDG", "LDGSTS", "HGMMA.SP.64x64x32.F32")),
    Program("sparse gemm of whole tiles", sparse_gemm, sparse_inputs(256, 128, 512), sparse_expected, {"block": (128, 64, 128)},
            ("UTMALDG", "HGMMA.SP.64x64x32.F32")),
    Program("the author's plan", overlapped, (SMALL_Q, WIDE_K, WIDE_V), overlapped_expected,
            {"stage": (0, 0, 0, 0, 0, 1), "order": (0, 2, 3, 4, 1, 5)}),
    Program("views of slots", seen_otherwise, (integers(192, 256), integers(64, 256, seed=1)), seen_otherwise_expected),
    Program("masked", masked, (A, B, MASK), masked_expected),
    Program("masked one stage", masked, (A, B, MASK), masked_expected, {"stages": 1}),
    Program("nothing masked in", masked, (A, B, 0 * MASK), masked_expected),
    Program("block sparse gemm", block_sparse, (WIDE_A, integers(256, 128, seed=3), BLOCKS), block_sparse_expected),
    Program("ragged lengths", ragged, (integers(3, 64, 256), integers(3, 64, 256, seed=1), np.array([8, 0, 5], np.int32)),
            ragged_expected),
    Program("either way", either_way, (integers(6, 64, 160), integers(160, 64, seed=1), integers(160, 64, seed=2),
            np.array([1, 0, 0, 2, 1, 0], np.int32)), either_way_expected, instructions=("UTMALDG", "HGMMA")),
    Program("leaving", leaving, (integers(512, 128), integers(64, 128, seed=1), np.array([0, 0, 0, 1, 2, 0, 0, 0], np.int32)),
            leaving_expected),
    Program("returning", leaving, (integers(512, 128), integers(64, 128, seed=1), np.array([0, 2, 0, 0, 1, 0, 0, 0], np.int32)),
            leaving_expected),
    Program("cp.async alone", plain, (integers(70, 196), integers(196, 68, seed=1)), product, instructions=CP_ASYNC),
    Program("mixed stages", plain, (integers(70, 200), integers(200, 68, seed=1)), product, instructions=MIXED),
    Program("decoding producer", decoding_producer, (WIDE_A, BYTES), lambda a, b: product(a, decoded(b).T),
            instructions=SIMT),
    Program("decoding through registers", decoding_through_registers,
            (SMALL_A, integers(64, 256, dtype=np.int8, seed=4)), lambda a, b: 2 * product(a, b.T), instructions=SIMT),
    Program("decoding consumer", decoding_consumer, (WIDE_A, BYTES), lambda a, b: product(a, decoded(b).T),
            instructions=SIMT),
    Program("grouped mxfp4", grouped_mxfp4, _grouped_inputs(), grouped_expected, instructions=SIMT),
    Program("two gemms", two_gemms, (SMALL_A, WIDE_B, OTHER_B),
            lambda a, b, d: np.stack([product(a, b.T), product(a, d.T)])),
    Program("loops in a row", loops_in_a_row, (integers(256, 256), WIDE_B), loops_expected),
    Program("nested", nested, (TINY_A, integers(3, 64, 128, seed=5)), nested_expected),
    Program("persistent", persistent, (A, integers(128, 512, seed=6)), lambda a, b: product(a, b.T)),
    Program("no trips", counted, (ODD_A, WIDE_B, 1), counted_expected),
    Program("shorter than the pipeline", counted, (ODD_A, WIDE_B, 3), counted_expected),
    Program("counted at launch", counted, (ODD_A, WIDE_B, 8), counted_expected),
    Program("walking", walking, (SMALL_WIDE, B, np.array([0, 2, -1, 3, 1, 9], np.int32)), walking_expected),
    Program("attention", flash_attention.direct.function, HEADS, attention_expected,
            {"dtype": "float16", "tiles": AttentionTiles(128, 64, 256)}, tolerance=3e-3),
    Program("causal attention", flash_attention.direct.function, HEADS, lambda *heads: attention_expected(*heads, causal=True),
            {"dtype": "float16", "causal": True, "tiles": AttentionTiles(64, 64, 128, 1)}, tolerance=3e-3),
    Program("block sparse attention", sparse_attention, _attention_inputs(2), sparse_attention_expected, tolerance=2e-3),
    Program("seer attention", sparse_attention, _attention_inputs(2), sparse_attention_expected, {"stages": 1},
            tolerance=2e-3),
    Program("ragged sparse decode", sparse_decode, _decode_inputs(), sparse_decode_expected),
]  # fmt: skip
