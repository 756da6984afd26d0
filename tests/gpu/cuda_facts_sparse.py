"""What is known of 2:4 sparse products, checked on a device or its emulator with exact numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda_facts_matrix import carried, image_of, places
from cuda_runner import Scalar, text

from tilewright.formats.sparse import compress, group_of, prune
from tilewright.ir.dtypes import DType
from tilewright.targets.cuda.instructions import BF16, E4M3, E5M2, F16, F32, S8, S32, TF32, U8, mma_a, mma_b, mma_d
from tilewright.targets.gpu.copies.boxes import Swizzle


def metadata_word(lane: int, bits: int, k: int, selector: int) -> list[tuple[int, int]] | None:
    """Row and group of each of the eight nibbles in a lane's word for a tile of 16 rows; None where its word does not
    count.

    Parameters
    ----------
    bits : of an element: 32, 16 or 8.
    k : of the instruction, counted with what is not kept.
    selector : which lanes of a quad give their words.
    """
    g, q = lane // 4, lane % 4
    half = k * bits == 256
    if bits == 8:
        if half and q // 2 != selector:
            return None
        return [(g + 8 * (q & 1), j if half else 8 * (q >> 1) + j) for j in range(8)]
    if (q if half else q // 2) != selector:
        return None
    return [(g + 8 * (j >> 2), (j & 3) if half else 4 * (q & 1) + (j & 3)) for j in range(8)]


Fact = tuple[str, Callable[[Any], None]]

MMA = [
    *(("mma_f16_k16", F32, F16, 16, selector) for selector in range(4)),
    *((f"mma_{name}_k32", F32, kind, 32, selector) for name, kind in (("f16", F16), ("bf16", BF16)) for selector in (0, 1)),
    ("mma_s8_k32", S32, S8, 32, 0), ("mma_s8_k32", S32, S8, 32, 1), ("mma_s8_k64", S32, S8, 64, 0), ("mma_u8_k64", S32, U8, 64, 0),
    ("mma_tf32_k16", F32, TF32, 16, 0), ("mma_tf32_k16", F32, TF32, 16, 1),
]  # fmt: skip
WGMMA = [
    ("ss_f16", F32, F16, 0), ("ss_f16", F32, F16, 1), ("rs_f16", F32, F16, 0), ("rs_f16", F32, F16, 1), ("ss_bf16", F32, BF16, 0),
    ("ss_s8", S32, S8, 0), ("rs_s8", S32, S8, 0), ("ss_e4m3", F32, E4M3, 0), ("rs_e4m3", F32, E4M3, 0),
    ("ss_mn_f16", F32, F16, 0), ("rs_mn_f16", F32, F16, 1), ("ss_tf32", F32, TF32, 0), ("ss_tf32", F32, TF32, 1),
    ("rs_tf32", F32, TF32, 0), ("ss_u8", S32, U8, 0), ("ss_e5m2", F32, E5M2, 0),
]  # fmt: skip
STEPS = 4
IGNORED = 0xE9DC84C8
"""A valid word in the lanes whose words do not count."""


def facts(arch: Any) -> Iterator[Fact]:
    """Every fact of this file that an architecture should confirm."""
    for name, d, kind, k, selector in MMA:
        yield f"{name}_{selector} sparse", lambda runner, s=(name, d, kind, k, selector): check_mma(runner, *s)
    if arch.compute >= 89:
        for name, kind in (("mma_e4m3_k64", E4M3), ("mma_e5m2_k64", E5M2)):
            yield f"{name}_0 sparse", lambda runner, s=(name, kind): check_mma(runner, s[0], F32, s[1], 64, 0)
    if arch.has("wgmma"):
        for name, d, kind, selector in WGMMA:
            yield f"wgmma {name}_{selector} sparse", lambda runner, s=(name, d, kind, selector): check_wgmma(runner, *s)


def operands(rows: int, columns: int, k: int, kind: DType) -> tuple[np.ndarray, np.ndarray]:
    """A sparse and a dense matrix of small numbers."""
    rng = np.random.default_rng([rows, columns, k])
    low = 0 if kind == U8 else -4
    return prune(rng.integers(low, 5, (rows, k)), group_of(kind)), rng.integers(low, 5, (columns, k))


def words(metadata: np.ndarray, bits: int, k: int, selector: int) -> np.ndarray:
    """The 32 lanes' words for 16 rows of metadata."""
    nibbles = np.stack([metadata & 15, metadata >> 4], axis=-1).reshape(metadata.shape[0], -1)
    result = np.full(32, IGNORED, np.uint32)
    for lane in range(32):
        found = metadata_word(lane, bits, k, selector)
        if found is not None:
            result[lane] = sum(int(nibbles[row, group]) << 4 * j for j, (row, group) in enumerate(found))
    return result


def check_mma(runner: Any, name: str, d: DType, kind: DType, k: int, selector: int) -> None:
    a, b = operands(16, 8, k, kind)
    kept, metadata = compress(a, group_of(kind))
    total = np.random.default_rng(k).integers(-9, 9, (16, 8))
    result = carried(total, d)
    runner.run(
        text("facts_sparse"), f"{name}_{selector}", 1, 32,
        [carried(kept, kind), carried(b.T, kind), result, words(metadata, kind.bits, k, selector),
         places(mma_a(kind.bits, k // 2), 32, k // 2), places(mma_b(kind.bits, k), 32, 8), places(mma_d(8), 32, 8)],
    )  # fmt: skip
    np.testing.assert_array_equal(result.astype(np.float64), (a @ b.T + total).astype(np.float64))


def check_wgmma(runner: Any, name: str, d: DType, kind: DType, selector: int) -> None:
    k = 512 // kind.bits
    a, b = operands(64, 64, STEPS * k, kind)
    kept, metadata = compress(a, group_of(kind))
    image_a, field_a, steps_a = image_of(kept, kind, ("k", Swizzle.B128, True))
    image_b, field_b, steps_b = image_of(b, kind, ("mn" if "_mn_" in name else "k", Swizzle.B128, True))
    step_bytes = k // (2 * group_of(kind))
    one = places(mma_a(kind.bits, k // 2, 4), 128, STEPS * k // 2)
    lanes = [
        words(metadata[16 * warp : 16 * warp + 16, step * step_bytes : (step + 1) * step_bytes], kind.bits, k, selector)
        for step in range(STEPS) for warp in range(4)
    ]  # fmt: skip
    out = np.zeros((64, 64), d.numpy)
    runner.run(
        text("facts_sparse"), f"{name}_{selector}", 1, 128,
        [image_a, Scalar("i", image_a.size), Scalar("Q", field_a), steps_a, image_b, Scalar("i", image_b.size), Scalar("Q", field_b),
         np.ascontiguousarray(steps_b[::2]), carried(kept, kind), np.concatenate([one + step * k // 2 for step in range(STEPS)]).astype(np.int32),
         np.concatenate(lanes), out, places(mma_d(64, 4), 128, 64)],
        shared=(image_a.size + 1023) // 1024 * 1024 + image_b.size,
    )  # fmt: skip
    np.testing.assert_array_equal(out.astype(np.float64), (a @ b.T).astype(np.float64))
